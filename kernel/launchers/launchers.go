// Package launchers is the machine's way to its launcher, of which there is one after another: if
// it dies the keeper starts the next. Requests wait for the launcher of the moment, events go to
// whoever registered for them, and questions get their answers. What one launcher ran has died with
// it, and whoever registered for that is told. Users: kernel.
//
// Locks: Launchers.mu and questions.mu, both leaves.
package launchers

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/sigmap"
)

// Name is the launcher's, where it is listed like a service.
const Name = "launcher"

// startMax is how long the launcher may take to say whether something was started. It needs
// milliseconds, and some seconds when it is asked for thousands of procs at once.
const startMax = time.Minute

// Config is what Launchers needs of its user. Its functions are called one at a time.
type Config struct {
	Keeper *launch.Keeper // gives the control sockets of launchers
	Log    *slog.Logger
	// Adopt takes over what a launcher says that it runs since before this sigmad, and says whether
	// anybody knows it. What nobody knows is killed.
	Adopt func(launch.Adopted) bool
	// Prepare is called when all of that is known, before anybody else can use the launcher.
	Prepare func(l *launch.Launcher)
	// Begun is called when the launcher can be used, with how many launches were taken over.
	Begun func(inherited int)
	// Ended is called when the launcher has died, before those are told who registered.
	Ended func()
	// Died is called when that was not to be, after they were told.
	Died func()
	// Yielded is called with what the launcher says of itself now and then.
	Yielded func(launch.Yielded)
}

// Launchers is the machine's way to its launcher. Safe for concurrent use.
type Launchers struct {
	cfg    Config
	number atomic.Uint64 // of the last launch
	// startMax is how long a start may go unanswered; changed before Run only.
	startMax time.Duration

	meters  *questions // what launches use
	sockets *questions // which sockets procs have, and to shut them down
	// to freeze and thaw; one at a time, so that what is said of a proc is in the order of what is
	// done to it
	freezes *questions

	mu      sync.Mutex
	now     *launch.Launcher              // mu; nil between the death of one and the start of the next
	last    sigmap.Service                // mu; the last launcher, as status tells of it
	comes   chan struct{}                 // mu; closed when there is a launcher
	events  map[uint64]func(launch.Event) // mu; by launch id
	awaited map[uint64]*time.Timer        // mu; starts of which the launcher has said nothing, by launch id
}

// New makes the way to launchers that come when Run runs.
func New(cfg Config) *Launchers {
	return &Launchers{cfg: cfg, startMax: startMax, meters: newQuestions(MetersMax), sockets: newQuestions(socketsMax),
		freezes: newQuestions(1), last: sigmap.Service{Name: Name, State: "starting", Since: time.Now()},
		comes: make(chan struct{}), events: map[uint64]func(launch.Event){}, awaited: map[uint64]*time.Timer{}}
}

// GiveUpAfter changes how long a start may go unanswered, which is a minute. It is called before
// Run.
func (x *Launchers) GiveUpAfter(d time.Duration) { x.startMax = d }

// Run works with one launcher after another until ctx ends or the keeper is gone.
func (x *Launchers) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, x.cfg.Keeper.Close)
	defer stop()
	for {
		l, err := x.cfg.Keeper.Next()
		if err != nil {
			return err
		}
		if err = x.adopt(l); err == nil {
			err = l.Run(ctx, x.event)
		}
		lost := x.end()
		if sigma.KindOf(err) != sigma.KindLost {
			return err
		}
		if ctx.Err() == nil {
			x.cfg.Log.Warn("the launcher died", "lost", lost)
			x.cfg.Died()
		}
	}
}

// adopt takes over what a launcher runs, and makes it the launcher of the moment.
func (x *Launchers) adopt(l *launch.Launcher) error {
	var unknown []uint64
	inherited := 0
	if err := l.Adopt(func(e launch.Event) {
		if a, ok := e.(launch.Adopted); !ok {
			x.event(e)
		} else if x.number.Store(max(x.number.Load(), a.ID)); !x.cfg.Adopt(a) {
			unknown = append(unknown, a.ID)
		} else {
			inherited++
		}
	}); err != nil {
		return err
	}
	for _, id := range unknown {
		l.Kill(id)
	}
	x.cfg.Prepare(l)
	x.mu.Lock()
	x.now = l
	x.last = sigmap.Service{Name: Name, State: "running", Since: l.Since(), Restarts: l.Before()}
	close(x.comes)
	x.mu.Unlock()
	x.cfg.Begun(inherited)
	return nil
}

