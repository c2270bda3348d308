package dialproxy

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

var (
	farClient = sigma.Principal{Realm: "a", Proc: "far", Machine: "n"}
	farLife   = sigma.Life{Machine: "n", Incarnation: 3}
	hereLife  = sigma.Life{Machine: "m", Incarnation: 2}
)

// tcpPairs are connections over the loopback; of each both ends do not block.
func tcpPairs(t *testing.T, n int) (mine, theirs []*os.File) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for range n {
		a, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		b, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			conn net.Conn
			to   *[]*os.File
		}{{a, &mine}, {b, &theirs}} {
			fd, _, err := descriptor(c.conn.(*net.TCPConn))
			if err != nil {
				t.Fatal(err)
			}
			f, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			c.conn.Close()
			*c.to = append(*c.to, os.NewFile(uintptr(f), "connection"))
		}
	}
	t.Cleanup(func() { session.CloseFiles(mine); session.CloseFiles(theirs) })
	return mine, theirs
}

func conns(fs []*os.File) (out []syscall.Conn) {
	for _, f := range fs {
		out = append(out, f)
	}
	return out
}

// across makes a batch of farClient's between the proxies of two machines. It gives the dialler's
// ends; the listener's are closed here, as sigmad does.
func across(t *testing.T, there, here *Proxy, ask sigmap.PoolAsk) ([]*os.File, *sigmap.PoolGrant, error) {
	t.Helper()
	a, err := there.AskAway(farClient, ask)
	if err != nil || a.Count == 0 {
		return nil, nil, err
	}
	n := a.Count
	if a.Line {
		n++
	}
	mine, theirs := tcpPairs(t, n)
	here.BegunFrom(farClient, ask.Endpoint.ID, a.Begun)
	err = here.PoolFrom(farClient, ask.Endpoint, farLife, a.First, a.Line, conns(theirs))
	session.CloseFiles(theirs)
	if err != nil {
		there.FailAway(ask.Endpoint, a, sigma.KindOf(err) == sigma.KindBusy)
		return nil, nil, err
	}
	g, err := there.TakeAway(t.Context(), farClient, ask.Endpoint, hereLife, a, mine)
	return mine, g, err
}

// ended waits until a socket says that it has; what it says before is passed over.
func ended(t *testing.T, f *os.File) {
	t.Helper()
	f.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, f); os.IsTimeout(err) {
		t.Error("a line goes on")
	}
}

func ready(x *Proxy) (ready, begun int) {
	cs, _ := x.Connections(func(*Connection) bool { return true })
	for _, c := range cs {
		if c.Ready {
			ready++
		} else {
			begun++
		}
	}
	return ready, begun
}

// Connections in advance between machines: both procs get the same ones, a number on the line is
// the listener's to read, and both machines list them as begun when they are told.
func TestPoolAcross(t *testing.T) {
	here, there := newProxy("m"), newProxy("n")
	e, conn := pushed(t, here, server)
	mine, g, err := across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	a, theirs := receive(t, conn)
	if !g.Line || !a.Line || len(mine) != 4 || len(theirs) != 4 || a.From != farClient || a.First != g.First ||
		len(a.Tickets) != 3 || len(g.Tickets) != 3 {
		t.Fatalf("got %+v and %+v", g, a)
	}
	var b [8]byte
	mine[0].Write(binary.LittleEndian.AppendUint64(nil, g.First+1))
	if _, err := io.ReadFull(theirs[0], b[:]); err != nil || binary.LittleEndian.Uint64(b[:]) != g.First+1 {
		t.Errorf("the line says %x, %v", b, err)
	}
	mine[2].Write([]byte("x"))
	if n, err := theirs[2].Read(b[:]); n != 1 || err != nil {
		t.Errorf("the connection says %d, %v", n, err)
	}
	if _, g, err = across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 2,
		Unused: []uint64{a.First, a.First + 2}}); err != nil || g.Line {
		t.Fatal(g, err)
	}
	again, _ := receive(t, conn)
	if again.Line || again.Pool != a.Pool || again.First != g.First || len(again.Tickets) != 2 {
		t.Errorf("the second batch: %+v", again)
	}
	for _, x := range []*Proxy{here, there} {
		if r, begun := ready(x); r != 4 || begun != 1 {
			t.Errorf("%s lists %d as ready, %d as begun", x.machine, r, begun)
		}
		if n := len(x.Events(func(*Connection) bool { return true })); n != 1 {
			t.Errorf("%s knows of %d dials", x.machine, n)
		}
	}
	left, err := there.AskAway(farClient, sigmap.PoolAsk{Endpoint: e, Over: true, Unused: []uint64{a.First}})
	if err != nil || left.Count != 0 || len(left.Begun) != 3 {
		t.Errorf("the end: %+v, %v", left, err)
	}
	ended(t, theirs[0])
	here.SweepPools(func(sigma.Life) bool { return false })
	noPools(t, "at the end", here, there)
}

