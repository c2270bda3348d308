package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/delayed"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/sched/besched"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/session"
)

// The boot set.
const (
	Named   = cluster.Named
	Besched = placement.Besched
	Lcsched = placement.Lcsched
	S3      = "s3d"
	DB      = "dbd" // one for each realm (databases.go)
	// Machined decides about membership, on control machines.
	Machined = cluster.Machined
	// Sigmad is sigmad itself, where it is counted like a service.
	Sigmad = meter.Sigmad
)

const (
	BootMax        = 60 * time.Second       // etcd replays its log within that
	RestartMin     = 100 * time.Millisecond // wait before a restart; doubled with each that follows soon
	restartMax     = 5 * time.Second
	restartHealthy = 30 * time.Second // a service that ran so long starts afresh with restartMin
	ReconnectMax   = 15 * time.Second // how long a request waits for a service that restarts
)

// errLauncherDied ends services that have done nothing wrong.
var errLauncherDied = sigma.Errorf("kernel.service", sigma.KindLost, "the launcher died")

// ErrNotNeeded ends the dbd of a realm that had nothing to do, or whose realm was removed.
var ErrNotNeeded = sigma.Errorf("kernel.service", sigma.KindUnavailable,
	"the realm's dbd has ended, since it was not used")

// serviceMemory is the hard limit of the memory of a service that serves all realms, so that one
// that is made to hold too much ends and is started anew, and no proc of the host has to end for
// it. It is a quarter of the host's, which is what best effort leaves, and 1 GiB at least.
func serviceMemory() (sigma.Bytes, error) {
	total, err := MachineMemory()
	return max(total/4, sigma.GiB), err
}

// Service is one program of the boot set. It is restarted whenever it ends.
type Service struct {
	set     *Set
	Name    string
	program Program
	uid     uint32
	Args    []string      // besides its name; fixed before it is started
	Realm   sigma.RealmID // whose dbd it is; "" = it serves all realms
	want    sync.Once     // starts the dbd of a realm
	asked   atomic.Bool   // want was done
	gone    chan struct{} // closed when the dbd of a realm has ended because nobody needs it

	mu       sync.Mutex
	id       sigma.ProcID   // mu; of this incarnation
	launch   uint64         // mu
	metered  launch.Metered // mu; what it was measured to use last
	endpoint sigma.Endpoint // mu; of sessions; set by its Listen
	stream   sigma.Endpoint // mu; of bytes from the same service of other machines; set by its Listen
	ready    chan struct{}  // mu; closed when it has called Started; replaced at its end
	over     chan struct{}  // mu; closed at the end of this incarnation
	state    string         // mu
	since    time.Time      // mu
	restarts uint32         // mu; how often it was started before this incarnation
	held     error          // mu; why it is not started now; nil = it is
	hold     chan struct{}  // mu; closed when that is set; replaced when it is nil again
}

func newService(x *Set, p Program, uid uint32) *Service {
	over := make(chan struct{})
	close(over)
	s := &Service{set: x, Name: p.Name, program: p, uid: uid, gone: make(chan struct{}), ready: make(chan struct{}),
		over: over, state: "stopped", since: time.Now(), hold: make(chan struct{})}
	return s
}

// Supervise starts the service again whenever it ends, until ctx ends.
func (s *Service) Supervise(ctx context.Context) {
	wait := RestartMin
	select {
	case <-s.set.cfg.Known: // so that no launch has the number of one that is adopted
	case <-ctx.Done():
	}
	for soon := false; ctx.Err() == nil; {
		s.awaitRoom(ctx, soon)
		began := time.Now()
		err := s.run(ctx)
		if errors.Is(err, ErrNotNeeded) {
			s.set.databases.drop(s)
			return
		}
		if err != nil && ctx.Err() == nil {
			s.set.cfg.Log.Warn("service ended", "service", s.Name, "err", err, "restart_in", wait.String())
			s.set.cfg.Tell(report.EventDaemonEnded, s.Name, "it is started again in "+wait.String())
		}
		if errors.Is(err,
			errLauncherDied) { // nothing is wrong with it, and the keeper sees to launchers that die often
			continue
		}
		if soon = time.Since(began) < restartHealthy; !soon {
			wait = RestartMin
		}
		retry.Pause(ctx, wait)
		wait = min(2*wait, restartMax)
	}
}

