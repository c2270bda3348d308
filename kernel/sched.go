package kernel

import (
	"context"
	"runtime"
	"sync"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// scheduler is the machine's connection to besched: it sends what was spawned and cannot be placed here under a lease, and parks credits while there is room and no lease for all of it.
type scheduler struct {
	k       *Kernel
	charges *charges

	mu      sync.Mutex
	queue   []besched.Job  // mu; not sent yet
	cancels []sigma.ProcID // mu; not sent yet
	closed  bool           // mu; no new procs are wanted here
	work    chan struct{}  // something to send
	roomy   chan struct{}  // what can be offered changed
	shut    chan struct{}  // closed changed
	moved   chan struct{}  // the roster changed: maybe this is another life
}

// enqueueMax jobs go in one call.
const enqueueMax = 512

// requeueEvery is how often what is queued is sent to besched again, if it was sent longer ago than that: it may have been given to a machine that could not take it. Nothing else is
// done about jobs that were granted and never taken.
const requeueEvery = 5 * time.Second

// requeueEach is added for each proc that is queued, so that to send many again is never much work.
const requeueEach = 200 * time.Microsecond

func newScheduler(k *Kernel) *scheduler {
	return &scheduler{k: k, charges: newCharges(), work: make(chan struct{}, 1), roomy: make(chan struct{}, 1), shut: make(chan struct{}, 1), moved: make(chan struct{}, 1)}
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (s *scheduler) enqueue(id sigma.ProcID, realm sigma.RealmID, memory sigma.Bytes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, besched.Job{ID: id, Realm: realm, Memory: memory})
	poke(s.work)
}

func (s *scheduler) cancel(id sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels = append(s.cancels, id)
	poke(s.work)
}

func (s *scheduler) room() { poke(s.roomy) }

// close says whether new procs may not come here.
func (s *scheduler) close(closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed != closed {
		s.closed = closed
		poke(s.shut)
	}
}

func (s *scheduler) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// run keeps a session to besched until ctx ends.
func (s *scheduler) run(ctx context.Context) {
	for ctx.Err() == nil {
		life := s.k.life()
		c, err := s.k.dialScheduler(ctx)
		if err != nil {
			select {
			case <-time.After(restartMin):
			case <-ctx.Done():
			}
			continue
		}
		begun := time.Now()
		s.session(ctx, c, life)
		c.Close()
		if time.Since(begun) < restartMin { // besched does not want this machine yet
			sleep(ctx, restartMin)
		}
		if ctx.Err() == nil {
			s.mu.Lock()
			s.queue, s.cancels = nil, nil // before the step, which has all that is queued sent again
			s.mu.Unlock()
			s.k.step(schedd.SchedulerLost{})
		}
	}
}

// session works with one incarnation of besched until it is lost.
func (s *scheduler) session(ctx context.Context, c *session.Client, life sigma.Life) {
	root, err := c.Attach(ctx, "")
	if err != nil {
		return
	}
	b, ok := root.(sigma.Caller)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	for _, work := range []func(context.Context, sigma.Caller){s.send, s.pull, func(ctx context.Context, b sigma.Caller) { s.attend(ctx, b, life) },
		func(ctx context.Context, _ sigma.Caller) { s.watch(ctx, life) }, s.watchUse} {
		all.Go(func() { work(ctx, b); cancel() })
	}
	select {
	case <-c.Done():
		cancel()
	case <-ctx.Done():
	}
	all.Wait()
}

// watch returns when this machine is in another life. Until then it has what is queued for long sent again, if there are other machines.
func (s *scheduler) watch(ctx context.Context, life sigma.Life) {
	again := time.NewTicker(requeueEvery)
	defer again.Stop()
	for s.k.life() == life {
		select {
		case <-s.moved:
		case <-again.C:
			if len(s.k.others()) > 0 {
				s.k.mu.Lock()
				age := requeueEvery + time.Duration(s.k.core.Queued())*requeueEach
				s.k.mu.Unlock()
				s.k.step(schedd.Requeue{Before: time.Now().Add(-age)})
			}
		case <-ctx.Done():
			return
		}
	}
}

// attend makes this machine known to besched, as long as the session lives.
func (s *scheduler) attend(ctx context.Context, b sigma.Caller, life sigma.Life) {
	cpu, memory := s.k.cpu(), s.k.cfg.Memory
	s.call(ctx, b, 0, besched.CallAttend, func(c *sigmap.Coder) {
		c.U64((*uint64)(&life.Incarnation))
		c.U32((*uint32)(&cpu))
		c.U64((*uint64)(&memory))
	})
}

// cpu is what this machine offers.
func (k *Kernel) cpu() sigma.MilliCPU {
	if k.cfg.CPU > 0 {
		return k.cfg.CPU
	}
	return sigma.MilliCPU(1000 * runtime.NumCPU())
}

func (s *scheduler) send(ctx context.Context, b sigma.Caller) {
	for {
		select {
		case <-s.work:
		case <-ctx.Done():
			return
		}
		if s.charge(ctx, b) != nil {
			return
		}
		for {
			s.mu.Lock()
			n := min(len(s.queue), enqueueMax)
			jobs := s.queue[:n:n]
			s.queue = s.queue[n:]
			cancels := s.cancels
			if len(s.queue) == 0 {
				s.cancels = nil
			} else {
				cancels = nil // only after what they cancel has been sent
			}
			s.mu.Unlock()
			if n == 0 && len(cancels) == 0 {
				break
			}
			if n > 0 && s.call(ctx, b, callMax, besched.CallEnqueue, func(c *sigmap.Coder) { besched.CodeJobs(c, &jobs) }) != nil {
				return
			}
			for _, id := range cancels {
				if s.call(ctx, b, callMax, besched.CallCancel, func(c *sigmap.Coder) { c.ProcID(&id) }) != nil {
					return
				}
			}
		}
	}
}

// callMax is how long besched may take for what it answers at once; one that takes longer is given up as lost, so that what is to be sent does not pile up behind it.
const callMax = 30 * time.Second

// call is a call without an answer; most is how long it may take, 0 as long as the session lives.
func (s *scheduler) call(ctx context.Context, b sigma.Caller, most time.Duration, method string, encode func(*sigmap.Coder)) error {
	return callWithin(ctx, s.k, b, most, method, encode)
}

func callWithin(ctx context.Context, k *Kernel, b sigma.Caller, most time.Duration, method string, encode func(*sigmap.Coder)) error {
	inTime, cancel := ctx, func() {}
	if most > 0 {
		inTime, cancel = context.WithTimeout(ctx, most)
	}
	defer cancel()
	payload, err := sigmap.Payload(encode)
	if err == nil {
		_, _, err = b.Call(inTime, method, payload, nil)
	}
	if err != nil && ctx.Err() == nil {
		k.cfg.Log.Warn("scheduler's call failed", "method", method, "err", err)
	}
	return err
}

// reparkDelay is how long a credit that is large already stays parked after more became free: when many procs end, most of them together change it once.
const reparkDelay = 5 * time.Millisecond

// offer is what this machine can offer now.
func (s *scheduler) offer() besched.Offer {
	s.k.mu.Lock()
	defer s.k.mu.Unlock()
	return besched.Offer{Memory: s.k.core.Free(), Load: uint32(s.k.core.Running())}
}

// leasing is a lease that is held.
type leasing struct {
	cancel context.CancelFunc // gives it back
	over   chan struct{}      // closed when it is held no more, and schedd knows
	shared bool
}

// pull keeps a credit parked while there is memory. When what is free is not what the parked credit says, the credit is taken back and another one parked: so a large proc does not wait for a small
// credit. A lease of a machine alone takes the credit's place; with a shared one there is a credit too.
func (s *scheduler) pull(ctx context.Context, b sigma.Caller) {
	var held *leasing
	defer func() {
		if held != nil {
			held.cancel()
			<-held.over
		}
	}()
	for ctx.Err() == nil {
		closed := s.isClosed()
		if held != nil {
			if closed {
				held.cancel()
			}
			if !held.shared || closed {
				select {
				case <-held.over:
				case <-s.shut:
					continue
				}
			}
			select {
			case <-held.over:
				held = nil
			default:
			}
		}
		offer := s.offer()
		if closed || offer.Memory < sigma.MemoryLeast {
			select {
			case <-s.roomy:
			case <-s.shut:
			case <-ctx.Done():
			}
			continue
		}
		offer.Ask = held == nil
		got, err := s.park(ctx, b, offer, held)
		if err != nil {
			return
		}
		s.k.granted(&got)
		if got.Lease != 0 {
			held = s.hold(ctx, b, got.Lease, got.Kind)
		}
	}
}

// park makes an offer and waits for jobs or a lease. It comes back with nothing when another offer is to be made.
func (s *scheduler) park(ctx context.Context, b sigma.Caller, offer besched.Offer, held *leasing) (besched.Pulled, error) {
	pctx, cancel := context.WithCancel(ctx)
	defer cancel()
	grown := make(chan struct{})
	go func() {
		defer close(grown)
		var late <-chan time.Time
		var over chan struct{} // nil: there is no lease that could end
		if held != nil {
			over = held.over
		}
		for {
			select {
			case <-pctx.Done():
				return
			case <-late:
				cancel()
			case <-s.shut:
				cancel()
			case <-over: // ask for another
				cancel()
			case <-s.roomy:
				now := s.offer()
				more := now.Memory > offer.Memory
				switch {
				case more && offer.Memory < s.k.cfg.Memory/2:
					cancel()
				case (more || held != nil && (now.Memory != offer.Memory || now.Load != offer.Load)) && late == nil:
					late = time.After(reparkDelay)
				}
			}
		}
	}()
	got, err := s.pullOnce(pctx, b, offer)
	gaveUp := pctx.Err() != nil
	cancel()
	<-grown                                              // it may have taken a word of room, which the next look at what is free must come after
	if err != nil && gaveUp && !session.Abandoned(err) { // after the latter there may be a grant that we shall not see
		return besched.Pulled{}, nil
	}
	if err != nil {
		s.k.cfg.Log.Warn("besched call failed", "method", besched.CallPull, "err", err)
	}
	return got, err
}

func (s *scheduler) pullOnce(ctx context.Context, b sigma.Caller, offer besched.Offer) (got besched.Pulled, err error) {
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { besched.CodeOffer(c, &offer) })
	if err != nil {
		return got, err
	}
	reply, _, err := b.Call(ctx, besched.CallPull, payload, nil)
	if err != nil {
		return got, err
	}
	return got, sigmap.Parse(reply, got.Code)
}

