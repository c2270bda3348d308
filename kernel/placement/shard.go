package placement

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// shard is the machine's session with one besched of the fleet: it sends what was spawned here for
// that one, and parks the credits that scheduler.plan wants there.
type shard struct {
	s     *scheduler
	name  besched.Shard
	ctx   context.Context // of the session
	work  chan struct{}   // something to send
	parks chan parking    // credits to be parked, one at a time
	tell  chan struct{}   // realms have other shares; it has room for one

	caller  sigma.Caller       // the besched
	queue   []besched.Job      // scheduler.mu; not sent yet
	cancels []sigma.ProcID     // scheduler.mu; not sent yet
	back    context.CancelFunc // scheduler.mu; takes the parked credit back
	held    context.CancelFunc // scheduler.mu; gives the lease back; nil if there is none
}

// parking is a credit that is to be parked until its context ends.
type parking struct {
	ctx   context.Context
	done  context.CancelFunc
	offer besched.Offer
}

// enqueueMax jobs go in one call, if they are short enough.
const enqueueMax = 512

// session works with one incarnation of the besched until it is lost, or this machine is in another
// life.
func (sh *shard) session(ctx context.Context, c *session.Client, life sigma.Life) {
	b, err := cluster.Callee(ctx, c, Besched)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sh.ctx, sh.caller = ctx, b
	var all sync.WaitGroup
	all.Go(func() { sh.attend(ctx, b, life); cancel() })
	sh.s.attended(sh)
	for _, work := range []func(context.Context, sigma.Caller){sh.send, func(ctx context.Context, b sigma.Caller) {
		sh.pull(ctx, &all, b)
	}, sh.tellShares,
		func(ctx context.Context, _ sigma.Caller) { sh.watch(ctx, life) }} {
		all.Go(func() { work(ctx, b); cancel() })
	}
	select {
	case <-c.Done():
		cancel()
	case <-ctx.Done():
	}
	all.Wait()
	sh.s.left(sh)
}

// watch returns when this machine is in another life.
func (sh *shard) watch(ctx context.Context, life sigma.Life) {
	for {
		moved := sh.s.all.cfg.Cluster.Moves() // before the look
		if sh.s.all.cfg.Cluster.Life() != life {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// attend makes this machine known to besched, as long as the session lives.
func (sh *shard) attend(ctx context.Context, b sigma.Caller, life sigma.Life) {
	tell(ctx, sh.s.all, b, 0, besched.CallAttend, besched.Attendance{Incarnation: life.Incarnation,
		CPU: sh.s.all.cfg.CPU, Memory: sh.s.all.cfg.Memory})
}

func (sh *shard) send(ctx context.Context, b sigma.Caller) {
	for {
		select {
		case <-sh.work:
		case <-ctx.Done():
			return
		}
		if sh.charge(ctx, b) != nil {
			return
		}
		for {
			jobs, cancels := sh.unsent()
			if len(jobs) == 0 && len(cancels) == 0 {
				break
			}
			if len(jobs) > 0 && tell(ctx, sh.s.all, b, callMax, besched.CallEnqueue, jobs) != nil {
				return
			}
			for _, id := range cancels {
				if tell(ctx, sh.s.all, b, callMax, besched.CallCancel, id) != nil {
					return
				}
			}
		}
	}
}

// unsent takes some of what is to be sent: cancels only after what they cancel.
func (sh *shard) unsent() ([]besched.Job, []sigma.ProcID) {
	sh.s.mu.Lock()
	defer sh.s.mu.Unlock()
	n := sigmap.Fit(sh.queue[:min(len(sh.queue), enqueueMax)], besched.CodeJobs)
	jobs := sh.queue[:n:n]
	sh.queue = sh.queue[n:]
	if len(sh.queue) > 0 {
		return jobs, nil
	}
	cancels := sh.cancels
	sh.queue, sh.cancels = nil, nil
	return jobs, cancels
}

// charge tells besched what is owed.
func (sh *shard) charge(ctx context.Context, b sigma.Caller) error {
	owed := sh.s.charges.take(sh.name)
	if len(owed) == 0 {
		return nil
	}
	return tell(ctx, sh.s.all, b, callMax, besched.CallCharge, owed)
}

// pull parks the credits that it is given, and takes note of what comes of them. all waits for what
// holds leases.
func (sh *shard) pull(ctx context.Context, all *sync.WaitGroup, b sigma.Caller) {
	s := sh.s
	for {
		var p parking
		select {
		case p = <-sh.parks:
		case <-ctx.Done():
			return
		}
		got, err := besched.CallPull.Ask(p.ctx, b, p.offer)
		gaveUp := p.ctx.Err() != nil
		p.done()
		switch {
		case err == nil:
			s.charges.given(time.Now(), sh.name, got.Jobs)
			s.all.granted(&got)
			s.unused(got.Jobs)
			s.mu.Lock()
			if s.shards[sh.name] != sh { // a later session has begun, and the stand is its own
				s.mu.Unlock()
				return
			}
			s.offers.Granted(sh.name, len(got.Jobs), got.Kind, got.Kept)
			if got.Lease != 0 {
				hctx, cancel := context.WithCancel(ctx)
				if sh.held = cancel; s.shut {
					cancel()
				}
				all.Go(func() { sh.hold(hctx, b, got.Lease) })
			}
			s.mu.Unlock()
			if got.Lease != 0 {
				s.tellLeases()
			}
			if len(got.Jobs) > 0 {
				s.pokeOthers()
			}
		case gaveUp && ctx.Err() == nil &&
			!session.Abandoned(err): // after the latter there may be a grant that we shall not see
			s.mu.Lock()
			if s.shards[sh.name] != sh {
				s.mu.Unlock()
				return
			}
			s.offers.Returned(sh.name)
			s.mu.Unlock()
		default:
			if ctx.Err() == nil {
				s.all.cfg.Log.Warn("besched call failed", "method", besched.CallPull.Name, "err", err)
			}
			return
		}
		poke(s.roomy)
	}
}

// hold has a lease until it is recalled or given back.
func (sh *shard) hold(ctx context.Context, b sigma.Caller, t besched.Ticket) {
	tell(ctx, sh.s.all, b, 0, besched.CallHold, t)
	s := sh.s
	s.mu.Lock()
	sh.release()
	if s.shards[sh.name] == sh {
		s.offers.Recalled(sh.name)
	}
	s.mu.Unlock()
	s.tellLeases()
	poke(s.roomy)
}

// release gives the lease back, if there is one. scheduler.mu is held.
func (sh *shard) release() {
	if sh.held != nil {
		sh.held()
		sh.held = nil
	}
}

// pokeOthers has what was granted by one shard told to the others soon.
func (s *scheduler) pokeOthers() {
	s.mu.Lock()
	several := len(s.shards) > 1
	s.mu.Unlock()
	if several && s.charges.claim() {
		time.AfterFunc(chargeDelay, s.sendCharges)
	}
}

// sendCharges has what is owed sent to all shards.
func (s *scheduler) sendCharges() {
	s.charges.unclaim()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		poke(sh.work)
	}
}

// tellShares tells besched the realms' shares each second, and when they were changed here, if
// procs of this machine wait there: then it matters, and besched may be one that knows none.
func (sh *shard) tellShares(ctx context.Context, b sigma.Caller) {
	every := time.NewTicker(chargeEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-sh.tell:
		case <-ctx.Done():
			return
		}
		if of, age, matter := sh.s.sharesToTell(); matter {
			tell(ctx, sh.s.all, b, callMax, besched.CallShares, besched.Shares{Age: age, Of: of})
		}
	}
}
