package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// town is a fake of what members need: a directory of members, and perhaps a coordinator.
type town struct {
	tb       testing.TB
	sockets  string      // where listeners are UNIX sockets; "" = they are pipes
	leads    atomic.Bool // there is a coordinator
	spread   atomic.Uint64
	answers  *call.Server // it
	entered  chan fleet.EnterArg
	verdicts chan error // the coordinator's answers to Enter
	reports  chan fleet.Load
	left     chan string

	mu    sync.Mutex
	names map[string]*resident // mu; that are published
	next  int                  // mu
}

// resident is a fake of one proc.
type resident struct {
	town    *town
	id      sigma.ProcID
	evicted chan struct{}
	started atomic.Bool
	exited  atomic.Bool
	l       *listener
	dir     string
}

func newTown(tb testing.TB, sockets string) *town {
	w := &town{tb: tb, sockets: sockets, answers: call.NewServer(call.Config{}), entered: make(chan fleet.EnterArg, 99),
		verdicts: make(chan error), reports: make(chan fleet.Load), left: make(chan string, 99),
		names: map[string]*resident{}}
	handle := func(m *call.Method, h call.Unary) {
		if err := w.answers.Handle(m, h); err != nil {
			tb.Fatal(err)
		}
	}
	handle(fleet.EnterMethod, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		var e fleet.EnterArg
		if err := json.Unmarshal(arg, &e); err != nil {
			return nil, err
		}
		w.entered <- e
		select {
		case err := <-w.verdicts:
			return reply, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	handle(fleet.ReportMethod, func(ctx context.Context, arg, _ []byte) ([]byte, error) {
		var r fleet.ReportArg
		if err := json.Unmarshal(arg, &r); err != nil {
			return nil, err
		}
		select {
		case w.reports <- r.Load:
		case <-ctx.Done():
		}
		return json.Marshal(fleet.ReportReply{Next: fleet.Duration(50 * time.Millisecond), Spread: w.spread.Load()})
	})
	handle(fleet.LeavingMethod, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		w.left <- string(arg)
		return reply, nil
	})
	return w
}

// settle makes a proc.
func (w *town) settle() *resident {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next++
	return &resident{town: w, id: sigma.ProcID(fmt.Sprintf("p%d", w.next)), evicted: make(chan struct{})}
}

// open makes a proc of the fleet web.
func (w *town) open(opts Options) (*resident, *Member) {
	w.tb.Helper()
	r := w.settle()
	if opts.Dir == "" && opts.Name == "" {
		opts.Name, opts.Revision = "web", 7
	}
	m, err := open(r, opts)
	if err != nil {
		w.tb.Fatal(err)
	}
	return r, m
}

func (w *town) published() map[string]*resident {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.names)
}

func (r *resident) Started(context.Context) error {
	r.started.Store(true)
	return nil
}

func (r *resident) Exited(_ context.Context, s sigma.Status) error {
	r.exited.Store(s.OK())
	return nil
}

func (r *resident) WaitEvict(ctx context.Context) error {
	select {
	case <-r.evicted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *resident) Listen(_ context.Context, form sigma.ConnForm) (sigma.Listener, error) {
	r.l = &listener{id: r.id, form: form, dialled: make(chan net.Conn, 999), closed: make(chan struct{})}
	if r.town.sockets == "" {
		return r.l, nil
	}
	var err error
	r.l.unix, err = net.Listen("unix", filepath.Join(r.town.sockets, string(r.id)))
	return r.l, err
}

func (r *resident) JoinAfter(ctx context.Context, dir string, e sigma.Endpoint,
	ready func(context.Context) error) (func(context.Context) error, error) {
	if err := ready(ctx); err != nil {
		return nil, err
	}
	r.town.mu.Lock()
	defer r.town.mu.Unlock()
	r.dir = dir
	r.town.names[string(e.Proc)] = r
	return func(context.Context) error {
		r.town.mu.Lock()
		defer r.town.mu.Unlock()
		delete(r.town.names, string(e.Proc))
		return nil
	}, nil
}

func (r *resident) members(context.Context, string) (map[string]func(context.Context) (net.Conn, error), error) {
	out := map[string]func(context.Context) (net.Conn, error){}
	for name, other := range r.town.published() {
		out[name] = func(context.Context) (net.Conn, error) { return other.l.dial() }
	}
	if len(out) == 0 {
		return nil, sigma.PathError("test", sigma.KindNotFound, "members")
	}
	return out, nil
}

func (r *resident) coordinator() coordinator {
	return &client{r.town, call.NewClient(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go r.town.answers.ServeConn(context.Background(), theirs, sigma.Principal{Proc: r.id})
		return ours, nil
	}, call.Config{})}
}

