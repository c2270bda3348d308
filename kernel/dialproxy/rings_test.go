package dialproxy

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
)

// connected makes a connection of client with server and gives both tickets.
func connected(t *testing.T, x *Proxy, e sigma.Endpoint, from sigma.Principal) (dialled, accepted Ticket) {
	t.Helper()
	a, dialled, err := x.Dial(from, e)
	if err != nil {
		t.Fatal(err)
	}
	b, _, accepted, err := x.Accept(t.Context(), server, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	return dialled, accepted
}

// Both procs of a connection, and nobody else, get its memory, which is one and the same.
func TestRing(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	d, a := connected(t, x, e, client)
	f, err := x.Ring(client, d)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g, err := x.Ring(server, a)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	fs, _ := f.Stat()
	gs, _ := g.Stat()
	if !os.SameFile(fs, gs) {
		t.Error("the two sides have different memory")
	}
	third := sigma.Principal{Realm: "a", Proc: "third", Machine: "m"}
	changed := []byte(d)
	changed[len(changed)-1]++
	for _, c := range []struct {
		name   string
		by     sigma.Principal
		ticket Ticket
		want   sigma.Kind
	}{
		{"another proc", third, d, sigma.KindPermission},
		{"another realm's proc of the same name", sigma.Principal{Realm: "b", Proc: client.Proc, Machine: "m"}, d,
			sigma.KindPermission},
		{"no proc", sigma.Principal{Realm: "a"}, d, sigma.KindPermission},
		{"none", client, "", sigma.KindPermission},
		{"half", client, d[:20], sigma.KindPermission},
		{"changed", client, Ticket(changed), sigma.KindPermission},
		{"once more", client, d, sigma.KindExists},
	} {
		if f, err := x.Ring(c.by, c.ticket); sigma.KindOf(err) != c.want || err == nil {
			t.Errorf("%s: got %v, %v, want %v", c.name, f, err, c.want)
		}
	}
	if f, err := newProxy("m").Ring(client, d); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("another life of sigmad took the ticket: %v, %v", f, err)
	}
	if err := x.EndRing(third, d); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("another proc ended it: %v", err)
	}
	if err := x.EndRing(client, d); err != nil || len(x.rings.all) != 1 {
		t.Errorf("one side ended it: %v, %d are left", err, len(x.rings.all))
	}
	x.CloseProc(server.Proc)
	if len(x.rings.all) != 0 || len(x.rings.of) != 0 {
		t.Errorf("memory is left of procs that are gone: %v", x.rings)
	}
}

// Connections that lead out of the realm or the machine, or to trees, have no ticket; a proc has so
// many memories and no more.
func TestNoRing(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, true)
	for _, from := range []sigma.Principal{other, {Realm: "a", Proc: "far", Machine: "elsewhere"},
		{Realm: "a", Machine: "m", System: true}} {
		if d, a := connected(t, x, e, from); d != "" || a != "" {
			t.Errorf("%v has a ticket", from)
		}
	}
	for i := range RingsOfProc + 1 {
		d, _ := connected(t, x, e, client)
		f, err := x.Ring(client, d)
		if i < RingsOfProc && err != nil || i == RingsOfProc && sigma.KindOf(err) != sigma.KindBusy {
			t.Fatalf("memory %d: %v", i, err)
		}
		if err == nil {
			f.Close()
		}
	}
	x.CloseProc(client.Proc)
	x.CloseProc(server.Proc)
	if len(x.rings.all) != 0 {
		t.Errorf("%d memories are left", len(x.rings.all))
	}
}

func FuzzTicket(f *testing.F) {
	x := newProxy("m")
	e, err := x.Listen(server, sigma.FormStream, false)
	if err != nil {
		f.Fatal(err)
	}
	file, ticket, err := x.Dial(client, e)
	if err != nil {
		f.Fatal(err)
	}
	file.Close()
	f.Add([]byte(ticket))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := x.ParseTicket(client, Ticket(b)); err == nil && Ticket(b) != ticket {
			t.Errorf("%x is taken for a ticket", b)
		}
	})
}

