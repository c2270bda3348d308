package sessions

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/quotas"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/sigmap"
)

// Session is what one program is served. It remembers the session's leases, which end with it.
type Session struct {
	x         *Sessions
	Principal sigma.Principal
	View      *viewfs.Viewer  // of a proc that does not see all of its realm; nil = it does
	Granted   *guests.Granted // of a guest; nil = the session was not begun with a credential
	Far       bool            // another machine's sigmad asks: it is shown only what is of this machine
	Inherited bool            // it goes on with a proc of an earlier sigmad, which has roots attached

	quota  *quotas.Quota          // nil = the session is not counted
	end    context.CancelFunc     // ends the session
	over   chan struct{}          // closed when its last request is over
	realms map[sigma.RealmID]bool // Sessions.mu; those it is attached to

	mu      sync.Mutex
	leases  map[sigma.LeaseID]sigma.RealmID // mu
	clients []uint64                        // mu; that number mutations
	counted bool                            // mu; in quota
	// a program of no proc was told of a proc's end while the machine was going to be stopped
	waited atomic.Bool
}

// reattachPause is the time between attempts to attach the roots of an inherited session.
const reattachPause = 200 * time.Millisecond

// Attach implements sigma.Tree. An inherited session waits until its realm can be entered: its
// client attaches each root once, and a root that was refused would be lost to the proc for good.
func (s *Session) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	f, err := s.attach(ctx, p, name)
	for s.Inherited && sigma.KindOf(err) == sigma.KindUnavailable && retry.Pause(ctx, reattachPause) {
		f, err = s.attach(ctx, p, name)
	}
	return f, err
}

// attach gives the root of a realm. A program of the admin socket chooses its realm by name; a proc
// has its own. Another machine's sigmad is shown what this machine has of one realm, and nothing
// else of the realm's root, or there would be two ways to everything, and two machines could ask
// each other in a circle.
func (s *Session) attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	realm := p.Realm
	if p.System && !s.Far {
		if realm = sigma.RealmID(name); name == "" {
			realm = sigma.DefaultRealm
		}
		if err := realm.Check(); err != nil {
			return nil, err
		}
	} else if name != "" && sigma.RealmID(name) != realm {
		return nil, sigma.Errorf("kernel.Attach", sigma.KindPermission, "this program belongs to the realm %s", realm)
	}
	in := Scope{Session: s, Realm: realm}
	if realm != sigma.SystemRealm && !s.Far {
		if err := s.x.cfg.Cluster.ShutOut(); err != nil { // nobody would answer for long
			return nil, err
		}
		if _, err := in.Named(ctx); err != nil {
			if sigma.KindOf(err) == sigma.KindNotFound {
				return nil, &sigma.Error{Op: "kernel.Attach", Kind: sigma.KindNotFound,
					Msg: "no realm " + string(realm), Hint: "sigma realm ls lists them; sigma realm create makes one"}
			}
			return nil, err
		}
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	if err := s.x.cfg.Realms.MayAttach(realm); err != nil {
		return nil, err
	}
	s.realms[realm] = true
	switch {
	case s.Far:
		return s.x.cfg.Shared(in), nil
	case s.View != nil:
		return s.View.Root(), nil
	}
	return s.x.cfg.Root(in), nil
}

// enter counts the session at its first attach.
func (s *Session) enter() error {
	s.mu.Lock()
	first := s.quota != nil && !s.counted
	s.counted = s.quota != nil
	s.mu.Unlock()
	if !first {
		return nil
	}
	err := s.quota.Enter()
	if err != nil {
		s.mu.Lock()
		s.counted = false
		s.mu.Unlock()
	}
	return err
}

// release ends the session's leases, so that ephemeral files vanish with the proc that made them
// (000 §3.4).
func (s *Session) release() {
	s.forget()
	s.mu.Lock()
	leases := s.leases
	s.leases = nil
	s.mu.Unlock()
	if s.View != nil {
		s.View.Release()
	}
	if len(leases) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.x.ctx), services.ReconnectMax)
	defer cancel()
	for id, realm := range leases {
		n, err := Scope{Session: s, Realm: realm}.kept(ctx)
		if err == nil {
			err = n.(sigma.Leaser).Revoke(ctx, id)
		}
		if err != nil {
			s.x.cfg.Log.Debug("lease left to expire", "realm", realm, "err", err)
		}
	}
}

