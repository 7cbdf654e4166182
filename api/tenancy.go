package api

// Tenant is a department: a quota and who may do what in it.
type Tenant struct {
	Meta
	Spec   TenantSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status TenantStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// TenantSpec is what an administrator sets.
type TenantSpec struct {
	DisplayName string   `json:"displayName,omitempty" doc:"Name for people"`
	Quota       Quota    `json:"quota" doc:"Upper bounds; the first four must be given"`
	Members     []Member `json:"members,omitempty" doc:"Who has which role in this tenant"`
}

// Quota bounds what a tenant's VMs hold, whether they run or not.
type Quota struct {
	VMs                 int            `json:"vms" minimum:"0" doc:"VMs; 0 = none"`
	VCPUs               int            `json:"vcpus" minimum:"0" doc:"vCPUs of all VMs together; 0 = none"`
	Memory              string         `json:"memory" example:"512GiB" doc:"Memory of all VMs together; 0GiB = none"`
	VFs                 int            `json:"vfs" minimum:"0" doc:"Virtual functions in all"`
	VFsPerFabric        map[string]int `json:"vfsPerFabric,omitempty" doc:"Virtual functions per fabric; a fabric not named here is bounded by vfs alone"`
	GuaranteedBandwidth string         `json:"guaranteedBandwidth,omitempty" example:"40Gbps" doc:"Sum of minRate over all VFs; empty = no bound"`
}

// Member gives a user a role in the tenant.
type Member struct {
	User string `json:"user" doc:"Name of the user"`
	Role string `json:"role" enum:"tenant-owner,member,viewer,auditor" doc:"tenant-owner: all but quota; member: VMs, networks, security groups; viewer: read; auditor: read, the audit too"`
}

// TenantStatus is what the tenant holds now.
type TenantStatus struct {
	Usage      []QuotaLine `json:"usage,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// QuotaLine is one row of a quota sheet: used + asked must not exceed limit.
type QuotaLine struct {
	Resource string `json:"resource" doc:"vms, vcpus, memory, vfs, vfs/FABRIC, guaranteedBandwidth"`
	Used     int64  `json:"used"`
	Asked    int64  `json:"asked,omitempty"`
	Limit    int64  `json:"limit"`
	Unit     string `json:"unit,omitempty" doc:"B for memory, bps for bandwidth, empty for counts"`
	Exceeded bool   `json:"exceeded,omitempty"`
}

// Network is a tenant's network on one fabric.
type Network struct {
	Meta
	Spec   NetworkSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status NetworkStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// NetworkSpec is what is asked for. VLAN and gateway are the platform's: a tenant may not change them.
type NetworkSpec struct {
	Fabric  string   `json:"fabric" doc:"Fabric that carries it"`
	CIDR    string   `json:"cidr" example:"10.20.0.0/24"`
	VLAN    int      `json:"vlan,omitempty" minimum:"0" maximum:"4094" doc:"0 = the next free one of the fabric's pool"`
	Gateway string   `json:"gateway,omitempty" doc:"Default: the first address of cidr; only operators may set it"`
	MTU     int      `json:"mtu,omitempty" doc:"Default: the fabric's"`
	DNS     []string `json:"dns,omitempty" doc:"Name servers for the guests"`
}

// NetworkStatus is what was allocated.
type NetworkStatus struct {
	VLAN       int         `json:"vlan,omitempty"`
	Gateway    string      `json:"gateway,omitempty"`
	MTU        int         `json:"mtu,omitempty"`
	Addresses  int         `json:"addresses" doc:"Usable addresses"`
	Used       int         `json:"used"`
	Conditions []Condition `json:"conditions,omitempty"`
}

// SecurityGroup is a set of filter rules for VMs of a tenant.
type SecurityGroup struct {
	Meta
	Spec   SecurityGroupSpec   `json:"spec" doc:"What is wanted: people write it"`
	Status SecurityGroupStatus `json:"status,omitzero" doc:"What is: the system writes it"`
}

// SecurityGroupSpec is what the tenant wrote.
type SecurityGroupSpec struct {
	Network string         `json:"network" doc:"The network whose VMs it filters"`
	Rules   []SecurityRule `json:"rules,omitempty" doc:"Apply in order; what none matches is denied"`
}

// SecurityRule allows or denies one kind of traffic. Rules apply in order; what none matches is denied.
type SecurityRule struct {
	Direction   string `json:"direction" enum:"ingress,egress"`
	Action      string `json:"action,omitempty" enum:"allow,deny" doc:"Default allow"`
	Protocol    string `json:"protocol" enum:"any,tcp,udp,icmp"`
	Ports       string `json:"ports,omitempty" example:"8000-8080" doc:"Port or range for tcp and udp; empty = all"`
	Remote      string `json:"remote,omitempty" doc:"CIDR, 'network' (the own network) or empty = anywhere"`
	Description string `json:"description,omitempty" doc:"Free text"`
	Locked      bool   `json:"locked,omitempty" readOnly:"true" doc:"Set in status.effective on the rules that the platform adds and nobody may close"`
}

// SecurityGroupStatus shows what really applies.
type SecurityGroupStatus struct {
	Effective  []SecurityRule `json:"effective,omitempty" doc:"Locked rules first (UDP 4791 inside the network), then the tenant's"`
	Conditions []Condition    `json:"conditions,omitempty"`
}