// After a connection whose memory was asked for, the next ones to the same proc have theirs from
// the beginning, both sides the same; then one has not. What nobody takes is not kept.
func TestEarly(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	d, a := connected(t, x, e, client)
	if f, g := x.Early(client, d, true), x.Early(server, a, true); f != nil || g != nil {
		t.Fatal("the first connection has memory")
	}
	for _, half := range []struct {
		p sigma.Principal
		t Ticket
	}{{client, d}, {server, a}} {
		f, err := x.Ring(half.p, half.t)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	for i := range ringsEarly + 1 {
		d, a := connected(t, x, e, client)
		f, g := x.Early(client, d, true), x.Early(server, a, i%2 == 0)
		switch {
		case i == ringsEarly:
			if f != nil || g != nil {
				t.Error("there is no end of early memory")
			}
			continue
		case f == nil || (g == nil) != (i%2 == 1):
			t.Fatalf("connection %d: got %v and %v", i, f, g)
		}
		if x.Early(client, d, true) != nil {
			t.Error("it is given twice")
		}
		if _, err := x.Ring(client, d); sigma.KindOf(err) != sigma.KindExists {
			t.Errorf("it is given twice: %v", err)
		}
		if g != nil {
			fs, _ := f.Stat()
			gs, _ := g.Stat()
			if !os.SameFile(fs, gs) {
				t.Error("the two sides have different memory")
			}
			g.Close()
			x.EndRing(server, a)
		}
		f.Close()
		x.EndRing(client, d)
	}
	if n := len(x.rings.all); n != 1 {
		t.Errorf("%d memories are kept, not that of the first connection alone", n)
	}
	x.rings.warm[server.Proc] = 1
	if _, _, err := x.Dial(client, e); err != nil { // and nobody accepts
		t.Fatal(err)
	}
	if err := x.Close(server, e.ID); err != nil {
		t.Fatal(err)
	}
	x.close(x.listeners[e.ID])
	x.CloseProc(client.Proc)
	if _, err := x.Ring(server, a); sigma.KindOf(err) != sigma.KindUnavailable || len(x.rings.all) != 0 {
		t.Errorf("got %v, and %d memories are kept", err, len(x.rings.all))
	}
	x.CloseProc(server.Proc)
	if len(x.rings.all)+len(x.rings.of)+len(x.rings.warm)+len(x.rings.used) != 0 {
		t.Errorf("something is kept of procs that are gone: %+v", x.rings)
	}
}

// A realm has half of the machine's memories at most.
func TestRingsOfRealm(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	for i := range RingsOfRealm + 1 {
		from := client
		from.Proc = sigma.ProcID(fmt.Sprintf("client-%d", i/(RingsOfProc/2)))
		d, a := connected(t, x, e, from)
		f, err := x.Ring(from, d)
		if i < RingsOfRealm && err != nil || i == RingsOfRealm && sigma.KindOf(err) != sigma.KindBusy {
			t.Fatalf("memory %d: %v", i, err)
		}
		if err == nil {
			f.Close()
		}
		x.EndRing(server, a) // or the server's own limit comes first
	}
	if n := x.Rings(client.Realm); n != RingsOfRealm {
		t.Errorf("%d are counted", n)
	}
}

// crowds are the procs that are to be looked at, in order of their names.
func crowds(x *Proxy) (ids []sigma.ProcID) {
	for {
		select {
		case id := <-x.Crowded():
			ids = append(ids, id)
		default:
			slices.Sort(ids)
			return ids
		}
	}
}

// Of a realm that has all the memories it can, all who hold one are looked at, whoever asks, and
// nobody of another realm; not for each that asks.
func TestRingsOfRealmForgotten(t *testing.T) { synctest.Test(t, ringsOfRealmForgotten) }

func ringsOfRealmForgotten(t *testing.T) {
	x := newProxy("m")
	b := sigma.Principal{Realm: "b", Proc: "b-server", Machine: "m"}
	for _, one := range []struct {
		server sigma.Principal
		n      int
	}{{server, RingsOfRealm}, {b, 1}} {
		e := listen(t, x, one.server, false)
		for i := range one.n {
			from := sigma.Principal{Realm: one.server.Realm,
				Proc: sigma.ProcID(fmt.Sprintf("%s-%02d", one.server.Realm, i/RingsOfProc)), Machine: "m"}
			f, ticket, err := x.Dial(from, e)
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			g, _, _, err := x.Accept(t.Context(), one.server, e.ID)
			if err != nil {
				t.Fatal(err)
			}
			g.Close()
			if f, err = x.Ring(from, ticket); err != nil {
				t.Fatal(i, err)
			}
			f.Close()
		}
	}
	crowds(x) // the server has many connections
	<-time.After(crowdedAgain)
	e := listen(t, x, sigma.Principal{Realm: "a", Proc: "idle", Machine: "m"}, false)
	f, ticket, err := x.Dial(client, e)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	for range 100 {
		if _, err := x.Ring(client, ticket); sigma.KindOf(err) != sigma.KindBusy {
			t.Fatalf("one more than a realm may have: %v", err)
		}
	}
	var want []sigma.ProcID
	for i := range RingsOfRealm / RingsOfProc {
		want = append(want, sigma.ProcID(fmt.Sprintf("a-%02d", i)))
	}
	want = append(want, server.Proc) // has those that were made early
	if ids := crowds(x); !slices.Equal(ids, want) {
		t.Errorf("it is looked at %v, not once at %v", ids, want)
	}
	<-time.After(crowdedAgain)
	x.Ring(client, ticket)
	if ids := crowds(x); !slices.Equal(ids, want) {
		t.Errorf("later it is looked at %v, not %v", ids, want)
	}
}

// Who was taken for gone before it took the memory that was made with its connection gets that only
// by asking, and then it counts.
func TestEarlyGone(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	x.rings.warm[server.Proc] = 1
	d, _ := connected(t, x, e, client)
	x.mu.Lock()
	for _, c := range x.conns.all {
		c.ends[ring.Dialled].since = time.Now().Add(-time.Hour)
	}
	x.mu.Unlock()
	x.Reconcile(client.Proc, x.Of(client.Proc), nil)
	if f := x.Early(client, d, true); f != nil {
		t.Error("it has memory and is not counted")
	}
	f, err := x.Ring(client, d)
	if err != nil || len(x.rings.of[client.Proc]) != 1 {
		t.Errorf("asked for, it counts %d: %v", len(x.rings.of[client.Proc]), err)
	}
	f.Close()
}

// Who does not say that it needs the memory of a connection no more loses it with the connection;
// it is looked for who has too many.
func TestRingForgotten(t *testing.T) { synctest.Test(t, ringForgotten) }

func ringForgotten(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	for i := range RingsOfProc {
		d, a := connected(t, x, e, client)
		for p, ticket := range map[*sigma.Principal]Ticket{&client: d, &server: a} {
			f, err := x.Ring(*p, ticket)
			if err != nil {
				t.Fatal(i, err)
			}
			f.Close()
		}
	}
	d, _ := connected(t, x, e, client)
	if _, err := x.Ring(client, d); sigma.KindOf(err) != sigma.KindBusy {
		t.Fatalf("one more than a proc may have: %v", err)
	}
	for range 100 { // and asks again and again
		x.Ring(client, d)
	}
	if ids := crowds(x); !slices.Equal(ids, []sigma.ProcID{client.Proc}) {
		t.Errorf("it is looked at %v, not once at who asked", ids)
	}
	<-time.After(crowdedAgain)
	x.Ring(client, d)
	if ids := crowds(x); !slices.Equal(ids, []sigma.ProcID{client.Proc}) {
		t.Errorf("later it is looked at %v", ids)
	}
	x.mu.Lock()
	for _, c := range x.conns.all {
		for i := range c.ends {
			c.ends[i].since = time.Now().Add(-time.Hour)
		}
	}
	x.mu.Unlock()
	x.Reconcile(client.Proc, x.Of(client.Proc), nil)
	if n := len(x.rings.of[client.Proc]); n != 0 || x.Rings("a") != RingsOfProc {
		t.Errorf("the client has closed all and holds %d; %d in all", n, x.Rings("a"))
	}
	x.Reconcile(server.Proc, x.Of(server.Proc), nil)
	if n := x.Rings("a"); n != 0 || len(x.rings.all) != 0 || len(x.rings.of) != 0 {
		t.Errorf("both have closed all, and %d are left", n)
	}
	if err := x.EndRing(client, d); err != nil {
		t.Errorf("to say so late: %v", err)
	}
}