// clientsMax bounds the numbering clients that are noted of one session; others are forgotten by
// named when they were idle for long.
const clientsMax = 64

// numbered notes a client that numbers its mutations in this session.
func (s *Session) numbered(client uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) < clientsMax && !slices.Contains(s.clients, client) {
		s.clients = append(s.clients, client)
	}
}

// forget tells the realms' names that the session's clients are gone. No request of the session is
// under way any more.
func (s *Session) forget() {
	s.mu.Lock()
	clients := s.clients
	s.clients = nil
	s.mu.Unlock()
	if len(clients) == 0 {
		return
	}
	s.x.mu.Lock()
	realms := slices.Collect(maps.Keys(s.realms))
	s.x.mu.Unlock()
	for _, realm := range realms {
		if n := s.x.cfg.Realms.Known(realm); n != nil {
			n.Forget(clients)
		}
	}
}

// Leased notes a lease of a realm that ends with the session, and Revoked that it is over.
func (s *Session) Leased(id sigma.LeaseID, realm sigma.RealmID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leases == nil {
		s.leases = map[sigma.LeaseID]sigma.RealmID{}
	}
	s.leases[id] = realm
}

// Revoked notes that a lease is over.
func (s *Session) Revoked(id sigma.LeaseID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, id)
}

// AwaitsEnd notes that somebody outside was told of a proc's end while the machine was going to be
// stopped, and may have more to ask.
func (s *Session) AwaitsEnd() {
	if (s.Principal.Proc == "" || s.Granted != nil) && s.x.cfg.Cluster.Leaves() {
		s.waited.Store(true)
	}
}

// service is this machine's service whose session it is; nil = it is none's.
func (s *Session) service() *services.Service { return s.x.cfg.Services.Of(s.Principal) }

// IsService says whether it is the session of this machine's service of that name.
func (s *Session) IsService(name string) bool {
	own := s.service()
	return own != nil && own.Name == name
}

