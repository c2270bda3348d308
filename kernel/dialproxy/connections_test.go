package dialproxy

import (
	"os"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
)

func all(*Connection) bool { return true }

// connectOne dials an endpoint and accepts.
func connectOne(t *testing.T, x *Proxy, e sigma.Endpoint) (a, b *os.File, ticket Ticket) {
	t.Helper()
	a, ticket, err := x.Dial(client, e)
	if err != nil {
		t.Fatal(err)
	}
	b, _, _, err = x.Accept(t.Context(), server, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b, ticket
}

// TestConnections: both ends of a connection are noted by their numbers; what its procs closed is
// forgotten once somebody looked, what may be under way is not.
func TestConnections(t *testing.T) {
	x := newProxy("m")
	e := listen(t, x, server, false)
	a, b, _ := connectOne(t, x, e)
	cs, ends := x.Connections(all)
	if len(cs) != 1 || cs[0].From != client || cs[0].Endpoint != e || cs[0].Transport != "unix" || len(ends) != 2 {
		t.Fatalf("got %+v, %+v", cs, ends)
	}
	if got := x.Of(client.Proc); len(got) != 1 || got[0].Inode != inodeOf(a) || got[0].Proc != client.Proc {
		t.Errorf("the dialler's: %+v", got)
	}
	if got := x.Of(server.Proc); len(got) != 1 || got[0].Inode != inodeOf(b) {
		t.Errorf("the listener's: %+v", got)
	}
	x.Reconcile(client.Proc, x.Of(client.Proc), nil)
	x.Reconcile(server.Proc, x.Of(server.Proc), nil)
	if cs, _ := x.Connections(all); len(cs) != 1 {
		t.Error("what is under way was forgotten")
	}
	x.mu.Lock()
	for _, c := range x.conns.all {
		for i := range c.ends {
			c.ends[i].since = time.Now().Add(-time.Hour)
		}
	}
	x.mu.Unlock()
	x.Reconcile(client.Proc, x.Of(client.Proc), map[uint64]bool{inodeOf(a): true})
	x.Reconcile(server.Proc, x.Of(server.Proc), nil)
	if cs, ends := x.Connections(all); len(cs) != 1 || len(ends) != 1 {
		t.Errorf("one end is open: %+v, %+v", cs, ends)
	}
	x.Reconcile(client.Proc, x.Of(client.Proc), nil)
	if cs, _ := x.Connections(all); len(cs) != 0 || len(x.conns.of) != 0 {
		t.Errorf("no end is open: %+v", cs)
	}
	connectOne(t, x, e)
	x.CloseProc(client.Proc)
	if cs, _ := x.Connections(all); len(cs) != 0 {
		t.Errorf("a proc is gone: %+v", cs)
	}
}

// TestConnectionsLate: what a listener has not taken from its socket is not forgotten, however long
// that takes; once it has, it is as any.
func TestConnectionsLate(t *testing.T) {
	x := newProxy("m")
	e, conn := pushed(t, x, server)
	f, _, err := x.Dial(client, e)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x.mu.Lock()
	for _, c := range x.conns.all {
		for i := range c.ends {
			c.ends[i].since = time.Now().Add(-time.Hour)
		}
	}
	x.mu.Unlock()
	x.Reconcile(client.Proc, x.Of(client.Proc), nil)
	x.Reconcile(server.Proc, x.Of(server.Proc), nil)
	if _, ends := x.Connections(all); len(ends) != 1 || ends[0].Proc != server.Proc {
		t.Errorf("of one that waits to be taken are left: %+v", ends)
	}
	receive(t, conn)
	x.Reconcile(server.Proc, x.Of(server.Proc), nil)
	if cs, _ := x.Connections(all); len(cs) != 0 {
		t.Errorf("taken, and closed: %+v", cs)
	}
}

// TestRevoke: what is taken back is told once, has its memory marked and gets none later; those of
// others stay. Only who listens, and the provider, may.
func TestRevoke(t *testing.T) {
	x := newProxy("m")
	e, stays := listen(t, x, server, false), listen(t, x, server, false)
	_, _, ticket := connectOne(t, x, e)
	_, _, late := connectOne(t, x, e)
	connectOne(t, x, stays)
	f, err := x.Ring(client, ticket)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, by := range []sigma.Principal{client, other, {Realm: "a"}} {
		if err := x.Withdraw(by, e); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("by %+v: %v", by, err)
		}
	}
	if err := x.Withdraw(server, e); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.Dial(client, e); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("it is dialled: %v", err)
	}
	match := func(c *Connection) bool { return c.Endpoint == e }
	ends := x.Revoke("revoked", match)
	if len(ends) != 4 || len(x.Revoke("revoked", match)) != 0 || len(x.Revoked()) != 4 {
		t.Errorf("%d ends were taken back", len(ends))
	}
	word := make([]byte, 1)
	if _, err := f.ReadAt(word, 0); err != nil || word[0] != 1 {
		t.Errorf("the memory says %v, %v", word, err)
	}
	if _, err := x.Ring(server, late); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("memory for one that was taken back: %v", err)
	}
	x.Shut(ends)
	if cs, ends := x.Connections(all); len(cs) != 1 || cs[0].Endpoint != stays || len(ends) != 2 ||
		len(x.Revoked()) != 0 {
		t.Errorf("left are %+v", cs)
	}
	if err := x.Withdraw(sigma.Principal{Realm: "system", System: true}, stays); err != nil {
		t.Errorf("by the provider: %v", err)
	}
	what := map[string]int{}
	for _, e := range x.Events(all) {
		what[e.What]++
	}
	if what["dialled"] != 3 || what["revoked"] != 2 {
		t.Errorf("the log has %v", what)
	}
}

// TestCrowded: who makes connections and ends them without end is looked at now and then, and waits
// before the proxy keeps more than so many.
func TestCrowded(t *testing.T) {
	x := newProxy("m")
	note := func() error {
		x.mu.Lock()
		defer x.mu.Unlock()
		if err := x.manyLocked(client.Proc); err != nil {
			return err
		}
		x.rings.last++
		c := &connection{Connection: Connection{Number: x.rings.last, From: client}}
		c.ends[ring.Dialled] = end{proc: client.Proc, inode: x.rings.last, since: time.Now().Add(-time.Hour)}
		x.noteLocked(c)
		return nil
	}
	n := 0
	for ; n < 2*notedMax && note() == nil; n++ {
	}
	if n != notedMax {
		t.Errorf("%d are noted", n)
	}
	if id := <-x.Crowded(); id != client.Proc {
		t.Errorf("%s is crowded", id)
	}
	x.Reconcile(client.Proc, x.Of(client.Proc), map[uint64]bool{1: true})
	if cs, _ := x.Connections(all); len(cs) != 1 {
		t.Errorf("%d are left", len(cs))
	}
	if err := note(); err != nil {
		t.Error(err)
	}
	if got := len(x.Events(all)); got != eventsMost {
		t.Errorf("the log has %d", got)
	}
}