// client is what fleet.Client is.
type client struct {
	town *town
	*call.Client
}

func (c *client) Call(ctx context.Context, m *call.Method, arg, reply any) error {
	for !c.town.leads.Load() {
		if !retry.Pause(ctx, 50*time.Millisecond) {
			return sigma.Errorf("test", sigma.KindUnavailable, "no coordinator leads")
		}
	}
	in, err := json.Marshal(arg)
	if err != nil {
		return err
	}
	out, err := c.Client.Call(ctx, m, in, nil)
	if err == nil && reply != nil {
		err = json.Unmarshal(out, reply)
	}
	return err
}

// listener is one of UNIX sockets or of pipes, whose connections have addresses as those of the SDK
// within one machine.
type listener struct {
	id      sigma.ProcID
	form    sigma.ConnForm
	unix    net.Listener
	dialled chan net.Conn
	once    sync.Once
	closed  chan struct{}
	far     bool // its clients are on another machine
}

func (l *listener) Endpoint() sigma.Endpoint {
	return sigma.Endpoint{Realm: "default", Machine: "m1", Proc: l.id, ID: "AAAAAAAAAAAAAAAAAAAAAA", Form: l.form}
}

func (l *listener) Addr() net.Addr { return sdk.EndpointAddr{Endpoint: l.Endpoint()} }

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) AcceptFrom(context.Context) (net.Conn, sigma.Principal, error) {
	c, err := l.Accept()
	return c, sigma.Principal{Proc: "client"}, err
}

func (l *listener) Accept() (net.Conn, error) {
	select { // who has dialled is accepted
	case c := <-l.dialled:
		return c, nil
	default:
	}
	select {
	case c := <-l.dialled:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) dial() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	if l.unix == nil {
		ours, theirs := net.Pipe()
		l.dialled <- theirs
		return ours, nil
	}
	ours, err := net.Dial("unix", l.unix.Addr().String())
	if err != nil {
		return nil, err
	}
	theirs, err := l.unix.Accept()
	if err != nil {
		return nil, err
	}
	from := sdk.CallerAddr{Principal: sigma.Principal{Machine: "m1", Proc: "client"}}
	if l.far {
		from.Machine = "m2"
	}
	l.dialled <- &socket{theirs.(*net.UnixConn), l.Addr(), from}
	return ours, nil
}

type socket struct {
	*net.UnixConn
	local, remote net.Addr
}

func (s *socket) LocalAddr() net.Addr  { return s.local }
func (s *socket) RemoteAddr() net.Addr { return s.remote }

// bubble is synctest.Test. Package call pools channels, and those of one bubble may not be used in
// another: two collections empty the pools.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	runtime.GC()
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		f(t)
		<-time.After(time.Second) // for timers of connections
	})
}

var echo = &call.Method{Name: "test/Echo"}

// echoServer fails on "fail" by its own fault, and on "none" by its caller's.
func echoServer(tb testing.TB) *call.Server {
	s := call.NewServer(call.Config{})
	if err := s.Handle(echo, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		switch string(arg) {
		case "fail":
			return nil, errors.New("broken")
		case "none":
			return nil, sigma.PathError("test", sigma.KindNotFound, "none")
		}
		return append(reply, arg...), nil
	}); err != nil {
		tb.Fatal(err)
	}
	return s
}

