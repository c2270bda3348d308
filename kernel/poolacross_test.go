package kernel

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// listenPushed listens with a socket for what arrives.
func listenPushed(t *testing.T, root sigma.File) (e sigma.Endpoint, arrivals session.Conn) {
	t.Helper()
	e, files, err := sigmap.CallListen.AskFiles(t.Context(), endpointsOf{root}, sigmap.ListenAsk{
		Form: sigma.FormStream, Pushed: true})
	if err == nil {
		arrivals, err = session.FromFile(files[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arrivals.Close() })
	return e, arrivals
}

func askPool(ctx context.Context, root sigma.File, ask sigmap.PoolAsk) (sigmap.PoolGrant, []*os.File, error) {
	return sigmap.CallPool.AskFiles(ctx, endpointsOf{root}, ask)
}

// arrives receives a part of a pool.
func arrives(t *testing.T, conn session.Conn) (a sigmap.Arrival, files []*os.File) {
	t.Helper()
	record, files, err := conn.Recv()
	if err == nil {
		err = sigmap.Parse(record, func(c *sigmap.Coder) { c.Arrival(&a) })
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.CloseFiles(files) })
	return a, files
}

// TestPoolAcross: a proc gets connections in advance with an endpoint of another machine, the
// listener has their other ends when it does, and knows who dials as its machine says; both
// machines list them; who may not dial gets none, whether its own sigmad keeps it back or not;
// taken back, they end on both machines, and no others are made.
func TestPoolAcross(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"}, part{name: "m3", encrypt: true})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	ctx := t.Context()
	if err := m1.connect("default").Realms().Create(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	who := sigma.Principal{Realm: "default", Proc: "client", Machine: "m2"}
	server, client := m1.proc(sigma.Principal{Realm: "default", Proc: "server"}),
		m2.proc(sigma.Principal{Realm: "default", Proc: "client"})
	m1.launched("server", 7)
	m2.launched("client", 8)
	e, arrivals := listenPushed(t, server)
	g, mine, err := askPool(ctx, client, sigmap.PoolAsk{Endpoint: e, Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer session.CloseFiles(mine)
	a, theirs := arrives(t, arrivals)
	if !g.Line || !a.Line || len(mine) != 4 || len(theirs) != 4 || a.From != who || a.First != g.First || a.Pool == 0 {
		t.Fatalf("got %+v and %+v", g, a)
	}
	var b [8]byte
	mine[0].Write(binary.LittleEndian.AppendUint64(nil, g.First))
	if _, err := io.ReadFull(theirs[0], b[:]); err != nil || binary.LittleEndian.Uint64(b[:]) != g.First {
		t.Errorf("the line says %x, %v", b, err)
	}
	mine[1].Write([]byte("question"))
	if _, err := io.ReadFull(theirs[1], b[:]); err != nil || string(b[:]) != "question" {
		t.Errorf("the listener got %q, %v", b, err)
	}
	g2, more, err := askPool(ctx, client, sigmap.PoolAsk{Endpoint: e, Count: 2,
		Unused: []uint64{g.First + 1, g.First + 2}})
	if err != nil || g2.Line || len(more) != 2 {
		t.Fatal(g2, err)
	}
	defer session.CloseFiles(more)
	a2, theirs2 := arrives(t, arrivals)
	if a2.Pool != a.Pool || a2.First != g2.First || len(theirs2) != 2 {
		t.Errorf("the second batch is %+v", a2)
	}
	if _, _, err := askPool(ctx, client, sigmap.PoolAsk{Endpoint: e, Unused: []uint64{g.First + 2, g2.First,
		g2.First + 1}}); err != nil {
		t.Error(err)
	}
	for _, m := range []*machine{m1, m2} {
		ready := 0
		cs, _ := m.k.proxy.Connections(func(c *dialproxy.Connection) bool {
			return c.From == who && c.Transport == "tcp"
		})
		for _, c := range cs {
			if c.Ready {
				ready++
			}
		}
		if len(cs) != 5 || ready != 3 {
			t.Errorf("%s lists %d, %d of them ready", m.k.cfg.Machine, len(cs), ready)
		}
	}
	refusedAcross(t, w, e)
	if err := m1.k.connect.Revoke(ctx, sigma.Principal{Realm: "default", Proc: "server"}, e); err != nil {
		t.Fatal(err)
	}
	for i, f := range append(mine[1:], more...) {
		f.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := f.Read(b[:]); n != 0 || os.IsTimeout(err) || err == nil {
			t.Errorf("connection %d of those taken back says %d, %v", i, n, err)
		}
	}
	mine[0].SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := mine[0].Read(b[:]); n != 0 || err != io.EOF {
		t.Errorf("the line says %d, %v", n, err)
	}
	if _, _, err := askPool(ctx, client,
		sigmap.PoolAsk{Endpoint: e, Count: 1}); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("more of what was taken back: %v", err)
	}
	for late :=
		time.Now().Add(30 * time.Second); m1.k.proxy.Pools("default") != 0; <-time.After(10 * time.Millisecond) {
		// its line lingers
		if time.Now().After(late) {
			t.Fatal("its pool is left")
		}
	}
}

// refusedAcross tries what must not be. That it was asked rightly the caller has shown.
func refusedAcross(t *testing.T, w *world, e sigma.Endpoint) {
	ctx, m2 := t.Context(), w.machines["m2"]
	stranger := m2.proc(sigma.Principal{Realm: "other", Proc: "stranger"})
	lie := e
	lie.Realm = "other"
	for name, target := range map[string]sigma.Endpoint{"as it is": e, "under its own realm": lie} {
		if _, _, err := askPool(ctx, stranger, sigmap.PoolAsk{Endpoint: target,
			Count: 1}); sigma.KindOf(err) != sigma.KindPermission && sigma.KindOf(err) != sigma.KindUnsupported {
			t.Errorf("another realm, the endpoint %s: %v", name, err)
		}
		for who, p := range map[string]sigma.Principal{"another realm": {Realm: "other", Proc: "stranger"},
			"the provider": {Realm: "default", System: true}, "nobody": {Realm: "default"}} {
			if files, err := m2.k.cluster.Node().DialBatch(ctx, "m1", link.Target{Kind: link.ToEndpoint,
				Name: target.String()},
				p, link.Batch{First: 1, Line: true, Count: 2}); sigma.KindOf(err) != sigma.KindPermission &&
				sigma.KindOf(err) != sigma.KindUnavailable {
				t.Errorf("%s, past its own sigmad, the endpoint %s: %v", who, name, err)
				session.CloseFiles(files)
			}
		}
	}
	// Another machine's word about this proc's pool.
	to := link.Target{Kind: link.ToEndpoint, Name: e.String()}
	if _, err := w.machines["m3"].k.cluster.Node().DialBatch(ctx, "m1", to, sigma.Principal{Realm: "default",
		Proc: "client"},
		link.Batch{First: 1, Count: 1}); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("from a machine that encrypts: %v", err)
	}
	if _, err := m2.k.cluster.Node().DialBatch(ctx, "m1", to, sigma.Principal{Realm: "default", Proc: "another"},
		link.Batch{First: 1, Count: 1}); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("more for a pool that another proc has: %v", err)
	}
	if _, err := m2.k.cluster.Node().DialBatch(ctx, "m3", to, sigma.Principal{Realm: "default", Proc: "client"},
		link.Batch{First: 1, Line: true, Count: 2}); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("to a machine that encrypts: %v", err)
	}
}