// end tells all who registered that the launcher has died, and returns how many they were.
func (x *Launchers) end() int {
	x.mu.Lock()
	if x.now != nil {
		x.now, x.comes = nil, make(chan struct{})
		x.last.State, x.last.Since = "restarting", time.Now()
	}
	lost := x.events
	x.events = map[uint64]func(launch.Event){}
	for id := range x.awaited {
		x.answeredLocked(id)
	}
	x.mu.Unlock()
	x.cfg.Ended()
	for id, handle := range lost {
		if handle != nil { // else it is just being registered, and asked for later
			handle(launch.Lost{ID: id})
		}
	}
	return len(lost)
}

// Start asks the launcher for what is registered as r.ID, when there is one. Unless an error comes
// back, there will be an event: after a minute it is launch.Failed.
func (x *Launchers) Start(ctx context.Context, r launch.Request) error {
	for {
		x.mu.Lock()
		l, comes, waited := x.now, x.comes, x.events[r.ID] != nil
		if waited && l != nil {
			x.awaited[r.ID] = time.AfterFunc(x.startMax, func() { x.giveUp(r.ID) })
		}
		x.mu.Unlock()
		switch {
		case !waited: // its launcher died before it was asked
			return nil
		case l == nil:
			select {
			case <-comes:
			case <-ctx.Done():
				return &sigma.Error{Op: "kernel.launch", Kind: sigma.KindUnavailable, Msg: "there is no launcher",
					Err: ctx.Err()}
			}
		default:
			err := l.Start(r)
			if err != nil {
				x.mu.Lock()
				x.answeredLocked(r.ID)
				x.mu.Unlock()
			}
			if sigma.KindOf(err) == sigma.KindLost {
				// it died, and nothing was started: the event comes as soon as that is seen
				err = nil
			}
			return err
		}
	}
}

// answeredLocked notes that nobody waits any more for the launcher's word of a start.
func (x *Launchers) answeredLocked(id uint64) {
	if t := x.awaited[id]; t != nil {
		t.Stop()
		delete(x.awaited, id)
	}
}

// giveUp ends the wait for a start that the launcher does not answer. Should it start later, it is
// killed: the launcher takes requests in order.
func (x *Launchers) giveUp(id uint64) {
	x.mu.Lock()
	handle, waits := x.events[id], x.awaited[id] != nil
	if waits {
		delete(x.awaited, id)
		delete(x.events, id)
	}
	x.mu.Unlock()
	if waits && handle != nil {
		x.cfg.Log.Error("the launcher does not answer", "launch", id, "after", x.startMax.String())
		x.Kill(id)
		handle(launch.Failed{ID: id, Step: Name, Errno: syscall.ETIMEDOUT})
	}
}

// Kill kills a launch, if there is a launcher.
func (x *Launchers) Kill(id uint64) {
	if l := x.Now(); l != nil {
		l.Kill(id)
	}
}

// Signal sends a signal to a launch, if there is a launcher.
func (x *Launchers) Signal(id uint64, s syscall.Signal) {
	if l := x.Now(); l != nil {
		l.Signal(id, s)
	}
}

// Now is the launcher of the moment; nil between the death of one and the start of the next.
func (x *Launchers) Now() *launch.Launcher {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.now
}

// Register takes the events of a launch, and gives the launch its id. Unregister ends that.
func (x *Launchers) Register(handle func(launch.Event)) uint64 {
	id := x.number.Add(1)
	x.RegisterAs(id, handle)
	return id
}

// RegisterAs is Register for a launch of a former sigmad.
func (x *Launchers) RegisterAs(id uint64, handle func(launch.Event)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.events[id] = handle
}

// Unregister takes no more events of a launch.
func (x *Launchers) Unregister(id uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answeredLocked(id)
	delete(x.events, id)
}

// Registered counts the launches whose events somebody takes, and those starts of which the
// launcher has said nothing yet.
func (x *Launchers) Registered() (launches, awaited int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.events), len(x.awaited)
}

func (x *Launchers) event(e launch.Event) {
	if x.answer(e) {
		return
	}
	x.mu.Lock()
	handle := x.events[e.ProcID()]
	x.answeredLocked(e.ProcID())
	x.mu.Unlock()
	if handle != nil {
		handle(e)
	}
}

// questions are those to the launcher that it answers once each. sigmad cannot read or freeze
// cgroups itself, having no privilege, and the launcher reads them only when asked: nobody pays for
// figures that nobody looks at.
type questions struct {
	slots chan struct{} // of questions under way

	mu      sync.Mutex
	waiting map[question][]chan launch.Event // mu
}

type question struct {
	what   byte   // 'm' meter, 'f' freeze, 't' thaw, 's' sockets
	launch uint64 // id; of 's' a number of its own
}

