package member

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/call"
	"sigmaos.dev/internal/inprocess"
	"sigmaos.dev/memfs"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// county is a service whose members count what they are asked for, by range.
type county struct {
	t     *testing.T
	realm *inprocess.Realm

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

const rangesOfTest = 9

func (c *county) join(name string) *official {
	c.t.Helper()
	o := &official{Client: c.realm.Connect(c.t), of: c, s: call.NewServer(call.Config{}), handed: make(chan struct{}),
		over: make(chan struct{})}
	opts := &Options{Ranges: rangesOfTest, Gain: o.gain, Handoff: o.handoff}
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

// Goal: while members come and go in good order, and their callbacks fail now and then, each range
// counts every request once: none is lost, none is counted at two members. What a member that is
// killed had begins anew, and nothing else.
func TestRanges(t *testing.T) {
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	c := &county{t: t, realm: inprocess.Serve(t, tree), servers: map[sigma.EndpointID]*call.Server{},
		members: map[string]*official{}}
	if err := c.realm.Connect(t).MkdirAll(t.Context(), "/d", 0o755); err != nil {
		t.Fatal(err)
	}
	c.join("a")
	var counts [rangesOfTest]int64
	round := func(what string, during func()) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		var workers sync.WaitGroup
		ended := make(chan bool)
		for i := range counts {
			workers.Go(func() {
				for last := false; !last; {
					select {
					case <-ended:
						last = true
					default:
					}
					n, at := c.add(ctx, i)
					if counts[i]++; n != counts[i] {
						t.Errorf("%s: range %d at %s counts %d, not %d", what, i, at, n, counts[i])
						counts[i] = n
					}
				}
			})
		}
		during()
		close(ended)
		workers.Wait()
		stop()
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
	dead := c.drop("d1")
	was := 0
	dead.counts.Range(func(number, _ any) bool {
		was++
		counts[number.(int)] = 0
		return true
	})
	dead.kill()
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
