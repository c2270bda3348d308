package inflight

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
)

// reader is a proc's socket, with the Queue of who sends there.
type reader struct {
	t      *testing.T
	q      *Queue
	ours   *os.File
	theirs int
	passed *os.File
}

func newReader(t *testing.T, a *Account, realm sigma.RealmID, proc sigma.ProcID) *reader {
	t.Helper()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK,
		0)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t: t, q: &Queue{}, ours: os.NewFile(uintptr(pair[0]), "ours"), theirs: pair[1]}
	raw, err := r.ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if r.passed, err = os.Open("/dev/null"); err != nil {
		t.Fatal(err)
	}
	r.q.Of(raw, 0)
	if a != nil {
		r.q.Charge(a, realm, proc)
	}
	t.Cleanup(func() { r.end(); r.ours.Close(); r.passed.Close() })
	return r
}

// send sends n descriptors with one record.
func (r *reader) send(n int) error {
	files := make([]*os.File, n)
	for i := range files {
		files[i] = r.passed
	}
	p, err := r.q.Pack(files)
	if err != nil {
		return err
	}
	defer p.Drop()
	e := r.q.socket.Control(func(fd uintptr) { err = p.Send(int(fd), make([]byte, 40)) })
	if e != nil {
		return e
	}
	return err
}

// fill sends until that fails, and says how many descriptors went.
func (r *reader) fill(each int) (sent int, err error) {
	for ; err == nil; sent += each {
		err = r.send(each)
	}
	return sent - each, err
}

// receive takes one record; false if there is none.
func (r *reader) receive(flags int) bool {
	r.t.Helper()
	var b [4096]byte
	oob := make([]byte, syscall.CmsgSpace(4*RecordMax))
	_, oobn, _, _, err := unix.Recvmsg(r.theirs, b[:], oob, flags)
	if err == unix.EAGAIN {
		return false
	}
	if err != nil {
		r.t.Fatal(err)
	}
	cmsgs, _ := syscall.ParseSocketControlMessage(oob[:oobn])
	for i := range cmsgs {
		fds, _ := syscall.ParseUnixRights(&cmsgs[i])
		for _, fd := range fds {
			rawio.Close(fd)
		}
	}
	return true
}

func (r *reader) end() {
	if r.theirs >= 0 {
		rawio.Close(r.theirs)
		r.theirs = -1
	}
}

func (r *reader) busy(err error) {
	r.t.Helper()
	if sigma.KindOf(err) != sigma.KindBusy {
		r.t.Errorf("got %v, want busy", err)
	}
}

// A proc that does not read gets ProcMax descriptors; one that reads gets more; to look at a record
// (MSG_PEEK) is not to take it.
func TestProc(t *testing.T) {
	a := New(20000)
	r := newReader(t, a, "r", "p")
	n, err := r.fill(16)
	r.busy(err)
	if n != ProcMax || a.Unread() != n {
		t.Errorf("%d descriptors were passed, %d are counted, want %d", n, a.Unread(), ProcMax)
	}
	second := newReader(t, a, "r", "p") // the same proc's
	r.busy(second.send(1))
	if err := newReader(t, a, "r", "q").send(1); err != nil {
		t.Errorf("another proc of the realm: %v", err)
	}
	r.receive(unix.MSG_PEEK)
	r.busy(r.send(1))
	for r.receive(0) {
	}
	if err := r.send(1); err != nil {
		t.Errorf("after all was read: %v", err)
	}
	r.receive(0)
	if err := second.send(RecordMax + 1); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("got %v, want too big", err)
	}
}

// What is counted of other sockets of the proc is looked at before it is refused anything.
func TestReadElsewhere(t *testing.T) {
	a := New(20000)
	r, other := newReader(t, a, "r", "p"), newReader(t, a, "r", "p")
	r.fill(16)
	for r.receive(0) {
	}
	if err := other.send(1); err != nil {
		t.Error(err)
	}
}

