package member

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/internal/inprocess"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

// county is a service whose members count what they are asked for, by range.
type county struct {
	t     *testing.T
	realm *inprocess.Realm
	n     int // ranges
	// spared says of a range that a member which was killed since had it, or may have handed it on:
	// the next request counts on, or anew.
	spared []atomic.Bool

	mu      sync.Mutex
	servers map[sigma.EndpointID]*call.Server // mu
	members map[string]*official              // mu
}

// official is a member.
type official struct {
	*sdk.Client
	of     *county
	m      *Member
	s      *call.Server
	counts sync.Map // by range: *atomic.Int64
	began  atomic.Int32
	fails  atomic.Int32 // Handoff and Gain fail so many times
	owning context.CancelFunc
	end    context.CancelFunc
	handed chan struct{}
	over   chan struct{}
}

func (c *county) server(e sigma.Endpoint) *call.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.servers[e.ID]
}

// Dial implements realmTree.
func (o *official) Dial(_ context.Context, e sigma.Endpoint) (net.Conn, error) {
	s := o.of.server(e)
	if s == nil {
		return nil, sigma.Errorf("test", sigma.KindNotFound, "there is no such endpoint")
	}
	ours, theirs := net.Pipe()
	go s.ServeConn(context.Background(), theirs, sigma.Principal{})
	return ours, nil
}

var errTest = errors.New("not now")

// newCounty makes a county of n ranges without members.
func newCounty(t *testing.T, n int) *county {
	t.Helper()
	tree := memfs.New(memfs.Config{})
	t.Cleanup(func() { tree.Close() })
	c := &county{t: t, realm: inprocess.Serve(t, tree), n: n, servers: map[sigma.EndpointID]*call.Server{},
		members: map[string]*official{}, spared: make([]atomic.Bool, n)}
	if err := c.realm.Connect(t).MkdirAll(t.Context(), "/d", 0o755); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *county) join(name string) *official {
	c.t.Helper()
	o := &official{Client: c.realm.Connect(c.t), of: c, s: call.NewServer(call.Config{}), handed: make(chan struct{}),
		over: make(chan struct{})}
	opts := &Options{Ranges: c.n, Gain: o.gain, Handoff: o.handoff}
	g, err := newRanges(o, "/d", opts)
	if err == nil {
		err = g.register(o.s)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	g.cfg.TTL = 2 * time.Second
	o.m = &Member{ranges: g}
	id := base64.RawURLEncoding.EncodeToString(append(make([]byte, 16-len(name)), name...))
	g.self = sigma.Endpoint{Realm: "r", Machine: "m", Proc: sigma.ProcID(name), ID: sigma.EndpointID(id),
		Form: sigma.FormStream}
	c.mu.Lock()
	c.servers[g.self.ID], c.members[name] = o.s, o
	c.mu.Unlock()
	if _, err := o.Put(c.t.Context(), "/d/"+name, []byte(g.self.String()),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		c.t.Fatal(err)
	}
	ctx, end := context.WithCancel(c.t.Context())
	owning, stop := context.WithCancel(ctx)
	o.owning, o.end = stop, end
	go func() {
		defer close(o.over)
		if err := g.run(ctx, owning, sync.OnceFunc(func() { close(o.handed) })); ctx.Err() == nil {
			c.t.Error(name, err)
		}
	}()
	return o
}

func (o *official) gain(_ context.Context, r Range, state []byte) error {
	if o.fails.Add(-1) >= 0 {
		return errTest
	}
	n := new(atomic.Int64)
	if state == nil {
		o.began.Add(1)
	} else {
		v, err := strconv.ParseInt(string(state), 10, 64)
		if err != nil {
			return err
		}
		n.Store(v)
	}
	o.counts.Store(r.Number, n)
	return nil
}

func (o *official) handoff(_ context.Context, r Range, to string) ([]byte, error) {
	if o.fails.Add(-1) >= 0 {
		return nil, errTest
	}
	n, ok := o.counts.LoadAndDelete(r.Number)
	if !ok || to == "" {
		o.of.t.Errorf("range %d is handed to %q, and is not here", r.Number, to)
		return nil, nil
	}
	return strconv.AppendInt(nil, n.(*atomic.Int64).Load(), 10), nil
}

// add counts one at the member that owns a range, and gives the count.
func (c *county) add(ctx context.Context, number int) (n int64, at string) {
	for c.mu.Lock(); ; c.mu.Lock() {
		o := c.members[at]
		for name, some := range c.members {
			if o == nil {
				o, at = some, name
			}
		}
		c.mu.Unlock()
		if o == nil {
			return 0, ""
		}
		done, err := o.m.Use(ctx, number)
		if err == nil {
			v, _ := o.counts.Load(number)
			n = v.(*atomic.Int64).Add(1)
			done()
			return n, at
		}
		if ctx.Err() != nil {
			return 0, ""
		}
		owner, ok := call.Owner(err)
		if at = owner; !ok && sigma.KindOf(err) != sigma.KindUnavailable {
			c.t.Error(err)
		}
	}
}

func (c *county) drop(name string) *official {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.members[name]
	delete(c.members, name)
	return o
}

// leave has a member go in good order.
func (c *county) leave(name string) {
	o := c.drop(name)
	o.owning()
	<-o.handed
	o.kill()
}

// kill ends a member's program as it is.
func (o *official) kill() {
	g := o.m.ranges
	o.of.mu.Lock()
	delete(o.of.servers, g.self.ID)
	o.of.mu.Unlock()
	o.s.Close()
	o.end()
	<-o.over
	if err := o.Remove(o.of.t.Context(), "/d/"+string(g.self.Proc)); err != nil {
		o.of.t.Error(err)
	}
}

// round counts requests to all ranges, with a pause between those to one, while something happens,
// and checks that each is counted once.
func (c *county) round(counts []int64, pause time.Duration, what string, during func()) {
	c.t.Helper()
	ctx, stop := context.WithTimeout(c.t.Context(), time.Minute)
	defer stop()
	var workers sync.WaitGroup
	ended := make(chan bool)
	for i := range counts {
		workers.Go(func() {
			for last := false; !last; {
				select {
				case <-ended:
					last = true
				case <-time.After(pause):
				}
				n, at := c.add(ctx, i)
				if counts[i]++; c.spared[i].Swap(false) && n == 1 {
					counts[i] = 1
				}
				if n != counts[i] {
					c.t.Errorf("%s: range %d at %s counts %d, not %d", what, i, at, n, counts[i])
					counts[i] = n
				}
			}
		})
	}
	during()
	close(ended)
	workers.Wait()
}

// kills ends the program of a member as it is, and gives the number of its ranges, which count
// anew, but those that it may yet have handed on.
func (c *county) kills(name string) (was int) {
	dead := c.drop(name)
	dead.counts.Range(func(number, _ any) bool {
		was++
		c.spared[number.(int)].Store(true)
		return true
	})
	dead.kill()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.spared { // one that was on its way may be lost with it, too
		held := false
		for _, o := range c.members {
			_, has := o.counts.Load(i)
			held = held || has
		}
		if !held {
			c.spared[i].Store(true)
		}
	}
	return was
}

// Goal: whatever member comes, goes or is killed, each range counts every request once, and begins
// anew only if its member was killed. SIGMA_TEST_ROUNDS=200 SIGMA_TEST_MEMBERS=1000 is the whole of
// it.
func TestRangesRounds(t *testing.T) {
	number := func(name, or string) int {
		n, err := strconv.Atoi(cmp.Or(os.Getenv(name), or))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	rounds, members := number("SIGMA_TEST_ROUNDS", "4"), number("SIGMA_TEST_MEMBERS", "8")
	c := newCounty(t, members/4+7)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 3))
	next := 0
	join := func() { c.join(fmt.Sprint("m", next)); next++ }
	some := func() string { return slices.Sorted(maps.Keys(c.members))[r.IntN(len(c.members))] }
	for range members {
		join()
	}
	counts := make([]int64, c.n)
	pause := time.Duration(c.n) * 50 * time.Microsecond
	c.round(counts, pause, "all", func() {})
	killed := 0
	for i := range rounds {
		if r.IntN(3) == 0 {
			killed += c.kills(some())
			join()
		}
		c.round(counts, pause, fmt.Sprint("round ", i), func() {
			for range 1 + r.IntN(3) {
				join()
				c.leave(some())
			}
		})
	}
	t.Logf("%d requests, %d ranges began anew", total(counts), killed)
}