// TestPoolAcrossUnsaid: a batch of which the other machine was told nothing costs no connection
// that was made before: they go on, and the next batch adds to them.
func TestPoolAcrossUnsaid(t *testing.T) {
	var cut atomic.Bool
	w := newWorld(t, control, part{name: "m2", before: func(m *machine) {
		m.dial = func(ctx context.Context, address string) (net.Conn, error) {
			if cut.Load() {
				return nil, syscall.EHOSTUNREACH
			}
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}})
	m1, m2 := w.machines["m1"], w.machines["m2"]
	server, client := m1.proc(sigma.Principal{Realm: "default", Proc: "server"}),
		m2.proc(sigma.Principal{Realm: "default", Proc: "client"})
	m1.launched("server", 7)
	m2.launched("client", 8)
	e, arrivals := listenPushed(t, server)
	g, mine, err := askPool(t.Context(), client, sigmap.PoolAsk{Endpoint: e, Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer session.CloseFiles(mine)
	_, theirs := arrives(t, arrivals)
	more := sigmap.PoolAsk{Endpoint: e, Count: 1, Unused: []uint64{g.First, g.First + 1}}
	cut.Store(true)
	for range 3 { // the second is not tried
		if _, _, err := askPool(t.Context(), client, more); err == nil {
			t.Fatal("a batch was made with a machine that is not reached")
		}
	}
	cut.Store(false)
	for late :=
		time.Now().Add(30 * time.Second); ; <-time.After(10 * time.Millisecond) { // it is left alone for a while
		g2, files, err := askPool(t.Context(), client, more)
		if err == nil {
			defer session.CloseFiles(files)
			if g2.Line || len(files) != 1 {
				t.Errorf("got %+v and %d connections: the pool has ended", g2, len(files))
			}
			break
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	mine[1].Write([]byte("question"))
	var b [8]byte
	if _, err := io.ReadFull(theirs[1], b[:]); err != nil || string(b[:]) != "question" {
		t.Errorf("one of before says %q, %v", b, err)
	}
}
