package placement

import (
	"context"
	"hash/fnv"
	"io"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// scheduler is the machine's part in the fleet of bescheds (docs/adr/0027-besched-is-a-fleet.md):
// it attends at every shard, parks credits there as besched.Offers says, and tells schedd whether
// all shards gave a lease.
type scheduler struct {
	all     *Placement
	charges *charges

	leasing sync.Mutex // before procs.Table's; held while schedd is told of leases, so that the last word is the last
	lent    bool       // leasing
	limit   int        // leasing; schedd.Leased.Limit, as told last

	mu     sync.Mutex // after procs.Table's
	offers *besched.Offers
	shards map[besched.Shard]*shard // mu; that are attended
	closed bool                     // mu; no new procs are wanted here
	lame   bool                     // mu; there is no launcher that could start them
	shut   bool                     // mu; for either reason, nothing is offered
	roomy  chan struct{}            // what can be offered, or where, changed
}

func newScheduler(p *Placement) *scheduler {
	s := &scheduler{all: p, charges: newCharges(), offers: besched.NewOffers(p.cfg.Memory),
		shards: map[besched.Shard]*shard{}, lame: true, shut: true,
		roomy: make(chan struct{}, 1)}
	s.offers.Close(true)
	return s
}

// enqueue has a proc sent to its shard. If that is not attended any more, schedd will hear of it
// and send the proc elsewhere.
func (s *scheduler) enqueue(p *schedd.Proc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.shards[p.Shard]; sh != nil {
		sh.queue = append(sh.queue, besched.Job{ID: p.ID, Realm: p.Realm, Memory: p.Memory, Program: programOf(p),
			Near: p.Near})
		poke(sh.work)
		return
	}
	s.all.cfg.Unscheduled(p)
}

// programOf tells a realm's programs apart: that a machine ran one recently makes it the better
// place for the next proc.
func programOf(p *schedd.Proc) uint64 {
	h := fnv.New64a()
	io.WriteString(h, string(p.Realm))
	io.WriteString(h, p.Program)
	return h.Sum64()
}

func (s *scheduler) cancel(shard besched.Shard, id sigma.ProcID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.shards[shard]; sh != nil {
		sh.cancels = append(sh.cancels, id)
		poke(sh.work)
	}
}

func (s *scheduler) room() { poke(s.roomy) }

// close says whether new procs may not come here.
func (s *scheduler) close(closed bool) {
	s.mu.Lock()
	s.closed = closed
	s.offerLocked()
	s.mu.Unlock()
	s.tellLeases()
}

// launches says whether there is a launcher. Without one what is placed here would wait for the
// next.
func (s *scheduler) launches(on bool) {
	s.mu.Lock()
	s.lame = !on
	s.offerLocked()
	s.mu.Unlock()
	s.tellLeases()
}

// offerLocked begins or ends to offer what this machine has.
func (s *scheduler) offerLocked() {
	shut := s.closed || s.lame
	if s.shut == shut {
		return
	}
	s.shut = shut
	s.offers.Close(shut)
	if shut {
		for _, sh := range s.shards {
			sh.release()
		}
	}
	poke(s.roomy)
}

const (
	dialMax  = 3 * time.Second        // for one machine to take a session
	retryMin = 100 * time.Millisecond // before a scheduler is dialled again
	retryMax = 5 * time.Second        // before it is looked again for one that there was not
)

// closeMost is how long it is waited at once for what bescheds are to give back; then the roster is
// looked at again, of which there may be a later one.
const closeMost = time.Second

// awaitClosed waits until no besched can give this machine a proc, if new procs may not come here;
// false if one still can when ctx or closeMost ends the wait.
func (s *scheduler) awaitClosed(ctx context.Context) bool {
	for begun := time.Now(); ; retry.Pause(ctx, time.Millisecond) {
		s.mu.Lock()
		may := s.closed && s.offers.Parked() > 0
		s.mu.Unlock()
		if !may || ctx.Err() != nil || time.Since(begun) >= closeMost {
			return !may
		}
	}
}

func (s *scheduler) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// run keeps a session with each besched of the control machines that live, until ctx ends.
func (s *scheduler) run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, work := range []func(context.Context){s.plan, s.watchUse, s.watchQueue} {
		all.Go(func() { work(ctx) })
	}
	visited := map[sigma.MachineID]context.CancelFunc{}
	for ctx.Err() == nil {
		now, changed := s.all.cfg.Bescheds()
		for m, stop := range visited {
			if !now[m] {
				stop()
				delete(visited, m)
			}
		}
		for m := range now {
			if visited[m] == nil {
				visit, stop := context.WithCancel(ctx)
				visited[m] = stop
				all.Go(func() { s.visit(visit, &all, m, 1) })
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	for _, stop := range visited {
		stop()
	}
}

// visit keeps a session with the n-th besched of a machine until ctx ends; once it has one, the
// next is looked for.
func (s *scheduler) visit(ctx context.Context, all *sync.WaitGroup, m sigma.MachineID, n int) {
	var further sync.Once
	for ctx.Err() == nil {
		if !s.all.cfg.Cluster.AwaitLife(ctx) {
			return
		}
		begun := time.Now()
		dial, cancel := context.WithTimeout(ctx, dialMax)
		c, err := s.all.cfg.DialAt(dial, m, BeschedName(n))
		cancel()
		if err == nil {
			further.Do(func() {
				if n < besched.ShardsMax {
					all.Go(func() { s.visit(ctx, all, m, n+1) })
				}
			})
			sh := &shard{s: s, name: besched.Shard(string(m) + "/" + strconv.Itoa(n)), work: make(chan struct{}, 1),
				parks: make(chan parking, 1), tell: make(chan struct{}, 1)}
			sh.session(ctx, c, s.all.cfg.Cluster.Life())
			c.Close()
		}
		wait := retryMin
		switch {
		case err != nil && sigma.KindOf(err) == sigma.KindNotFound: // it has no more of them; maybe in another life
			wait = retryMax
		case err == nil && time.Since(begun) >= retryMin: // else besched does not want this machine yet
			continue
		}
		retry.Pause(ctx, wait)
	}
}

// BeschedName is the service's of a machine's n-th besched.
func BeschedName(n int) string {
	if n == 1 {
		return Besched
	}
	return Besched + "-" + strconv.Itoa(n)
}

// IsBesched says whether a service is one.
func IsBesched(name string) bool {
	for n := range besched.ShardsMax {
		if name == BeschedName(n+1) {
			return true
		}
	}
	return false
}

// attended makes a shard one of those that are used; it must be left after.
func (s *scheduler) attended(sh *shard) {
	s.mu.Lock()
	old := s.shards[sh.name] // of a visit that ends just now
	s.shards[sh.name] = sh
	s.offers.Attend(sh.name)
	s.mu.Unlock()
	s.charges.attend(sh.name)
	if old != nil {
		s.lost(sh.name)
	}
	s.tellLeases()
	poke(sh.work) // what procs here hold
	s.all.cfg.Procs.Step(schedd.ShardFound{Shard: sh.name})
	poke(s.roomy)
}

// left ends attended: what was queued at the shard goes to others.
func (s *scheduler) left(sh *shard) {
	s.mu.Lock()
	if s.shards[sh.name] != sh {
		s.mu.Unlock()
		return
	}
	delete(s.shards, sh.name)
	s.offers.Leave(sh.name)
	s.mu.Unlock()
	s.charges.leave(sh.name)
	s.lost(sh.name)
	s.tellLeases()
	poke(s.roomy)
}

// lost has schedd send what is queued at a shard to others.
func (s *scheduler) lost(shard besched.Shard) {
	s.leasing.Lock()
	defer s.leasing.Unlock()
	s.all.cfg.Procs.Step(schedd.ShardLost{Shard: shard})
	if s.lent { // schedd forgot it; procs may wait from now on
		s.lent = false
		s.charges.lease(false)
	}
}

// tellLeases tells schedd whether it may place procs by itself.
func (s *scheduler) tellLeases() {
	s.leasing.Lock()
	defer s.leasing.Unlock()
	s.mu.Lock()
	all, shared := s.offers.Leased()
	all = all && !s.shut // which a lease that is being given back does not outlive
	s.mu.Unlock()
	e := schedd.Leased{On: all}
	if shared {
		e.Limit = max(1, int(s.all.cfg.CPU/1000))
	}
	if all == s.lent && e.Limit == s.limit {
		return
	}
	s.lent, s.limit = all, e.Limit
	s.charges.lease(all)
	s.all.cfg.Procs.Step(e)
}

// plan parks credits and takes them back, until ctx ends.
func (s *scheduler) plan(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		_, free := s.all.cfg.Procs.Memory()
		load := uint32(s.all.cfg.Procs.Running())
		s.mu.Lock()
		now := time.Now()
		moves, again := s.offers.Plan(now, free, load)
		for _, m := range moves {
			if sh := s.shards[m.Shard]; m.Back {
				sh.back()
			} else {
				ctx, cancel := context.WithCancel(sh.ctx)
				sh.back = cancel
				select {
				case sh.parks <- parking{ctx, cancel, m.Offer}:
				default: // cannot be, for there is one credit at most
					cancel()
				}
			}
		}
		s.mu.Unlock()
		timer.Reset(time.Hour)
		if !again.IsZero() {
			timer.Reset(again.Sub(now))
		}
		select {
		case <-s.roomy:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// sessions are those with the shards.
func (s *scheduler) sessions() (out []sigma.Caller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		out = append(out, sh.caller)
	}
	return out
}

// requeueEvery is the least age of a request to besched before it is sent again for a job that is
// still queued. besched may have given the job to a machine that could not take it; nothing else
// brings such a job back.
const requeueEvery = 5 * time.Second

// requeueEach is added for each proc that is queued, so that to send many again is never much work.
const requeueEach = 200 * time.Microsecond

// watchQueue has what is queued for long sent again, if there are other machines, until ctx ends.
func (s *scheduler) watchQueue(ctx context.Context) {
	again := time.NewTicker(requeueEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if len(s.all.cfg.Cluster.Others()) > 0 {
			age := requeueEvery + time.Duration(s.all.cfg.Procs.Queued())*requeueEach
			s.all.cfg.Procs.Step(schedd.Requeue{Before: time.Now().Add(-age)})
		}
	}
}

// callMax is how long besched may take for what it answers at once; one that takes longer is given
// up as lost, so that what is to be sent does not pile up behind it.
const callMax = 30 * time.Second

// tell calls a scheduler; most is how long it may take, 0 as long as the session lives.
func tell[Q any](ctx context.Context, p *Placement, b sigma.Caller, most time.Duration,
	m sigmap.Method[Q, sigmap.None], q Q) error {
	inTime, cancel := ctx, func() {}
	if most > 0 {
		inTime, cancel = context.WithTimeout(ctx, most)
	}
	defer cancel()
	err := m.Tell(inTime, b, q)
	if err != nil && ctx.Err() == nil {
		p.cfg.Log.Warn("scheduler's call failed", "method", m.Name, "err", err)
	}
	return err
}

// granted takes note of jobs that this machine was given: its own are started, others taken from
// their homes.
func (p *Placement) granted(got *besched.Pulled) {
	for _, j := range got.Jobs {
		switch {
		case j.Home.Machine == p.cfg.Machine:
			p.cfg.Procs.Step(schedd.Assigned{ID: j.ID})
		case procs.IsID(j.ID):
			p.cfg.Procs.Step(schedd.Offered{ID: j.ID, Realm: j.Realm, Memory: j.Memory, Home: j.Home})
		}
	}
	if got.Largest > 0 {
		p.cfg.Procs.Step(schedd.Largest{Memory: got.Largest})
	}
}
