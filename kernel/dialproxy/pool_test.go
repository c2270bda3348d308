package dialproxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// pushed listens with a socket, whose end of the listener it gives.
func pushed(t *testing.T, x *Proxy, p sigma.Principal) (sigma.Endpoint, session.Conn) {
	t.Helper()
	e := listen(t, x, p, false)
	f, pump, err := x.Push(p, e.ID)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { defer close(over); pump() }()
	t.Cleanup(func() { x.CloseProc(p.Proc); <-over })
	conn, err := session.FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return e, conn
}

// arrival receives one.
func receive(t *testing.T, conn session.Conn) (a sigmap.Arrival, files []*os.File) {
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

func pooled(t *testing.T, x *Proxy, p sigma.Principal, ask sigmap.PoolAsk) *Batch {
	t.Helper()
	b, err := x.Pool(p, ask)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.CloseFiles(b.Files) })
	return b
}

// What arrives comes on the listener's socket in order, also what it had no room for, with who
// dialled; a closed listener gives what had come, then the end.
func TestPush(t *testing.T) {
	x := newProxy("m")
	e, conn := pushed(t, x, server)
	if _, _, _, err := x.Accept(t.Context(), server, e.ID); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("asked for what is sent: %v", err)
	}
	const dials = BacklogMax / 2
	for i := range dials {
		f, _, err := x.Dial(client, e)
		if err != nil {
			t.Fatal(err)
		}
		f.Write([]byte{byte(i)})
		f.Close()
	}
	if ls, _ := x.After("a", "", 9); len(ls) != 1 || ls[0].Waiting == 0 {
		t.Errorf("%v: the socket has room for all of %d", ls, dials)
	}
	if err := x.Close(server, e.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := x.Dial(client, e); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("dialled a closed listener: %v", err)
	}
	for i := range dials {
		a, files := receive(t, conn)
		var b [1]byte
		if a.From != client || a.Pool != 0 || len(files) != 1 || len(a.Tickets) != 1 {
			t.Fatalf("got %+v, %v", a, files)
		}
		if _, err := io.ReadFull(files[0], b[:]); err != nil || b[0] != byte(i) {
			t.Fatalf("connection %d came as %d, %v", b[0], i, err)
		}
	}
	if _, _, err := conn.Recv(); err != io.EOF {
		t.Errorf("after the last: %v", err)
	}
}