// noPools waits until none counts any more.
func noPools(t *testing.T, when string, xs ...*Proxy) {
	t.Helper()
	for _, x := range xs {
		for late := time.Now().Add(30 * time.Second); x.Pools("a") > 0; <-time.After(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("%s: %d pools are left at %s", when, x.Pools("a"), x.machine)
			}
		}
	}
}

// Who may not dial gets none, and one machine's proc has no part in the pool of another's; what
// nobody takes note of is bounded.
func TestPoolAcrossRefused(t *testing.T) {
	here, there := newProxy("m"), newProxy("n")
	e, conn := pushed(t, here, server)
	if _, _, err := across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 2}); err != nil {
		t.Fatal(err)
	}
	first, _ := receive(t, conn)
	forged := e
	forged.Realm = other.Realm
	plain, public := listen(t, here, server, false), listen(t, here, server, true)
	thief := farClient
	thief.Machine = "o"
	stranger := sigma.Principal{Realm: other.Realm, Proc: "s", Machine: "n"}
	for name, c := range map[string]struct {
		by   sigma.Principal
		to   sigma.Endpoint
		life sigma.Life
		line bool
		want sigma.Kind
	}{
		"another realm":                   {stranger, e, farLife, true, sigma.KindPermission},
		"another realm with its own name": {stranger, forged, farLife, true, sigma.KindPermission},
		"another realm at a public one":   {stranger, public, farLife, true, sigma.KindUnsupported},
		"a changed endpoint":              {farClient, forged, farLife, true, sigma.KindUnavailable},
		"a program outside": {sigma.Principal{Realm: "a", Machine: "n"}, e, farLife, true,
			sigma.KindUnsupported},
		"the provider": {sigma.Principal{Realm: "a", Proc: "p", Machine: "n", System: true}, e,
			farLife, true, sigma.KindUnsupported},
		"a proc of this machine":       {client, e, hereLife, true, sigma.KindUnsupported},
		"another machine than it says": {farClient, e, sigma.Life{Machine: "o"}, true, sigma.KindUnsupported},
		"more for a line that is not there": {sigma.Principal{Realm: "a", Proc: "q", Machine: "n"}, e, farLife,
			false, sigma.KindUnavailable},
		"more for the line of another machine": {thief, e, sigma.Life{Machine: "o"}, false, sigma.KindUnavailable},
		"a listener that asks for each dial":   {farClient, plain, farLife, true, sigma.KindUnsupported},
	} {
		_, theirs := tcpPairs(t, 2)
		if err := here.PoolFrom(c.by, c.to, c.life, 90, c.line, conns(theirs)); sigma.KindOf(err) != c.want ||
			err == nil {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	here.BegunFrom(thief, e.ID, []uint64{first.First})
	here.BegunFrom(sigma.Principal{Realm: other.Realm, Proc: farClient.Proc, Machine: "n"}, e.ID, []uint64{first.First})
	if _, begun := ready(here); begun != 0 {
		t.Error("another's word that a connection has begun is taken")
	}
	here.BegunFrom(farClient, e.ID, []uint64{first.First})
	if _, begun := ready(here); begun != 1 {
		t.Error("its own is not")
	}
	for name, p := range map[string]sigma.Principal{"another machine's": {Realm: "a", Proc: "p", Machine: "m"},
		"a program outside": {Realm: "a", Machine: "n"}, "another realm": stranger} {
		if _, err := there.AskAway(p, sigmap.PoolAsk{Endpoint: e,
			Count: 1}); sigma.KindOf(err) != sigma.KindUnsupported {
			t.Errorf("%s asks: %v", name, err)
		}
	}
	var err error
	for i := uint64(0); err == nil && i < 2*unbegunMax; i += 8 {
		_, theirs := tcpPairs(t, 8)
		err = here.PoolFrom(farClient, e, farLife, 100+i, false, conns(theirs))
		if err == nil {
			receive(t, conn)
		}
	}
	if sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("more than can be held: %v", err)
	}
}

