package besched

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// Methods of the service's root file. The machine that calls is the Principal's, stamped from its
// link.
//
//	attend   incarnation, cpu, memory -> -    makes the machine known, and lasts until its end, or until the machine attends anew; then all that it has here is dropped.
//	                                          The other calls wait for the one of their session
//	enqueue  []Job, whose home is ignored: it is the caller -> -
//	cancel   ProcID -> -
//	pull     Offer -> []Job, lease, kind, kept, largest    waits until there is a job that fits; or answers with a lease (not 0) if one was asked for and no job waits; or tells whether the
//	                                          machine is kept for a job, if the offer says that it must know. Largest is the most memory that a machine has
//	hold     lease -> -                       waits until the lease is recalled
//	charge   []Charge -> -                    what the procs used that ran on the machine, and how the memory that they hold has changed
//	shares   age, []RealmShares -> -          of all realms that have not 1, as they were so long ago; what is older than what is known is ignored
//	queues   - -> []Queued                    what waits; of anybody, who need not attend
const (
	CallAttend  = "attend"
	CallEnqueue = "enqueue"
	CallCancel  = "cancel"
	CallPull    = "pull"
	CallHold    = "hold"
	CallCharge  = "charge"
	CallShares  = "shares"
	CallQueues  = "queues"
)

// CodeJobs is the payload of jobs.
func CodeJobs(c *sigmap.Coder, js *[]Job) {
	sigmap.List(c, js, 40, func(j *Job) {
		c.ProcID(&j.ID)
		c.RealmID(&j.Realm)
		c.U64((*uint64)(&j.Memory))
		c.Str((*string)(&j.Home.Machine))
		c.U64((*uint64)(&j.Home.Incarnation))
		c.U64(&j.Program)
		c.Str((*string)(&j.Near))
		c.Duration(&j.Prepaid)
	})
}

// CodeCharges is the payload of charge.
func CodeCharges(c *sigmap.Coder, cs *[]Charge) {
	sigmap.List(c, cs, 38, func(ch *Charge) {
		c.RealmID(&ch.Realm)
		c.Duration(&ch.Used)
		c.Duration(&ch.Prepaid)
		c.U32(&ch.Ended)
		c.Duration(&ch.Whole)
		held := uint64(ch.Held)
		c.U64(&held)
		ch.Held = int64(held)
	})
}

// CodeShares is the payload of shares.
func CodeShares(c *sigmap.Coder, age *time.Duration, rs *[]sigmap.RealmShares) {
	c.Duration(age)
	c.RealmsShares(rs)
}

// CodeQueues is the answer to queues.
func CodeQueues(c *sigmap.Coder, qs *[]Queued) {
	sigmap.List(c, qs, 18, func(q *Queued) {
		c.RealmID(&q.Realm)
		c.U32(&q.Jobs)
		c.U64((*uint64)(&q.Memory))
		c.U32(&q.Shares)
	})
}

// CodeOffer is the payload of pull.
func CodeOffer(c *sigmap.Coder, o *Offer) {
	c.U64((*uint64)(&o.Memory))
	c.U32(&o.Load)
	c.Bool(&o.Ask)
	c.Bool(&o.Elsewhere)
	c.Bool(&o.Kept)
}

// Pulled is the answer to pull.
type Pulled struct {
	Jobs    []Job
	Lease   Ticket // 0 if there are jobs
	Kind    Lease
	Kept    bool // the machine is kept for a job here; told if there are neither jobs nor a lease
	Largest sigma.Bytes
}

// Code is its payload.
func (p *Pulled) Code(c *sigmap.Coder) {
	CodeJobs(c, &p.Jobs)
	c.U64((*uint64)(&p.Lease))
	c.U8((*uint8)(&p.Kind))
	c.Bool(&p.Kept)
	c.U64((*uint64)(&p.Largest))
}

// memoryMax is more than any machine has, and so little that sums of what is told do not overflow.
const memoryMax = 1 << 20 * sigma.GiB

