package sdk

import (
	"encoding/binary"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// far makes a TCP connection, of which both ends do not block and end with the test.
func (m *machine) far() (a, b *os.File) {
	m.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	defer ln.Close()
	one, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		m.t.Fatal(err)
	}
	other, err := ln.Accept()
	if err != nil {
		m.t.Fatal(err)
	}
	defer one.Close()
	defer other.Close()
	a, b = m.file(one), m.file(other)
	m.t.Cleanup(func() { session.CloseFiles([]*os.File{a, b}) })
	return a, b
}

// file is a connection as a file that does not block.
func (m *machine) file(c net.Conn) *os.File {
	m.t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		m.t.Fatal(err)
	}
	var fd uintptr
	raw.Control(func(from uintptr) { fd, _, _ = syscall.Syscall(syscall.SYS_FCNTL, from, syscall.F_DUPFD_CLOEXEC, 0) })
	return os.NewFile(fd, "connection")
}

// farPool is pool for a dialler of another machine. shut ends the listener's direction of the line,
// as its sigmad does.
func (m *machine) farPool(number uint64, n int) (p *pool, shut func()) {
	m.t.Helper()
	m.l.endpoint.Machine = "here"
	p = &pool{want: poolFirst, asking: make(chan struct{}), c: &Client{}, e: sigma.Endpoint{Machine: "here"}}
	p.c.info.Principal.Machine = "there"
	mine, theirs := m.far()
	p.line = mine
	var err error
	if p.raw, err = mine.SyscallConn(); err != nil {
		m.t.Fatal(err)
	}
	held, err := duplicate(theirs)
	if err != nil {
		m.t.Fatal(err)
	}
	a, files := sigmap.Arrival{Pool: number, From: sigma.Principal{Realm: "r", Proc: "p", Machine: "there"},
		First: m.last + 1, Line: true}, []*os.File{theirs}
	for range n {
		mine, theirs := m.far()
		m.last++
		p.ready = append(p.ready, pooled{file: mine, number: m.last})
		a.Tickets, files = append(a.Tickets, ""), append(files, theirs)
	}
	m.send(a, files...)
	go p.follow(p.line)
	return p, sync.OnceFunc(func() {
		syscall.Shutdown(held, syscall.SHUT_WR)
		rawio.Close(held)
	})
}

// TestPoolFarHandover is TestPoolHandover between machines, where the end of a line is not known to
// both at once.
func TestPoolFarHandover(t *testing.T) {
	const most = 6
	for at := range most + 1 {
		m := newMachine(t)
		p, shut := m.farPool(1, most)
		q, shutOther := m.farPool(2, 1)
		begun := map[byte]bool{}
		for i := range at {
			if !begins(p, byte(i)) {
				t.Fatalf("connection %d of %d does not begin", i, at)
			}
			begun[byte(i)] = true
		}
		shut()
		shutOther()
		m.out.Close()
		for _, one := range []*pool{p, q} { // the end takes a moment to come
			for end := time.Now().Add(10 * time.Second); !isGone(one.raw) && time.Now().Before(end); {
			}
			if begins(one, 99) {
				t.Errorf("after %d one begins at a listener that has ended", at)
			}
		}
		if n := m.accepted(begun); n != at {
			t.Errorf("%d began, %d are accepted", at, n)
		}
	}
	for range 50 {
		m := newMachine(t)
		p, shut := m.farPool(1, 15)
		begun := map[byte]bool{}
		var both sync.WaitGroup
		both.Go(func() {
			for i := byte(0); begins(p, i); i++ {
				begun[i] = true
			}
		})
		both.Go(func() { shut(); m.out.Close() })
		both.Wait()
		want := len(begun)
		if n := m.accepted(begun); n != want {
			t.Errorf("%d began, %d are accepted", want, n)
		}
	}
}

// TestPoolFarLate: a dialler that does not end its line keeps a listener that has closed for
// lineMax, and what it says meanwhile is accepted.
func TestPoolFarLate(t *testing.T) {
	m := newMachine(t)
	p, shut := m.farPool(1, 3)
	p.mu.Lock() // it hears of nothing
	shut()
	m.out.Close()
	p.raw.Control(func(fd uintptr) { rawio.Write(int(fd), binary.LittleEndian.AppendUint64(nil, p.ready[1].number)) })
	p.ready[1].file.Write([]byte{1})
	if n := m.accepted(map[byte]bool{1: true}); n != 1 {
		t.Errorf("%d are accepted", n)
	}
	p.mu.Unlock()
}

// TestFarLines: what comes in pieces is put together; what is none costs the dialler its line only.
func TestFarLines(t *testing.T) {
	m := newMachine(t)
	p, shut := m.farPool(1, 4)
	b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, p.ready[0].number), p.ready[2].number)
	for _, i := range []int{0, 2} {
		p.ready[i].file.Write([]byte{byte(i)})
	}
	got := make(chan byte, 2)
	var all sync.WaitGroup
	all.Go(func() {
		for range 2 {
			a, err := m.l.next(m.l.ctx)
			if err != nil {
				t.Error(err)
				return
			}
			var said [1]byte
			a.files[0].Read(said[:])
			got <- said[0]
			a.close()
		}
	})
	for _, part := range [][]byte{b[:3], b[3:5], b[5:11], b[11:]} {
		p.raw.Control(func(fd uintptr) { rawio.Write(int(fd), part) })
	}
	if one, other := <-got, <-got; one != 0 || other != 2 {
		t.Errorf("%d and %d have begun", one, other)
	}
	all.Wait()
	p.raw.Control(func(fd uintptr) {
		rawio.Write(int(fd), binary.LittleEndian.AppendUint64(nil, 1<<60)) // unknown
		rawio.Write(int(fd), []byte{1, 2})                                 // half of one
	})
	shut()
	m.out.Close()
	p.mu.Lock()
	p.dropLocked()
	p.mu.Unlock()
	if n := m.accepted(nil); n != 0 {
		t.Errorf("%d are accepted", n)
	}
}

// TestFarLineLost: a line that the listener's proc cannot keep ends for its dialler, though sigmad
// has a duplicate.
func TestFarLineLost(t *testing.T) {
	for name, spoil := range map[string]func(l *listener){
		"not all descriptors come": func(l *listener) { l.oob = l.oob[:syscall.CmsgSpace(4)] },
		"it cannot be waited for":  func(l *listener) { l.wait.Close() },
	} {
		m := newMachine(t)
		spoil(m.l)
		p, shut := m.farPool(1, 3)
		if !m.l.receive() || len(m.l.pools) != 0 {
			t.Fatalf("%s: %d pools are kept", name, len(m.l.pools))
		}
		ended := func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.line == nil
		}
		for late := time.Now().Add(10 * time.Second); !ended(); <-time.After(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("%s: the line goes on", name)
			}
		}
		shut()
	}
}
