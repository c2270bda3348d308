package lcsched

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// Methods of the service's root file. The machine that calls is the Principal's, stamped from its
// link. Those of an lcsched that does not lead answer KindUnavailable.
//
//	leads     - -> -           says whether this one leads; of anybody
//	held      []Held -> -      what is reserved at the machine, or more of it; before attend
//	attend    Attendance -> -  makes the machine known, and lasts until its end, or until the machine attends anew, or this lcsched leads no more. The other calls wait for the one of their session
//	enqueue   []Job, whose home is ignored: it is the caller -> -
//	cancel    ProcID -> -
//	next      - -> Next        waits until there are grants for this machine, or refusals of what it enqueued
//	released  []ProcID -> -    reservations that are over
//	declined  ProcID -> -      what was granted has no room here
//	lent      bytes -> -       memory that best-effort procs hold
//	limits    more, []Limits -> -   of all realms that have any, in one call or several
//	waiting   - -> []Waits     what waits; of anybody
const (
	CallLeads    = "leads"
	CallHeld     = "held"
	CallAttend   = "attend"
	CallEnqueue  = "enqueue"
	CallCancel   = "cancel"
	CallNext     = "next"
	CallReleased = "released"
	CallDeclined = "declined"
	CallLent     = "lent"
	CallLimits   = "limits"
	CallWaiting  = "waiting"
)

// Attendance is the payload of attend.
type Attendance struct {
	Incarnation sigma.Incarnation
	CPU         sigma.MilliCPU
	Memory      sigma.Bytes
	Labels      map[string]string
	Held        []Held // not in its payload: it was told before
	Lent        sigma.Bytes
	Closed      bool // it takes nothing new
}

// Code is its payload.
func (a *Attendance) Code(c *sigmap.Coder) {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		labels = append(labels, name+"="+a.Labels[name])
	}
	c.U64((*uint64)(&a.Incarnation))
	c.U32((*uint32)(&a.CPU))
	c.U64((*uint64)(&a.Memory))
	c.Strs(&labels)
	if c.Decoding() {
		a.Labels = make(map[string]string, len(labels))
		for _, l := range labels {
			name, value, _ := strings.Cut(l, "=")
			a.Labels[name] = value
		}
	}
	c.U64((*uint64)(&a.Lent))
	c.Bool(&a.Closed)
}

// CodeHeld is the payload of held.
func CodeHeld(c *sigmap.Coder, hs *[]Held) {
	sigmap.List(c, hs, 18, func(h *Held) {
		c.ProcID(&h.ID)
		c.RealmID(&h.Realm)
		c.Str(&h.Name)
		c.U32((*uint32)(&h.CPU))
		c.U64((*uint64)(&h.Memory))
	})
}

// CodeJobs is the payload of jobs.
func CodeJobs(c *sigmap.Coder, js *[]Job) {
	sigmap.List(c, js, 34, func(e *Job) {
		codeJob(c, e)
	})
}

func codeJob(c *sigmap.Coder, j *Job) {
	c.ProcID(&j.ID)
	c.RealmID(&j.Realm)
	c.Str(&j.Name)
	c.U32((*uint32)(&j.CPU))
	c.U64((*uint64)(&j.Memory))
	c.Strs(&j.Where)
	c.Str(&j.Spread)
	c.Str((*string)(&j.Near))
	c.Str((*string)(&j.Home.Machine))
	c.U64((*uint64)(&j.Home.Incarnation))
}

// Refusal is what a home is told of a job.
type Refusal struct {
	ID  sigma.ProcID
	Why string
}

// Next is the answer to next.
type Next struct {
	Jobs    []Job
	Refused []Refusal
}

// Code is its payload.
func (x *Next) Code(c *sigmap.Coder) {
	CodeJobs(c, &x.Jobs)
	sigmap.List(c, &x.Refused, 4, func(e *Refusal) {
		c.ProcID(&e.ID)
		c.Str(&e.Why)
	})
}

// CodeWaits is the answer to waiting.
func CodeWaits(c *sigmap.Coder, ws *[]Waits) {
	sigmap.List(c, ws, 42, func(w *Waits) {
		codeJob(c, &w.Job)
		c.Time(&w.Since)
		c.Str(&w.Why)
	})
}

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
	return treeserver.Answers("lcsched", v.call), nil
}

