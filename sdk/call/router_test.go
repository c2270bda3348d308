package call

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sigmaos.dev/sigma"
)

// circle is a service whose members own keys.
type circle struct {
	t      *testing.T
	mu     sync.Mutex
	dials  map[string]func(context.Context) (net.Conn, error) // mu
	owners map[string]string                                  // mu; by key
	first  string                                             // mu; whom the policy chooses
	finds  atomic.Int32
}

var (
	where   = &Method{Name: "test.Test/Where", Idempotent: true} // redirects
	through = &Method{Name: "test.Test/Through"}                 // forwards
)

func newCircle(t *testing.T) *circle {
	return &circle{t: t, dials: map[string]func(context.Context) (net.Conn, error){}, owners: map[string]string{}}
}

func (x *circle) find(_ context.Context, member, _ string) (string, func(context.Context) (net.Conn, error), error) {
	x.finds.Add(1)
	x.mu.Lock()
	defer x.mu.Unlock()
	if member == "" {
		member = x.first
	}
	if dial := x.dials[member]; dial != nil {
		return member, dial, nil
	}
	return "", nil, sigma.Errorf("test", sigma.KindNotFound, "there is no %s", member)
}

func (x *circle) owner(key string) string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.owners[key]
}

func (x *circle) set(key, owner string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.owners[key] = owner
}

// join adds a member.
func (x *circle) join(name string) *Server {
	s := NewServer(Config{})
	r := NewRouter(x.find, Config{})
	x.t.Cleanup(func() { r.Close() })
	handle(x.t, s, where, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		switch owner := x.owner(string(arg)); owner {
		case name:
			return fmt.Appendf(reply, "%s has %s", name, arg), nil
		case "nobody":
			return reply, sigma.Errorf("test", sigma.KindNotFound, "nobody has %s", arg)
		default:
			return reply, Redirect(owner)
		}
	})
	handle(x.t, s, through, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		switch owner := x.owner(string(arg)); owner {
		case name:
			return fmt.Appendf(reply, "%s has %s, forwarded: %v", name, arg, Forwarded(ctx)), nil
		case "nobody":
			return reply, sigma.Errorf("test", sigma.KindNotFound, "nobody has %s", arg)
		default:
			return r.Forward(ctx, through, string(arg), owner, arg, reply)
		}
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dials[name] = serve(x.t, s)
	return s
}

func (x *circle) leave(name string, s *Server) {
	s.Close()
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.dials, name)
}

// ask calls and compares the answer.
func (x *circle) ask(r *Router, m *Method, key, want string) {
	x.t.Helper()
	if got, err := r.Call(testContext(x.t), m, key, []byte(key), nil); err != nil || string(got) != want {
		x.t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func (x *circle) router() *Router {
	r := NewRouter(x.find, Config{})
	x.t.Cleanup(func() { r.Close() })
	return r
}

// Goal: a call goes to the member that a redirection names, and later ones go there at once; a
// member that has gone is forgotten with its keys.
func TestRedirect(t *testing.T) {
	x := newCircle(t)
	x.first = "a"
	a, b := x.join("a"), x.join("b")
	x.join("c")
	x.set("k", "b")
	r := x.router()
	for range 3 {
		x.ask(r, where, "k", "b has k")
	}
	if st := r.Stats()[0]; st.Redirected != 1 || st.Calls != 3 || st.FailedCalls() != 0 || r.Owner("k") != "b" {
		t.Errorf("%+v, the owner is %q", st, r.Owner("k"))
	}
	if n := x.finds.Load(); n != 2 {
		t.Errorf("%d members were looked for, not 2", n)
	}
	all, err := ParseStats(must(a.tell(t.Context(), nil, nil)))
	if err != nil || all[1].Redirected != 1 || all[1].FailedCalls() != 0 {
		t.Errorf("a tells %+v, %v", all, err)
	}
	x.set("k", "c") // b tells
	x.ask(r, where, "k", "c has k")
	x.set("k", "b")
	x.ask(r, where, "k", "b has k")
	x.leave("b", b)
	x.set("k", "c")
	x.ask(r, where, "k", "c has k")
	var text strings.Builder
	if WriteMetrics(&text, "client", r.Stats()); !strings.Contains(text.String(),
		`sigma_call_redirected_total{side="client",method="test.Test/Where"} 4`) {
		t.Error(text.String())
	}
}

func must(b []byte, _ error) []byte { return b }

// Goal: a member that forwards tells the caller whose the answer is, also of an error, and the
// caller goes there the next time. A call is forwarded once.
func TestForward(t *testing.T) {
	x := newCircle(t)
	x.first = "a"
	a := x.join("a")
	x.join("b")
	x.set("k", "b")
	r := x.router()
	x.ask(r, through, "k", "b has k, forwarded: true")
	if r.Owner("k") != "b" {
		t.Errorf("the owner is %q", r.Owner("k"))
	}
	for range 2 {
		x.ask(r, through, "k", "b has k, forwarded: false")
	}
	if st := r.Stats()[0]; st.Forwarded != 1 || st.Redirected != 0 {
		t.Errorf("%+v", st)
	}
	if st := a.Stats()[0]; st.Forwarded != 1 || st.Calls != 1 {
		t.Errorf("%+v", st)
	}
	long := strings.Repeat("x", keyMax)
	x.set(long, "b")
	x.ask(r, through, long, "b has "+long+", forwarded: true")

	// A plain client is told the error as well.
	x.set("none", "nobody")
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		_, dial, err := x.find(ctx, "a", "")
		if err != nil {
			return nil, err
		}
		return dial(ctx)
	}, Config{})
	defer c.Close()
	if _, err := c.Call(testContext(t), through, []byte("none"), nil); sigma.KindOf(err) != sigma.KindNotFound {
		t.Error(err)
	}
	_, err := c.Call(testContext(t), where, []byte("k"), nil)
	if owner, ok := Owner(err); !ok || owner != "b" || sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("%v of %q", err, owner)
	}
	if _, ok := redirection(err); ok {
		t.Error("a handler that returns another service's redirection would redirect its own caller")
	}
	if _, err := r.Forward(t.Context(), through, "k", "b", nil, nil); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("forwarded without a call: %v", err)
	}
}

