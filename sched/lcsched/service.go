package lcsched

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// waitsMax jobs that wait are told of, as far as a message has room for them.
const waitsMax = 256

// nextMax jobs, or refusals, are in one answer.
const nextMax = 128

// Service answers machines while it leads. It is a tree whose root is one callable file. Safe for
// concurrent use.
type Service struct {
	// Decided is told why jobs wait, and must not block; nil = nobody asks. Not changed once the
	// service is used.
	Decided func(decision.Record)

	mu        sync.Mutex
	core      *Core                      // mu; nil while it does not lead
	timer     *time.Timer                // mu; nil or set for Ticked
	attending map[sigma.MachineID]*visit // mu
	limit     decision.Limit             // mu; of what is decided
}

// visit is what a machine has here by one session.
type visit struct {
	s       *Service
	machine sigma.MachineID
	begun   chan struct{} // closed when it attends
	over    chan struct{} // closed when it does no more
	news    chan struct{} // there is something in next

	life sigma.Life // Service.mu; set before begun
	next Next       // Service.mu; not fetched yet

	limits []Limits // Service.mu; that were told so far
	held   []Held   // Service.mu; that were told before it attends
}

var _ sigma.Tree = (*Service)(nil)

// NewService makes one that does not lead.
func NewService() *Service { return &Service{attending: map[sigma.MachineID]*visit{}} }

