package ring

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Transport is what carries a direction's bytes.
type Transport uint32

const (
	Automatic Transport = iota // what the traffic warrants
	Socket
	Shared // the ring, if the peer has one too
)

// String is the form that people and JSON get.
func (t Transport) String() string {
	return [...]string{"automatic", "socket", "ring"}[min(t, Shared)]
}

// ParseTransport reads what a user calls a transport: automatic, unix or ring, as sigma ep ls shows
// them.
func ParseTransport(text string) (Transport, error) {
	switch text {
	case "automatic":
		return Automatic, nil
	case "unix":
		return Socket, nil
	case "ring":
		return Shared, nil
	}
	return Automatic, &sigma.Error{Op: "ring.ParseTransport", Kind: sigma.KindInvalid,
		Msg: fmt.Sprintf("%.40q is no transport", text), Hint: "it can be automatic, unix or ring"}
}

// Stream is what a connection begins with: a *net.UnixConn, or a *net.TCPConn with another machine.
type Stream interface {
	net.Conn
	syscall.Conn
	CloseRead() error
	CloseWrite() error
}

// Conn is one side's end. It is a net.Conn, with what a UNIX socket has besides: CloseRead and
// CloseWrite.
type Conn struct {
	set    *Set
	sock   Stream
	raw    syscall.RawConn
	side   Side
	ticket []byte
	enough int // messages after which it wants memory

	in              reader
	out             writer
	scratch         [drainBytes]byte // of the reader
	readBy, writeBy deadline
	wanted          atomic.Uint32 // a Transport

	mem    atomic.Pointer[memory] // nil until claimed, and after Close
	mu     sync.Mutex             // of what follows
	asked  bool                   // mu; for the memory
	given  *os.File               // mu; the memory, which came with the connection and was not needed yet
	spared bool                   // mu; it has been there since the last round
	closed atomic.Bool            // mu to set
	placed bool                   // mu; it was seen whether the meter has a slot
	place  *slot                  // mu
	meter  *meter                 // mu; whose slot that is

	spun                  atomic.Int64 // nanoseconds
	promotions, demotions atomic.Uint64

	// Method values, made once.
	readable, writable func(uintptr) bool
	bell               func(uintptr)
}

// deadline is a time in nanoseconds since 1970; 0 = none.
type deadline struct{ atomic.Int64 }

// New makes a Conn of one end of a socket pair, or of a TCP connection, which it owns. ticket is
// what the machine gave for it; without one it stays a socket. memory is what the machine gave
// besides, and nil if it is to be asked for; it is the Conn's.
func (s *Set) New(sock Stream, side Side, ticket []byte, memory *os.File) (*Conn, error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		if memory != nil {
			memory.Close()
		}
		return nil, err
	}
	c := &Conn{set: s, sock: sock, raw: raw, side: side, ticket: ticket, asked: len(ticket) == 0, enough: paceMessages}
	c.readable, c.writable, c.bell = c.onReadable, c.onWritable, c.ringBell
	c.wanted.Store(s.wanted.Load())
	s.wantMeter(c)
	if memory != nil {
		c.keep(memory)
	}
	if c.wanted.Load() == uint32(Shared) {
		c.claimNow()
	}
	return c, nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.sock.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.sock.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.delay.mu.Lock()
	defer c.in.delay.mu.Unlock()
	c.readBy.set(t)
	return c.readDeadlineLocked()
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.writeBy.set(t)
	return c.sock.SetWriteDeadline(t)
}

func (d *deadline) set(t time.Time) {
	if t.IsZero() {
		d.Store(0)
		return
	}
	d.Store(max(t.UnixNano(), 1))
}

// passed says that it has passed.
func (d *deadline) passed() error {
	if at := d.Load(); at != 0 && time.Now().UnixNano() >= at {
		return os.ErrDeadlineExceeded
	}
	return nil
}

// SyscallConn gives the socket, to ask it questions or set its options. What is read from it or
// written to it is not the connection's: it may be in a ring, and both sides count.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// CloseWrite says that nothing more will be written. The peer reads what was, and then the end.
func (c *Conn) CloseWrite() error {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	late := c.flushLocked()
	c.out.shut = true // the ring has no end of its own
	if err := c.sock.CloseWrite(); err != nil || late == nil {
		return err
	}
	return c.fail("write", late)
}

// CloseRead says that nothing more will be read.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	if m := c.mem.Load(); m != nil {
		m.directions[1-c.side].gone.Store(1)
	}
	c.mu.Unlock()
	return c.sock.CloseRead()
}