// run is one incarnation.
func (s *Service) run(ctx context.Context) error {
	kernelEnd, serviceEnd, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer serviceEnd.Close()
	conn, err := session.FromFile(kernelEnd)
	if err != nil {
		return err
	}
	p := sigma.Principal{Realm: sigma.SystemRealm, Proc: sigma.NewProcID(), Machine: s.set.cfg.Machine}
	over := make(chan struct{})
	result := make(chan error, 1)
	id := s.set.cfg.Launcher.Register(func(e launch.Event) {
		switch e := e.(type) {
		case launch.Failed:
			result <- e.Err()
		case launch.Lost:
			result <- errLauncherDied
		case launch.Exited:
			if s.Realm != "" {
				s.set.databases.ended(s, e)
				if e.Wait.Exited() && e.Wait.ExitStatus() == 0 {
					result <- ErrNotNeeded
					return
				}
			}
			result <- sigma.Errorf("kernel.service", sigma.KindLost, "exit code %d, signal %d", e.Wait.ExitStatus(),
				max(0, int(e.Wait.Signal())))
		}
	})
	defer s.set.cfg.Launcher.Unregister(id)
	before := s.set.launches.begun(s.Name)
	s.mu.Lock()
	s.restarts = before
	s.id, s.launch, s.over, s.state, s.since, s.endpoint, s.stream = p.Proc, id, over, "starting", time.Now(),
		sigma.Endpoint{}, sigma.Endpoint{}
	s.mu.Unlock()
	defer s.finish(p.Proc, over)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	s.set.cfg.Go(func() { s.set.cfg.Serve(serving, conn, p) })
	request := launch.Request{ID: id, Profile: launch.ProfileSystem, UID: s.uid, GID: s.uid, PidsMax: 256,
		CPUShares: shares.CoreShares, NoFile: 65536,
		Group: shares.GroupServices + "/" + s.Name, Args: append([]string{s.program.Name}, s.Args...),
		Program: s.program.File,
		Dir:     s.program.Dir,
		Passed: []launch.Passed{{File: os.Stderr, Target: 1}, {File: os.Stderr, Target: 2},
			{File: serviceEnd, Target: 3}}}
	if s.Realm != "" {
		request.Subdir, request.Memory = string(s.Realm), databaseMemory
	} else if request.Memory, err = serviceMemory(); err != nil {
		return err
	} else {
		request.Env = []string{fmt.Sprintf("GOMEMLIMIT=%d", request.Memory/8*7)}
	}
	err = s.set.cfg.Launcher.Start(ctx, request)
	if err != nil {
		return err
	}
	serviceEnd.Close()
	return <-result
}

// Ending is called when the session of an incarnation is over: it listens no more, though the
// launcher has not told of its end yet. Who comes now waits for the next.
func (s *Service) Ending(id sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == id && s.state == "running" {
		s.state, s.ready = "restarting", make(chan struct{})
	}
}

func (s *Service) finish(id sigma.ProcID, over chan struct{}) {
	s.set.cfg.Proxy.CloseProc(id)
	s.mu.Lock()
	select {
	case <-s.ready:
		s.ready = make(chan struct{})
	default:
	}
	s.id, s.launch, s.endpoint, s.stream, s.state, s.since = "", 0, sigma.Endpoint{}, sigma.Endpoint{}, "restarting",
		time.Now()
	s.mu.Unlock()
	close(over)
}

// Started is called when the service says that it serves.
func (s *Service) Started(id sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == id && s.state == "starting" {
		s.state = "running"
		close(s.ready)
		if s.restarts > 0 {
			s.set.cfg.Tell(report.EventDaemonStarted, s.Name, "")
		}
	}
}

// Ask starts the dbd of a realm, if it does not run yet. Other services run in any case.
func (s *Service) Ask() {
	if s.Realm == "" {
		return
	}
	s.want.Do(func() {
		s.asked.Store(true)
		s.set.databases.noteUsed(s.Realm)
		s.set.cfg.Go(func() { s.Supervise(s.set.ctx) })
	})
}

// WaitReady waits until the service serves.
func (s *Service) WaitReady(ctx context.Context) error {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Address waits until the service serves and returns where.
func (s *Service) Address(ctx context.Context) (sigma.Endpoint, error) {
	s.Ask()
	for {
		if err := s.waitRuns(ctx); err != nil {
			if err == ErrNotNeeded { // it ended just now: the next one is another service
				return sigma.Endpoint{}, err
			}
			if sigma.KindOf(err) == sigma.KindNoSpace {
				return sigma.Endpoint{}, err
			}
			return sigma.Endpoint{}, sigma.Errorf("kernel.address", sigma.KindUnavailable, "%s is not available",
				s.Name)
		}
		s.mu.Lock()
		e, running := s.endpoint, s.state == "running"
		s.mu.Unlock()
		if running { // else it ended just now
			return e, nil
		}
	}
}

// Listening notes where the service listens: at one endpoint of each form, the last.
func (s *Service) Listening(e sigma.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Form == sigma.FormStream {
		s.stream = e
	} else {
		s.endpoint = e
	}
}

// Listens is where the service serves sessions, if it does now; or where it takes streams, which it
// may need before it can serve.
func (s *Service) Listens(streams bool) (sigma.Endpoint, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if streams {
		return s.stream, s.stream.ID != ""
	}
	return s.endpoint, s.state == "running" && s.endpoint.ID != ""
}

// Terminate asks the service to end; it is started again.
func (s *Service) Terminate() {
	s.mu.Lock()
	id := s.launch
	s.mu.Unlock()
	if id != 0 {
		s.set.cfg.Launcher.Signal(id, syscall.SIGTERM)
	}
}

// Ended is closed when the present incarnation has ended.
func (s *Service) Ended() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// Dial opens a session to the service, waiting a while if it is being restarted.
func (s *Service) Dial(ctx context.Context) (*session.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, ReconnectMax)
	defer cancel()
	for {
		e, err := s.Address(ctx)
		if err != nil {
			return nil, err
		}
		c, err := s.Connect(ctx, e)
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindUnavailable &&
			kind != sigma.KindLost { // these mean that it ends just now, or is too busy to accept
			return c, err
		}
		if !retry.Pause(ctx, RestartMin) {
			return nil, err
		}
	}
}

