package sdk

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// machine plays sigmad for one listener.
type machine struct {
	t    *testing.T
	out  *os.File
	l    *listener
	last uint64
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{turn: make(chan struct{}, 1), sock: -1, lines: map[int]*line{}, pools: map[uint64]*line{}}
	if err := l.watch(theirs); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	l.ctx, l.cancel = context.WithCancel(t.Context())
	t.Cleanup(func() { l.cancel(); l.abandon(); ours.Close() })
	return &machine{t: t, out: ours, l: l}
}

// pair makes a pair of sockets that end with the test.
func (m *machine) pair(typ int) (a, b *os.File) {
	a, b, err := session.FilePair(typ)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// send sends an arrival with the other ends of files, which it closes.
func (m *machine) send(a sigmap.Arrival, files ...*os.File) {
	m.t.Helper()
	record, err := sigmap.Payload(func(c *sigmap.Coder) { c.Arrival(&a) })
	if err != nil {
		m.t.Fatal(err)
	}
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	if err := rawio.Sendmsg(int(m.out.Fd()), record, syscall.UnixRights(fds...)); err != nil {
		m.t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
}

// pool gives a dialler n connections to the listener.
func (m *machine) pool(number uint64, n int) *pool {
	m.t.Helper()
	p := &pool{want: poolFirst, asking: make(chan struct{})} // it asks for no more
	mine, theirs := m.pair(syscall.SOCK_SEQPACKET)
	var err error
	p.line = mine
	if p.raw, err = mine.SyscallConn(); err != nil {
		m.t.Fatal(err)
	}
	a, files := sigmap.Arrival{Pool: number, From: sigma.Principal{Realm: "r", Proc: "p"}, First: m.last + 1,
		Line: true}, []*os.File{theirs}
	for range n {
		mine, theirs := m.pair(syscall.SOCK_STREAM)
		m.last++
		p.ready = append(p.ready, pooled{file: mine, number: m.last})
		a.Tickets, files = append(a.Tickets, ""), append(files, theirs)
	}
	m.send(a, files...)
	return p
}

// more gives a dialler n further connections to the listener.
func (m *machine) more(p *pool, number uint64, n int) {
	m.t.Helper()
	a, files := sigmap.Arrival{Pool: number, First: m.last + 1}, []*os.File(nil)
	for range n {
		mine, theirs := m.pair(syscall.SOCK_STREAM)
		m.last++
		p.ready = append(p.ready, pooled{file: mine, number: m.last})
		a.Tickets, files = append(a.Tickets, ""), append(files, theirs)
	}
	m.send(a, files...)
}

// end ends the listener as sigmad does: first the lines.
func (m *machine) end(ps ...*pool) {
	for _, p := range ps {
		p.raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
	m.out.Close()
}

// accepted is how many can be, up to the end, and that each is one that began.
func (m *machine) accepted(begun map[byte]bool) (n int) {
	m.t.Helper()
	for ; ; n++ {
		a, err := m.l.next(m.l.ctx)
		if err == errEnded {
			return n
		}
		if err != nil {
			m.t.Fatal(err)
		}
		var b [1]byte
		if k, err := a.files[0].Read(b[:]); k != 1 || err != nil || !begun[b[0]] {
			m.t.Errorf("accepted %d, which has not begun, or twice; %v", b[0], err)
		}
		delete(begun, b[0])
		a.close()
	}
}

// begins takes a connection and says on it which it is.
func begins(p *pool, number byte) bool {
	m, _, ok := p.take(time.Now())
	if ok {
		m.file.Write([]byte{number})
	}
	return ok
}

// asks has a pool ask.
func asks(p *pool) {
	p.asking = make(chan struct{})
	p.ask()
}

// TestPoolHandover: wherever a listener ends among connections that begin, those that have begun
// are accepted, once, and no other begins; before the first and after the last, and at any moment
// of a dialler that goes on.
func TestPoolHandover(t *testing.T) {
	const most = 6
	for at := range most + 1 {
		m := newMachine(t)
		p, q := m.pool(1, most), m.pool(2, 1)
		begun := map[byte]bool{}
		for i := range at {
			if !begins(p, byte(i)) {
				t.Fatalf("connection %d of %d does not begin", i, at)
			}
			begun[byte(i)] = true
		}
		m.end(p, q)
		if begins(p, 99) || begins(q, 99) {
			t.Errorf("after %d one begins at a listener that has ended", at)
		}
		if n := m.accepted(begun); n != at {
			t.Errorf("%d began, %d are accepted", at, n)
		}
	}
	for range 50 {
		m := newMachine(t)
		p := m.pool(1, 15)
		raw, begun := p.raw, map[byte]bool{}
		var both sync.WaitGroup
		both.Go(func() {
			for i := byte(0); begins(p, i); i++ {
				begun[i] = true
			}
		})
		both.Go(func() {
			raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
			m.out.Close()
		})
		both.Wait()
		want := len(begun)
		if n := m.accepted(begun); n != want {
			t.Errorf("%d began, %d are accepted", want, n)
		}
	}
}

// TestPoolBehind: a listener that is behind loses none of those that have begun, whatever it takes
// first: what sigmad sent or what the line says.
func TestPoolBehind(t *testing.T) {
	const batch = sigmap.PoolMost / 2
	for _, begun := range []int{batch, 2 * batch, 2*batch + 1, 3 * batch} {
		m := newMachine(t)
		p := m.pool(1, batch)
		m.more(p, 1, batch)
		for m.l.receive() {
		}
		want := map[byte]bool{}
		begin := func(n int) {
			for range n {
				i := byte(len(want))
				if want[i] = true; !begins(p, i) {
					t.Fatalf("connection %d does not begin", i)
				}
			}
		}
		begin(batch)
		m.more(p, 1, batch)
		begin(begun - batch)
		m.l.receive() // before the line
		m.end(p)
		if n := m.accepted(want); n != begun {
			t.Errorf("%d began, %d are accepted", begun, n)
		}
	}
}

// TestPoolLost: of a line whose answer was lost sigmad is told that it is over before it is asked
// again, and of one that has ended which connections never began.
func TestPoolLost(t *testing.T) {
	sigmad := &losing{}
	p := newMachine(t).pool(1, 3)
	p.c = &Client{session: &session.Client{}, files: map[string]sigma.Caller{sigmap.FileEndpoints: sigmad}}
	p.e = sigma.Endpoint{Realm: "r", Machine: "m", Proc: "q", ID: "AAECAwQFBgcICQoLDA0ODw", Form: sigma.FormStream}
	p.mu.Lock()
	p.dropLocked()
	p.mu.Unlock()
	asks(p)
	asks(p)
	if got := sigmad.asked; len(got) != 4 || !got[0].Over || len(got[0].Unused) != 3 || got[1].Over || !got[2].Over ||
		len(got[2].Unused) != 0 || got[3].Over {
		t.Errorf("asked was %+v", got)
	}
	p.asking = make(chan struct{})
	p.look() // which leaves it to ask
	if asks(p); len(sigmad.asked) != 6 || !sigmad.asked[4].Over {
		t.Errorf("while it asks was asked %+v", sigmad.asked)
	}
}

// losing notes what is asked, and no answer comes.
type losing struct{ asked []sigmap.PoolAsk }

func (l *losing) Call(_ context.Context, _ string, payload []byte, _ []*os.File) ([]byte, []*os.File, error) {
	var a sigmap.PoolAsk
	err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.PoolAsk(&a) })
	if l.asked = append(l.asked, a); err == nil {
		err = sigma.Errorf("sdk.test", sigma.KindLost, "the answer is lost")
	}
	return nil, nil, err
}

// released notes the tickets whose memory is given back; to what is asked it answers with files.
type released struct {
	tickets chan string
	grant   sigmap.PoolGrant
	files   []*os.File
}

func (r *released) Call(_ context.Context, method string, payload []byte, _ []*os.File) ([]byte, []*os.File, error) {
	if method == sigmap.CallEndRing.Name {
		var t string
		err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&t) })
		r.tickets <- t
		return nil, nil, err
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.PoolGrant(&r.grant) })
	return reply, r.files, err
}

