package call

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// directory is one whose members come and go.
type directory struct {
	mu      sync.Mutex
	members map[string]func(context.Context) (net.Conn, error) // mu
}

func (d *directory) set(name string, dial func(context.Context) (net.Conn, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.members[name] = dial; dial == nil {
		delete(d.members, name)
	}
}

func (d *directory) list(context.Context) (map[string]func(context.Context) (net.Conn, error), error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]func(context.Context) (net.Conn, error){}
	for name, dial := range d.members {
		out[name] = dial
	}
	return out, nil
}

var name = &Method{Name: "test.Test/Name"}

func named(t *testing.T, is string) *Server {
	s := NewServer(Config{})
	handle(t, s, name, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		return fmt.Appendf(reply, "%s says %s", is, arg), nil
	})
	return s
}

// Goal: all members are called, those who are dead are told of and hold up nobody, who leaves is
// forgotten, and who takes a name over is called.
func TestGroup(t *testing.T) {
	d := &directory{members: map[string]func(context.Context) (net.Conn, error){}}
	g := NewGroup(d.list, Config{})
	defer g.Close()
	ctx := testContext(t)
	ask := func() (out []string) {
		t.Helper()
		answers, err := g.Call(ctx, name, []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range answers {
			text := a.Member + ": " + string(a.Reply)
			if a.Err != nil {
				text += sigma.KindOf(a.Err).String()
			}
			out = append(out, text)
		}
		return out
	}
	if got := ask(); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	var want []string
	servers := map[string]*Server{}
	for i := range 2*groupAtOnce + 1 {
		is := fmt.Sprintf("m%03d", i)
		servers[is] = named(t, is)
		d.set(is, serve(t, servers[is]))
		want = append(want, fmt.Sprintf("%s: %s says x", is, is))
	}
	for range 3 {
		if got := ask(); !slices.Equal(got, want) {
			t.Fatalf("got %q", got)
		}
	}
	dead := func(context.Context) (net.Conn, error) { return nil, sigma.Errorf("x", sigma.KindUnavailable, "dead") }
	d.set("m000", dead) // it has a connection, which is good
	d.set("zz", dead)
	if got := ask(); !slices.Equal(got, append(slices.Clone(want), "zz: unavailable")) {
		t.Errorf("got %q", got)
	}
	servers["m000"].Close() // and now it has not
	if got := ask(); got[0] != "m000: lost" && got[0] != "m000: unavailable" || got[1] != want[1] {
		t.Errorf("got %q", got[:2])
	}
	d.set("m000", serve(t, named(t, "new")))
	if got := ask(); got[0] != "m000: new says x" {
		t.Errorf("got %q", got[0])
	}
	for i := range 2*groupAtOnce + 1 {
		d.set(fmt.Sprintf("m%03d", i), nil)
	}
	if got := ask(); !slices.Equal(got, []string{"zz: unavailable"}) || len(g.known) != 1 {
		t.Errorf("got %q, %d known", got, len(g.known))
	}
	if all := g.Stats(); len(all) != 1 || all[0].Calls != 6*uint64(2*groupAtOnce+1)+4 {
		t.Errorf("got %+v", all)
	}
	for i := range groupMax {
		d.set(fmt.Sprintf("n%d", i), dead)
	}
	if _, err := g.Call(ctx, name, nil); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("more members than possible: %v", err)
	}
	d.set("zz", nil) // as many as are possible
	g.Close()
	if _, err := g.Call(ctx, name, nil); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("after Close: %v", err)
	}
}

// Goal: members that come and go while others are called make no call fail to those who stay.
func TestGroupChanges(t *testing.T) {
	d := &directory{members: map[string]func(context.Context) (net.Conn, error){}}
	for _, is := range []string{"a", "b"} {
		d.set(is, serve(t, named(t, is)))
	}
	come := serve(t, named(t, "c"))
	g := NewGroup(d.list, Config{})
	defer g.Close()
	ctx := testContext(t)
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for range 200 {
				answers, err := g.Call(ctx, name, nil)
				if err != nil || len(answers) < 2 {
					t.Errorf("%v, %v", answers, err)
				}
				for _, a := range answers {
					if a.Err != nil {
						t.Errorf("%s: %v", a.Member, a.Err)
					}
				}
			}
		})
	}
	for range 100 {
		d.set("c", come)
		g.Call(ctx, name, nil)
		d.set("c", nil)
		g.Call(ctx, name, nil)
	}
	callers.Wait()
}
