package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/delayed"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/shares"

	"sigmaos.dev/launch"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// The boot set.
const (
	serviceNamed   = cluster.Named
	serviceBesched = placement.Besched
	serviceLcsched = placement.Lcsched
	serviceS3      = "s3d"
	serviceDB      = "dbd" // one for each realm (databases.go)
	// serviceMachined decides about membership, on control machines.
	serviceMachined = cluster.Machined
	// serviceSigmad is sigmad itself, where it is counted like a service.
	serviceSigmad = meter.Sigmad
)

const (
	bootMax        = 60 * time.Second       // etcd replays its log within that
	restartMin     = 100 * time.Millisecond // wait before a restart; doubled with each that follows soon
	restartMax     = 5 * time.Second
	restartHealthy = 30 * time.Second // a service that ran so long starts afresh with restartMin
	reconnectMax   = 15 * time.Second // how long a request waits for a service that restarts
)

// errLauncherDied ends services that have done nothing wrong.
var errLauncherDied = sigma.Errorf("kernel.service", sigma.KindLost, "the launcher died")

// errNotNeeded ends the dbd of a realm that had nothing to do, or whose realm was removed.
var errNotNeeded = sigma.Errorf("kernel.service", sigma.KindUnavailable,
	"the realm's dbd has ended, since it was not used")

// serviceMemory is the hard limit of the memory of a service that serves all realms, so that one
// that is made to hold too much ends and is started anew, and no proc of the host has to end for
// it. It is a quarter of the host's, which is what best effort leaves, and 1 GiB at least.
func serviceMemory() (sigma.Bytes, error) {
	total, err := machineMemory()
	return max(total/4, sigma.GiB), err
}

