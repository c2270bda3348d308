package dialproxy

import (
	"os"
	"testing"

	"sigmaos.dev/sigma"
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
	x := New("m")
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
		{"another realm's proc of the same name", sigma.Principal{Realm: "b", Proc: client.Proc, Machine: "m"}, d, sigma.KindPermission},
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
	if f, err := New("m").Ring(client, d); sigma.KindOf(err) != sigma.KindPermission {
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

// Connections that lead out of the realm or the machine, or to trees, have no ticket; a proc has so many memories and no more.
func TestNoRing(t *testing.T) {
	x := New("m")
	e := listen(t, x, server, true)
	for _, from := range []sigma.Principal{other, {Realm: "a", Proc: "far", Machine: "elsewhere"}, {Realm: "a", Machine: "m", System: true}} {
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
	if len(x.rings.all) != 0 {
		t.Errorf("%d memories are left", len(x.rings.all))
	}
}

func FuzzTicket(f *testing.F) {
	x := New("m")
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