// Whatever ends a pool between machines ends its line on both: the listener that closes its
// direction, everything else both.
func TestPoolAcrossOver(t *testing.T) {
	for what, end := range map[string]func(here, there *Proxy, e sigma.Endpoint) error{
		"closed":     func(here, _ *Proxy, e sigma.Endpoint) error { return here.Close(server, e.ID) },
		"taken back": func(here, _ *Proxy, e sigma.Endpoint) error { return here.Withdraw(server, e) },
		"listener killed": func(here, _ *Proxy, _ sigma.Endpoint) error {
			here.CloseListeners(server.Proc)
			return nil
		},
		"listener gone": func(here, _ *Proxy, _ sigma.Endpoint) error { here.CloseProc(server.Proc); return nil },
		"dialler gone": func(_, there *Proxy, _ sigma.Endpoint) error {
			there.CloseProc(farClient.Proc)
			return nil
		},
		"life over": func(here, there *Proxy, _ sigma.Endpoint) error {
			here.SweepPools(func(l sigma.Life) bool { return l == farLife })
			there.SweepPools(func(l sigma.Life) bool { return l == hereLife })
			return nil
		},
	} {
		here, there := newProxy("m"), newProxy("n")
		here.pools.linger = 100 * time.Millisecond
		e, conn := pushed(t, here, server)
		mine, g, err := across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		_, theirs := receive(t, conn)
		mine[0].Write(binary.LittleEndian.AppendUint64(nil, g.First))
		if err := end(here, there, e); err != nil {
			t.Fatal(err)
		}
		if what != "dialler gone" { // the listener has ended its direction at least
			ended(t, mine[0])
		}
		if what != "life over" { // what was said before is there
			var b [8]byte
			if _, err := io.ReadFull(theirs[0], b[:]); err != nil {
				t.Errorf("%s: what was said is lost: %v", what, err)
			}
		}
		if what != "dialler gone" {
			mine[0].Close()
		}
		there.SweepPools(func(sigma.Life) bool { return false })
		ended(t, theirs[0])
		here.SweepPools(func(sigma.Life) bool { return false })
		noPools(t, what, here, there)
		if what == "dialler gone" {
			if r, _ := ready(there); r != 0 {
				t.Errorf("%s: %d connections are listed", what, r)
			}
		}
	}
}

// What was lost is not held for ever: what has begun is told until it is known to have come, a
// batch of which nobody knows what became ends its pool, one that was refused does not; and at the
// bound what both have closed makes room.
func TestPoolAcrossLost(t *testing.T) {
	here, there := newProxy("m"), newProxy("n")
	e, conn := pushed(t, here, server)
	mine, g, err := across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, theirs := receive(t, conn)
	unused := []uint64{g.First + 1, g.First + 2}
	ask := func(count uint32, begun int) Away {
		t.Helper()
		a, err := there.AskAway(farClient, sigmap.PoolAsk{Endpoint: e, Count: count, Unused: unused})
		if err != nil || len(a.Begun) != begun {
			t.Fatalf("%d are told to have begun, not %d; %v", len(a.Begun), begun, err)
		}
		return a
	}
	there.FailAway(e, ask(2, 1), true)
	ask(0, 1)
	there.ToldAway(ask(0, 1))
	ask(0, 0)
	unused = unused[1:]
	if _, g, err = across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 2, Unused: unused}); err != nil {
		t.Fatal(err)
	}
	receive(t, conn)
	unused = append(unused, g.First, g.First+1)
	ask(0, 0)

	_, again := tcpPairs(t, 1)
	if err := here.PoolFrom(farClient, e, farLife, g.First+1, false,
		conns(again)); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("another connection of a number that has not begun: %v", err)
	}
	for full := false; !full; {
		_, others := tcpPairs(t, 8)
		there.mu.Lock()
		there.rings.last += 8
		first := there.rings.last - 7
		there.mu.Unlock()
		if err := here.PoolFrom(farClient, e, farLife, first, false, conns(others)); err == nil {
			receive(t, conn)
		} else if full = sigma.KindOf(err) == sigma.KindBusy; !full {
			t.Fatal(err)
		}
	}
	select {
	case id := <-here.Crowded():
		if id != server.Proc {
			t.Errorf("it is looked at %s", id)
		}
	default:
		t.Error("nobody looks which connections still are")
	}
	here.mu.Lock()
	for _, c := range here.conns.all {
		for i := range c.ends {
			c.ends[i].since = time.Now().Add(-time.Hour)
		}
	}
	here.mu.Unlock()
	here.Reconcile(server.Proc, here.Of(server.Proc), nil)
	if _, g, err = across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 2, Unused: unused}); err != nil {
		t.Fatalf("beside those that both have closed: %v", err)
	}
	unused = append(unused, g.First, g.First+1)

	there.FailAway(e, ask(2, 0), false)
	ended(t, theirs[0])
	ended(t, mine[0])
	noPools(t, "after a batch was lost", there)
	if a := ask(2, 0); !a.Line {
		t.Error("a pool that was lost goes on")
	}
}