// Of many listeners of a proc, or a realm, only some have sockets, and those that have none can be
// asked at; when one ends another may have one. What the kernel says when it is full ends no
// listener.
func TestPushLimits(t *testing.T) {
	x := newProxy("m")
	var conns []*os.File
	push := func(p sigma.Principal) (sigma.Endpoint, error) {
		e := listen(t, x, p, false)
		f, pump, err := x.Push(p, e.ID)
		if err == nil {
			conns = append(conns, f)
			over := make(chan struct{})
			go func() { defer close(over); pump() }()
			t.Cleanup(func() { x.CloseProc(p.Proc); <-over })
		}
		return e, err
	}
	defer func() { session.CloseFiles(conns) }()
	first, err := push(server)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pushedOf - 1 {
		p := server
		if i >= pushedOfProc-1 {
			p.Proc = sigma.ProcID("p" + strconv.Itoa(i/pushedOfProc))
		}
		if _, err := push(p); err != nil {
			t.Fatal(i, err)
		}
	}
	plain, err := push(server)
	if sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("sockets without end of a proc: %v", err)
	}
	if _, err := push(client); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("sockets without end of a realm: %v", err)
	}
	if _, err := push(other); err != nil {
		t.Errorf("another realm has none: %v", err)
	}
	dial := func(e sigma.Endpoint) {
		f, _, err := x.Dial(client, e)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	dial(plain)
	if f, _, _, err := x.Accept(t.Context(), server, plain.ID); err != nil {
		t.Errorf("asked at a listener without a socket: %v", err)
	} else {
		f.Close()
	}
	if err := x.Close(server, first.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := push(server); err != nil {
		t.Errorf("one has ended: %v", err)
	}
	for err, want := range map[error]bool{syscall.EPIPE: true, syscall.ECONNRESET: true, syscall.ETOOMANYREFS: false,
		syscall.ENOBUFS: false, syscall.ENOMEM: false} {
		if deaf(err) != want {
			t.Errorf("%v ends a listener: %t", err, !want)
		}
	}
}

// begin says on a line that a connection begins.
func begin(line *os.File, number uint64) error {
	_, err := line.Write(binary.LittleEndian.AppendUint64(nil, number))
	return err
}

// Connections made in advance: both sides get the same ones, the listener with who dials; a line
// carries which begin; they are listed, and not as begun before their proc says so.
func TestPool(t *testing.T) {
	x := newProxy("m")
	e, conn := pushed(t, x, server)
	b := pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Count: 3})
	a, theirs := receive(t, conn)
	if !b.Grant.Line || !a.Line || len(b.Files) != 4 || len(theirs) != 4 || a.From != client ||
		a.First != b.Grant.First || len(a.Tickets) != 3 || a.Tickets[2] != b.Grant.Tickets[2] || a.Pool == 0 {
		t.Fatalf("got %+v and %+v", b.Grant, a)
	}
	if err := begin(b.Files[0], a.First+1); err != nil {
		t.Fatal(err)
	}
	var number [8]byte
	if n, err := theirs[0].Read(number[:]); n != 8 || err != nil || binary.LittleEndian.Uint64(number[:]) != a.First+1 {
		t.Errorf("the line says %x, %v", number, err)
	}
	b.Files[2].Write([]byte("x"))
	if n, err := theirs[2].Read(number[:]); n != 1 || err != nil {
		t.Errorf("the connection says %d, %v", n, err)
	}
	count := func() (ready int) {
		cs, _ := x.Connections(func(c *Connection) bool { return true })
		for _, c := range cs {
			if c.From != client || c.Endpoint != e {
				t.Errorf("listed: %+v", c)
			}
			if c.Ready {
				ready++
			}
		}
		if len(cs) != 3 && len(cs) != 5 {
			t.Errorf("%d are listed", len(cs))
		}
		return ready
	}
	if n := count(); n != 3 {
		t.Errorf("%d are ready at first", n)
	}
	more := pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Count: 2, Unused: []uint64{a.First, a.First + 2}})
	again, _ := receive(t, conn)
	if more.Grant.Line || again.Line || again.Pool != a.Pool || len(more.Files) != 2 || count() != 4 {
		t.Errorf("the second batch: %+v, %+v", more.Grant, again)
	}
	if n := len(x.Events(func(c *Connection) bool { return true })); n != 1 {
		t.Errorf("%d have been dialled", n)
	}
	pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Over: true, Unused: []uint64{a.First, again.First}})
	if err := begin(b.Files[0], a.First); err == nil {
		t.Error("a line goes on that was ended")
	}
	if x.Pools("a") != 0 || count() != 2 || len(x.Events(func(c *Connection) bool { return true })) != 3 {
		t.Errorf("%d pools are left, %d connections did not begin", x.Pools("a"), count())
	}
}

// sameFile says whether two descriptors are of one file.
func sameFile(t *testing.T, a, b *os.File) bool {
	t.Helper()
	as, err := a.Stat()
	if err != nil {
		t.Fatal(err)
	}
	bs, err := b.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(as, bs)
}

