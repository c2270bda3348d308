package kernel

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// scheduler is the machine's connection to besched: it sends what was spawned and cannot be placed here under a lease, and parks credits while there is room and no lease.
type scheduler struct {
	k *Kernel

	mu      sync.Mutex
	queue   []besched.Job  // mu; not sent yet
	cancels []sigma.ProcID // mu; not sent yet
	work    chan struct{}  // something to send
	roomy   chan struct{}  // memory became free
}

// enqueueMax jobs go in one call.
const enqueueMax = 512

func newScheduler(k *Kernel) *scheduler {
	return &scheduler{k: k, work: make(chan struct{}, 1), roomy: make(chan struct{}, 1)}
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

// run keeps a session to besched until ctx ends.
func (s *scheduler) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, err := s.k.dialScheduler(ctx)
		if err != nil {
			select {
			case <-time.After(restartMin):
			case <-ctx.Done():
			}
			continue
		}
		s.session(ctx, c)
		c.Close()
		if ctx.Err() == nil {
			s.mu.Lock()
			s.queue, s.cancels = nil, nil // before the step: what is spawned after it must be kept
			s.mu.Unlock()
			s.k.step(schedd.SchedulerLost{}) // what it had queued died with it
		}
	}
}

// session works with one incarnation of besched until it is lost.
func (s *scheduler) session(ctx context.Context, c *session.Client) {
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
	var both sync.WaitGroup
	both.Go(func() { s.send(ctx, b); cancel() })
	both.Go(func() { s.pull(ctx, b); cancel() })
	select {
	case <-c.Done():
		cancel()
	case <-ctx.Done():
	}
	both.Wait()
}

func (s *scheduler) send(ctx context.Context, b sigma.Caller) {
	for {
		select {
		case <-s.work:
		case <-ctx.Done():
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
		s.k.cfg.Log.Warn("besched call failed", "method", method, "err", err)
	}
	return err
}

// reparkDelay is how long a credit that is large already stays parked after more became free: when many procs end, most of them together change it once.
const reparkDelay = 5 * time.Millisecond

// pull keeps a credit parked while there is memory. When more became free than the parked credit says, the credit is taken back and a larger one parked, so that a large proc
// does not wait for a small credit.
func (s *scheduler) pull(ctx context.Context, b sigma.Caller) {
	for ctx.Err() == nil {
		s.k.mu.Lock()
		free := s.k.core.Free()
		s.k.mu.Unlock()
		if free < sigma.MemoryLeast {
			select {
			case <-s.roomy:
			case <-ctx.Done():
			}
			continue
		}
		pctx, cancel := context.WithCancel(ctx)
		grown := make(chan struct{})
		go func() {
			defer close(grown)
			var late <-chan time.Time
			for {
				select {
				case <-pctx.Done():
					return
				case <-late:
					cancel()
				case <-s.roomy:
					s.k.mu.Lock()
					more := s.k.core.Free() > free
					s.k.mu.Unlock()
					switch {
					case more && free < s.k.core.Capacity()/2:
						cancel()
					case more && late == nil:
						late = time.After(reparkDelay)
					}
				}
			}
		}()
		jobs, lease, err := s.pullOnce(pctx, b, free)
		gaveUp := pctx.Err() != nil
		cancel()
		<-grown                                                // it may have taken a word of room, which the next look at what is free must come after
		if err != nil && (!gaveUp || session.Abandoned(err)) { // after the latter there may be a grant that we shall not see
			s.k.cfg.Log.Warn("besched call failed", "method", besched.CallPull, "err", err)
			return
		}
		for _, j := range jobs {
			s.k.step(schedd.Assigned{ID: j.ID})
		}
		if lease != 0 {
			s.k.step(schedd.Leased{On: true})
			err := s.call(ctx, b, 0, besched.CallHold, func(c *sigmap.Coder) { c.U64((*uint64)(&lease)) })
			s.k.step(schedd.Leased{})
			if err != nil {
				return
			}
		}
	}
}

func (s *scheduler) pullOnce(ctx context.Context, b sigma.Caller, memory sigma.Bytes) (jobs []besched.Job, lease besched.Ticket, err error) {
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.U64((*uint64)(&memory)) })
	if err != nil {
		return nil, 0, err
	}
	reply, _, err := b.Call(ctx, besched.CallPull, payload, nil)
	if err != nil {
		return nil, 0, err
	}
	err = sigmap.Parse(reply, func(c *sigmap.Coder) { besched.CodeJobs(c, &jobs); c.U64((*uint64)(&lease)) })
	return jobs, lease, err
}
