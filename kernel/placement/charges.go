package placement

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// charges is what this machine owes besched the word of: what procs used, and what services did for
// realms, while somebody waits (docs/adr/0012-turns-by-what-was-used.md), and what memory those
// procs hold (docs/adr/0039-memory-has-its-part-in-turns.md). While there is a lease nobody waits,
// and nothing is noted.
type charges struct {
	contended atomic.Pointer[time.Time] // since when there is no lease; nil = there is one
	tracked   atomic.Int64              // jobs in jobs

	mu   sync.Mutex
	jobs map[sigma.ProcID]*tracked // mu; that besched gave and that have not ended
	// mu; what is not sent yet, for each shard. Every shard is told of every charge, so that a
	// realm gains nothing by being queued at many.
	owed    map[besched.Shard]map[sigma.RealmID]besched.Charge
	claimed bool // mu; somebody sends soon
}

// tracked is a job that besched gave.
type tracked struct {
	realm   sigma.RealmID
	memory  sigma.Bytes // that shards think its realm holds here
	given   time.Time
	prepaid time.Duration // not reported yet
	// of its cost until it was looked at last; it, and what it cost since then while nobody waited,
	// is charged to nobody any more
	reported time.Duration
	looked   time.Time // zero = not yet
	since    time.Time // its cost when nobody waited, before this, is in reported
}

// forgive puts into reported what a proc cost when nobody waited, which was since it was looked at
// last until since: as much of cost, what it has cost until now, as that time is of all that
// passed.
func (t *tracked) forgive(since, placed, now time.Time, cost time.Duration) {
	if t.since.Equal(since) {
		return
	}
	t.since = since
	from := placed
	if t.looked.After(from) {
		from = t.looked
	}
	if free := since.Sub(from); free > 0 {
		part := min(1, float64(free)/float64(max(1, now.Sub(from))))
		t.reported += time.Duration(part * float64(max(0, cost-t.reported)))
	}
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
	owed := map[sigma.RealmID]besched.Charge{}
	for _, t := range c.jobs {
		add(owed, t.realm, besched.Charge{Held: int64(t.memory)})
	}
	c.owed[shard] = owed
}

func (c *charges) leave(shard besched.Shard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.owed, shard)
}

// claim reports whether nobody is about to send, and has the caller do it; unclaim is for the
// latter, who sends now.
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

// given notes what a shard gave, and that the others are to know what it charged for that. A job
// that was given before did not run then.
func (c *charges) given(now time.Time, shard besched.Shard, jobs []besched.Job) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range jobs {
		if old := c.jobs[j.ID]; old != nil {
			c.oweLocked(old.realm, besched.Charge{Prepaid: old.prepaid, Held: -int64(old.memory)})
		}
		for other, owed := range c.owed {
			if other != shard {
				add(owed, j.Realm, besched.Charge{Used: j.Prepaid, Held: int64(j.Memory)})
			}
		}
		c.jobs[j.ID] = &tracked{realm: j.Realm, memory: j.Memory, given: now, prepaid: j.Prepaid}
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
		if t.memory > 0 {
			c.oweLocked(p.Realm, besched.Charge{Held: -int64(t.memory)})
		}
		return t.memory > 0
	}
	whole := costOf(p, p.Usage, p.Times.Ended, cpu, memory)
	t.forgive(*since, p.Times.Placed, p.Times.Ended, whole)
	c.oweLocked(p.Realm, besched.Charge{Used: max(0, whole-t.reported), Prepaid: t.prepaid, Ended: 1, Whole: whole,
		Held: -int64(t.memory)})
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
	owed[realm] = besched.Charge{Realm: realm, Used: o.Used + more.Used, Prepaid: o.Prepaid + more.Prepaid,
		Ended: o.Ended + more.Ended, Whole: o.Whole + more.Whole, Held: o.Held + more.Held}
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

// so says what a proc that runs here has cost until now. One that was placed when nobody waited is
// charged for from then on when somebody did, as time passes, and not all at its end, when its
// realm would pay at once for what it had in many seconds.
func (c *charges) so(now time.Time, p *schedd.Proc, cost time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.contended.Load()
	if since == nil {
		return
	}
	t := c.jobs[p.ID]
	if t == nil {
		t = &tracked{realm: p.Realm, memory: p.Memory, given: *since}
		c.jobs[p.ID] = t
		c.oweLocked(p.Realm, besched.Charge{Held: int64(p.Memory)})
		c.tracked.Store(int64(len(c.jobs)))
	}
	t.forgive(*since, p.Times.Placed, now, cost)
	if cost > t.reported || t.prepaid > 0 {
		c.oweLocked(t.realm, besched.Charge{Used: max(0, cost-t.reported), Prepaid: t.prepaid})
		t.reported, t.prepaid = max(cost, t.reported), 0
	}
	t.looked = now
}