// Goal: the life of a member: it serves while the coordinator checks it, is published when that was
// good, reports, and leaves so that calls that come meanwhile are answered.
func TestLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newTown(t, "")
		w.leads.Store(true)
		r, m := w.open(Options{Drain: func(context.Context) error {
			if len(w.published()) != 0 {
				t.Error("it is drained while it is published")
			}
			return nil
		}})
		over := make(chan error, 1)
		go func() { over <- m.ServeCalls(t.Context(), echoServer(t)) }()
		e := <-w.entered
		if e.Name != "web" || e.Revision != 7 || e.Endpoint != r.l.Endpoint().String() {
			t.Errorf("it entered with %+v", e)
		}
		dials := 0
		c := call.NewClient(func(context.Context) (net.Conn, error) { dials++; return r.l.dial() }, call.Config{})
		defer c.Close()
		for _, arg := range []string{"good", "fail", "none"} {
			c.Call(t.Context(), echo, []byte(arg), nil)
		}
		if _, err := c.Call(t.Context(), call.StatsMethod, nil, nil); err != nil {
			t.Errorf("the check of a member that has not entered: %v", err)
		}
		<-time.After(5 * time.Second) // longer than one question
		if len(w.published()) != 0 || r.started.Load() {
			t.Error("it is published before it may")
		}
		w.verdicts <- nil
		synctest.Wait()
		if len(w.published()) != 1 || !r.started.Load() || r.dir != "/fleet/web/members" {
			t.Error("it is not published")
		}
		l := <-w.reports
		if l.Served != 3 || l.Failed != 1 {
			t.Errorf("it reports %+v after 3 requests, one of which failed", l)
		}
		at := time.Now()
		<-w.reports
		if d := time.Since(at); d != 50*time.Millisecond {
			t.Errorf("the next report comes after %v", d)
		}
		w.spread.Add(1)
		<-w.reports
		synctest.Wait()
		if _, err := c.Call(t.Context(), echo, nil, nil); err != nil || dials != 2 {
			t.Errorf("when there are more members, a client has dialled %d times: %v", dials, err)
		}
		close(r.evicted)
		synctest.Wait()
		if len(w.published()) != 0 {
			t.Error("it is published after it was asked to go")
		}
		if said := <-w.left; said != `{"name":"web","revision":7}` {
			t.Errorf("it says %s when it leaves", said)
		}
		for range 10 {
			<-time.After(linger / 15)
			if _, err := c.Call(t.Context(), echo, nil, nil); err != nil {
				t.Errorf("a call while it leaves: %v", err)
			}
		}
		if err := <-over; err != nil || !r.exited.Load() {
			t.Errorf("it ended with %v", err)
		}
		if _, err := r.l.dial(); err == nil {
			t.Error("it listens when it has ended")
		}
	})
}

// Goal: without a coordinator a member publishes itself after a second, and goes on asking; one
// that is not wanted ends in good order, before or after it was published.
func TestNoCoordinator(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, x := range []struct {
			name    string
			wait    time.Duration // until a coordinator leads
			verdict error
		}{
			{"late", 10 * time.Second, nil},
			{"late and does not want it", 10 * time.Second, sigma.Errorf("test", sigma.KindPermission, "too many")},
			{"does not want it", 0, sigma.Errorf("test", sigma.KindPermission, "too many")},
		} {
			w := newTown(t, "")
			r, m := w.open(Options{})
			over := make(chan error, 1)
			go func() { over <- m.ServeCalls(t.Context(), echoServer(t)) }()
			if x.wait > 0 {
				<-time.After(aloneAfter - 2*askAgain)
				if len(w.published()) != 0 {
					t.Errorf("%s: it is published at once", x.name)
				}
				<-time.After(4 * askAgain)
				if len(w.published()) != 1 || !r.started.Load() {
					t.Errorf("%s: it is not published", x.name)
				}
				<-time.After(x.wait)
			}
			w.leads.Store(true)
			w.verdicts <- x.verdict
			if x.verdict == nil {
				<-w.reports
				close(r.evicted)
			}
			if err := <-over; err != nil || !r.exited.Load() {
				t.Errorf("%s: it ended with %v", x.name, err)
			}
			if len(w.published()) != 0 {
				t.Errorf("%s: it is published after its end", x.name)
			}
		}
	})
}