// Goal: an answer in pieces tells its owner, too, and one that nobody waits for is paid for right.
func TestForwardLong(t *testing.T) {
	x := newCircle(t)
	x.first = "a"
	s, b := x.join("a"), x.join("b")
	r := x.router()
	inner := x.router()
	big := &Method{Name: "test.Test/Big"}
	handle(t, b, big, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		return append(reply, make([]byte, 3*pieceMax)...), nil
	})
	handle(t, s, big, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		return inner.Forward(ctx, big, "k", "b", arg, reply)
	})
	for i := range 3 {
		r.learn("k", "a")
		got, err := r.Call(testContext(t), big, "k", nil, nil)
		if err != nil || len(got) != 3*pieceMax || r.Owner("k") != "b" {
			t.Errorf("%d: %d bytes, %v, of %q", i, len(got), err, r.Owner("k"))
		}
	}
	p7 := "p7"
	c := &conn{}
	c.queueMessageLocked(frame{kind: frameReply, call: 1}, &opening{owner: &p7}, []byte("ho"))
	f, _, _, err := parseFrame(c.out)
	late := &conn{}
	if err == nil {
		err = late.ignoreLocked(f)
	}
	if err != nil || late.owed[0] != cost(2) {
		t.Errorf("%v, %d are owed, not %d", err, late.owed[0], cost(2))
	}
}

// Goal: members that redirect in a circle end a call, with an error that names them, as does a name
// that cannot be one.
func TestRedirectCircle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newCircle(t)
		x.first = "a"
		for name, other := range map[string]string{"a": "b", "b": "a"} {
			s := NewServer(Config{})
			handle(t, s, where, func(_ context.Context, arg, reply []byte) ([]byte, error) {
				return reply, Redirect(other)
			})
			x.dials[name] = pipes(t, s)
		}
		r := NewRouter(x.find, Config{})
		defer r.Close()
		_, err := r.Call(t.Context(), where, "k", nil, nil)
		if sigma.KindOf(err) != sigma.KindLoop || !strings.Contains(err.Error(), "again and again: a, b") {
			t.Error(err)
		}
		if st := r.Stats()[0]; st.Redirected != hopsMax {
			t.Errorf("%d redirections were followed, not %d", st.Redirected, hopsMax)
		}
		if err := Redirect(strings.Repeat("x", memberMax+1)); sigma.KindOf(err) != sigma.KindInvalid {
			t.Error(err)
		}
		if _, err := r.Call(t.Context(), where, strings.Repeat("x", keyMax+1), nil,
			nil); sigma.KindOf(err) != sigma.KindTooBig {
			t.Error(err)
		}
	})
}

// Goal: what is remembered of owners is bounded.
func TestOwnersAreBounded(t *testing.T) {
	r := NewRouter(nil, Config{})
	for i := range ownersMax + 100 {
		r.learn(fmt.Sprint(i), "a")
	}
	if n := len(r.owners); n != ownersMax {
		t.Errorf("%d keys are remembered", n)
	}
	if r.forget("a"); len(r.owners) != 0 {
		t.Errorf("%d keys of one that is forgotten are remembered", len(r.owners))
	}
}

// pipes gives a way to a server without sockets, for bubbles.
func pipes(t *testing.T, s *Server) func(context.Context) (net.Conn, error) {
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	return func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		all.Go(func() { s.ServeConn(ctx, theirs, sigma.Principal{}) })
		return ours, nil
	}
}