// TestPoolDiscarded: wherever connections that came with memory are thrown away, sigmad is told
// that the memory is not needed.
func TestPoolDiscarded(t *testing.T) {
	tickets := []string{"one", "two"}
	sockets := func(m *machine, n int) (files []*os.File) {
		for range n {
			_, theirs := m.pair(syscall.SOCK_STREAM)
			files = append(files, theirs)
		}
		return files
	}
	for what, discard := range map[string]func(m *machine, sigmad *released){
		"an answer without a line, which the dialler has not": func(m *machine, sigmad *released) {
			sigmad.grant, sigmad.files = sigmap.PoolGrant{First: 1, Tickets: tickets}, sockets(m, 4)
			p := &pool{c: m.l.c, e: sigma.Endpoint{Realm: "r", Machine: "m", Proc: "q", ID: "AAECAwQFBgcICQoLDA0ODw",
				Form: sigma.FormStream}}
			asks(p)
		},
		"more for a line that the listener has not": func(m *machine, _ *released) {
			m.send(sigmap.Arrival{Pool: 9, First: 1, Tickets: tickets}, sockets(m, 4)...)
			m.l.receive()
		},
		"what the listener has no descriptors for": func(m *machine, _ *released) {
			m.l.oob = m.l.oob[:syscall.CmsgSpace(4*3)]
			m.send(sigmap.Arrival{Pool: 9, First: 1, Tickets: tickets}, sockets(m, 4)...)
			m.l.receive()
		},
		"dialled connections as there are none": func(m *machine, _ *released) {
			m.send(sigmap.Arrival{Tickets: tickets}, sockets(m, 4)...)
			m.l.receive()
		},
	} {
		sigmad := &released{tickets: make(chan string, 8)}
		m := newMachine(t)
		m.l.c = &Client{session: &session.Client{}, files: map[string]sigma.Caller{sigmap.FileEndpoints: sigmad}}
		discard(m, sigmad)
		got := map[string]bool{}
		for late := time.After(30 * time.Second); len(got) < 2; {
			select {
			case ticket := <-sigmad.tickets:
				got[ticket] = true
				continue
			case <-late:
				t.Errorf("%s: the memory of %v is given back only", what, got)
			}
			break
		}
	}
}