// Connect opens a session to the service at an endpoint of it.
func (s *Service) Connect(ctx context.Context, e sigma.Endpoint) (*session.Client, error) {
	f, _, err := s.set.cfg.Proxy.Dial(sigma.Principal{Realm: sigma.SystemRealm, Machine: s.set.cfg.Machine,
		System: true}, e)
	if err != nil {
		return nil, err
	}
	conn, err := session.FromFile(f)
	if err != nil {
		return nil, err
	}
	if s.Name == S3 && s.set.cfg.StoreDelay > 0 {
		far, err := delayed.New(conn, s.set.cfg.StoreDelay)
		if err != nil {
			conn.Close()
			return nil, err
		}
		conn = far
	}
	return session.Dial(ctx, conn)
}

// List returns the services in the order of the boot set, the dbds of realms in place of
// dbd.
func (x *Set) List() (out []*Service) {
	for _, p := range x.cfg.Programs {
		if p.Name == DB {
			out = append(out, x.databases.list()...)
			continue
		}
		out = append(out, x.byName[p.Name])
	}
	return out
}

// Of finds the service that a principal is; nil if it is a tenant's proc.
func (x *Set) Of(p sigma.Principal) *Service {
	if p.Realm != sigma.SystemRealm || p.Proc == "" {
		return nil
	}
	for _, s := range x.List() {
		s.mu.Lock()
		is := s.id == p.Proc
		s.mu.Unlock()
		if is {
			return s
		}
	}
	return nil
}

// takeBootSet makes the services of the programs that this machine has.
func (x *Set) takeBootSet() error {
	for i, p := range x.cfg.Programs {
		if p.Name == DB {
			x.databases.program, x.databases.uid = p, x.cfg.UIDBase+2+uint32(i)
			continue
		}
		x.byName[p.Name] = newService(x, p, x.cfg.UIDBase+2+uint32(i)) // base+1 is sigmad's own
	}
	for _, need := range []string{Named, Besched, S3} {
		if x.byName[need] == nil && !x.cfg.Member {
			return sigma.Errorf("kernel.New", sigma.KindInvalid, "the boot set lacks %s", need)
		}
	}
	return nil
}

// ShutDown asks the services to end and waits a while; the launcher ends whatever is left.
func (x *Set) ShutDown() {
	x.cfg.Log.Info("machine goes down", "machine", x.cfg.Machine)
	deadline := time.After(5 * time.Second)
	names := []string{Machined, Lcsched}
	for n := range besched.ShardsMax {
		names = append(names, placement.BeschedName(n+1))
	}
	all := x.databases.list()
	for _, s := range all { // at once: there may be one for each realm
		s.Terminate()
	}
	for _, name := range append(names, S3, Named) {
		if s := x.byName[name]; s != nil {
			all = append(all, s)
		}
	}
	for _, s := range all {
		s.Terminate()
		select {
		case <-s.Ended():
		case <-deadline:
			return
		}
	}
}

// Local is a service of this machine's boot set; nil if others run it.
func (x *Set) Local(name string) *Service {
	if realm, ok := DatabaseRealm(name); ok {
		return x.databases.service(realm)
	}
	if s := x.byName[name]; s != nil && s.program.File != nil {
		return s
	}
	return nil
}

// MachineMemory is what sysinfo(2) tells; sigmad has no /proc.
func MachineMemory() (sigma.Bytes, error) {
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return 0, os.NewSyscallError("sysinfo", err)
	}
	return sigma.Bytes(si.Totalram) * sigma.Bytes(si.Unit), nil
}

// Program is one of the boot set.
type Program struct {
	Name string
	File *os.File // its executable
	Dir  *os.File // its data directory
}

// EachOf calls do for each of all, for so many at a time.
func EachOf[T any](most int, all []T, do func(T)) {
	var group errgroup.Group
	group.SetLimit(most)
	for _, x := range all {
		group.Go(func() error { do(x); return nil })
	}
	group.Wait()
}