const (
	// MetersMax questions of what launches use are under way at a time, so that the launcher, which
	// answers one in some 40 µs, stays free for starts.
	MetersMax = 16
	// socketsMax questions of sockets are under way at a time; one costs the launcher a microsecond
	// for each descriptor of the proc.
	socketsMax = 4
	// answerMax is how long the launcher may take to answer.
	answerMax = 5 * time.Second
)

func newQuestions(max int) *questions {
	return &questions{slots: make(chan struct{}, max), waiting: map[question][]chan launch.Event{}}
}

// put asks with send and waits for the answer. Then is called with it while no other question may
// take this one's place; nil: nothing is.
func (m *questions) put(ctx context.Context, q question, send func(id uint64) error,
	then func(launch.Event)) (launch.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, answerMax)
	defer cancel()
	late := func() error { return sigma.Wrap("kernel.ask", "", ctx.Err()) }
	if ctx.Err() != nil { // the launcher answers no question that nobody waits for
		return nil, late()
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return nil, late()
	}
	ch := make(chan launch.Event, 1)
	m.mu.Lock()
	m.waiting[q] = append(m.waiting[q], ch)
	m.mu.Unlock()
	defer m.forget(q, ch)
	if err := send(q.launch); err != nil {
		return nil, err
	}
	select {
	case e := <-ch:
		if then != nil {
			then(e)
		}
		return e, nil
	case <-ctx.Done():
		return nil, late()
	}
}

// answer gives an answer to all who wait for one to this question: a later question has a later
// answer, which then finds nobody.
func (m *questions) answer(q question, e launch.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ch := range m.waiting[q] {
		ch <- e // has room for the one
	}
	delete(m.waiting, q)
}

func (m *questions) forget(q question, ch chan launch.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := slices.DeleteFunc(m.waiting[q], func(other chan launch.Event) bool { return other == ch })
	if m.waiting[q] = left; len(left) == 0 {
		delete(m.waiting, q)
	}
}

// answer gives an answer to whoever waits for it, and reports whether e is one.
func (x *Launchers) answer(e launch.Event) bool {
	switch e := e.(type) {
	case launch.Metered:
		x.meters.answer(question{'m', e.ProcID()}, e)
	case launch.Found:
		x.sockets.answer(question{'s', e.ProcID()}, e)
	case launch.Frozen:
		x.freezes.answer(question{'f', e.ProcID()}, e)
	case launch.Thawed:
		x.freezes.answer(question{'t', e.ProcID()}, e)
	case launch.Yielded:
		x.cfg.Yielded(e)
	default:
		return false
	}
	return true
}

// Meter asks what a launch uses.
func (x *Launchers) Meter(ctx context.Context, l *launch.Launcher, id uint64) (launch.Metered, error) {
	e, err := x.meters.put(ctx, question{'m', id}, l.Meter, nil)
	m, _ := e.(launch.Metered)
	return m, err
}

// Freeze stops the processes of a launch, or lets them go on. done is called when the launcher has
// done it, before anything else is done of the kind.
func (x *Launchers) Freeze(ctx context.Context, l *launch.Launcher, id uint64, on bool, done func()) (no syscall.Errno,
	err error) {
	q, send := question{'t', id}, l.Thaw
	if on {
		q, send = question{'f', id}, l.Freeze
	}
	_, err = x.freezes.put(ctx, q, send, func(e launch.Event) {
		switch e := e.(type) {
		case launch.Frozen:
			no = e.Errno
		case launch.Thawed:
			no = e.Errno
		}
		if no == 0 {
			done()
		}
	})
	return no, err
}

// Sockets asks which of these sockets a launch has open, and shuts them down if that is wanted.
func (x *Launchers) Sockets(ctx context.Context, l *launch.Launcher, id uint64, inodes []uint64,
	shut bool) []launch.Socket {
	ask := l.Sockets
	if shut {
		ask = l.Shut
	}
	number := x.number.Add(1) // not of a launch, but so that no two questions have the same
	e, err := x.sockets.put(ctx, question{'s', number}, func(uint64) error { return ask(id, number, inodes) }, nil)
	if f, ok := e.(launch.Found); ok && err == nil {
		return f.Sockets
	}
	return nil
}

// StateSilent is the state of a process that is there and does not answer.
const StateSilent = "silent"

// Status tells how the launcher is. It is asked what a launch that never is uses, which it answers
// in turn.
func (x *Launchers) Status(ctx context.Context) sigmap.Service {
	x.mu.Lock()
	l, now := x.now, x.last
	x.mu.Unlock()
	if l == nil {
		return now
	}
	switch _, err := x.Meter(ctx, l, 0); {
	case err == nil:
	case x.Now() == l:
		now.State = StateSilent
	default: // it died meanwhile
		now.State = "restarting"
	}
	return now
}
