package kernel

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// charges is what this machine owes besched the word of: what procs used while somebody waits (docs/adr/0012-turns-by-what-was-used.md). While there is a lease nobody waits, and nothing is
// noted.
type charges struct {
	contended atomic.Pointer[time.Time] // since when there is no lease; nil = there is one
	tracked   atomic.Int64              // jobs in jobs

	mu      sync.Mutex
	jobs    map[sigma.ProcID]*tracked                          // mu; that besched gave and that have not ended
	owed    map[besched.Shard]map[sigma.RealmID]besched.Charge // mu; not sent yet, to each shard: all must know of everything, so that a realm has no more by being queued at many
	claimed bool                                               // mu; somebody sends soon
}

// tracked is a job that besched gave.
type tracked struct {
	realm    sigma.RealmID
	given    time.Time
	prepaid  time.Duration // not reported yet
	reported time.Duration // of its cost
	since    time.Time     // its cost when nobody waited, before this, is in reported
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
	c := &charges{jobs: map[sigma.ProcID]*tracked{}, owed: map[besched.Shard]map[sigma.RealmID]besched.Charge{}}
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

// attend begins to note what a shard is owed the word of, and leave ends it.
func (c *charges) attend(shard besched.Shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed[shard] = map[sigma.RealmID]besched.Charge{}
}

func (c *charges) leave(shard besched.Shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.owed, shard)
}

// claim reports whether nobody is about to send, and has the caller do it; unclaim is for the latter, who sends now.
func (c *charges) claim() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	claimed := c.claimed
	c.claimed = true
	return !claimed
}

func (c *charges) unclaim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claimed = false
}

// given notes what a shard gave, and that the others are to know what it charged for that. A job that was given before did not run then.
func (c *charges) given(now time.Time, shard besched.Shard, jobs []besched.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range jobs {
		if old := c.jobs[j.ID]; old != nil {
			c.oweLocked(old.realm, besched.Charge{Prepaid: old.prepaid})
		}
		for other, owed := range c.owed {
			if other != shard {
				add(owed, j.Realm, besched.Charge{Used: j.Prepaid})
			}
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
	if before := since.Sub(p.Times.Placed); before > 0 && !t.since.Equal(*since) { // when nobody waited
		held := max(1, p.Times.Ended.Sub(p.Times.Placed))
		used = time.Duration(float64(whole) * max(0, 1-float64(before)/float64(held)))
	}
	c.oweLocked(p.Realm, besched.Charge{Used: max(0, used-t.reported), Prepaid: t.prepaid, Ended: 1, Whole: whole})
	return true
}

func costOf(p *schedd.Proc, u sigma.Usage, until time.Time, cpu sigma.MilliCPU, memory sigma.Bytes) time.Duration {
	return besched.Cost(u.UserTime+u.SystemTime, p.Memory, until.Sub(p.Times.Placed), cpu, memory)
}

// oweLocked notes what all shards are to know.
func (c *charges) oweLocked(realm sigma.RealmID, more besched.Charge) {
	for _, owed := range c.owed {
		add(owed, realm, more)
	}
}

func add(owed map[sigma.RealmID]besched.Charge, realm sigma.RealmID, more besched.Charge) {
	o := owed[realm]
	owed[realm] = besched.Charge{Realm: realm, Used: o.Used + more.Used, Prepaid: o.Prepaid + more.Prepaid, Ended: o.Ended + more.Ended, Whole: o.Whole + more.Whole}
}

// take empties what a shard is owed.
func (c *charges) take(shard besched.Shard) (out []besched.Charge) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.owed[shard] {
		out = append(out, o)
	}
	clear(c.owed[shard])
	return out
}

// begin has a proc charged for that ran before somebody waited: as time passes, without what it has cost until now, and not all at its end, when its realm would pay at once for what it had in many seconds.
func (c *charges) begin(realm sigma.RealmID, id sigma.ProcID, since time.Time, cost time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.jobs[id]
	if t == nil {
		t = &tracked{realm: realm, given: since}
		c.jobs[id] = t
		c.tracked.Store(int64(len(c.jobs)))
	}
	t.since, t.reported = since, max(t.reported, cost)
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

// endedLocked takes note of what a proc used that ended here.
func (s *scheduler) endedLocked(realm sigma.RealmID, id sigma.ProcID) {
	if s.charges.idle() {
		return
	}
	if p := s.k.core.Proc(realm, id); p != nil && p.Ended() && s.charges.ended(p, s.k.cpu(), s.k.cfg.Memory) && s.charges.claim() {
		time.AfterFunc(chargeDelay, s.sendCharges)
	}
}

// watchUse charges for procs that run long, until ctx ends.
func (s *scheduler) watchUse(ctx context.Context) {
	every := time.NewTicker(chargeEvery)
	defer every.Stop()
	var since time.Time        // when it was that somebody began to wait
	var earlier []sigma.ProcID // that ran before, and are not charged for yet
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		contended := s.charges.contended.Load()
		if contended == nil {
			continue
		}
		if !since.Equal(*contended) {
			since = *contended
			s.k.mu.Lock()
			earlier = s.k.core.PlacedBefore(since)
			s.k.mu.Unlock()
		}
		some := earlier[:min(len(earlier), chargeEach)]
		for _, id := range some {
			s.useBefore(ctx, since, id)
		}
		earlier = earlier[len(some):]
		now := time.Now()
		for id, realm := range s.charges.old(now) {
			s.use(ctx, now, realm, id)
		}
		s.sendCharges()
		if of, _, matter := s.sharesToTell(); matter {
			shares := make(map[sigma.RealmID]uint32, len(of))
			for _, r := range of {
				shares[r.Realm] = r.Shares
			}
			s.k.step(schedd.Starved{Shares: shares})
		}
	}
}

// sharesToTell are the realms' shares, as they were so long ago at most, if procs of this machine wait at besched: then they matter.
func (s *scheduler) sharesToTell() (of []besched.RealmShares, age time.Duration, matter bool) {
	s.k.mu.Lock()
	waits := s.k.core.Queued() > 0
	s.k.mu.Unlock()
	if !waits || s.charges.contended.Load() == nil {
		return nil, 0, false
	}
	all, asked, err := s.k.realmListAt()
	if err != nil { // what besched knows stands
		return nil, 0, false
	}
	for _, r := range all {
		if r.Shares > 1 {
			of = append(of, besched.RealmShares{Realm: r.ID, Shares: r.Shares})
		}
	}
	return of, time.Since(asked), true
}

// useBefore looks for the first time at one that ran before somebody waited.
func (s *scheduler) useBefore(ctx context.Context, since time.Time, id sigma.ProcID) {
	s.k.mu.Lock()
	p := s.k.core.Find(id)
	if p == nil || p.State != sigma.ProcRunning {
		s.k.mu.Unlock()
		return
	}
	copied := *p
	s.k.mu.Unlock()
	if u, err := s.k.usageOf(ctx, copied.Realm, id); err == nil {
		s.charges.begin(copied.Realm, id, since, costOf(&copied, u, time.Now(), s.k.cpu(), s.k.cfg.Memory))
	}
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