// What is being made counts: neither many at once nor one proc's two for one endpoint exceed what
// there may be; and who goes meanwhile leaves nothing.
func TestPoolAcrossMaking(t *testing.T) {
	there := newProxy("n")
	e := sigma.Endpoint{Realm: "a", Machine: "m", Proc: "s", ID: "e", Form: sigma.FormStream}
	var making []Away
	var es []sigma.Endpoint
	for i := range poolsOfProc + 1 {
		e.ID = sigma.EndpointID([]byte{'e', byte('A' + i)})
		a, err := there.AskAway(farClient, sigmap.PoolAsk{Endpoint: e, Count: 1})
		if i == poolsOfProc {
			if sigma.KindOf(err) != sigma.KindBusy {
				t.Errorf("one more than a proc may have: %v", err)
			}
			break
		}
		if err != nil || !a.Line {
			t.Fatal(a, err)
		}
		making, es = append(making, a), append(es, e)
	}
	if _, err := there.AskAway(farClient, sigmap.PoolAsk{Endpoint: es[0],
		Count: 1}); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("twice at a time: %v", err)
	}
	if _, err := there.AskAway(farClient, sigmap.PoolAsk{Endpoint: es[0], Over: true}); err != nil {
		t.Fatal(err)
	}
	anew, err := there.AskAway(farClient, sigmap.PoolAsk{Endpoint: es[0], Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	take := func(e sigma.Endpoint, a Away) error {
		mine, _ := tcpPairs(t, 2)
		_, err := there.TakeAway(t.Context(), farClient, e, hereLife, a, mine)
		return err
	}
	if err := take(es[0], making[0]); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("made for a pool that its proc has ended: %v", err)
	}
	if err := take(es[0], anew); err != nil {
		t.Error(err)
	}
	there.CloseProc(farClient.Proc)
	if err := take(es[1], making[1]); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("made for a proc that is gone: %v", err)
	}
	for i := 2; i < len(making); i++ {
		there.FailAway(es[i], making[i], i%2 == 0)
	}
	if n := there.Pools("a"); n != 0 || there.pools.all != 0 || len(there.pools.away) != 0 {
		t.Errorf("%d pools are left, %d of all", n, there.pools.all)
	}
}

// A dialler that does not end its line when the listener has ended its direction has it ended, and
// until then it counts: so nobody has a listener hold more of them than there may be.
func TestPoolAcrossLingers(t *testing.T) {
	here, there := newProxy("m"), newProxy("n")
	e, conn := pushed(t, here, server)
	here.pools.linger = time.Hour // until the test says
	first, _, err := across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, theirs := receive(t, conn)
	own := lines(here, e)[0]
	there = newProxy("n") // it knows nothing of before
	if _, _, err := across(t, there, here, sigmap.PoolAsk{Endpoint: e, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if n := here.Pools("a"); n != 2 {
		t.Errorf("%d pools count, one of them ending", n)
	}
	own.ends.Reset(0)
	ended(t, first[0]) // which nobody closes
	ended(t, theirs[0])
	for late := time.Now().Add(30 * time.Second); here.Pools("a") != 1; <-time.After(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d pools count", here.Pools("a"))
		}
	}
	here.mu.Lock()
	defer here.mu.Unlock()
	if len(here.pools.ending) != 0 {
		t.Errorf("counted as ending are %v", here.pools.ending)
	}
}

// lines are the pools that a listener has.
func lines(x *Proxy, e sigma.Endpoint) (out []*pool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, own := range x.listeners[e.ID].pools {
		out = append(out, own)
	}
	return out
}

// A proc of another machine that ends its pools as fast as it makes them takes its realm's from
// nobody: it waits until its lines have ended.
func TestPoolAcrossEnding(t *testing.T) {
	here := newProxy("m")
	e, conn := pushed(t, here, server)
	here.pools.linger = time.Hour // until the test says
	var owns []*pool
	for range poolsEnding {
		if _, _, err := across(t, newProxy("n"), here,
			sigmap.PoolAsk{Endpoint: e, Count: 1}); err != nil { // with which the one before ends
			t.Fatal(len(owns), err)
		}
		_, files := receive(t, conn)
		session.CloseFiles(files)
		owns = append(owns, lines(here, e)...)
	}
	once := func() error {
		_, _, err := across(t, newProxy("n"), here, sigmap.PoolAsk{Endpoint: e, Count: 1})
		return err
	}
	for range 2 {
		if err := once(); sigma.KindOf(err) != sigma.KindBusy || here.Pools("a") != poolsEnding {
			t.Fatalf("one more: %v, %d pools count", err, here.Pools("a"))
		}
	}
	neighbour := farClient
	neighbour.Proc = "neighbour"
	_, socks := tcpPairs(t, 2)
	if err := here.PoolFrom(neighbour, e, farLife, 1, true, conns(socks)); err != nil {
		t.Errorf("another proc of its machine: %v", err)
	}
	for _, own := range owns {
		own.ends.Reset(0)
	}
	for late := time.Now().Add(30 * time.Second); here.Pools("a") != 1; <-time.After(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%d pools count", here.Pools("a"))
		}
	}
	if err := once(); err != nil {
		t.Errorf("after its lines have ended: %v", err)
	}
}
