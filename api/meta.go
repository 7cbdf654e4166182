// Package api has the wire types of Verbena's API v1: flat objects with a spec that people write and
// the server never rewrites, and a status that the system writes.
//
// Quantities travel as text with a unit ("16GiB", "10Gbps"), addresses as text; the rules parse them.
// The package imports the standard library only, so that clients can use it alone.
package api

import "time"

// Kind names an object type; it is the `kind` of a manifest.
type Kind string

// The kinds of API v1.
const (
	KindTenant        Kind = "Tenant"
	KindNetwork       Kind = "Network"
	KindSecurityGroup Kind = "SecurityGroup"
	KindFlavor        Kind = "Flavor"
	KindImage         Kind = "Image"
	KindVM            Kind = "VM"
	KindHost          Kind = "Host"
	KindFabric        Kind = "Fabric"
	KindEvent         Kind = "Event"
	KindOperation     Kind = "Operation"
	KindAuditRecord   Kind = "AuditRecord"
	KindUser          Kind = "User"
	KindToken         Kind = "Token"
)

// Meta is what every object has besides spec and status; it is flat in JSON.
type Meta struct {
	Kind   Kind              `json:"kind" doc:"Object type"`
	Name   string            `json:"name" doc:"Unique in its kind and tenant: lower-case letters, digits and '-', 1 to 63, starting with a letter" example:"train-0"`
	Tenant string            `json:"tenant,omitempty" doc:"Owning tenant, for tenant-scoped kinds"`
	Labels map[string]string `json:"labels,omitempty" doc:"Free key/value pairs for selectors"`

	// Written by the server; ignored in input.
	UID      string     `json:"uid,omitempty" doc:"Identity over time: a new object of the same name has another" readOnly:"true"`
	Created  *time.Time `json:"created,omitempty" doc:"When it was created (RFC 3339)" readOnly:"true"`
	Deleting *time.Time `json:"deleting,omitempty" doc:"When deletion was asked for; the object stays until what it holds is proven free" readOnly:"true"`
	Revision int64      `json:"revision,omitempty" doc:"Revision of the last change; the value of ETag and If-Match" readOnly:"true"`
}

// Condition is one aspect of an object's state, with the reason in words.
type Condition struct {
	Type    string    `json:"type" doc:"Aspect, e.g. Placed, VFsVerified, Ready"`
	Status  string    `json:"status" enum:"True,False,Unknown" doc:"Whether it holds"`
	Reason  string    `json:"reason,omitempty" doc:"CamelCase word for programs"`
	Message string    `json:"message,omitempty" doc:"Sentence for people: what, why, what to do next"`
	Since   time.Time `json:"since" doc:"When status last changed"`
}

// Ref points at an object.
type Ref struct {
	Kind   Kind   `json:"kind"`
	Tenant string `json:"tenant,omitempty"`
	Name   string `json:"name"`
	UID    string `json:"uid,omitempty"`
}

// List is a page of objects. Continue, if not empty, fetches the next page; Revision is where a watch may resume.
type List[T any] struct {
	Items    []T    `json:"items"`
	Continue string `json:"continue,omitempty"`
	Revision int64  `json:"revision"`
}

// Problem is an error answer (RFC 9457, application/problem+json). It never holds the request's body.
type Problem struct {
	Type      string         `json:"type" doc:"Documentation page of the code"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Code      string         `json:"code" doc:"Stable kind for programs, see docs/errors.md"`
	Detail    string         `json:"detail,omitempty" doc:"What happened to which object and what to do next"`
	Errors    []ProblemField `json:"errors,omitempty" doc:"Every wrong place of the input"`
	RequestID string         `json:"requestId,omitempty"`
	Retryable bool           `json:"retryable,omitempty" doc:"Whether the same request may succeed later"`
	Hint      string         `json:"hint,omitempty"`

	Explanation *Explanation `json:"explanation,omitempty" doc:"Why no host fits, for code no-capacity"`
	Quota       []QuotaLine  `json:"quota,omitempty" doc:"The quota sheet, for code quota"`
}

// ProblemField is one wrong place.
type ProblemField struct {
	Location string `json:"location" doc:"JSON path, e.g. body.spec.memory"`
	Message  string `json:"message"`
}

// ObjectMeta gives generic code access to the Meta of any object.
func (m *Meta) ObjectMeta() *Meta { return m }