// TestPoolTwice: a connection that comes under the number of another that has not begun is closed;
// that one begins.
func TestPoolTwice(t *testing.T) {
	m := newMachine(t)
	p := m.pool(1, 2)
	mine, theirs := m.pair(syscall.SOCK_STREAM)
	m.send(sigmap.Arrival{Pool: 1, First: 1, Tickets: []string{""}}, theirs)
	for m.l.receive() {
	}
	mine.SetReadDeadline(time.Now().Add(30 * time.Second))
	if n, err := mine.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("the later one says %d, %v", n, err)
	}
	if !begins(p, 1) {
		t.Error("the earlier one does not begin")
	}
	m.end(p)
	if n := m.accepted(map[byte]bool{1: true}); n != 1 {
		t.Errorf("%d are accepted", n)
	}
}

// TestLines: what a dialler says wrong costs it its line, or nothing; another's connections begin
// as before, and those that were dialled come too.
func TestLines(t *testing.T) {
	number := func(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }
	for what, c := range map[string]struct {
		say   [][]byte
		begin int
	}{
		"nothing":                  {nil, 0},
		"half a number":            {[][]byte{{1, 0, 0}}, 0},
		"an empty one":             {[][]byte{{}}, 0},
		"another's connection":     {[][]byte{number(3)}, 0},
		"none there is":            {[][]byte{number(0), number(1 << 63)}, 0},
		"the same twice":           {[][]byte{number(1), number(1), number(2)}, 2},
		"what follows half of one": {[][]byte{number(1), {0}, number(2)}, 1},
	} {
		m := newMachine(t)
		p, other := m.pool(1, 2), m.pool(2, 1)
		for _, b := range c.say {
			p.raw.Write(func(fd uintptr) bool { syscall.Write(int(fd), b); return true })
		}
		if !begins(other, 7) {
			t.Fatalf("%s: another's does not begin", what)
		}
		mine, theirs := m.pair(syscall.SOCK_STREAM)
		m.send(sigmap.Arrival{From: sigma.Principal{Proc: "q"}, Tickets: []string{""}}, theirs)
		mine.Write([]byte{8})
		for _, one := range p.ready {
			one.file.Write([]byte{byte(one.number)})
		}
		m.end(p, other)
		begun := map[byte]bool{1: true, 2: true, 7: true, 8: true}
		if n := m.accepted(begun); n != c.begin+2 || begun[7] || begun[8] {
			t.Errorf("%s: %d are accepted, %v not", what, n, begun)
		}
	}
	m := newMachine(t) // a dialler that has more made than it may hold
	p := m.pool(1, 10)
	for range 3 {
		a, files := sigmap.Arrival{Pool: 1, First: m.last + 1}, []*os.File(nil)
		for range 10 {
			_, theirs := m.pair(syscall.SOCK_STREAM)
			m.last++
			a.Tickets, files = append(a.Tickets, ""), append(files, theirs)
		}
		m.send(a, files...)
	}
	m.end()
	if n := m.accepted(nil); n != 0 || begins(p, 1) {
		t.Errorf("%d are accepted, or one begins, of a pool without bounds", n)
	}
}

