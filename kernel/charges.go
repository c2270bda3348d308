package kernel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// charges is what this machine owes besched the word of: what procs used while somebody waits (docs/adr/0012-turns-by-what-was-used.md). While there is a lease nobody waits, and nothing is
// noted.
type charges struct {
	contended atomic.Pointer[time.Time] // since when there is no lease; nil = there is one
	tracked   atomic.Int64              // jobs in jobs

	mu   sync.Mutex
	jobs map[sigma.ProcID]*tracked        // mu; that besched gave and that have not ended
	owed map[sigma.RealmID]besched.Charge // mu; not sent yet
}

// tracked is a job that besched gave.
type tracked struct {
	realm    sigma.RealmID
	given    time.Time
	prepaid  time.Duration // not reported yet
	reported time.Duration // of its cost
}

const (
	// chargeDelay gathers the charges of procs that end soon after one another.
	chargeDelay = 10 * time.Millisecond
	// chargeEvery is how often procs that run long are looked at, and how long a proc runs before.
	chargeEvery = time.Second
	// chargeEach bounds the procs that are looked at each time; each costs the launcher some 40 µs.
	chargeEach = 64
	// abandonedAfter is when a job that was given, and never came, is taken for gone elsewhere.
	abandonedAfter = 30 * time.Second
)

func newCharges() *charges {
	c := &charges{jobs: map[sigma.ProcID]*tracked{}, owed: map[sigma.RealmID]besched.Charge{}}
	c.lease(false)
	return c
}

// lease says that there is a lease now, or none.
func (c *charges) lease(on bool) {
	if on {
		c.contended.Store(nil)
	} else {
		now := time.Now()
		c.contended.Store(&now)
	}
}

// given notes what besched gave. A job that was given before did not run then.
func (c *charges) given(now time.Time, jobs []besched.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range jobs {
		if old := c.jobs[j.ID]; old != nil {
			c.oweLocked(old.realm, besched.Charge{Prepaid: old.prepaid})
		}
		c.jobs[j.ID] = &tracked{realm: j.Realm, given: now, prepaid: j.Prepaid}
	}
	c.tracked.Store(int64(len(c.jobs)))
}

// idle reports whether the end of a proc says nothing to anybody.
func (c *charges) idle() bool { return c.contended.Load() == nil && c.tracked.Load() == 0 }

// ended charges for a proc that ended, and reports whether there is something new to be sent.
func (c *charges) ended(p *schedd.Proc, cpu sigma.MilliCPU, memory sigma.Bytes) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.jobs[p.ID]
	if t == nil {
		t = &tracked{}
	}
	delete(c.jobs, p.ID)
	c.tracked.Store(int64(len(c.jobs)))
	since := c.contended.Load()
	if since == nil {
		return false
	}
	whole := costOf(p, p.Usage, p.Times.Ended, cpu, memory)
	used := whole
	if before := since.Sub(p.Times.Placed); before > 0 { // when nobody waited
		held := max(1, p.Times.Ended.Sub(p.Times.Placed))
		used = time.Duration(float64(whole) * max(0, 1-float64(before)/float64(held)))
	}
	c.oweLocked(p.Realm, besched.Charge{Used: max(0, used-t.reported), Prepaid: t.prepaid, Ended: 1, Whole: whole})
	return len(c.owed) == 1
}

func costOf(p *schedd.Proc, u sigma.Usage, until time.Time, cpu sigma.MilliCPU, memory sigma.Bytes) time.Duration {
	return besched.Cost(u.UserTime+u.SystemTime, p.Memory, until.Sub(p.Times.Placed), cpu, memory)
}

func (c *charges) oweLocked(realm sigma.RealmID, more besched.Charge) {
	o := c.owed[realm]
	c.owed[realm] = besched.Charge{Realm: realm, Used: o.Used + more.Used, Prepaid: o.Prepaid + more.Prepaid, Ended: o.Ended + more.Ended, Whole: o.Whole + more.Whole}
}

