package kernel

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// capsCall is the call caps: of the provider about any proc of the realm, of a proc about itself.
// Endpoints are told in full, so nobody else may ask.
func (r sys) capsCall(ctx context.Context, id sigma.ProcID) ([]byte, error) {
	if p := r.tree.principal; !p.System && p.Proc != id {
		return nil, sigma.Errorf("kernel.caps", sigma.KindPermission, "a proc may ask this about itself only")
	}
	return r.tree.k.remote.Caps(ctx, r.realm, id)
}

// capsHere tells what a proc that is here may reach.
func (k *Kernel) capsHere(realm sigma.RealmID, id sigma.ProcID) ([]byte, error) {
	var sessions []*tree
	p, ok := k.procs.Proc(realm, id)
	if !ok {
		return nil, procs.Unknown(id)
	}
	if p.Ended() {
		return nil, sigma.Errorf("kernel.caps", sigma.KindUnavailable, "the proc has ended and may reach nothing")
	}
	caps := sigmap.Caps{ID: id, Realm: realm, Machine: p.Machine, Profile: p.Profile, All: p.View == nil, Kin: p.Kin,
		Memory: p.Memory, Tasks: runner.PidsMax, Files: runner.NoFileMax}
	if p.View != nil {
		caps.View = p.View.Entries()
	}
	k.sessions.mu.Lock()
	for t := range k.sessions.open {
		if t.principal.Proc == id && !t.far {
			sessions = append(sessions, t)
		}
	}
	k.sessions.mu.Unlock()
	caps.Listens = k.proxy.Listens(id)
	for _, t := range sessions {
		t.mu.Lock()
		caps.Leases = append(caps.Leases, slices.Collect(maps.Keys(t.leases))...)
		t.mu.Unlock()
		if t.view != nil {
			t.view.Caps(&caps)
		}
	}
	slices.Sort(caps.Leases)
	for _, es := range []*[]sigma.Endpoint{&caps.Listens, &caps.Read} {
		slices.SortFunc(*es, func(a, b sigma.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
		*es = (*es)[:min(len(*es), sigmap.CapsMost)]
	}
	caps.Leases = caps.Leases[:min(len(caps.Leases), sigmap.CapsMost)]
	return sigmap.Payload(func(c *sigmap.Coder) { c.Caps(&caps) })
}