// lookAgain is how often it is looked whether the first jobs wait for other reasons than before.
const lookAgain = 250 * time.Millisecond

// Service answers machines. It is a tree whose root is one callable file. Safe for concurrent use.
type Service struct {
	// Decided is told why jobs wait, and must not block; nil = nobody asks. Not changed once the
	// service is used.
	Decided func(decision.Record)

	mu        sync.Mutex
	core      *Core                      // mu
	next      Ticket                     // mu
	waiting   map[Ticket]chan Grant      // mu; each has room for its grant
	holding   map[Ticket]chan struct{}   // mu; closed by the recall of the lease
	attending map[sigma.MachineID]*visit // mu
	relenting bool                       // mu; relent will be called
	limit     decision.Limit             // mu; of what is decided
	looking   bool                       // mu; look will be called
	sharesAt  time.Time                  // mu; when the shares were asked for that are known
}

// visit is what a machine has here by one session.
type visit struct {
	s       *Service
	machine sigma.MachineID
	begun   chan struct{} // closed when it attends
	over    chan struct{} // closed when it does no more

	life sigma.Life // Service.mu; set before begun
}

var _ sigma.Tree = (*Service)(nil)

// NewService makes an empty one.
func NewService() *Service {
	return &Service{core: NewCore(), waiting: map[Ticket]chan Grant{}, holding: map[Ticket]chan struct{}{},
		attending: map[sigma.MachineID]*visit{}}
}

// Attach implements sigma.Tree; only the provider's programs may.
func (s *Service) Attach(_ context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	if !p.System {
		return nil, sigma.Errorf("besched.Attach", sigma.KindPermission, "besched is for machines")
	}
	return treeserver.Answers("besched", s.visit(p.Machine).call), nil
}

// Offers counts the machines that have an offer parked, for tests.
func (s *Service) Offers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.credits.free()
}

func (s *Service) visit(m sigma.MachineID) *visit {
	return &visit{s: s, machine: m, begun: make(chan struct{}), over: make(chan struct{})}
}

func (v *visit) call(ctx context.Context, method string, payload []byte) ([]byte, error) {
	switch method {
	case CallAttend:
		var life sigma.Life
		var cpu sigma.MilliCPU
		var memory sigma.Bytes
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
			c.U64((*uint64)(&life.Incarnation))
			c.U32((*uint32)(&cpu))
			c.U64((*uint64)(&memory))
		}); err != nil {
			return nil, err
		}
		life.Machine = v.machine
		memory = min(memory, memoryMax)
		return nil, v.attend(ctx, life, cpu, memory)
	case CallEnqueue:
		var jobs []Job
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeJobs(c, &jobs) }); err != nil {
			return nil, err
		}
		for i := range jobs {
			jobs[i].Memory = min(jobs[i].Memory, memoryMax)
		}
		return nil, v.enqueue(ctx, jobs)
	case CallCancel:
		var id sigma.ProcID
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) }); err != nil {
			return nil, err
		}
		return nil, v.cancel(ctx, id)
	case CallPull:
		var o Offer
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeOffer(c, &o) }); err != nil {
			return nil, err
		}
		o.Memory = min(o.Memory, memoryMax)
		p, err := v.pull(ctx, o)
		if err != nil {
			return nil, err
		}
		return sigmap.Payload(p.Code)
	case CallHold:
		var lease Ticket
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64((*uint64)(&lease)) }); err != nil {
			return nil, err
		}
		return nil, v.hold(ctx, lease)
	}
	return v.account(ctx, method, payload)
}

