package launchers

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
	"sigmaos.dev/wire/sigmap"
)

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
