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
	return treeserver.Methods("besched", 1, s.visit(p.Machine), methods), nil
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

// methods answers the calls of one machine's session.
var methods = sigmap.Table(
	sigmap.Do(CallAttend, func(v *visit, ctx context.Context, a Attendance) error {
		return v.attend(ctx, sigma.Life{Machine: v.machine, Incarnation: a.Incarnation}, a.CPU,
			min(a.Memory, memoryMax))
	}),
	sigmap.Do(CallEnqueue, (*visit).enqueue), sigmap.Do(CallCancel, (*visit).cancel),
	sigmap.On(CallPull, (*visit).pull), sigmap.Do(CallHold, (*visit).hold),
	sigmap.Do(CallCharge, (*visit).charge), sigmap.Do(CallShares, (*visit).shares),
	sigmap.On(CallQueues, func(v *visit, _ context.Context, _ sigmap.None) ([]Queued, error) {
		v.s.mu.Lock()
		defer v.s.mu.Unlock()
		return v.s.core.Queues(), nil
	}),
)

// charge takes note of what realms used.
func (v *visit) charge(ctx context.Context, cs []Charge) error {
	if err := v.attends(ctx); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if v.s.attending[v.machine] == v { // else it attends anew, and has told all of it again
		v.s.core.Charge(v.machine, cs)
	}
	return nil
}

// shares takes note of what realms have a right to.
func (v *visit) shares(ctx context.Context, told Shares) error {
	// by this clock, for those of machines differ; how long the call was under way is not known, so
	// that one which was late may count until the next, a second later
	at := time.Now().Add(-max(0, told.Age))
	if err := v.attends(ctx); err != nil {
		return err
	}
	of := make(map[sigma.RealmID]uint32, len(told.Of))
	for _, r := range told.Of {
		of[r.Realm] = min(r.Shares, sigma.SharesMax)
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if !at.Before(v.s.sharesAt) {
		v.s.sharesAt = at
		v.s.core.Shares(of)
	}
	return nil
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
		jobs[i].Home, jobs[i].Memory = v.life, min(jobs[i].Memory, memoryMax)
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
	o.Memory = min(o.Memory, memoryMax)
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