// A proc whose socket is never empty, but which reads, is not refused.
func TestNeverEmpty(t *testing.T) {
	r := newReader(t, New(20000), "r", "p")
	plain := make([]byte, 100)
	for i := range 3 * ProcMax {
		for range 20 {
			if _, err := r.q.Write(int(r.ours.Fd()), plain); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.send(1); err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		for range 21 { // what was sent before this is left
			if i > 0 && !r.receive(0) {
				t.Fatal("nothing to read")
			}
		}
	}
}

// Realms that read nothing leave room to others, however many they are, and all of them to
// services. The kernel's limit is never reached.
func TestRealms(t *testing.T) {
	const limit = 2048 // so that no more is needed of the host's
	a := New(limit)
	own := a.tenants.own
	for i := range realmsMost {
		got, procs := 0, 2
		if i < 2 { // as greedy as can be
			procs = 8
		}
		for j := range procs {
			n, err := newReader(t, a, sigma.RealmID(fmt.Sprint("r", i)), sigma.ProcID(fmt.Sprint(i, "-", j))).fill(1)
			if got += n; sigma.KindOf(err) != sigma.KindBusy {
				t.Fatal(err)
			}
		}
		if got < own || i == 0 && got < limit/16 {
			t.Errorf("the %d. realm got %d descriptors; %d are its own", i+1, got, own)
		}
	}
	if n := a.Unread(); n > limit/2 {
		t.Errorf("%d descriptors of tenants are in flight, want %d at most", n, limit/2)
	}
	for i := range servicesMost {
		if n, _ := newReader(t, a, sigma.SystemRealm, sigma.ProcID(fmt.Sprint("s", i))).fill(1); n < a.system.own {
			t.Errorf("the %d. service got %d", i+1, n)
		}
	}
	if n := a.Unread(); n > limit/2+limit/8 {
		t.Errorf("%d descriptors are in flight", n)
	}
}

// What was not sent is not counted, and what a proc that is gone had not read neither.
func TestDropAndEnd(t *testing.T) {
	a := New(20000)
	r := newReader(t, a, "r", "p")
	p, err := r.q.Pack([]*os.File{r.passed, r.passed})
	if err != nil || a.Unread() != 2 || p.Len() != 2 {
		t.Fatalf("%d counted, %v", a.Unread(), err)
	}
	p.Drop()
	p.Drop()
	if a.Unread() != 0 {
		t.Errorf("%d are counted of what was dropped", a.Unread())
	}
	r.fill(16)
	r.end()
	r.q.Close(r.ours)
	if a.Unread() != 0 || len(a.procs) != 0 || len(a.tenants.shares) != 0 || len(a.lingering) != 0 {
		t.Errorf("of a proc that is gone %d are counted: %+v", a.Unread(), a)
	}
	if p, err := r.q.Pack(nil); p != nil || err != nil {
		t.Errorf("of nothing: %v, %v", p, err)
	}
	var none *Queue
	if _, err := none.Pack([]*os.File{r.passed}); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("of a stream: %v", err)
	}
}

// Whoever has its sockets closed unread again and again gets no more than who keeps them; what it
// reads later is counted no more, and the socket is let go of.
func TestClosedUnread(t *testing.T) {
	a := New(20000)
	defer a.Close()
	var all []*reader
	for {
		r := newReader(t, a, "r", "p")
		if err := r.send(16); err != nil {
			r.busy(err)
			break
		}
		r.q.Close(r.ours)
		r.q.Close(r.ours) // as sessions do
		all = append(all, r)
	}
	if len(all) != ProcMax/16 || a.Unread() != ProcMax {
		t.Fatalf("%d sockets, %d descriptors", len(all), a.Unread())
	}
	for i, r := range all {
		if i%2 == 0 {
			r.receive(0)
			if n, _ := rawio.Read(r.theirs, make([]byte, 1)); n != 0 {
				t.Error("the reader does not see the end")
			}
		} else {
			r.end()
		}
	}
	for deadline := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
		a.mu.Lock()
		n := len(a.lingering)
		a.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d sockets are kept", n)
		}
	}
	if a.Unread() != 0 || all[0].ours.Close() == nil {
		t.Errorf("%d counted; the socket was not closed", a.Unread())
	}
}

// Without an Account a socket is bounded by itself.
func TestAlone(t *testing.T) {
	r := newReader(t, nil, "", "")
	n, err := r.fill(16)
	r.busy(err)
	if n != ProcMax {
		t.Errorf("%d", n)
	}
	for r.receive(0) {
	}
	if n, _ = r.fill(16); n != ProcMax {
		t.Errorf("%d after all was read", n)
	}
}

// closing is a socket that tells when its Close was called.
type closing struct {
	*os.File
	begun chan bool
}

func (c closing) Close() error {
	close(c.begun)
	return c.File.Close()
}

// Goal: a socket can be closed while it is used for sending. Its Close waits for the sender, which
// needs the lock of the Queue.
func TestCloseWhileSending(t *testing.T) {
	r := newReader(t, nil, "r", "p")
	if err := r.send(1); err != nil { // so that Write takes the lock
		t.Fatal(err)
	}
	socket := closing{r.ours, make(chan bool)}
	inUse, sent, closed := make(chan bool), make(chan error), make(chan error)
	go func() {
		sent <- r.q.socket.Control(func(fd uintptr) {
			close(inUse)
			<-socket.begun
			r.q.Write(int(fd), []byte("x"))
		})
	}()
	<-inUse
	go func() { closed <- r.q.Close(socket) }()
	for _, done := range []chan error{sent, closed} {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("a sender and Close wait for each other")
		}
	}
}