// account answers the calls that tell what realms used and what they have a right to.
func (v *visit) account(ctx context.Context, method string, payload []byte) ([]byte, error) {
	switch method {
	case CallCharge:
		var cs []Charge
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeCharges(c, &cs) }); err != nil {
			return nil, err
		}
		if err := v.attends(ctx); err != nil {
			return nil, err
		}
		v.s.mu.Lock()
		defer v.s.mu.Unlock()
		if v.s.attending[v.machine] == v { // else it attends anew, and has told all of it again
			v.s.core.Charge(v.machine, cs)
		}
		return nil, nil
	case CallShares:
		var age time.Duration
		var rs []sigmap.RealmShares
		if err := sigmap.Parse(payload, func(c *sigmap.Coder) { CodeShares(c, &age, &rs) }); err != nil {
			return nil, err
		}
		at := time.Now().Add(-max(0,
			// by this clock, for those of machines differ; how long the call was under way is not
			// known, so that one which was late may count until the next, a second later
			age))
		if err := v.attends(ctx); err != nil {
			return nil, err
		}
		of := make(map[sigma.RealmID]uint32, len(rs))
		for _, r := range rs {
			of[r.Realm] = min(r.Shares, sigma.SharesMax)
		}
		v.s.mu.Lock()
		defer v.s.mu.Unlock()
		if at.Before(v.s.sharesAt) {
			return nil, nil
		}
		v.s.sharesAt = at
		v.s.core.Shares(of)
		return nil, nil
	}
	if method == CallQueues {
		v.s.mu.Lock()
		qs := v.s.core.Queues()
		v.s.mu.Unlock()
		return sigmap.Payload(func(c *sigmap.Coder) { CodeQueues(c, &qs) })
	}
	return nil, sigma.Errorf("besched.Call", sigma.KindUnsupported, "no method %.50q", method)
}

// attend makes the machine known until ctx ends.
func (v *visit) attend(ctx context.Context, life sigma.Life, cpu sigma.MilliCPU, memory sigma.Bytes) error {
	const op = "besched.attend"
	s := v.s
	s.mu.Lock()
	if old := s.attending[v.machine]; old == v || old != nil && old.life.Incarnation > life.Incarnation {
		s.mu.Unlock()
		return sigma.Errorf(op, sigma.KindStale, "machine %s attends already, in its life %d", v.machine,
			old.life.Incarnation)
	} else if old != nil { // whose session will be seen to have ended
		s.endLocked(old)
	}
	v.life = life
	s.attending[v.machine] = v
	s.recalledLocked(s.core.Attend(life, cpu, memory))
	close(v.begun)
	s.mu.Unlock()
	select {
	case <-v.over:
		return sigma.Errorf(op, sigma.KindStale, "machine %s attends anew", v.machine)
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
	s.doneLocked(s.core.Gone(v.life))
}

// attends waits until the machine attends by this session.
func (v *visit) attends(ctx context.Context) error {
	select {
	case <-v.over:
		return sigma.Errorf("besched", sigma.KindStale, "machine %s attends no more by this session", v.machine)
	default:
	}
	select {
	case <-v.begun:
		return nil
	case <-ctx.Done():
		return sigma.Wrap("besched", "", ctx.Err())
	}
}

func (v *visit) enqueue(ctx context.Context, jobs []Job) error {
	if err := v.attends(ctx); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	for i := range jobs {
		jobs[i].Home = v.life
	}
	v.s.doneLocked(v.s.core.Enqueue(jobs))
	v.s.tellLocked(jobs)
	var expect []sigma.ProcID
	for i := range jobs {
		if jobs[i].Near != "" && v.s.core.Expecting(jobs[i].ID) {
			expect = append(expect, jobs[i].ID)
		}
	}
	if len(expect) > 0 {
		time.AfterFunc(sigma.NearWait, func() { v.s.hurry(expect) })
	}
	return nil
}

// tellLocked says why those of some jobs that wait do so, and looks again as long as any do.
func (s *Service) tellLocked(jobs []Job) {
	if s.Decided == nil || s.core.Idle() {
		return
	}
	for i := range jobs {
		if s.core.knows(jobs[i].ID) && s.limit.Allows(string(jobs[i].Realm), time.Now()) {
			s.decidedLocked(s.core.Why(jobs[i].ID))
		}
	}
	if !s.looking {
		s.looking = true
		time.AfterFunc(lookAgain, s.look)
	}
}

// look says why the first jobs of realms wait, if that is another reason than before.
func (s *Service) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looking = false
	for _, id := range s.core.Firsts() {
		s.decidedLocked(s.core.Why(id))
	}
	s.tellLocked(nil)
}

