package dialproxy

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
)

var (
	server = sigma.Principal{Realm: "a", Proc: "server", Machine: "m"}
	client = sigma.Principal{Realm: "a", Proc: "client", Machine: "m"}
	other  = sigma.Principal{Realm: "b", Proc: "other", Machine: "m"}
)

func newProxy(m sigma.MachineID) *Proxy { return New(m, inflight.New(20000)) }

func listen(t *testing.T, x *Proxy, p sigma.Principal, public bool) sigma.Endpoint {
	t.Helper()
	e, err := x.Listen(p, sigma.FormStream, public)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestConnect(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	a, _, err := x.Dial(client, e)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, from, _, err := x.Accept(t.Context(), server, e.ID)
	if err != nil || from != client {
		t.Fatalf("got %v, %v, want the client as its machine knows it", from, err)
	}
	defer b.Close()
	if _, err := a.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var buf [1]byte
	if n, err := b.Read(buf[:]); n != 1 || err != nil || buf[0] != 'x' {
		t.Errorf("got %q, %v", buf[:n], err)
	}
}

// A proc listens again at its own endpoint, with the text as it was. Nobody else can, nor it at one
// that was taken back, of which a bounded number is remembered while it lives.
func TestListenAgain(t *testing.T) {
	before := newProxy("m")
	e, over := listen(t, before, server, false), listen(t, before, server, false)
	x := newProxy("m") // of the next sigmad
	for _, p := range []sigma.Principal{client, other, {Realm: "a", Machine: "m"}} {
		if got, err := x.ListenAgain(p, e.ID, sigma.FormStream, false); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("%v listens at another's endpoint: %v, %v", p, got, err)
		}
	}
	for _, id := range []sigma.EndpointID{"x", e.ID + "\n", e.ID[:21] + "\n", "AAAAAAAAAAAAAAAAAAAAAA"} {
		if got, err := x.ListenAgain(server, id, sigma.FormStream, false); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("%q: %v, %v", id, got, err)
		}
	}
	if again, err := x.ListenAgain(server, e.ID, sigma.FormStream, false); err != nil || again != e {
		t.Fatalf("got %v, %v, want %v", again, err, e)
	}
	if _, err := x.ListenAgain(server, e.ID, sigma.FormStream, false); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("twice: %v", err)
	}
	conn, _, err := x.Dial(client, e)
	if err != nil {
		t.Fatalf("by the text of before: %v", err)
	}
	conn.Close()
	for _, taken := range []sigma.Endpoint{e, over} {
		if err := x.Withdraw(server, taken); err != nil {
			t.Fatal(err)
		}
		if _, err := x.ListenAgain(server, taken.ID, sigma.FormStream,
			false); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("at one that was taken back: %v", err)
		}
	}
	for range 2 * ListenersMax {
		if err := x.Withdraw(server, listen(t, x, server, false)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(x.forbidden["server"]); n > ListenersMax+1 {
		t.Errorf("%d are remembered", n)
	}
	if _, err := x.ListenAgain(server, newID("server"), sigma.FormStream,
		false); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("after too many were taken back: %v", err)
	}
	x.CloseProc("server")
	if len(x.forbidden) != 0 {
		t.Errorf("%d procs that are gone are remembered", len(x.forbidden))
	}
}

