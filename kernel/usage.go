package kernel

import (
	"context"
	"os"
	gometrics "runtime/metrics"
	"slices"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
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
	// metersMax questions are under way at a time, so that the launcher, which answers one in some
	// 40 µs, stays free for starts.
	metersMax = 16
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

// answered sends an answer to who waits for it, and reports whether e is one.
func (k *Kernel) answered(e launch.Event) bool {
	switch e := e.(type) {
	case launch.Metered:
		k.meters.answer(question{'m', e.ProcID()}, e)
	case launch.Found:
		k.sockets.answer(question{'s', e.ProcID()}, e)
	case launch.Frozen:
		k.freezes.answer(question{'f', e.ProcID()}, e)
	case launch.Thawed:
		k.freezes.answer(question{'t', e.ProcID()}, e)
	case launch.Yielded:
		k.shares.yielded(e)
	default:
		return false
	}
	return true
}

// meter asks what a launch uses.
func (k *Kernel) meter(ctx context.Context, l *launch.Launcher, id uint64) (launch.Metered, error) {
	e, err := k.meters.put(ctx, question{'m', id}, l.Meter, nil)
	m, _ := e.(launch.Metered)
	return m, err
}

// usageMax procs are asked about in one call.
const usageMax = 256

// usage answers what procs use: those that run, now; others, what is known of them. It is for the
// provider, because a question costs the launcher time that starts need, and for sessions with a
// credential, which read the same in /proc and have few requests at a time.
func (r *root) usage(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var ids []sigma.ProcID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcIDs(&ids) }); err != nil {
		return nil, nil, err
	}
	if !r.tree.principal.System && r.tree.granted == nil {
		return nil, nil, sigma.Errorf("kernel.usage", sigma.KindPermission,
			"no proc may ask this; read its files in /proc")
	}
	if len(ids) > usageMax {
		return nil, nil, sigma.Errorf("kernel.usage", sigma.KindTooBig, "%d procs in one call; %d are allowed",
			len(ids), usageMax)
	}
	out, err := r.tree.k.usagesOf(ctx, r.realm, ids)
	if err != nil {
		return nil, nil, err
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Usages(&out) })
	return reply, nil, err
}

// usageOf is zero for a proc that is not known any more: who asks about many cannot help that.
func (k *Kernel) usageOf(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigma.Usage, error) {
	k.mu.Lock()
	p := k.core.Proc(realm, id)
	if p == nil {
		k.mu.Unlock()
		return sigma.Usage{}, nil
	}
	u, launched, running := p.Usage, p.Launch, p.State == sigma.ProcRunning
	if !p.Away() {
		u.Output = k.outputLocked(id)
	}
	if running {
		u.Traffic = k.traffic.Look(time.Now(), id)
	}
	k.mu.Unlock()
	if !running {
		return u, nil
	}
	l := k.living()
	if l == nil { // it died, and the proc with it
		return u, nil
	}
	m, err := k.meter(ctx, l, launched)
	if err != nil {
		return sigma.Usage{}, err
	}
	u.UserTime, u.SystemTime, u.Memory, u.MemoryPeak, u.Tasks = m.User, m.Sys, m.Memory, m.MemoryPeak, m.Tasks
	return u, nil
}

// servicesUsage tells what the services and sigmad use that status lists, in its order, the
// launcher left out. One that is being restarted uses nothing; of one that cannot be asked now, or
// not before ctx ends, it tells what was measured last.
func (k *Kernel) servicesUsage(ctx context.Context) (out []sigma.Usage) {
	l := k.living()
	for _, s := range k.serviceList() {
		s.mu.Lock()
		id := s.launch
		m := s.metered
		s.mu.Unlock()
		if l != nil && id != 0 {
			if now, err := k.meter(ctx, l, id); err == nil {
				m = now
				s.mu.Lock()
				s.metered = m
				s.mu.Unlock()
			}
		}
		if m.ID != id { // of an earlier incarnation
			m = launch.Metered{}
		}
		out = append(out, sigma.Usage{UserTime: m.User, SystemTime: m.Sys, Memory: m.Memory, MemoryPeak: m.MemoryPeak,
			Tasks: m.Tasks})
	}
	return append(out, ownUsage())
}

// ownUsage is sigmad's, as far as it can see itself: memory is what its language holds.
func ownUsage() sigma.Usage {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return sigma.Usage{}
	}
	held := []gometrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	gometrics.Read(held)
	now := sigma.Bytes(held[0].Value.Uint64() - held[1].Value.Uint64())
	return sigma.Usage{UserTime: time.Duration(r.Utime.Nano()), SystemTime: time.Duration(r.Stime.Nano()), Memory: now,
		MemoryPeak: max(now, sigma.Bytes(r.Maxrss)*sigma.KiB)}
}

// outputLocked is how many bytes a proc has written.
func (k *Kernel) outputLocked(id sigma.ProcID) sigma.Bytes {
	l := k.logs[id]
	if l == nil {
		return 0
	}
	return sigma.Bytes(l.out.Written() + l.err.Written())
}