// service is one program of the boot set. It is restarted whenever it ends.
type service struct {
	k       *Kernel
	name    string
	program Program
	uid     uint32
	args    []string      // besides its name; fixed before it is started
	realm   sigma.RealmID // whose dbd it is; "" = it serves all realms
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

func newService(k *Kernel, p Program, uid uint32) *service {
	over := make(chan struct{})
	close(over)
	s := &service{k: k, name: p.Name, program: p, uid: uid, gone: make(chan struct{}), ready: make(chan struct{}),
		over: over, state: "stopped", since: time.Now(), hold: make(chan struct{})}
	return s
}

// supervise starts the service again whenever it ends, until ctx ends.
func (s *service) supervise(ctx context.Context) {
	wait := restartMin
	select {
	case <-s.k.known: // so that no launch has the number of one that is adopted
	case <-ctx.Done():
	}
	for soon := false; ctx.Err() == nil; {
		s.awaitRoom(ctx, soon)
		began := time.Now()
		err := s.run(ctx)
		if errors.Is(err, errNotNeeded) {
			s.k.databases.drop(s)
			return
		}
		if err != nil && ctx.Err() == nil {
			s.k.cfg.Log.Warn("service ended", "service", s.name, "err", err, "restart_in", wait.String())
			s.k.tellDaemon(state.EventDaemonEnded, s.name, "it is started again in "+wait.String())
		}
		if errors.Is(err,
			errLauncherDied) { // nothing is wrong with it, and the keeper sees to launchers that die often
			continue
		}
		if soon = time.Since(began) < restartHealthy; !soon {
			wait = restartMin
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait = min(2*wait, restartMax)
	}
}

// run is one incarnation.
func (s *service) run(ctx context.Context) error {
	kernelEnd, serviceEnd, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		return err
	}
	defer serviceEnd.Close()
	conn, err := session.FromFile(kernelEnd)
	if err != nil {
		return err
	}
	p := sigma.Principal{Realm: sigma.SystemRealm, Proc: sigma.NewProcID(), Machine: s.k.cfg.Machine}
	over := make(chan struct{})
	result := make(chan error, 1)
	id := s.k.launcher.Register(func(e launch.Event) {
		switch e := e.(type) {
		case launch.Failed:
			result <- e.Err()
		case launch.Lost:
			result <- errLauncherDied
		case launch.Exited:
			if s.realm != "" {
				s.k.databases.ended(s, e)
				if e.Wait.Exited() && e.Wait.ExitStatus() == 0 {
					result <- errNotNeeded
					return
				}
			}
			result <- sigma.Errorf("kernel.service", sigma.KindLost, "exit code %d, signal %d", e.Wait.ExitStatus(),
				max(0, int(e.Wait.Signal())))
		}
	})
	defer s.k.launcher.Unregister(id)
	before := s.k.launches.begun(s.name)
	s.mu.Lock()
	s.restarts = before
	s.id, s.launch, s.over, s.state, s.since, s.endpoint, s.stream = p.Proc, id, over, "starting", time.Now(),
		sigma.Endpoint{}, sigma.Endpoint{}
	s.mu.Unlock()
	defer s.finish(p.Proc, over)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	s.k.sessions.Go(func() { s.k.serve(serving, conn, p) })
	request := launch.Request{ID: id, Profile: launch.ProfileSystem, UID: s.uid, GID: s.uid, PidsMax: 256,
		CPUShares: shares.CoreShares, NoFile: 65536,
		Group: shares.GroupServices + "/" + s.name, Args: append([]string{s.program.Name}, s.args...),
		Program: s.program.File,
		Dir:     s.program.Dir,
		Passed: []launch.Passed{{File: os.Stderr, Target: 1}, {File: os.Stderr, Target: 2},
			{File: serviceEnd, Target: 3}}}
	if s.realm != "" {
		request.Subdir, request.Memory = string(s.realm), databaseMemory
	} else if request.Memory, err = serviceMemory(); err != nil {
		return err
	} else {
		request.Env = []string{fmt.Sprintf("GOMEMLIMIT=%d", request.Memory/8*7)}
	}
	err = s.k.launcher.Start(ctx, request)
	if err != nil {
		return err
	}
	serviceEnd.Close()
	return <-result
}

// ending is called when the session of an incarnation is over: it listens no more, though the
// launcher has not told of its end yet. Who comes now waits for the next.
func (s *service) ending(id sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == id && s.state == "running" {
		s.state, s.ready = "restarting", make(chan struct{})
	}
}

func (s *service) finish(id sigma.ProcID, over chan struct{}) {
	s.k.proxy.CloseProc(id)
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

// started is called when the service says that it serves.
func (s *service) started(id sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id == id && s.state == "starting" {
		s.state = "running"
		close(s.ready)
		if s.restarts > 0 {
			s.k.tellDaemon(state.EventDaemonStarted, s.name, "")
		}
	}
}

// ask starts the dbd of a realm, if it does not run yet. Other services run in any case.
func (s *service) ask() {
	if s.realm == "" {
		return
	}
	s.want.Do(func() {
		s.asked.Store(true)
		s.k.databases.noteUsed(s.realm)
		s.k.sessions.Go(func() { s.supervise(s.k.ctx) })
	})
}

func (s *service) waitReady(ctx context.Context) error {
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

// address waits until the service serves and returns where.
func (s *service) address(ctx context.Context) (sigma.Endpoint, error) {
	s.ask()
	for {
		if err := s.waitRuns(ctx); err != nil {
			if err == errNotNeeded { // it ended just now: the next one is another service
				return sigma.Endpoint{}, err
			}
			if sigma.KindOf(err) == sigma.KindNoSpace {
				return sigma.Endpoint{}, err
			}
			return sigma.Endpoint{}, sigma.Errorf("kernel.address", sigma.KindUnavailable, "%s is not available",
				s.name)
		}
		s.mu.Lock()
		e, running := s.endpoint, s.state == "running"
		s.mu.Unlock()
		if running { // else it ended just now
			return e, nil
		}
	}
}

// listening notes where the service listens: at one endpoint of each form, the last.
func (s *service) listening(e sigma.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Form == sigma.FormStream {
		s.stream = e
	} else {
		s.endpoint = e
	}
}

// listens is where the service serves sessions, if it does now; or where it takes streams, which it
// may need before it can serve.
func (s *service) listens(streams bool) (sigma.Endpoint, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if streams {
		return s.stream, s.stream.ID != ""
	}
	return s.endpoint, s.state == "running" && s.endpoint.ID != ""
}

func (s *service) terminate() {
	s.mu.Lock()
	id := s.launch
	s.mu.Unlock()
	if id != 0 {
		s.k.launcher.Signal(id, syscall.SIGTERM)
	}
}

func (s *service) ended() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over
}

// dial opens a session to the service, waiting a while if it is being restarted.
func (s *service) dial(ctx context.Context) (*session.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, reconnectMax)
	defer cancel()
	for {
		e, err := s.address(ctx)
		if err != nil {
			return nil, err
		}
		c, err := s.connect(ctx, e)
		if kind := sigma.KindOf(err); err == nil || kind != sigma.KindUnavailable &&
			kind != sigma.KindLost { // these mean that it ends just now, or is too busy to accept
			return c, err
		}
		select {
		case <-time.After(restartMin):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func (s *service) connect(ctx context.Context, e sigma.Endpoint) (*session.Client, error) {
	f, _, err := s.k.proxy.Dial(sigma.Principal{Realm: sigma.SystemRealm, Machine: s.k.cfg.Machine, System: true}, e)
	if err != nil {
		return nil, err
	}
	conn, err := session.FromFile(f)
	if err != nil {
		return nil, err
	}
	if s.name == serviceS3 && s.k.cfg.StoreDelay > 0 {
		far, err := delayed.New(conn, s.k.cfg.StoreDelay)
		if err != nil {
			conn.Close()
			return nil, err
		}
		conn = far
	}
	return session.Dial(ctx, conn)
}

// serviceList returns the services in the order of the boot set, the dbds of realms in place of
// dbd.
func (k *Kernel) serviceList() (out []*service) {
	for _, p := range k.cfg.Programs {
		if p.Name == serviceDB {
			out = append(out, k.databases.list()...)
			continue
		}
		out = append(out, k.services[p.Name])
	}
	return out
}

// service finds the service that a principal is; nil if it is a tenant's proc.
func (k *Kernel) service(p sigma.Principal) *service {
	if p.Realm != sigma.SystemRealm || p.Proc == "" {
		return nil
	}
	for _, s := range k.serviceList() {
		s.mu.Lock()
		is := s.id == p.Proc
		s.mu.Unlock()
		if is {
			return s
		}
	}
	return nil
}