// viewer makes the viewer of the session: cfg says what it sees.
func (s *Session) viewer(cfg viewfs.Config) *viewfs.Viewer {
	cfg.Who = s.Principal
	cfg.Root = func() sigma.File { return s.x.cfg.Root(Scope{Session: s, Realm: s.Principal.Realm}) }
	cfg.Dial = func(ctx context.Context, e sigma.Endpoint) (*os.File, error) {
		socket, _, err := s.x.cfg.Connect.DialEndpoint(ctx, s.Principal, e)
		return socket, err
	}
	cfg.Holds = func(id sigma.LeaseID) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, ok := s.leases[id]
		return ok
	}
	return viewfs.New(cfg)
}

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
func (x *Sessions) Caps(realm sigma.RealmID, id sigma.ProcID) (caps sigmap.Caps, err error) {
	p, ok := x.cfg.Procs.Proc(realm, id)
	if !ok {
		return caps, procs.Unknown(id)
	}
	if p.Ended() {
		return caps, sigma.Errorf("kernel.caps", sigma.KindUnavailable, "the proc has ended and may reach nothing")
	}
	caps = sigmap.Caps{ID: id, Realm: realm, Machine: p.Machine, Profile: p.Profile, All: p.View == nil, Kin: p.Kin,
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
	return caps, nil
}

// settle replaces the symlinks on a path of the spawner's by what they lead to, so that what is
// kept of it means the same for ever: whoever makes a link there later opens no way. What is not
// there yet, and what is behind endpoints, stays as it is.
func (s Scope) settle(ctx context.Context, path string) (string, error) {
	names, err := sigma.ParsePath(path)
	if err != nil {
		return "", err
	}
	var f sigma.File = s.x.cfg.Root(s)
	if s.View != nil {
		f = s.View.Root()
	}
	for range viewfs.HopsMost {
		n := min(len(names),
			sigmap.WalkMax) // a longer one is settled at its beginning; links further on will be refused
		file, stop, err := treeserver.WalkTo(ctx, f, names[:n], true)
		if err == nil && file != nil {
			file.Close()
		}
		switch kind := sigma.KindOf(err); {
		case err != nil && kind != sigma.KindNotFound && kind != sigma.KindNotDir && kind != sigma.KindPermission:
			return "", err
		case err != nil || stop == nil || stop.Kind != sigma.KindSymlink:
			return sigma.JoinPath(names...), nil
		}
		target := stop.Target
		if len(target) == 0 || target[0] != '/' {
			dir := sigma.JoinPath(names[:max(stop.Walked-1, 0)]...)
			if dir != "/" {
				dir += "/"
			}
			target = dir + target
		}
		to, err := sigma.ParsePath(target)
		if err != nil {
			return "", err
		}
		if names = slices.Concat(to, names[stop.Walked:]); len(names) > sigma.PathMax {
			break
		}
	}
	return "", sigma.PathError("kernel.settle", sigma.KindLoop, path)
}

// ViewsOf makes the tables of what is to be spawned, and makes programs of a proc that has a view
// paths of the realm. nil = none has a view. The descriptors' own are taken out: they are the
// tables' now.
func (s Scope) ViewsOf(ctx context.Context, ds []sigma.Descriptor) ([]*view.Table, error) {
	var own *view.Table
	if s.View != nil &&
		s.Granted == nil { // a guest that may spawn sees all of the realm, and so does what it spawns
		own = s.View.Table()
	} else if !slices.ContainsFunc(ds, func(d sigma.Descriptor) bool { return d.View != nil }) {
		return nil, nil
	}
	out := make([]*view.Table, len(ds))
	for i := range ds {
		d := &ds[i]
		if own != nil {
			if err := s.placeProgram(ctx, d, own); err != nil {
				return nil, err
			}
		}
		if d.View == nil {
			out[i] = own
			continue
		}
		for j := range d.View {
			e := &d.View[j]
			target, err := s.settle(ctx, e.Target)
			if err != nil {
				return nil, sigma.Wrap("kernel.Spawn", e.Path, err)
			}
			e.Target = target
		}
		t, err := view.Make(d.View, own)
		if err != nil {
			return nil, err
		}
		d.View = nil
		out[i] = t
		size := t.Size()
		for _, list := range [][]string{d.Args, d.Env} {
			for _, text := range list {
				size += len(text) + 5
			}
		}
		if size > sigma.ArgsMax {
			return nil, sigma.Errorf("kernel.Spawn", sigma.KindTooBig,
				"arguments, environment and view have %d bytes, %d are allowed", size, sigma.ArgsMax)
		}
	}
	return out, nil
}

// placeProgram finds the program in the spawner's view, and makes its path one of the realm without
// links.
func (s Scope) placeProgram(ctx context.Context, d *sigma.Descriptor, own *view.Table) error {
	path, err := s.settle(ctx, d.Program)
	if err != nil {
		return err
	}
	names, err := sigma.ParsePath(path)
	if err != nil {
		return err
	}
	e, rest, ok := own.Lookup(names)
	if !ok || e.Rights&sigma.RightRead == 0 {
		return &sigma.Error{Op: "kernel.Spawn", Path: d.Program, Kind: sigma.KindPermission,
			Msg:  "the spawner's view does not show the program",
			Hint: "give the spawner an entry for the directory of the program"}
	}
	if d.Name == "" && len(names) > 0 {
		d.Name = fmt.Sprintf("%.64s", names[len(names)-1])
	}
	d.Program = sigma.JoinPath(slices.Concat(e.Target, rest)...)
	return nil
}

// Kin are the ancestors with views of what the session's proc spawns: itself, if it has a view, and
// its own.
func (s *Session) Kin() []sigma.ProcID {
	if s.View == nil || s.Granted != nil {
		return nil
	}
	kin := append([]sigma.ProcID{s.Principal.Proc}, s.View.Kin()...)
	return kin[:min(len(kin), schedd.KinMax)]
}