// Goal: a program that no fleet started joins its directory and asks nobody; the end of its context
// is an end in good order; a server that fails by itself ends with that error.
func TestDirectory(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newTown(t, "")
		w.leads.Store(true)
		r, m := w.open(Options{Dir: "/svc/web"})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- m.ServeCalls(ctx, echoServer(t)) }()
		<-time.After(time.Minute)
		if len(w.published()) != 1 || r.dir != "/svc/web" || len(w.entered) != 0 {
			t.Errorf("it is published in %q, and asked %d times", r.dir, len(w.entered))
		}
		cancel()
		if err := <-over; err != nil || !r.exited.Load() {
			t.Errorf("it ended with %v", err)
		}
		broken := errors.New("broken")
		r, m = w.open(Options{Dir: "/svc/web"})
		err := m.Serve(t.Context(), func(net.Listener) error { return broken }, nil)
		if !errors.Is(err, broken) || r.exited.Load() {
			t.Errorf("a server that fails ends with %v", err)
		}
	})
	if _, err := open(&resident{}, Options{}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("neither fleet nor directory: %v", err)
	}
	t.Setenv(fleet.EnvName, "web")
	if _, err := open(&resident{}, Options{}); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("no revision: %v", err)
	}
	t.Setenv(fleet.EnvRevision, "3")
	if m, err := open(&resident{}, Options{}); err != nil || m.arg != (fleet.MemberArg{Name: "web", Revision: 3}) {
		t.Errorf("by its environment it is %+v, %v", m, err)
	}
}

// Goal: Serve serves raw connections, and waits for those that there are.
func TestRaw(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newTown(t, "")
		r, m := w.open(Options{Dir: "/svc/raw"})
		over := make(chan error, 1)
		go func() {
			over <- m.Serve(t.Context(), func(l net.Listener) error {
				var conns sync.WaitGroup
				defer conns.Wait()
				for {
					c, err := l.Accept()
					if err != nil {
						return err
					}
					conns.Go(func() {
						defer c.Close()
						c.Read(make([]byte, 1))
					})
				}
			}, nil)
		}()
		synctest.Wait()
		c, err := r.l.dial()
		if err != nil {
			t.Fatal(err)
		}
		close(r.evicted)
		<-time.After(time.Minute)
		if len(over) != 0 {
			t.Error("it ended although a connection is open")
		}
		c.Close()
		if err := <-over; err != nil || !r.exited.Load() {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Goal: a new member begins with the state of another one, or with none if nobody has any, and does
// not begin if those who may have it do not give it.
func TestSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newTown(t, "")
		start := func(give error, own string) (*resident, chan string, chan error) {
			joined, over := make(chan string, 1), make(chan error, 1)
			r, m := w.open(Options{Dir: "/svc/state", Join: func(_ context.Context, s []byte) error {
				joined <- fmt.Sprintf("%q of %v", s, s != nil)
				return nil
			}, Snapshot: func(context.Context) ([]byte, error) { return []byte(own), give }})
			go func() { over <- m.ServeCalls(t.Context(), echoServer(t)) }()
			return r, joined, over
		}
		end := func(r *resident, over chan error) {
			close(r.evicted)
			if err := <-over; err != nil {
				t.Errorf("it ended with %v", err)
			}
		}
		// One whose program has no snapshots is there already.
		plain, m := w.open(Options{Dir: "/svc/state"})
		plainOver := make(chan error, 1)
		go func() { plainOver <- m.ServeCalls(t.Context(), echoServer(t)) }()
		synctest.Wait()
		first, joined, firstOver := start(nil, "state")
		if got := <-joined; got != `"" of false` {
			t.Errorf("the first begins with %s", got)
		}
		synctest.Wait()
		second, joined, secondOver := start(nil, "")
		if got := <-joined; got != `"state" of true` {
			t.Errorf("the second begins with %s", got)
		}
		synctest.Wait()
		end(first, firstOver)
		third, joined, thirdOver := start(errors.New("broken"), "")
		if got := <-joined; got != `"" of true` {
			t.Errorf("the third begins with %s, of one whose state is empty", got)
		}
		synctest.Wait()
		end(second, secondOver)
		_, _, over := start(nil, "")
		if err := <-over; sigma.KindOf(err) != sigma.KindUnavailable || !strings.Contains(err.Error(), "broken") {
			t.Errorf("one that is not given a state ends with %v", err)
		}
		end(third, thirdOver)
		end(plain, plainOver)
		_, m = w.open(Options{Dir: "/svc/state", Snapshot: func(context.Context) ([]byte, error) { return nil, nil }})
		if err := m.ServeHTTP(t.Context(), http.NotFoundHandler()); sigma.KindOf(err) != sigma.KindUnsupported {
			t.Errorf("a snapshot of a server of HTTP: %v", err)
		}
	})
}

func TestMain(m *testing.M) {
	os.Unsetenv(fleet.EnvName)
	os.Exit(m.Run())
}
