package server

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/verbena-cloud/verbena/api"
	"github.com/verbena-cloud/verbena/internal/auth"
	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/vm"
)

const (
	powerOff = "off"
	powerOn  = "on"
)

type vmKind struct {
	kind[api.VM, *api.VM]
}

func (s *Server) vmKind() *vmKind {
	return &vmKind{kind[api.VM, *api.VM]{
		s: s, name: api.KindVM, plural: "vms", noun: "vm",
		perm: verbs{auth.VMRead, auth.VMCreate, auth.VMUpdate, auth.VMDelete},
		create: func(tx store.Tx, o *api.VM, by object.Who) (any, error) {
			why, err := vm.Create(tx, o, by, s.alive)
			return &why, err
		},
		update: vm.Update, remove: vm.Delete,
		fill:    func(_ store.Tx, o *api.VM) error { s.shadeVM(o); return nil },
		asIs:    func(o *api.VM) bool { lost, _ := s.ident.live.lost(o.Status.Host, s.now()); return !lost },
		may:     mayVM,
		veil:    veilVM,
		plan:    planVM,
		wrote:   s.wroteVM,
		refused: s.refusedVM,
	}}
}

// veilVM hides the user data from those who may not change the VM: it may hold secrets, and whoever only
// looks after VMs (a viewer, an auditor, a token cut down to reading) has no use for them.
func veilVM(c *call, o *api.VM) bool {
	if o.Spec.UserData == "" || c.Can(auth.VMUpdate, o.Tenant) {
		return false
	}
	o.Spec.UserData, o.Status.UserDataHidden = "", true
	return true
}

// mayVM refuses a copy that was read without its user data: written back, it would take them out of the VM.
func mayVM(_ *call, _, o *api.VM) error {
	if !o.Status.UserDataHidden || o.Spec.UserData != "" {
		return nil
	}
	var f fault.Faults
	f.Add("spec.userData", "it was hidden from who read this copy; put it back in, or take status.userDataHidden out to have none")
	return f.Err(object.Title(api.KindVM, &o.Meta))
}

// vmRoutes are the common verbs and what else can be done with a VM.
func (s *Server) vmRoutes() []route {
	k := s.vmKind()
	const one = "/v1/tenants/{tenant}/vms/{name}"
	return append(k.routes(),
		handle(k.route(route{id: "rebuild", method: http.MethodPost, path: one + "/rebuild", perm: auth.VMRebuild, scope: scopeTenant,
			summary: "Make it anew from its image, in place: same host, VFs, MACs and addresses", describe: func(op *huma.Operation, schemas huma.Registry) {
				k.describeObject(http.StatusAccepted)(op, schemas)
				k.describePlan(op, schemas)
			}}), k.rebuild),
		handle(k.route(route{id: "explain", method: http.MethodGet, path: one + "/explain", perm: auth.VMExplain, scope: scopeTenant,
			summary: "Why it is where it is, and where else it could be, host by host"}), k.explain),
	)
}

type explainAnswer struct{ Body api.Explanation }

func (k *vmKind) explain(ctx context.Context, _ *struct{}) (*explainAnswer, error) {
	c := callFrom(ctx)
	out := &explainAnswer{}
	err := k.s.db.View(ctx, func(tx store.Tx) error {
		o, err := k.load(tx, c, match{})
		if err != nil {
			return err
		}
		out.Body, err = vm.Explain(tx, *o, k.s.alive)
		return err
	})
	return out, err
}

func (k *vmKind) rebuild(ctx context.Context, in *deleteInput) (*answer, error) {
	c := callFrom(ctx)
	match, err := parseMatch(in.IfMatch)
	if err != nil {
		return nil, err
	}
	c.object = api.Ref{Kind: k.name, Tenant: c.tenant, Name: c.name}
	by := k.s.who(c)
	var old *api.VM
	change := func(tx store.Tx, o *api.VM) error {
		if old, err = k.load(tx, c, match); err != nil {
			return err
		}
		made, err := vm.Rebuild(tx, c.tenant, c.name, by)
		if err != nil {
			return err
		}
		*o = *made
		return nil
	}
	if in.DryRun {
		return k.dryRun(ctx, &api.VM{}, unexplained(change)) // it stays where it is: there is nothing to explain
	}
	return k.rewrite(ctx, c, func(tx store.Tx) (written[api.VM], error) {
		var o api.VM
		err := change(tx, &o)
		return written[api.VM]{old: old, o: &o, status: http.StatusAccepted}, err
	})
}