// served charges for what a service did for a realm from a moment until now: the part of it since
// somebody waits. A moment that is zero is too long ago to know.
func (c *charges) served(from, now time.Time, done sigma.Work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.contended.Load()
	if since == nil || done.CPU <= 0 {
		return
	}
	part := 1.0
	if since.After(from) {
		part = float64(max(0, now.Sub(*since))) / float64(max(1, now.Sub(from)))
	}
	if used := time.Duration(min(1, part) * float64(done.CPU)); used > 0 {
		c.oweLocked(done.Realm, besched.Charge{Used: used})
	}
}

// over says that a job does not run here, nor will it.
func (c *charges) over(id sigma.ProcID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.jobs[id]
	if t == nil {
		return
	}
	delete(c.jobs, id)
	c.tracked.Store(int64(len(c.jobs)))
	if t.prepaid > 0 || t.memory > 0 {
		c.oweLocked(t.realm, besched.Charge{Prepaid: t.prepaid, Held: -int64(t.memory)})
	}
}

// ended takes note of what a proc used that ended here.
func (s *scheduler) ended(p *schedd.Proc) {
	if s.charges.idle() {
		return
	}
	if p.Ended() && s.charges.ended(p, s.all.cfg.CPU, s.all.cfg.Memory) &&
		s.charges.claim() {
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
			s.all.cfg.Procs.With(func(v procs.View) { earlier = v.PlacedBefore(since) })
		}
		some := earlier[:min(len(earlier), chargeEach)]
		for _, id := range some {
			s.useBefore(ctx, id)
		}
		earlier = earlier[len(some):]
		for id, realm := range s.charges.old(time.Now()) {
			s.use(ctx, realm, id)
		}
		s.sendCharges()
		if of, _, matter := s.sharesToTell(); matter {
			shares := make(map[sigma.RealmID]uint32, len(of))
			for _, r := range of {
				shares[r.Realm] = r.Shares
			}
			s.all.cfg.Procs.Step(schedd.Starved{Shares: shares})
		}
	}
}

// sharesToTell are the realms' shares, as they were so long ago at most, if procs of this machine
// wait at besched: then they matter.
func (s *scheduler) sharesToTell() (of []sigmap.RealmShares, age time.Duration, matter bool) {
	if s.all.cfg.Procs.Queued() == 0 || s.charges.contended.Load() == nil {
		return nil, 0, false
	}
	all, asked, err := s.all.cfg.Realms()
	if err != nil { // what besched knows stands
		return nil, 0, false
	}
	for _, r := range all {
		if r.Shares > 1 {
			of = append(of, sigmap.RealmShares{Realm: r.ID, Shares: r.Shares})
		}
	}
	return of, time.Since(asked), true
}

// unused gives back what besched counts of jobs that it gave and that do not run here, because
// there is no room any more, or their realm has all that it may have.
func (s *scheduler) unused(jobs []besched.Job) {
	some := false
	s.all.cfg.Procs.With(func(v procs.View) {
		for _, j := range jobs {
			if !v.Holds(j.ID) {
				some = true
				s.charges.over(j.ID)
			}
		}
	})
	if some && s.charges.claim() {
		time.AfterFunc(chargeDelay, s.sendCharges)
	}
}

// sharesChanged has besched told at once of shares that were changed by this machine.
func (s *scheduler) sharesChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		poke(sh.tell)
	}
}

// useBefore looks for the first time at one that ran before somebody waited.
func (s *scheduler) useBefore(ctx context.Context, id sigma.ProcID) {
	if p, ok := s.all.cfg.Procs.Find(id); ok {
		s.look(ctx, &p)
	}
}

// look charges for one, if it runs here.
func (s *scheduler) look(ctx context.Context, p *schedd.Proc) {
	if p.State != sigma.ProcRunning || p.Away() {
		return
	}
	if u, err := s.all.cfg.Usage(ctx, p.Realm, p.ID); err == nil {
		s.looked(p.Realm, p.ID, u)
	}
}

// looked charges for what one uses, as the launcher has said, unless it has ended since that was
// asked: then its end has charged for all of it.
func (s *scheduler) looked(realm sigma.RealmID, id sigma.ProcID, u sigma.Usage) {
	s.all.cfg.Procs.With(func(v procs.View) {
		if p := v.Proc(realm, id); p != nil && p.State == sigma.ProcRunning && !p.Away() {
			now := time.Now()
			s.charges.so(now, p, costOf(p, u, now, s.all.cfg.CPU, s.all.cfg.Memory))
		}
	})
}

// use looks at one that is charged for.
func (s *scheduler) use(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) {
	p, known := s.all.cfg.Procs.Proc(realm, id)
	switch {
	case !known:
		s.charges.mu.Lock()
		t := s.charges.jobs[id]
		gone := t != nil && time.Since(t.given) > abandonedAfter
		s.charges.mu.Unlock()
		if gone {
			s.charges.over(id)
		}
	case p.Ended() || p.Away():
		s.charges.over(id)
	default:
		s.look(ctx, &p)
	}
}