// Lead begins to lead with no knowledge, or ends it.
func (s *Service) Lead(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for m, v := range s.attending {
		delete(s.attending, m)
		close(v.over)
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.core = nil
	if on {
		s.core = NewCore()
	}
}

// Attach implements sigma.Tree; only the provider's programs may.
func (s *Service) Attach(_ context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	if !p.System {
		return nil, sigma.Errorf("lcsched.Attach", sigma.KindPermission, "lcsched is for machines")
	}
	v := &visit{s: s, machine: p.Machine, begun: make(chan struct{}), over: make(chan struct{}),
		news: make(chan struct{}, 1)}
	return treeserver.Methods("lcsched", 1, v, methods), nil
}

func notLeading() error {
	return &sigma.Error{Op: "lcsched", Kind: sigma.KindUnavailable, Msg: "this lcsched does not lead",
		Hint: "another does, or the names are away"}
}

// methods answers the calls of one machine's session.
var methods = sigmap.Table(
	sigmap.Do(CallHeld, (*visit).tellHeld), sigmap.Do(CallAttend, (*visit).attend), sigmap.On(CallNext, (*visit).wait),
	sigmap.Do(CallLeads, func(v *visit, _ context.Context, _ sigmap.None) error {
		v.s.mu.Lock()
		defer v.s.mu.Unlock()
		if v.s.core == nil {
			return notLeading()
		}
		return nil
	}),
	sigmap.On(CallWaiting, (*visit).waiting),
	onEvent(CallEnqueue, func(v *visit, jobs []Job) Event {
		for i := range jobs {
			jobs[i].Home = v.life
		}
		return Enqueued{jobs}
	}),
	onEvent(CallCancel, func(v *visit, id sigma.ProcID) Event { return Canceled{v.life, id} }),
	onEvent(CallReleased, func(v *visit, ids []sigma.ProcID) Event { return Released{v.life, ids} }),
	onEvent(CallDeclined, func(v *visit, id sigma.ProcID) Event { return Declined{v.life, id} }),
	onEvent(CallLent, func(v *visit, memory sigma.Bytes) Event { return Lent{v.life, memory} }),
	onEvent(CallLimits, (*visit).limit),
)

// onEvent makes the handler of what a machine that attends says. nil is no event.
func onEvent[Q any](m sigmap.Method[Q, sigmap.None], of func(*visit, Q) Event) sigmap.Handler[*visit] {
	return sigmap.Do(m, func(v *visit, ctx context.Context, q Q) error {
		if err := v.attends(ctx); err != nil {
			return err
		}
		s := v.s
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.attending[v.machine] != v {
			return notLeading()
		}
		if e := of(v, q); e != nil {
			s.stepLocked(e)
		}
		return nil
	})
}

// tellHeld collects what is reserved at the machine, before it attends.
func (v *visit) tellHeld(_ context.Context, held []Held) error {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if len(v.held)+len(held) > heldMost {
		return sigma.Errorf("lcsched.held", sigma.KindTooBig, "a machine has no %d reservations", heldMost)
	}
	v.held = append(v.held, held...)
	return nil
}

// waiting says what waits, as much as one answer has room for.
func (v *visit) waiting(context.Context, sigmap.None) ([]Waits, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if v.s.core == nil {
		return nil, notLeading()
	}
	ws := v.s.core.Waiting()
	return ws[:sigmap.Fit(ws[:min(len(ws), waitsMax)], codeWaits)], nil
}

// heldMost bounds the reservations that a machine tells of: more than it has room for.
const heldMost = 1 << 20

// limitsMost bounds the realms whose limits a machine tells: more than there are.
const limitsMost = 1 << 20

// limit collects what a machine tells of limits; nil: there is more to come. Service.mu is held.
func (v *visit) limit(p LimitsPage) Event {
	if v.limits = append(v.limits, p.Limits...); p.More && len(v.limits) < limitsMost {
		return nil
	}
	all := v.limits
	v.limits = nil
	return Limited{all}
}

// attend makes the machine known until ctx ends.
func (v *visit) attend(ctx context.Context, a Attendance) error {
	const op = "lcsched.attend"
	s := v.s
	s.mu.Lock()
	if s.core == nil {
		s.mu.Unlock()
		return notLeading()
	}
	if old := s.attending[v.machine]; old == v || old != nil && old.life.Incarnation > a.Incarnation {
		s.mu.Unlock()
		return sigma.Errorf(op, sigma.KindStale, "machine %s attends already, in its life %d", v.machine,
			old.life.Incarnation)
	} else if old != nil { // whose session will be seen to have ended
		s.endLocked(old)
	}
	v.life = sigma.Life{Machine: v.machine, Incarnation: a.Incarnation}
	s.attending[v.machine] = v
	a.Held, v.held = v.held, nil
	s.stepLocked(Attended{Life: v.life, CPU: a.CPU, Memory: a.Memory, Labels: a.Labels, Held: a.Held, Lent: a.Lent,
		Closed: a.Closed})
	close(v.begun)
	s.mu.Unlock()
	select {
	case <-v.over:
		return sigma.Errorf(op, sigma.KindStale, "machine %s attends anew, or this lcsched leads no more", v.machine)
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attending[v.machine] == v {
		s.endLocked(v)
	}
	return sigma.Wrap(op, "", ctx.Err())
}

func (s *Service) endLocked(v *visit) {
	delete(s.attending, v.machine)
	close(v.over)
	s.stepLocked(Left{v.life})
}

// attends waits until the machine attends by this session.
func (v *visit) attends(ctx context.Context) error {
	select {
	case <-v.begun:
		return nil
	case <-v.over:
		return notLeading()
	case <-ctx.Done():
		return sigma.Wrap("lcsched", "", ctx.Err())
	}
}

// stepLocked applies an event, notes what machines are to be told, and sets the timer.
func (s *Service) stepLocked(e Event) {
	now := time.Now()
	for _, f := range s.core.Step(now, e) {
		switch f := f.(type) {
		case Grant:
			if v := s.attending[f.To.Machine]; v != nil && v.life == f.To {
				v.next.Jobs = append(v.next.Jobs, f.Job)
				v.tell()
			}
		case Refuse:
			if v := s.attending[f.Job.Home.Machine]; v != nil && v.life == f.Job.Home {
				v.next.Refused = append(v.next.Refused, Refusal{f.Job.ID, f.Why})
				v.tell()
			}
		}
	}
	s.tellLocked(now, e)
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if at := s.core.Wakes(now); !at.IsZero() {
		core := s.core
		s.timer = time.AfterFunc(at.Sub(now), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.core == core {
				s.stepLocked(Ticked{})
			}
		})
	}
}

// tellLocked says why jobs wait: those that came, and, when time has passed, the first.
func (s *Service) tellLocked(now time.Time, e Event) {
	if s.Decided == nil {
		return
	}
	var ids []sigma.ProcID
	switch e := e.(type) {
	case Enqueued:
		for i := range e.Jobs {
			if j := &e.Jobs[i]; s.core.known[j.ID] != nil && s.limit.Allows(string(j.Realm), now) {
				ids = append(ids, j.ID)
			}
		}
	case Ticked:
		ids = s.core.Firsts()
	case Declined:
		ids = []sigma.ProcID{e.ID}
	}
	for _, id := range ids {
		if r, news := s.core.Why(id); news {
			s.Decided(r)
		}
	}
}

func (v *visit) tell() {
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// wait gives what the machine is to be told. What was given to a caller who gave up meanwhile is
// lost with the session, which the machine ends then.
func (v *visit) wait(ctx context.Context, _ sigmap.None) (x Next, err error) {
	if err := v.attends(ctx); err != nil {
		return x, err
	}
	for {
		v.s.mu.Lock()
		jobs := sigmap.Fit(v.next.Jobs[:min(len(v.next.Jobs), nextMax)], func(c *sigmap.Coder, some *[]Job) {
			codeNext(c, &Next{Jobs: *some})
		})
		refused := 0
		if jobs == 0 {
			refused = sigmap.Fit(v.next.Refused[:min(len(v.next.Refused), nextMax)],
				func(c *sigmap.Coder, some *[]Refusal) { codeNext(c, &Next{Refused: *some}) })
		}
		x.Jobs, v.next.Jobs = v.next.Jobs[:jobs:jobs], v.next.Jobs[jobs:]
		x.Refused, v.next.Refused = v.next.Refused[:refused:refused], v.next.Refused[refused:]
		v.s.mu.Unlock()
		if jobs+refused > 0 {
			return x, nil
		}
		select {
		case <-v.news:
		case <-v.over:
			return x, notLeading()
		case <-ctx.Done():
			return x, sigma.Wrap("lcsched.next", "", ctx.Err())
		}
	}
}
