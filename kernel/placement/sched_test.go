package placement

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// pulls answers a machine's pulls.
type pulls struct {
	asked  chan context.Context
	answer chan besched.Pulled
}

func (p *pulls) Call(ctx context.Context, _ string, _ []byte, _ []*os.File) ([]byte, []*os.File, error) {
	select {
	case p.asked <- ctx:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	select {
	case got := <-p.answer:
		payload, err := sigmap.Payload(func(c *sigmap.Coder) { besched.CallPull.Reply(c, &got) })
		return payload, nil, err
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

func newPulls() *pulls { return &pulls{make(chan context.Context), make(chan besched.Pulled)} }

// loneScheduler is that of a machine that nothing runs on.
func loneScheduler() *scheduler {
	return lonePlacement().sched
}

// lonePlacement is that of a machine that nothing runs on, with a launcher.
func lonePlacement() *Placement {
	table := procs.NewTable(procs.Config{Machine: "m1", Memory: sigma.GiB,
		Carry: func(*schedd.Core, schedd.Effect) {}})
	p := New(Config{Machine: "m1", Memory: sigma.GiB, CPU: 4000, Procs: table,
		Log: slog.New(slog.DiscardHandler)})
	p.Launcher(true)
	return p
}

func (s *scheduler) newShard(ctx context.Context, name besched.Shard) *shard {
	return &shard{s: s, name: name, ctx: ctx, work: make(chan struct{}, 1), parks: make(chan parking, 1),
		tell: make(chan struct{}, 1)}
}

// Goal: nothing is left of a credit that was used, however many there are in a session.
func TestCreditsEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	s, b := loneScheduler(), newPulls()
	sh := s.newShard(ctx, "m1/1")
	s.attended(sh)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	all.Go(func() { s.plan(ctx) })
	all.Go(func() { sh.pull(ctx, &all, b) })
	var before context.Context
	for range 4 {
		select {
		case asked := <-b.asked:
			if before != nil && before.Err() == nil {
				t.Fatal("the context of the credit before goes on")
			}
			before = asked
		case <-ctx.Done():
			t.Fatal("no credit is parked")
		}
		b.answer <- besched.Pulled{}
	}
}

// Goal: what comes of a session that was lost does not change how the machine stands in the next
// one.
func TestOldSession(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, b, now := loneScheduler(), newPulls(), time.Now()
	plan := func() []besched.Move {
		s.mu.Lock()
		defer s.mu.Unlock()
		moves, _ := s.offers.Plan(now, sigma.GiB, 0)
		return moves
	}
	old := s.newShard(ctx, "m1/1")
	s.attended(old)
	moves := plan()
	if len(moves) != 1 {
		t.Fatalf("%v", moves)
	}
	parked, done := context.WithCancel(ctx)
	old.parks <- parking{parked, done, moves[0].Offer}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var all sync.WaitGroup
		old.pull(ctx, &all, b)
		all.Wait()
	}()
	<-b.asked
	s.attended(s.newShard(ctx, "m1/1"))
	if moves = plan(); len(moves) != 1 || moves[0].Back {
		t.Fatalf("%v", moves)
	}
	b.answer <- besched.Pulled{}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Fatal("the old session goes on")
	}
	if moves = plan(); len(moves) != 0 {
		t.Errorf("the credit of the new session is taken for used: %v", moves)
	}
}

// Goal: when a shard that gave a lease is lost, what procs use is charged from then on, and schedd
// hears of each limit.
func TestLeaseLost(t *testing.T) {
	s := loneScheduler()
	first, second := s.newShard(t.Context(), "m1/1"), s.newShard(t.Context(), "m2/1")
	lease := func(sh *shard, kind besched.Lease) {
		s.mu.Lock()
		s.offers.Granted(sh.name, 0, kind, false)
		s.mu.Unlock()
		s.tellLeases()
	}
	s.attended(first)
	lease(first, besched.LeaseAlone)
	if s.charges.contended.Load() != nil || !s.lent || s.limit != 0 {
		t.Errorf("with a lease alone: lent %v, limit %d", s.lent, s.limit)
	}
	lease(first, besched.LeaseShared)
	if s.charges.contended.Load() != nil || !s.lent || s.limit != 4 {
		t.Errorf("with a shared lease: lent %v, limit %d", s.lent, s.limit)
	}
	s.left(first)
	since := s.charges.contended.Load()
	if since == nil {
		t.Fatal("nothing is charged without a lease")
	}
	s.attended(first)
	s.attended(second)
	s.left(second)
	if s.charges.contended.Load() != since {
		t.Error("the loss of another shard makes who waited be charged for less")
	}
}

// Goal: a machine offers nothing before its first launcher is there.
func TestNoOffersBeforeLauncher(t *testing.T) {
	s := newScheduler(lonePlacement())
	s.attended(s.newShard(t.Context(), "m1/1"))
	plan := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		moves, _ := s.offers.Plan(time.Now(), sigma.GiB, 0)
		return len(moves)
	}
	if n := plan(); n != 0 {
		t.Errorf("without a launcher %d credits are parked", n)
	}
	s.launches(true)
	if n := plan(); n != 1 {
		t.Errorf("with one %d are", n)
	}
}

// Goal: a machine that is closed places nothing by a lease from that moment on, and is closed for
// good when its credits are back.
func TestClosedPlacesNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := loneScheduler()
	sh := s.newShard(ctx, "m1/1")
	s.attended(sh)
	s.mu.Lock()
	s.offers.Granted("m1/1", 0, besched.LeaseShared, false)
	hold, release := context.WithCancel(ctx)
	sh.held = release
	s.mu.Unlock()
	s.tellLeases()
	if !s.lent {
		t.Fatal("there is no lease")
	}
	s.mu.Lock()
	s.offers.Plan(time.Now(), sigma.GiB, 0) // a credit is parked
	parked := s.offers.Parked() > 0
	s.mu.Unlock()
	s.close(true)
	if s.lent || s.charges.contended.Load() == nil || hold.Err() == nil || !parked {
		t.Errorf("lent: %v, the lease is held: %v, parked: %v", s.lent, hold.Err() == nil, parked)
	}
	soon, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if s.awaitClosed(soon) {
		t.Error("it is closed for good while a credit is parked")
	}
	s.mu.Lock()
	s.offers.Returned("m1/1")
	s.mu.Unlock()
	if !s.awaitClosed(ctx) {
		t.Error("it is not closed with its credits back")
	}
}