// Who may not connect is refused whatever they know; who dials nobody is told so.
func TestRefused(t *testing.T) {
	x := newProxy("m")
	e, public := listen(t, x, server, false), listen(t, x, server, true)
	gone := listen(t, x, server, false)
	if err := x.Close(server, gone.ID); err != nil {
		t.Fatal(err)
	}
	forged := e
	forged.Realm = other.Realm
	for _, c := range []struct {
		name string
		by   sigma.Principal
		to   sigma.Endpoint
		want sigma.Kind
	}{
		{"another realm", other, e, sigma.KindPermission},
		{"another realm with its own name on it", other, forged, sigma.KindPermission},
		{"another realm, gone", other, gone, sigma.KindPermission},
		{"a changed capability", client, forged, sigma.KindUnavailable},
		{"gone", client, gone, sigma.KindUnavailable},
	} {
		if f, _, err := x.Dial(c.by, c.to); sigma.KindOf(err) != c.want || err == nil {
			t.Errorf("%s: got %v, %v, want %v", c.name, f, err, c.want)
		}
	}
	if f, _, err := x.Dial(other, public); err != nil {
		t.Errorf("a service for everybody refused: %v", err)
	} else {
		f.Close()
	}
	for _, who := range []sigma.Principal{client, other, {Realm: "a"}} {
		if _, _, _, err := x.Accept(t.Context(), who, e.ID); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("%v accepted at another's listener: %v", who, err)
		}
		if err := x.Close(who, e.ID); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("%v closed another's listener: %v", who, err)
		}
	}
	if _, err := x.Listen(sigma.Principal{Realm: "a"}, sigma.FormStream,
		false); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a program that is no proc listens: %v", err)
	}
	if _, err := x.Listen(server, "other", false); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("got %v", err)
	}
}

// A full backlog refuses, a proc's end closes what waited and frees its listeners, and limits hold.
func TestLimitsAndEnd(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	var ends []*os.File
	for range BacklogMax {
		f, _, err := x.Dial(client, e)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		ends = append(ends, f)
	}
	if _, _, err := x.Dial(client, e); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a full backlog took one more: %v", err)
	}
	waiting := make(chan error)
	silent := listen(t, x, server, false)
	go func() { _, _, _, err := x.Accept(t.Context(), server, silent.ID); waiting <- err }()
	x.CloseProc(server.Proc)
	if err := <-waiting; sigma.KindOf(err) != sigma.KindUnavailable && sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
	var buf [1]byte
	if n, err := ends[0].Read(buf[:]); n != 0 || err == nil {
		t.Errorf("a connection that was never accepted is still open: %d, %v", n, err)
	}
	if len(x.listeners) != 0 || len(x.owned) != 0 {
		t.Errorf("left: %d listeners, %d owners", len(x.listeners), len(x.owned))
	}
	for range ListenersMax {
		listen(t, x, server, false)
	}
	if _, err := x.Listen(server, sigma.FormTree, false); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("got %v, want busy", err)
	}
}

// Goal: a proc that is about to be killed is not dialled any more, and who waits there is sent
// away, but its connections and their memory stay until it is gone.
func TestCloseListeners(t *testing.T) {
	x := newProxy("m")
	e, elsewhere := listen(t, x, server, false), listen(t, x, client, false)
	dialled, _ := connected(t, x, e, client)
	waiting, _, err := x.Dial(client, e)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	x.CloseListeners(server.Proc)
	if _, _, err := x.Dial(client, e); sigma.KindOf(err) != sigma.KindUnavailable &&
		sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("it can be dialled: %v", err)
	}
	var buf [1]byte
	if n, err := waiting.Read(buf[:]); n != 0 || err == nil {
		t.Errorf("a connection that was never accepted is still open: %d, %v", n, err)
	}
	f, err := x.Ring(client, dialled)
	if err != nil {
		t.Fatalf("a connection has lost its memory: %v", err)
	}
	f.Close()
	if _, _, err := x.Dial(server, elsewhere); err != nil {
		t.Errorf("another proc cannot be dialled: %v", err)
	}
}

func TestAcceptCanceled(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, _, err := x.Accept(ctx, server, e.ID); sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("got %v", err)
	}
}