// After a connection whose memory was asked for, those that are made in advance have theirs, both
// sides the same, half as many with one answer, and nobody asks again; who uses it has those to
// come have it too, who does not has it end. Half of what a proc may have is left for connections
// that ask. What did not begin is given back.
func TestPoolMemory(t *testing.T) {
	x := newProxy("m")
	e, conn := pushed(t, x, server)
	b := pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Count: 1})
	receive(t, conn)
	asked, err := x.Ring(client, Ticket(b.Grant.Tickets[0]))
	if err != nil {
		t.Fatalf("no memory for it: %v", err)
	}
	asked.Close()
	batch := func() (*Batch, []*os.File) {
		b := pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Count: poolBatch})
		_, theirs := receive(t, conn)
		return b, theirs
	}
	b, theirs := batch()
	if n := len(b.Grant.Tickets); n != poolBatch/2 || len(b.Files) != 2*n || len(theirs) != 2*n {
		t.Fatalf("%d connections came with %d and %d files", n, len(b.Files), len(theirs))
	}
	for i, ticket := range b.Grant.Tickets {
		at := len(b.Grant.Tickets) + i
		if !sameFile(t, b.Files[at], theirs[at]) {
			t.Error("the two sides have different memory")
		}
		for _, p := range []sigma.Principal{client, server} {
			if _, err := x.Ring(p, Ticket(ticket)); sigma.KindOf(err) != sigma.KindExists {
				t.Errorf("it is given twice: %v", err)
			}
		}
	}
	endRings := func(b *Batch, messages byte) {
		for i, ticket := range b.Grant.Tickets {
			if messages > 0 { // as both sides count them, in the first direction
				if _, err := b.Files[len(b.Grant.Tickets)+i].WriteAt([]byte{messages}, 512+8); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range []sigma.Principal{client, server} {
				if err := x.EndRing(p, Ticket(ticket)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if n := len(x.rings.all); n != poolBatch/2+1 {
		t.Errorf("%d memories are kept", n)
	}
	if endRings(b, ringUsed); x.rings.warm[server.Proc] != ringsEarly || len(x.rings.all) != 1 {
		t.Errorf("it was used, and %d have it after that; %d memories are kept", x.rings.warm[server.Proc],
			len(x.rings.all))
	}
	for range ringsEarly / (poolBatch / 2) {
		b, _ := batch()
		if len(b.Files) != 2*len(b.Grant.Tickets) {
			t.Error("none has memory, although those before used it")
		}
		endRings(b, ringUsed-1)
	}
	if b, _ := batch(); len(b.Files) != poolBatch || len(b.Grant.Tickets) != poolBatch {
		t.Errorf("%d connections came with %d files, although those before had no use for memory", len(b.Grant.Tickets),
			len(b.Files))
	}
	for range RingsOfProc/poolBatch - 1 {
		x.rings.warm[server.Proc] = ringsEarly
		batch()
	}
	x.rings.warm[server.Proc] = ringsEarly
	if b, _ := batch(); len(b.Files) != len(b.Grant.Tickets) {
		t.Errorf("%d memories are held by connections that have not begun", len(x.rings.of[client.Proc]))
	}
	x.CloseProc(server.Proc)
	x.CloseProc(client.Proc)
	if len(x.rings.all)+len(x.rings.of)+len(x.rings.warm)+len(x.rings.used) != 0 {
		t.Errorf("something is kept of procs that are gone: %+v", x.rings)
	}
}

// Who may not dial gets none in advance; nothing begins any more once the listener is closed, taken
// back, or its proc gone, or the dialler's; and limits hold.
func TestPoolRefusedAndOver(t *testing.T) {
	x := newProxy("m")
	e, conn := pushed(t, x, server)
	forged := e
	forged.Realm = other.Realm
	plain := listen(t, x, server, false)
	for name, c := range map[string]struct {
		by   sigma.Principal
		to   sigma.Endpoint
		want sigma.Kind
	}{
		"another realm":                   {other, e, sigma.KindPermission},
		"another realm with its own name": {other, forged, sigma.KindPermission},
		"a changed endpoint":              {client, forged, sigma.KindUnavailable},
		"a program outside":               {sigma.Principal{Realm: "a", Machine: "m"}, e, sigma.KindUnsupported},
		"the provider": {sigma.Principal{Realm: "a", Proc: "p", Machine: "m", System: true}, e,
			sigma.KindUnsupported},
		"a proc of another machine": {sigma.Principal{Realm: "a", Proc: "p", Machine: "n"}, e,
			sigma.KindUnsupported},
		"the listener itself":                {server, e, sigma.KindUnsupported},
		"a listener that asks for each dial": {client, plain, sigma.KindUnsupported},
	} {
		if b, err := x.Pool(c.by, sigmap.PoolAsk{Endpoint: c.to, Count: 1}); sigma.KindOf(err) != c.want || err == nil {
			t.Errorf("%s: got %v, %v, want %v", name, b, err, c.want)
		}
	}
	for what, end := range map[string]func(sigma.Endpoint) error{
		"closed":          func(e sigma.Endpoint) error { return x.Close(server, e.ID) },
		"taken back":      func(e sigma.Endpoint) error { return x.Withdraw(server, e) },
		"listener killed": func(sigma.Endpoint) error { x.CloseListeners(server.Proc); return nil },
		"dialler gone":    func(sigma.Endpoint) error { x.CloseProc(client.Proc); return nil },
	} {
		e, conn := pushed(t, x, server)
		b := pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Count: 1})
		a, theirs := receive(t, conn)
		if err := begin(b.Files[0], a.First); err != nil {
			t.Fatal(err)
		}
		if err := end(e); err != nil {
			t.Fatal(err)
		}
		if err := begin(b.Files[0], a.First); err == nil {
			t.Errorf("%s: a connection begins", what)
		}
		var number [8]byte
		if n, _ := theirs[0].Read(number[:]); n != 8 {
			t.Errorf("%s: what had begun is lost", what)
		}
		if n, err := theirs[0].Read(number[:]); n != 0 || err != io.EOF {
			t.Errorf("%s: the line goes on: %d, %v", what, n, err)
		}
		if x.Pools("a") != 0 {
			t.Errorf("%s: %d pools are left", what, x.Pools("a"))
		}
	}
	conn.Close()
	e, _ = pushed(t, x, server)
	var last error
	for i := range poolsAt + 1 {
		by := client
		by.Proc = sigma.ProcID(rune('A' + i))
		b, err := x.Pool(by, sigmap.PoolAsk{Endpoint: e, Count: 1})
		if last = err; err == nil {
			session.CloseFiles(b.Files)
		}
	}
	if sigma.KindOf(last) != sigma.KindBusy {
		t.Errorf("pools without end at a listener, or for one that takes nothing: %v", last)
	}
	if b := pooled(t, x, sigma.Principal{Realm: "a", Proc: "A", Machine: "m"},
		sigmap.PoolAsk{Endpoint: e}); len(b.Files) != 0 {
		t.Errorf("nothing was asked for, and %d came", len(b.Files))
	}
}

// A connection that was made in advance is taken back like any: both its ends are told to be shut
// down.
func TestPoolRevoked(t *testing.T) {
	x := newProxy("m")
	e, conn := pushed(t, x, server)
	b := pooled(t, x, client, sigmap.PoolAsk{Endpoint: e, Count: 2})
	_, theirs := receive(t, conn)
	want := map[uint64]bool{}
	for _, f := range append(b.Files[1:], theirs[1:]...) {
		want[inodeOf(f)] = true
	}
	if err := x.Withdraw(server, e); err != nil {
		t.Fatal(err)
	}
	ends := x.Revoke("revoked", func(c *Connection) bool { return c.Endpoint == e })
	for _, o := range ends {
		if !want[o.Inode] {
			t.Errorf("not of these: %+v", o)
		}
	}
	if len(ends) != 4 {
		t.Errorf("%d ends of 4", len(ends))
	}
	if !rawio.Gone(int(b.Files[0].Fd())) {
		t.Error("the line has not ended")
	}
	syscall.Shutdown(int(theirs[1].Fd()), syscall.SHUT_RDWR)
	if !rawio.Gone(int(b.Files[1].Fd())) || rawio.Gone(int(b.Files[2].Fd())) {
		t.Error("what was shut down is not seen to be, or what was not is")
	}
}

// A listener that never reads, and a dialler that says that it used all it was given: what is in
// flight stays bounded, whatever the dialler says, however many listeners and procs there are, and
// another realm dials. As soon as the listener reads, the dialler is given more.
func TestFlightIsBounded(t *testing.T) {
	x := newProxy("m")
	var conns []session.Conn
	var es []sigma.Endpoint
	for i := range pushedOf {
		p := sigma.Principal{Realm: "a", Proc: sigma.ProcID(fmt.Sprint("server", i/pushedOfProc)), Machine: "m"}
		e, conn := pushed(t, x, p)
		es, conns = append(es, e), append(conns, conn)
	}
	granted, records := 0, map[sigma.EndpointID]int{}
	batch := func(e sigma.Endpoint) error {
		b, err := x.Pool(client, sigmap.PoolAsk{Endpoint: e, Count: poolBatch})
		if err == nil {
			granted += len(b.Files)
			records[e.ID]++
			session.CloseFiles(b.Files)
		}
		return err
	}
	for _, e := range es[:poolsOfProc] {
		for batch(e) == nil {
		}
	}
	if n := x.passed.Unread(); n != granted || n > 2*inflight.ProcMax || n < inflight.ProcMax {
		t.Errorf("%d descriptors are in flight of %d, to two procs that may have %d each", n, granted, inflight.ProcMax)
	}
	if err := batch(es[0]); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("got %v, want busy", err)
	}
	var err error
	for n := 0; err == nil && n < inflight.ProcMax; n++ { // one descriptor each
		var f *os.File
		if f, _, err = x.Dial(client, es[1]); err == nil {
			f.Close()
		}
	}
	if sigma.KindOf(err) != sigma.KindBusy || x.passed.Unread() > 2*inflight.ProcMax {
		t.Errorf("dials: got %v with %d in flight, want busy", err, x.passed.Unread())
	}
	mine := sigma.Principal{Realm: "b", Proc: "server-b", Machine: "m"}
	e, conn := pushed(t, x, mine)
	f, _, err := x.Dial(other, e)
	if err != nil {
		t.Fatalf("another realm: %v", err)
	}
	f.Close()
	receive(t, conn)
	for range records[es[0].ID] {
		receive(t, conns[0])
	}
	if err := batch(es[0]); err != nil {
		t.Errorf("after the listener has read: %v", err)
	}
}