// Close implements net.Conn. If writes are held back it waits a second at most until they have
// gone.
func (c *Conn) Close() error {
	if c.out.batch.count.Load() > 0 && !c.closed.Load() {
		c.SetWriteDeadline(time.Now().Add(batchClose))
		c.Flush()
	}
	c.mu.Lock()
	again := c.closed.Swap(true)
	m := c.mem.Load()
	f := c.given
	c.given = nil
	c.mu.Unlock()
	if again {
		return c.fail("close", net.ErrClosed)
	}
	if f != nil {
		c.set.spare(c, f)
	}
	if m != nil {
		m.directions[c.side].left.Store(1)
		m.directions[1-c.side].gone.Store(1)
		c.unring(m)
	}
	err := c.sock.Close() // whoever waits in a call ends it
	c.over(m)
	if m != nil {
		c.set.forget(c)
	}
	return err
}

// over ends what a closed connection has, when nobody is in a call.
func (c *Conn) over(m *memory) {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.unmeter()
	if m == nil {
		return
	}
	c.mu.Lock()
	c.mem.Store(nil)
	c.mu.Unlock()
	m.unmap()
}

// unring takes doorbells that nobody heard from the socket. A UNIX socket that is closed with bytes
// in it has its peer told that it lost some.
func (c *Conn) unring(m *memory) {
	if !c.in.mu.TryLock() { // who waits there has taken them
		return
	}
	defer c.in.mu.Unlock()
	if c.in.phase%2 == 1 && c.in.from.empty() {
		m.directions[1-c.side].waits.Store(0)
		c.raw.Control(func(fd uintptr) { c.receive(int(fd), c.scratch[:]) })
	}
}

// fail makes an error of Read, Write or Close what that of a net.Conn is. A peer that broke the
// rules loses the connection.
func (c *Conn) fail(op string, err error) error {
	if err == io.EOF {
		return err
	}
	if sigma.KindOf(err) == sigma.KindInvalid {
		c.sock.Close()
		return err
	}
	var e *net.OpError
	if c.closed.Load() {
		err = net.ErrClosed
	} else if errors.As(err, &e) {
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "sigma", Err: err}
}

// Use has both directions use a transport as soon as possible: this side's at once, the other's
// when that side wants it. It is for debugging and measuring. Shared waits for the machine to
// answer.
func (c *Conn) Use(t Transport) {
	c.wanted.Store(uint32(t))
	if t == Shared {
		c.claimNow()
	}
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	if t == Socket && c.out.phase%2 == 1 && !c.closed.Load() {
		c.toSocket()
	}
}

// Stats is what a connection has carried. Bytes and messages are those of Read and Write that
// carried something.
type Stats struct {
	Reading, Writing              Transport
	BytesRead, BytesWritten       uint64
	MessagesRead, MessagesWritten uint64
	Promotions, Demotions         uint64 // of the direction that this side writes
	// reads that brought something after a further write: round trips, of who asks and waits
	Turns uint64
	Spun  time.Duration
}

// Stats waits for a Read and a Write that are under way on the ring, but for none that sleeps.
func (c *Conn) Stats() Stats {
	c.mu.Lock() // the meter may go with the connection
	all := c.carried()
	c.mu.Unlock()
	return Stats{
		Reading: transportOf(c.in.inRing.Load()), Writing: transportOf(c.out.inRing.Load()),
		BytesRead: all.Received, BytesWritten: all.Sent,
		MessagesRead: all.Reads, MessagesWritten: all.Writes, Turns: all.Turns,
		Promotions: c.promotions.Load(), Demotions: c.demotions.Load(), Spun: time.Duration(c.spun.Load()),
	}
}

func transportOf(inRing bool) Transport {
	if inRing {
		return Shared
	}
	return Socket
}

// FileStream is one end of a UNIX socket pair, or of a TCP connection, as a Stream, by the
// descriptor that was passed: net.FileConn would make another, ask for addresses that such a pair
// has not, and wait for both, ten system calls in all. f does not block; it belongs to the Stream.
func FileStream(f *os.File) Stream { return fileStream{f} }

type fileStream struct{ *os.File }

var _ Stream = fileStream{}

func (fileStream) LocalAddr() net.Addr  { return &net.UnixAddr{Net: "unix"} }
func (fileStream) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func (s fileStream) CloseRead() error  { return s.shutdown(unix.SHUT_RD) }
func (s fileStream) CloseWrite() error { return s.shutdown(unix.SHUT_WR) }

func (s fileStream) shutdown(how int) (err error) {
	raw, err := s.File.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("shutdown", syscall.Shutdown(int(fd), how))
	}); e != nil {
		return e
	}
	return err
}