// TestPoolAwait: who dials while there is nothing but a batch that is being made waits for it, and
// begins one of it; no more wait than it has for sure, and nobody whose context ends. The line of a
// listener here is in no poller.
func TestPoolAwait(t *testing.T) {
	m := newMachine(t)
	p := m.pool(1, 0)
	p.c, p.line, p.raw = &Client{session: &session.Client{}}, nil, nil
	p.e = sigma.Endpoint{Realm: "r", Proc: "q", ID: "AAECAwQFBgcICQoLDA0ODw", Form: sigma.FormStream}
	line, _ := m.pair(syscall.SOCK_SEQPACKET)
	grant := &released{grant: sigmap.PoolGrant{Line: true, First: 1}, files: []*os.File{line}}
	for range poolFirst {
		one, _ := m.pair(syscall.SOCK_STREAM)
		grant.grant.Tickets, grant.files = append(grant.grant.Tickets, ""), append(grant.files, one)
	}
	p.c.files = map[string]sigma.Caller{sigmap.FileEndpoints: grant}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := p.await(ended); ok {
		t.Error("something begins before there is anything")
	}
	var all sync.WaitGroup
	var begun atomic.Int32
	for range poolFirst - 1 {
		all.Go(func() {
			if one, ok := p.await(t.Context()); ok {
				begun.Add(1)
				one.close(p.c)
			}
		})
	}
	for awaited := 0; awaited < poolFirst; runtime.Gosched() {
		p.mu.Lock()
		awaited = p.awaited
		p.mu.Unlock()
	}
	if _, ok := p.await(t.Context()); ok { // at once
		t.Error("something begins before there is anything")
	}
	p.ask()
	all.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if begun.Load() != poolFirst-1 || len(p.ready) != 1 || p.asking != nil || p.awaited != 0 {
		t.Errorf("%d begin and %d are left of %d", begun.Load(), len(p.ready), poolFirst)
	}
	if err := p.line.SetDeadline(time.Time{}); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("the line is in a poller: %v", err)
	}
	p.dropLocked()
	p.tick.Stop()
}
