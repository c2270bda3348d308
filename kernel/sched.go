package kernel

import (
	"context"
	"hash/fnv"
	"io"
	"runtime"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/besched"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// scheduler is the machine's part in the fleet of bescheds (docs/adr/0027-besched-is-a-fleet.md):
// it attends at every shard, parks credits there as besched.Offers says, and tells schedd whether
// all shards gave a lease.
type scheduler struct {
	k       *Kernel
	charges *charges

	leasing sync.Mutex // before Kernel.mu; held while schedd is told of leases, so that the last word is the last
	lent    bool       // leasing
	limit   int        // leasing; schedd.Leased.Limit, as told last

	mu     sync.Mutex // after Kernel.mu
	offers *besched.Offers
	shards map[besched.Shard]*shard // mu; that are attended
	closed bool                     // mu; no new procs are wanted here
	lame   bool                     // mu; there is no launcher that could start them
	shut   bool                     // mu; for either reason, nothing is offered
	roomy  chan struct{}            // what can be offered, or where, changed
	moved  chan struct{}            // closed and replaced when the roster changed: maybe this is another life
}

func newScheduler(k *Kernel) *scheduler {
	s := &scheduler{k: k, charges: newCharges(), offers: besched.NewOffers(k.cfg.Memory),
		shards: map[besched.Shard]*shard{}, lame: true, shut: true, roomy: make(chan struct{}, 1),
		moved: make(chan struct{})}
	s.offers.Close(true)
	return s
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
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
	s.k.noteUnscheduled(p)
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

// closeMost is how long it is waited at once for what bescheds are to give back; then the roster is
// looked at again, of which there may be a later one.
const closeMost = time.Second

// awaitClosed waits until no besched can give this machine a proc, if new procs may not come here;
// false if one still can when ctx or closeMost ends the wait.
func (s *scheduler) awaitClosed(ctx context.Context) bool {
	for begun := time.Now(); ; sleep(ctx, time.Millisecond) {
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

// move says that the roster changed.
func (s *scheduler) move() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *scheduler) moves() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
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
		now, changed := s.k.bescheds()
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

// bescheds are the control machines that live. changed is closed when they may be others.
func (k *Kernel) bescheds() (now map[sigma.MachineID]bool, changed <-chan struct{}) {
	changed = k.enrolled
	if k.registered() {
		changed = k.id.Roster().Changed() // before the look
	}
	now = map[sigma.MachineID]bool{}
	for _, m := range k.candidates(serviceBesched) {
		now[m] = true
	}
	return now, changed
}

// visit keeps a session with the n-th besched of a machine until ctx ends; once it has one, the
// next is looked for.
func (s *scheduler) visit(ctx context.Context, all *sync.WaitGroup, m sigma.MachineID, n int) {
	var further sync.Once
	for ctx.Err() == nil {
		if !s.k.lives(ctx) {
			return
		}
		begun := time.Now()
		dial, cancel := context.WithTimeout(ctx, dialMost)
		c, err := s.k.dialAt(dial, m, beschedName(n))
		cancel()
		if err == nil {
			further.Do(func() {
				if n < besched.ShardsMax {
					all.Go(func() { s.visit(ctx, all, m, n+1) })
				}
			})
			sh := &shard{s: s, name: besched.Shard(string(m) + "/" + strconv.Itoa(n)), work: make(chan struct{}, 1),
				parks: make(chan parking, 1), tell: make(chan struct{}, 1)}
			sh.session(ctx, c, s.k.life())
			c.Close()
		}
		wait := restartMin
		switch {
		case err != nil && sigma.KindOf(err) == sigma.KindNotFound: // it has no more of them; maybe in another life
			wait = restartMax
		case err == nil && time.Since(begun) >= restartMin: // else besched does not want this machine yet
			continue
		}
		sleep(ctx, wait)
	}
}

// beschedName is the service's of a machine's n-th besched.
func beschedName(n int) string {
	if n == 1 {
		return serviceBesched
	}
	return serviceBesched + "-" + strconv.Itoa(n)
}

// isBesched says whether a service is one.
func isBesched(name string) bool {
	for n := range besched.ShardsMax {
		if name == beschedName(n+1) {
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
	s.k.procs.Step(schedd.ShardFound{Shard: sh.name})
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
	s.k.procs.Step(schedd.ShardLost{Shard: shard})
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
		e.Limit = max(1, int(s.k.cpu()/1000))
	}
	if all == s.lent && e.Limit == s.limit {
		return
	}
	s.lent, s.limit = all, e.Limit
	s.charges.lease(all)
	s.k.procs.Step(e)
}

// plan parks credits and takes them back, until ctx ends.
func (s *scheduler) plan(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		_, free := s.k.procs.Memory()
		load := uint32(s.k.procs.Running())
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

// requeueEvery is how often what is queued is sent to besched again, if it was sent longer ago than
// that: it may have been given to a machine that could not take it. Nothing else is done about jobs
// that were granted and never taken.
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
		if len(s.k.others()) > 0 {
			age := requeueEvery + time.Duration(s.k.procs.Queued())*requeueEach
			s.k.procs.Step(schedd.Requeue{Before: time.Now().Add(-age)})
		}
	}
}

// cpu is what this machine offers.
func (k *Kernel) cpu() sigma.MilliCPU {
	if k.cfg.CPU > 0 {
		return k.cfg.CPU
	}
	return sigma.MilliCPU(1000 * runtime.NumCPU())
}

// callMax is how long besched may take for what it answers at once; one that takes longer is given
// up as lost, so that what is to be sent does not pile up behind it.
const callMax = 30 * time.Second

func callWithin(ctx context.Context, k *Kernel, b sigma.Caller, most time.Duration, method string,
	encode func(*sigmap.Coder)) error {
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

// granted takes note of jobs that this machine was given: its own are started, others taken from
// their homes.
func (k *Kernel) granted(got *besched.Pulled) {
	for _, j := range got.Jobs {
		switch {
		case j.Home.Machine == k.cfg.Machine:
			k.procs.Step(schedd.Assigned{ID: j.ID})
		case isProcID(j.ID):
			k.procs.Step(schedd.Offered{ID: j.ID, Realm: j.Realm, Memory: j.Memory, Home: j.Home})
		}
	}
	if got.Largest > 0 {
		k.procs.Step(schedd.Largest{Memory: got.Largest})
	}
}
