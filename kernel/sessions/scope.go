package sessions

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Scope is one realm as one session sees it.
type Scope struct {
	*Session
	Realm sigma.RealmID
}

// Named is the root of what named keeps of the realm, for who asks: for the realm's programs modes
// count.
func (s Scope) Named(ctx context.Context) (sigma.File, error) {
	if s.Realm == sigma.SystemRealm && !s.IsService(services.Machined) &&
		!s.IsService(services.Lcsched) { // the latter for its election
		return nil, sigma.Errorf("kernel.root", sigma.KindNotFound, "the realm system keeps no names")
	}
	return s.kept(ctx)
}

// kept is Named for ourselves: when the session of a service ends, the launcher may have told
// before that the service is no more.
func (s Scope) kept(ctx context.Context) (sigma.File, error) {
	if s.Realm == sigma.SystemRealm {
		n, err := s.x.cfg.Realms.System(ctx)
		if err != nil {
			return nil, err
		}
		return n.AsOwner(), nil
	}
	n, err := s.x.cfg.Realms.Named(ctx, s.Realm)
	if err != nil {
		return nil, err
	}
	if !s.Principal.System {
		return n.AsOwner(), nil
	}
	return n, nil
}

// OwnKin is the proc if it sees only itself and its descendants, else "".
func (s Scope) OwnKin() sigma.ProcID {
	if s.View != nil && s.View.AllProcs()&sigma.RightRead == 0 {
		return s.Principal.Proc
	}
	return ""
}

// MayProc says whether the session may see a proc (RightRead), or act on it (RightWrite). With a
// view it may do both to itself and its descendants; to others as far as the view shows /proc. That
// there are others is not told.
func (s Scope) MayProc(ctx context.Context, id sigma.ProcID, need sigma.Rights) error {
	if s.View == nil || s.Principal.Proc == id {
		return nil
	}
	granted := s.View.AllProcs()
	if granted&need == need {
		return nil
	}
	at, ok := s.x.cfg.Remote.Find(ctx, s.Realm, id)
	switch {
	case ok && slices.Contains(at.Kin, s.Principal.Proc):
		return nil
	case ok && granted&sigma.RightRead != 0:
		return &sigma.Error{Op: "kernel.procs", Kind: sigma.KindPermission,
			Msg: "the proc's view shows other procs for reading only"}
	}
	return procs.Unknown(id)
}

// Caps tells what a proc that is here may reach, as sigmap.Caps.
func (x *Sessions) Caps(realm sigma.RealmID, id sigma.ProcID) ([]byte, error) {
	p, ok := x.cfg.Procs.Proc(realm, id)
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
	sessions := x.Open(func(s *Session) bool { return s.Principal.Proc == id && !s.Far })
	caps.Listens = x.cfg.Proxy.Listens(id)
	for _, s := range sessions {
		s.mu.Lock()
		caps.Leases = append(caps.Leases, slices.Collect(maps.Keys(s.leases))...)
		s.mu.Unlock()
		if s.View != nil {
			s.View.Caps(&caps)
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
