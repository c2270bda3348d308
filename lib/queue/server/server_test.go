package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/lib/queue"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// place is a realm in memory, in which one server leads at a time and clients find it.
type place struct {
	t     testing.TB
	tree  *memfs.Tree
	cfg   Config
	names *resolve.Tree

	mu    sync.Mutex
	epoch uint64                              // mu
	serve func(net.Conn)                      // mu; nil while nobody leads
	stop  func(context.Context) (ended error) // mu
}

// newPlace has a queue with short leases.
func newPlace(t testing.TB, cfg Config) *place {
	t.Helper()
	p := &place{t: t, tree: memfs.New(memfs.Config{}), cfg: cfg}
	t.Cleanup(p.tree.Close)
	p.names = p.client()
	p.cfg.Dir = "/q"
	if err := p.cfg.fill(); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *place) client() *resolve.Tree {
	root, err := p.tree.Attach(context.Background(), sigma.Principal{}, "")
	if err != nil {
		p.t.Fatal(err)
	}
	return resolve.New(resolve.Config{Root: root})
}

// lead starts a server of the next epoch, fenced as Serve does it.
func (p *place) lead(tamper func(*resolve.Tree) namesOf) {
	p.t.Helper()
	ctx := context.Background()
	n := p.client()
	if err := n.MkdirAll(ctx, p.cfg.Dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	f, err := n.AdvanceEpoch(ctx, p.cfg.Dir+"/leader.epoch")
	if err == nil {
		err = n.FenceAtEpoch(ctx, f, p.cfg.Dir)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	var names namesOf = n
	if tamper != nil {
		names = tamper(n)
	}
	s, err := newServer(ctx, names, p.cfg, uint64(f.Epoch))
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	calls := make(chan *call.Server, 1)
	go func() {
		ended <- s.run(ctx, func(ctx context.Context, c *call.Server) error {
			calls <- c
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	c := <-calls
	var all sync.WaitGroup
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve = func(nc net.Conn) { all.Go(func() { c.ServeConn(ctx, nc, sigma.Principal{}) }) }
	p.stop = func(context.Context) error {
		p.mu.Lock()
		p.serve = nil
		p.mu.Unlock()
		cancel()
		err := <-ended
		all.Wait()
		return err
	}
}

// namesOf are the names as a server uses them.
type namesOf interface {
	Get(ctx context.Context, path string) ([]byte, sigma.FileID, error)
	Put(ctx context.Context, path string, data []byte, o sigma.PutOptions) (sigma.FileID, error)
	MkdirAll(ctx context.Context, path string, perm uint32) error
}

func (p *place) dial(context.Context) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.serve == nil {
		return nil, sigma.Errorf("test", sigma.KindUnavailable, "nobody leads")
	}
	a, b := net.Pipe()
	p.serve(b)
	return a, nil
}

func (p *place) open() *queue.Queue {
	q := queue.OpenBy(p.names, p.cfg.Dir, p.dial)
	p.t.Cleanup(func() { q.Close() })
	return q
}

func (p *place) end() {
	p.mu.Lock()
	stop := p.stop
	p.mu.Unlock()
	if stop != nil {
		stop(context.Background())
	}
}

func tasks(n int) (ts []queue.Task) {
	for i := range n {
		ts = append(ts, queue.Task{Data: fmt.Appendf(nil, "%d", i)})
	}
	return ts
}

// Goal: tasks are given out in order, to whoever waits too; a result ends a task once; a lease that
// ended, and a failure, give the task to another at its place; the last attempt's failure makes it
// dead, from which it is revived or dropped; outcomes are read in order and forgotten.
func TestQueue(t *testing.T) {
	ctx := t.Context()
	p := newPlace(t, Config{Lease: 200 * time.Millisecond, Attempts: 2})
	p.lead(nil)
	defer p.end()
	q := p.open()
	first := make(chan []queue.Held, 1)
	go func() {
		held, _ := q.Acquire(ctx, 1)
		first <- held
	}()
	ids, err := q.Submit(ctx, tasks(5)...)
	if err != nil || fmt.Sprint(ids) != "[1 2 3 4 5]" {
		t.Fatal(ids, err)
	}
	held := <-first
	more, err := q.Acquire(ctx, 2)
	if err != nil || held[0].ID != 1 || len(more) != 2 || more[0].ID != 2 || string(more[1].Data) != "2" {
		t.Fatalf("%v %v %v", held, more, err)
	}
	if err := q.Done(ctx, queue.Result{Hold: held[0].Hold, Data: []byte("one")},
		queue.Result{Hold: more[1].Hold, Failed: "no"}); err != nil {
		t.Fatal(err)
	}
	if err := q.Done(ctx, queue.Result{Hold: held[0].Hold, Data: []byte("again")}); err != nil {
		t.Errorf("a result that is told again: %v", err)
	}
	again, err := q.Acquire(ctx, 1)
	if err != nil || again[0].ID != 3 || again[0].Attempt != 2 {
		t.Fatalf("a task that failed: %v %v", again, err)
	}
	if err := q.Done(ctx, queue.Result{Hold: again[0].Hold, Failed: "never"}); err != nil {
		t.Fatal(err)
	}
	late, err := q.Acquire(ctx, 1) // 4
	if err != nil || late[0].ID != 4 {
		t.Fatal(late, err)
	}
	for range 3 {
		<-time.After(100 * time.Millisecond)
		if err := q.Extend(ctx, late[0].Hold); err != nil {
			t.Fatal(err)
		}
	}
	other, err := q.Acquire(ctx, 2) // 2, whose lease has ended, and 5
	if err != nil || other[0].ID != 2 || other[0].Attempt != 2 || other[1].ID != 5 {
		t.Fatal(other, err)
	}
	var stale *queue.StaleError
	err = q.Done(ctx, queue.Result{Hold: more[0].Hold, Data: []byte("late")}, queue.Result{Hold: other[0].Hold},
		queue.Result{Hold: other[1].Hold}, queue.Result{Hold: late[0].Hold})
	if !errors.As(err, &stale) || len(stale.Holds) != 1 || stale.Holds[0] != more[0].Hold ||
		sigma.KindOf(err) != sigma.KindStale || sigma.HintOf(err) == "" {
		t.Errorf("a result after the lease: %v", err)
	}
	found, err := q.Results(ctx, 0, 100)
	var text []string
	for _, o := range found {
		text = append(text, fmt.Sprintf("%d:%d.%d=%s%s", o.Seq, o.ID, o.Attempt, o.Data, o.Failed))
	}
	if got := strings.Join(text, " "); err != nil || got != "1:1.1=one 2:3.2=never 3:2.2= 4:5.1= 5:4.1=" {
		t.Errorf("outcomes are %s, %v", got, err)
	}
	dead, err := q.Dead(ctx, 0)
	if err != nil || len(dead) != 1 || dead[0].ID != 3 || string(dead[0].Data) != "2" || dead[0].Failed != "never" {
		t.Errorf("dead: %v %v", dead, err)
	}
	if err := q.Forget(ctx, 5); err != nil {
		t.Fatal(err)
	}
	st, err := q.Status(ctx)
	if err != nil || st.Dead != 1 || st.Done != 0 || st.Waiting != 0 || st.Held != 0 || st.Submitted != 5 {
		t.Errorf("%+v %v", st, err)
	}
	if err := q.Revive(ctx, 3); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		revived, err := q.Acquire(ctx, 1)
		if err != nil || revived[0].ID != 3 {
			t.Fatal(revived, err)
		}
		if err := q.Done(ctx, queue.Result{Hold: revived[0].Hold, Failed: "still"}); err != nil {
			t.Fatal(err)
		}
	}
	if o, err := q.Wait(ctx, 3); err != nil || o.Failed != "still" || o.Attempt != 4 {
		t.Errorf("%+v %v", o, err)
	}
	if err := q.Drop(ctx, 3); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Wait(ctx, 3); sigma.KindOf(err) != sigma.KindInvalid || sigma.HintOf(err) == "" {
		t.Errorf("a task that was dropped: %v", err)
	}
}

// Goal: what exceeds a bound is refused and said so; a key is entered once.
func TestBounds(t *testing.T) {
	ctx := t.Context()
	p := newPlace(t, Config{Bytes: 3000, Keep: 2})
	p.lead(nil)
	defer p.end()
	q := p.open()
	_, err := q.Submit(ctx, queue.Task{Data: make([]byte, queue.DataMax+1)})
	if sigma.KindOf(err) != sigma.KindTooBig || sigma.HintOf(err) == "" {
		t.Error(err)
	}
	ids, err := q.Submit(ctx, queue.Task{Key: "a"}, queue.Task{Key: "b"}, queue.Task{Key: "a"})
	if err != nil || fmt.Sprint(ids) != "[1 2 1]" {
		t.Error(ids, err)
	}
	if _, err = q.Submit(ctx, tasks(14)...); sigma.KindOf(err) != sigma.KindNoSpace || sigma.HintOf(err) == "" {
		t.Error(err)
	}
	if _, err = q.Submit(ctx, tasks(2)...); err != nil {
		t.Error(err)
	}
	held, err := q.Acquire(ctx, 10)
	if err != nil || len(held) != 4 {
		t.Fatal(held, err)
	}
	for _, h := range held {
		if err := q.Done(ctx, queue.Result{Hold: h.Hold}); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := q.Results(ctx, 0, 10); err != nil || len(found) != 2 || found[0].ID != 3 {
		t.Errorf("outcomes beyond Keep: %v %v", found, err)
	}
	within, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := q.Acquire(within, 1); sigma.KindOf(err) != sigma.KindTimeout {
		t.Error(err)
	}
	if _, err := q.Submit(ctx, tasks(1)...); err != nil {
		t.Fatal(err)
	}
	testEventually(t, func() error {
		if st, err := q.Status(ctx); err != nil || st.Workers != 0 || st.Waiting != 1 {
			return fmt.Errorf("a worker that gave up was given a task: %+v %v", st, err)
		}
		return nil
	})
}

func testEventually(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for range 200 {
		if err = check(); err == nil {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatal(err)
}

// flaky is names that are away now and then, and then whether a change was made is unknown.
type flaky struct {
	*resolve.Tree
	mu  sync.Mutex
	rnd *rand.Rand // mu
}

func (f *flaky) Put(ctx context.Context, p string, data []byte, o sigma.PutOptions) (sigma.FileID, error) {
	f.mu.Lock()
	before, after := f.rnd.IntN(20) == 0, f.rnd.IntN(20) == 0
	f.mu.Unlock()
	if before {
		return sigma.FileID{}, sigma.Errorf("test", sigma.KindUnavailable, "away")
	}
	id, err := f.Tree.Put(ctx, p, data, o)
	if after {
		return sigma.FileID{}, sigma.Errorf("test", sigma.KindLost, "the reply was lost")
	}
	return id, err
}

// Goal: each task that Submit acknowledged has one outcome, that of an attempt whose Done was
// accepted, while leaders follow each other at any moment, the one before writing on, the names are
// away now and then, workers stop in the middle, and snapshots are taken all the time.
func TestLeadersFollowEachOther(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { followEachOther(t, seed) })
	}
}

// trial is one run of it.
type trial struct {
	t      *testing.T
	p      *place
	tamper func(*resolve.Tree) namesOf

	mu        sync.Mutex
	submitted map[uint64]bool // mu
	accepted  map[string]int  // mu; results by their data
}

func followEachOther(t *testing.T, seed uint64) {
	const clients, each = 4, 120
	rnd := rand.New(rand.NewPCG(seed, 0))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	x := &trial{t: t, p: newPlace(t, Config{Lease: 100 * time.Millisecond, Attempts: 1000}),
		submitted: map[uint64]bool{}, accepted: map[string]int{}}
	x.tamper = func(n *resolve.Tree) namesOf {
		return &flaky{Tree: n, rnd: rand.New(rand.NewPCG(seed, rnd.Uint64()))}
	}
	x.p.lead(x.tamper)
	working, done := context.WithCancel(ctx)
	defer done()
	var submitters, workers, kills sync.WaitGroup
	for range clients {
		q, w := x.p.open(), x.p.open()
		submitters.Go(func() { x.submit(ctx, q, each) })
		workers.Go(func() {
			for working.Err() == nil {
				x.work(working, w)
			}
		})
	}
	kills.Go(func() {
		for range 40 {
			<-time.After(time.Duration(rnd.IntN(60)) * time.Millisecond)
			x.replace(rnd.IntN(2) == 0)
		}
	})
	submitters.Wait()
	outcomes := x.outcomes(ctx, clients*each)
	kills.Wait()
	done()
	workers.Wait()
	x.p.end()
	for _, data := range outcomes {
		if x.accepted[data] == 0 {
			t.Errorf("the outcome %s was not accepted", data)
		}
		delete(x.accepted, data)
	}
	if len(x.accepted) > 0 {
		t.Errorf("results were accepted and have no outcome: %v", x.accepted)
	}
}

// submit submits n tasks.
func (x *trial) submit(ctx context.Context, q *queue.Queue, n int) {
	for i := 0; i < n; i += 10 {
		ids, err := q.Submit(ctx, tasks(10)...)
		if err != nil {
			x.t.Error(err)
			return
		}
		x.mu.Lock()
		for _, id := range ids {
			if x.submitted[id] {
				x.t.Errorf("task %d was given to two submissions", id)
			}
			x.submitted[id] = true
		}
		x.mu.Unlock()
	}
}

// work does some tasks. Of more than three it ends two, as a worker that dies.
func (x *trial) work(ctx context.Context, q *queue.Queue) {
	held, err := q.Acquire(ctx, 5)
	if err != nil {
		return
	}
	var rs []queue.Result
	for _, h := range held {
		rs = append(rs, queue.Result{Hold: h.Hold, Data: fmt.Append(nil, h.ID, " ", h.Attempt)})
	}
	if len(held) > 3 {
		rs = rs[:2]
	}
	var stale *queue.StaleError
	if err := q.Done(x.t.Context(), rs...); err != nil && !errors.As(err, &stale) {
		x.t.Error(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range rs {
		if stale == nil || !slices.Contains(stale.Holds, r.Hold) {
			x.accepted[string(r.Data)]++
		}
	}
}

// replace has another server lead. The one before was killed, or goes on until it is refused.
func (x *trial) replace(killed bool) {
	x.p.mu.Lock()
	old := x.p.stop
	x.p.mu.Unlock()
	if killed {
		old(x.t.Context())
		x.p.lead(x.tamper)
		return
	}
	x.p.lead(x.tamper)
	x.p.stopped(old)()
}

// outcomes reads so many of them.
func (x *trial) outcomes(ctx context.Context, n int) map[uint64]string {
	q, of, after := x.p.open(), map[uint64]string{}, uint64(0)
	for len(of) < n {
		found, err := q.Results(ctx, after, 1000)
		if err != nil {
			st, serr := q.Status(context.Background())
			x.t.Fatalf("%v after %d outcomes: %+v %v", err, len(of), st, serr)
		}
		x.mu.Lock()
		for _, o := range found {
			if of[o.ID] != "" || !x.submitted[o.ID] || o.Failed != "" {
				x.t.Errorf("outcome %+v, before it %q", o, of[o.ID])
			}
			of[o.ID], after = string(o.Data), o.Seq
		}
		x.mu.Unlock()
	}
	return of
}

// stopped ends a leader that another one has followed.
func (p *place) stopped(stop func(context.Context) error) func() {
	return func() {
		p.mu.Lock()
		serve := p.serve
		p.mu.Unlock()
		stop(context.Background())
		p.mu.Lock()
		p.serve = serve
		p.mu.Unlock()
	}
}

// Goal: Work does each task, tells failures, and goes on over a leader's death.
func TestWork(t *testing.T) {
	ctx := t.Context()
	p := newPlace(t, Config{Lease: 150 * time.Millisecond, Attempts: 3})
	p.lead(nil)
	q := p.open()
	working, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- q.Work(working, 8, func(ctx context.Context, h queue.Held) ([]byte, error) {
			if string(h.Data) == "7" {
				return nil, errors.New("seven")
			}
			if string(h.Data) == "9" { // longer than the lease
				<-time.After(400 * time.Millisecond)
			}
			return append([]byte("did "), h.Data...), nil
		})
	}()
	if _, err := q.Submit(ctx, tasks(50)...); err != nil {
		t.Fatal(err)
	}
	p.end()
	p.lead(nil)
	defer p.end()
	for id := uint64(1); id <= 50; id++ {
		o, err := q.Wait(ctx, id)
		if err != nil || (o.Failed == "seven") != (id == 8) ||
			o.Failed == "" && string(o.Data) != fmt.Sprint("did ", id-1) {
			t.Errorf("%+v %v", o, err)
		}
		if id == 10 && o.Attempt > 2 {
			t.Errorf("the lease of a long task was not extended: attempt %d", o.Attempt)
		}
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// BenchmarkQueue is tasks from their submission to their end, with names in memory.
func BenchmarkQueue(b *testing.B) {
	p := newPlace(b, Config{Bytes: 1 << 30, Keep: 1000})
	p.lead(nil)
	defer p.end()
	q, w := p.open(), p.open()
	working, stop := context.WithCancel(b.Context())
	ended := make(chan bool)
	go func() {
		w.Work(working, 256, func(context.Context, queue.Held) ([]byte, error) { return nil, nil })
		close(ended)
	}()
	const batch = 100
	data := make([]byte, 100)
	room := make(chan struct{}, 16)
	b.ReportAllocs()
	for n := 0; n < b.N; n += batch {
		ts := make([]queue.Task, min(batch, b.N-n))
		for i := range ts {
			ts[i].Data = data
		}
		room <- struct{}{}
		go func() {
			if _, err := q.Submit(b.Context(), ts...); err != nil {
				b.Error(err)
			}
			<-room
		}()
	}
	for range cap(room) {
		room <- struct{}{}
	}
	for {
		if st, err := q.Status(b.Context()); err != nil || st.Waiting+st.Held == 0 {
			break
		}
		<-time.After(time.Millisecond)
	}
	b.StopTimer()
	stop()
	<-ended
}