func notLeading() error {
	return &sigma.Error{Op: "lcsched", Kind: sigma.KindUnavailable, Msg: "this lcsched does not lead",
		Hint: "another does, or the names are away"}
}

func (v *visit) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	s := v.s
	switch method {
	case CallHeld:
		var held []Held
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeHeld(c, &held) }); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(v.held)+len(held) > heldMost {
			return nil, sigma.Errorf("lcsched.held", sigma.KindTooBig, "a machine has no %d reservations", heldMost)
		}
		v.held = append(v.held, held...)
		return nil, nil
	case CallAttend:
		var a Attendance
		if err := sigmap.Parse(payload, a.Code); err != nil {
			return nil, err
		}
		return nil, v.attend(ctx, &a)
	case CallNext:
		x, err := v.wait(ctx)
		if err != nil {
			return nil, err
		}
		return sigmap.Payload(x.Code)
	case CallLeads, CallWaiting:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.core == nil {
			return nil, notLeading()
		}
		if method == CallLeads {
			return nil, nil
		}
		ws := s.core.Waiting()
		ws = ws[:sigmap.Fit(min(len(ws), waitsMax), func(c *sigmap.Coder, n int) {
			some := ws[:n]
			CodeWaits(c, &some)
		})]
		return sigmap.Payload(func(c *sigmap.Coder) { CodeWaits(c, &ws) })
	}
	e, err := v.event(method, payload)
	if err != nil {
		return nil, err
	}
	if err := v.attends(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.attending[v.machine] != v {
		return nil, notLeading()
	}
	if ev := e(v.life); ev != nil {
		s.stepLocked(ev)
	}
	return nil, nil
}

// heldMost bounds the reservations that a machine tells of: more than it has room for.
const heldMost = 1 << 20

// limitsMost bounds the realms whose limits a machine tells: more than there are.
const limitsMost = 1 << 20

// limit collects what a machine tells of limits; nil: there is more to come. Service.mu is held.
func (v *visit) limit(more bool, ls []Limits) Event {
	if v.limits = append(v.limits, ls...); more && len(v.limits) < limitsMost {
		return nil
	}
	all := v.limits
	v.limits = nil
	return Limited{all}
}

// event reads what a machine says, in whatever life it is.
func (v *visit) event(method string, payload []byte) (of func(sigma.Life) Event, err error) {
	var id sigma.ProcID
	switch method {
	case CallEnqueue:
		var jobs []Job
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { CodeJobs(c, &jobs) })
		of = func(l sigma.Life) Event {
			for i := range jobs {
				jobs[i].Home = l
			}
			return Enqueued{jobs}
		}
	case CallCancel:
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) })
		of = func(l sigma.Life) Event { return Canceled{l, id} }
	case CallReleased:
		var ids []sigma.ProcID
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcIDs(&ids) })
		of = func(l sigma.Life) Event { return Released{l, ids} }
	case CallDeclined:
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) })
		of = func(l sigma.Life) Event { return Declined{l, id} }
	case CallLent:
		var memory sigma.Bytes
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64((*uint64)(&memory)) })
		of = func(l sigma.Life) Event { return Lent{l, memory} }
	case CallLimits:
		var more bool
		var ls []Limits
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.Bool(&more); CodeLimits(c, &ls) })
		of = func(sigma.Life) Event { return v.limit(more, ls) }
	default:
		err = sigma.Errorf("lcsched.Call", sigma.KindUnsupported, "no method %.50q", method)
	}
	return of, err
}

// attend makes the machine known until ctx ends.
func (v *visit) attend(ctx context.Context, a *Attendance) error {
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
func (v *visit) wait(ctx context.Context) (x Next, err error) {
	if err := v.attends(ctx); err != nil {
		return x, err
	}
	for {
		v.s.mu.Lock()
		jobs := sigmap.Fit(min(len(v.next.Jobs), nextMax), func(c *sigmap.Coder, n int) {
			some := Next{Jobs: v.next.Jobs[:n]}
			some.Code(c)
		})
		refused := 0
		if jobs == 0 {
			refused = sigmap.Fit(min(len(v.next.Refused), nextMax), func(c *sigmap.Coder, n int) {
				some := Next{Refused: v.next.Refused[:n]}
				some.Code(c)
			})
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