// granted takes note of jobs that this machine was given: its own are started, others taken from their homes.
func (k *Kernel) granted(got *besched.Pulled) {
	for _, j := range got.Jobs {
		switch {
		case j.Home.Machine == k.cfg.Machine:
			k.step(schedd.Assigned{ID: j.ID})
		case isProcID(j.ID):
			k.step(schedd.Offered{ID: j.ID, Memory: j.Memory, Home: j.Home})
		}
	}
	if got.Largest > 0 {
		k.step(schedd.Largest{Memory: got.Largest})
	}
}

// hold uses a lease until it is recalled or canceled.
func (s *scheduler) hold(ctx context.Context, b sigma.Caller, t besched.Ticket, kind besched.Lease) *leasing {
	ctx, cancel := context.WithCancel(ctx)
	l := &leasing{cancel: cancel, over: make(chan struct{}), shared: kind == besched.LeaseShared}
	limit := 0
	if l.shared {
		limit = max(1, int(s.k.cpu()/1000))
	}
	s.charges.lease(true)
	s.k.step(schedd.Leased{On: true, Limit: limit})
	go func() {
		defer close(l.over)
		defer cancel()
		s.call(ctx, b, 0, besched.CallHold, func(c *sigmap.Coder) { c.U64((*uint64)(&t)) })
		s.k.step(schedd.Leased{})
		s.charges.lease(false)
	}()
	return l
}