func (s *Service) decidedLocked(r decision.Record, news bool) {
	if news {
		s.Decided(r)
	}
}

// hurry has jobs wait no more for the machines that they should be near.
func (s *Service) hurry(ids []sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.doneLocked(s.core.Hurry(id))
	}
}

// cancel takes out a job; only its home may.
func (v *visit) cancel(ctx context.Context, id sigma.ProcID) error {
	if err := v.attends(ctx); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if v.s.core.Home(id) == v.life {
		v.s.grantLocked(v.s.core.Cancel(id))
	}
	return nil
}

func (s *Service) doneLocked(grants []Grant, recalled []Ticket) {
	s.grantLocked(grants)
	s.recalledLocked(recalled)
}

func (s *Service) recalledLocked(ts []Ticket) {
	for _, t := range ts {
		if ch := s.holding[t]; ch != nil {
			close(ch)
			delete(s.holding, t)
		}
	}
}

func (s *Service) grantLocked(gs []Grant) {
	for _, g := range gs {
		s.waiting[g.Ticket] <- g
		delete(s.waiting, g.Ticket)
	}
	if !s.relenting && s.core.Sparing() {
		s.relenting = true
		time.AfterFunc(AwayFor, s.relent)
	}
}

func (s *Service) relent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.relenting = false
	s.grantLocked(s.core.Relent())
}

// pull parks a credit until it is granted jobs, or a lease. A grant that was made is never dropped:
// when the caller gives up at the same moment it gets the jobs after all.
func (v *visit) pull(ctx context.Context, o Offer) (Pulled, error) {
	if err := v.attends(ctx); err != nil {
		return Pulled{}, err
	}
	s, ch := v.s, make(chan Grant, 1)
	s.mu.Lock()
	s.next++
	t := s.next
	s.waiting[t] = ch
	s.grantLocked(s.core.Park(t, v.machine, o))
	s.mu.Unlock()
	select {
	case g := <-ch:
		return s.pulled(g), nil
	case <-ctx.Done():
	case <-v.over:
	}
	s.mu.Lock()
	left := s.core.Leave(t)
	parked := s.waiting[t] != nil // else there is a grant; if it did not leave though, its machine's visit ended
	delete(s.waiting, t)
	s.mu.Unlock()
	if err := ctx.Err(); err != nil && (left || parked) {
		return Pulled{}, sigma.Wrap("besched.pull", "", err)
	} else if left || parked {
		return Pulled{}, sigma.Errorf("besched.pull", sigma.KindStale, "machine %s attends anew", v.machine)
	}
	return s.pulled(<-ch), nil
}

func (s *Service) pulled(g Grant) Pulled {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := Pulled{Jobs: g.Jobs, Kind: g.Lease, Kept: g.Kept, Largest: s.core.Largest()}
	if g.Lease != NoLease {
		p.Lease = g.Ticket
	}
	return p
}

// hold waits until a lease is recalled. One whose holder gives up waiting is given back.
func (v *visit) hold(ctx context.Context, t Ticket) error {
	s := v.s
	s.mu.Lock()
	if to := s.core.leasedTo(t); to == "" || to != v.machine || s.holding[t] != nil { // nobody takes another's
		s.mu.Unlock()
		return nil
	}
	ch := make(chan struct{})
	s.holding[t] = ch
	s.mu.Unlock()
	select {
	case <-ch:
		return nil
	case <-v.over:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core.Leave(t)
	delete(s.holding, t)
	return sigma.Wrap("besched.hold", "", ctx.Err())
}