// A listener that is closed takes nobody any more, and those who had dialled before are accepted
// or, at the second Close, sent away.
func TestCloseWithWaiting(t *testing.T) {
	x := newProxy("m")
	for _, times := range []int{1, 2} {
		e := listen(t, x, server, false)
		a, _, err := x.Dial(client, e)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		for range times {
			if err := x.Close(server, e.ID); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := x.Dial(client, e); sigma.KindOf(err) != sigma.KindUnavailable {
			t.Errorf("closed %d times: dialled, %v", times, err)
		}
		b, from, _, err := x.Accept(t.Context(), server, e.ID)
		if times == 1 {
			if err != nil || from != client {
				t.Fatalf("who had dialled before was not accepted: %v", err)
			}
			b.Close()
			_, _, _, err = x.Accept(t.Context(), server, e.ID)
		}
		if k := sigma.KindOf(err); k != sigma.KindUnavailable && k != sigma.KindNotFound {
			t.Errorf("closed %d times: %v", times, err)
		}
		var buf [1]byte
		if n, err := a.Read(buf[:]); n != 0 || err == nil {
			t.Errorf("closed %d times: the connection is open", times)
		}
		if len(x.listeners)+len(x.owned)+len(x.waiting) != 0 {
			t.Errorf("left: %d listeners, %d owners, %d realms that wait", len(x.listeners), len(x.owned),
				len(x.waiting))
		}
	}
}

// TestPlace: a place that is kept counts like a connection that waits, is filled or given back, and
// has its socket closed if the listener has ended meanwhile.
func TestPlace(t *testing.T) {
	x := newProxy("m")
	far := sigma.Principal{Realm: "a", Proc: "far", Machine: "n"}
	e := listen(t, x, server, false)
	var places []*Place
	for range BacklogMax {
		p, err := x.Reserve(far, e, sigma.Life{})
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, p)
	}
	if _, err := x.Reserve(far, e, sigma.Life{}); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a place too many: %v", err)
	}
	if _, _, err := x.Dial(client, e); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("a dial where all places are kept: %v", err)
	}
	if _, err := x.Reserve(sigma.Principal{Realm: "b", Proc: "far", Machine: "n"}, e,
		sigma.Life{}); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a place for another realm: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	places[0].Give(w)
	if f, from, ticket, err := x.Accept(t.Context(), server, e.ID); err != nil || f != w || from != far ||
		ticket != "" {
		t.Errorf("accepted %v of %v with %q, %v", f, from, ticket, err)
	}
	for _, p := range places[2:] {
		p.Close()
	}
	x.Close(server, e.ID)
	places[1].Give(w)
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("what came for a listener that has ended is open: %v", err)
	}
	if len(x.waiting) != 0 {
		t.Errorf("%v are counted", x.waiting)
	}
	tree, err := x.Listen(server, sigma.FormTree, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Reserve(far, tree, sigma.Life{}); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("a tree: %v", err)
	}
}

// Ten thousand connections that nobody accepts are refused beyond the limits of their listener and
// their realm, hold nothing then, and keep no other realm from being served.
func TestHalfOpen(t *testing.T) {
	x := newProxy("m")
	var es []sigma.Endpoint
	servers := []sigma.Principal{server}
	for i := range 2 * WaitingMax / BacklogMax {
		if i%2 == 0 { // of one alone the descriptors would be too many
			servers = append(servers, sigma.Principal{Realm: "a", Proc: sigma.ProcID(fmt.Sprint("server", i)),
				Machine: "m"})
		}
		es = append(es, listen(t, x, servers[len(servers)-1], false))
	}
	public := listen(t, x, server, true)
	var held []*os.File
	refused := 0
	for i := range 10_000 {
		f, _, err := x.Dial(client, es[i%len(es)])
		switch {
		case err == nil:
			held = append(held, f)
		case sigma.KindOf(err) == sigma.KindUnavailable:
			refused++
		default:
			t.Fatal(err)
		}
	}
	if len(held) != WaitingMax || refused != 10_000-WaitingMax {
		t.Errorf("%d wait and %d were refused, want %d to wait", len(held), refused, WaitingMax)
	}
	f, _, err := x.Dial(other, public)
	if err != nil {
		t.Fatalf("another realm is kept out: %v", err)
	}
	f.Close()
	for _, f := range held {
		f.Close() // the listener does not know yet, and they still count
	}
	if f, _, err := x.Dial(client, es[0]); err == nil {
		f.Close()
		t.Error("who hangs up makes room")
	}
	for _, p := range servers {
		x.CloseProc(p.Proc)
	}
	if n := len(x.waiting); n != 0 || x.passed.Unread() != 0 {
		t.Errorf("%d realms still wait, %d descriptors are counted", n, x.passed.Unread())
	}
}