// take empties what is owed.
func (c *charges) take() (out []besched.Charge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.owed {
		out = append(out, o)
	}
	clear(c.owed)
	return out
}

// old lists some of the jobs that were given long ago.
func (c *charges) old(now time.Time) map[sigma.ProcID]sigma.RealmID {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[sigma.ProcID]sigma.RealmID{}
	for id, t := range c.jobs { // in an order that differs each time, so that all have their turn
		if now.Sub(t.given) >= chargeEvery {
			out[id] = t.realm
		}
		if len(out) == chargeEach {
			break
		}
	}
	return out
}

// so says what a job has cost until now. over: it does not run here, nor will it.
func (c *charges) so(id sigma.ProcID, cost time.Duration, over bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.jobs[id]
	if t == nil {
		return
	}
	if over {
		delete(c.jobs, id)
		c.tracked.Store(int64(len(c.jobs)))
	}
	if cost > t.reported || t.prepaid > 0 {
		c.oweLocked(t.realm, besched.Charge{Used: max(0, cost-t.reported), Prepaid: t.prepaid})
		t.reported, t.prepaid = max(cost, t.reported), 0
	}
}

// charge tells besched what is owed.
func (s *scheduler) charge(ctx context.Context, b sigma.Caller) error {
	owed := s.charges.take()
	if len(owed) == 0 {
		return nil
	}
	return s.call(ctx, b, callMax, besched.CallCharge, func(c *sigmap.Coder) { besched.CodeCharges(c, &owed) })
}

// endedLocked takes note of what a proc used that ended here.
func (s *scheduler) endedLocked(realm sigma.RealmID, id sigma.ProcID) {
	if s.charges.idle() {
		return
	}
	if p := s.k.core.Proc(realm, id); p != nil && p.Ended() && s.charges.ended(p, s.k.cpu(), s.k.cfg.Memory) {
		time.AfterFunc(chargeDelay, func() { poke(s.work) })
	}
}

// watchUse charges for procs that run long, as long as the session lives.
func (s *scheduler) watchUse(ctx context.Context, b sigma.Caller) {
	every := time.NewTicker(chargeEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		if s.charges.contended.Load() == nil {
			continue
		}
		s.tellShares(ctx, b)
		now := time.Now()
		for id, realm := range s.charges.old(now) {
			s.use(ctx, now, realm, id)
		}
		poke(s.work)
	}
}

// tellShares tells besched the realms' shares, if procs of this machine wait there: then it matters, and besched may be one that knows none.
func (s *scheduler) tellShares(ctx context.Context, b sigma.Caller) {
	s.k.mu.Lock()
	waits := s.k.core.Queued() > 0
	s.k.mu.Unlock()
	if !waits {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	all, err := realms{s.k, nil}.list(ctx)
	if err != nil { // what it knows stands
		return
	}
	var of []besched.RealmShares
	for _, r := range all {
		if r.Shares > 1 {
			of = append(of, besched.RealmShares{Realm: r.ID, Shares: r.Shares})
		}
	}
	s.call(ctx, b, callMax, besched.CallShares, func(c *sigmap.Coder) { besched.CodeShares(c, &of) })
}

// use looks at one.
func (s *scheduler) use(ctx context.Context, now time.Time, realm sigma.RealmID, id sigma.ProcID) {
	s.k.mu.Lock()
	p := s.k.core.Proc(realm, id)
	known := p != nil
	var copied schedd.Proc
	if known {
		copied = *p
	}
	s.k.mu.Unlock()
	switch {
	case !known:
		s.charges.mu.Lock()
		t := s.charges.jobs[id]
		gone := t != nil && now.Sub(t.given) > abandonedAfter
		s.charges.mu.Unlock()
		if gone {
			s.charges.so(id, 0, true)
		}
	case copied.Ended() || copied.Away():
		s.charges.so(id, 0, true)
	case copied.State == sigma.ProcRunning:
		if u, err := s.k.usageOf(ctx, realm, id); err == nil {
			s.charges.so(id, costOf(&copied, u, now, s.k.cpu(), s.k.cfg.Memory), false)
		}
	}
}