func total(counts []int64) (sum int64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// Goal: while members come and go in good order, and their callbacks fail now and then, each range
// counts every request once: none is lost, none is counted at two members. What a member that is
// killed had begins anew, and nothing else.
func TestRanges(t *testing.T) {
	c := newCounty(t, 9)
	c.join("a")
	counts := make([]int64, c.n)
	round := func(what string, during func()) {
		t.Helper()
		c.round(counts, 0, what, during)
	}
	settle := func() { <-time.After(100 * time.Millisecond) } // requests meanwhile
	round("one", settle)
	round("grow", func() {
		c.join("b").fails.Store(3)
		settle()
		c.join("c")
		settle()
	})
	c.members["a"].fails.Store(3)
	round("shrink", func() { c.leave("a"); settle() })
	round("roll", func() {
		for i, old := range []string{"b", "c", "d0"} {
			c.join(fmt.Sprint("d", i))
			settle()
			c.leave(old)
		}
	})
	if b := c.members["d1"].began.Load() + c.members["d2"].began.Load(); b != 0 {
		t.Errorf("%d ranges began anew", b)
	}
	was := c.kills("d1")
	round("kill", func() {})
	if b := int(c.members["d2"].began.Load()); b != was || was == 0 {
		t.Errorf("%d ranges began anew; the member that was killed had %d", b, was)
	}
}

// Goal: options that cannot be are refused, and so are ranges that are none.
func TestRangesInput(t *testing.T) {
	w := newTown(t, "")
	for _, opts := range []Options{{Ranges: -1}, {Ranges: 3}, {Ranges: 1 << 20, Gain: (&official{}).gain,
		Handoff: (&official{}).handoff}} {
		if _, err := newRanges(nil, "/d", &opts); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	_, m := w.open(Options{})
	if _, err := m.Use(t.Context(), 0); sigma.KindOf(err) != sigma.KindInvalid {
		t.Error(err)
	}
	g, err := newRanges(nil, "/d", &Options{Ranges: 2, Gain: (&official{}).gain, Handoff: (&official{}).handoff})
	if err != nil {
		t.Fatal(err)
	}
	for _, arg := range []string{"", "{", `{"range":2}`, `{"range":-1}`} {
		if _, err := g.parse([]byte(arg)); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: %v", arg, err)
		}
	}
	if _, err := g.give(t.Context(), rangeArg{}); sigma.KindOf(err) != sigma.KindStale {
		t.Error(err)
	}
}

// FuzzRangeArg: what another member says of a range is refused or names one.
func FuzzRangeArg(f *testing.F) {
	f.Add([]byte(`{"range":1,"epoch":7,"to":"p7"}`))
	g, err := newRanges(nil, "/d", &Options{Ranges: 2, Gain: (&official{}).gain, Handoff: (&official{}).handoff})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := g.parse(b); err == nil && (a.Range < 0 || a.Range > 1) {
			t.Errorf("%q is range %d", b, a.Range)
		}
	})
}