// planVM is the answer of a dry run. That no host fits or the quota is exhausted is an answer, too, and the
// one that people ask for.
func planVM(o *api.VM, why any, err error) (any, error) {
	plan := &api.VMPlan{VM: *o, Steps: []string{}}
	e, explained := why.(*api.Explanation)
	switch {
	case err == nil && explained:
		plan.Explanation, plan.Steps = *e, vm.Steps(o)
	case err == nil:
		plan.Steps = vm.Steps(o)
		plan.Explanation = api.Explanation{Fits: true, Host: o.Status.Host, Hosts: []api.HostVerdict{},
			Summary: "it stays on host " + o.Status.Host + " with all that it holds"}
	case fault.Is(err, fault.Quota) || fault.Is(err, fault.NoCapacity):
		if explained {
			plan.Explanation = *e
		}
		if plan.Explanation.Summary == "" {
			plan.Explanation.Summary = fault.Text(err)
		}
	default:
		return nil, err
	}
	if plan.Explanation.Hosts == nil {
		plan.Explanation.Hosts = []api.HostVerdict{}
	}
	return plan, nil
}

// wroteVM tells of a change and starts the operation that the agent's reports will end.
func (s *Server) wroteVM(tx store.Tx, c *call, old, o *api.VM) error {
	action, reason, message := vmAction(old, o)
	if action == "" {
		return nil
	}
	if err := s.begin(tx, o, action, c.Who()); err != nil {
		return err
	}
	return s.event(tx, refOf(&o.Meta), eventNormal, reason, message)
}

// vmAction is what a change asks the host to do.
func vmAction(old, o *api.VM) (action, reason, message string) {
	switch {
	case o == nil:
		return "", "", ""
	case old == nil:
		return actionCreate, "Placed", object.Condition(o.Status.Conditions, vm.CondPlaced).Message
	case old.Deleting == nil && o.Deleting != nil:
		return actionDelete, "Deleting", "deletion was asked for; host " + o.Status.Host + " must prove that all it holds is free"
	case old.Status.Generation != o.Status.Generation:
		return actionRebuild, "Rebuilding", "to be made anew from image " + o.Spec.Image + " on host " + o.Status.Host
	case power(old) != powerOff && power(o) == powerOff:
		return actionStop, "Stopping", "power off was asked for"
	case power(old) == powerOff && power(o) != powerOff:
		return actionStart, "Starting", "power on was asked for"
	default:
		return "", "", ""
	}
}

func power(o *api.VM) string {
	if o.Spec.Power == "" {
		return powerOn
	}
	return o.Spec.Power
}

// refusedVM tells the tenant of a VM that it could not have: there is no VM that the event could be about.
func (s *Server) refusedVM(ctx context.Context, c *call, o *api.VM, err error) {
	reason := ""
	switch fault.KindOf(err) {
	case fault.Quota:
		reason = "QuotaExceeded"
	case fault.NoCapacity:
		reason = "NoCapacity"
	default:
		return
	}
	if !s.ident.limits.allow("refusal:"+c.tenant, refusalEvery, refusalBurst, s.now()) {
		return // the answer told the caller; a loop must not fill the store
	}
	about := api.Ref{Kind: api.KindTenant, Name: c.tenant}
	text := fault.Text(err)
	if !strings.HasPrefix(text, "VM "+o.Name) {
		text = "VM " + o.Name + ": " + text
	}
	_, lost := s.db.Update(ctx, func(tx store.Tx) error {
		return s.event(tx, about, eventWarning, reason, text)
	})
	if lost != nil && !errors.Is(lost, context.Canceled) {
		s.log.WarnContext(ctx, "an event about a refused VM is lost", "request", c.id, "err", lost)
	}
}
