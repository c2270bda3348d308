// Package session carries sigmaP over a connected socket. Conn moves whole messages and file
// descriptors; Client is the asking side of a session, whose handles are sigma.Files, so that a
// remote file is used as a local one is.
//
// It promises that a peer can at worst end its own session: lengths are bounded before anything is
// allocated, replies that nobody asked for end the session, replies that cannot be are an error of
// their request, every waiter gets an answer when the connection breaks (KindLost, as the outcome
// is unknown), and a caller whose context ends returns within a second or so even if the server is
// stuck. A handle that was closed does nothing more.
//
// Locks: Client.mu guards tags and fids and is never held while sending; Sender.mu is taken under
// it. streamConn.sendMu orders senders; no other is taken under it.
package session

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/sigmap"
)

// FilesMax is how many file descriptors may come with one message.
const FilesMax = inflight.RecordMax

// Conn moves messages. Send is safe for concurrent use; Recv is for one goroutine.
type Conn interface {
	// Send sends one encoded message and duplicates of files with it, if not nil; it keeps neither.
	// Files is of Passing().Pack, and the caller drops it. Several messages, if the peer takes them
	// so, come in one record and without files.
	Send(msg []byte, files *inflight.Parcel) error
	// Passing counts the file descriptors that the peer has not received; nil = the connection
	// carries none.
	Passing() *inflight.Queue
	// Recv returns the next message or record, in a buffer of its own. io.EOF when the peer has
	// closed in an orderly way.
	Recv() (msg []byte, files []*os.File, err error)
	Close() error
}

// Foreseer is a Conn that knows whether it has to wait.
type Foreseer interface {
	// RecvBut is Recv that calls idle before it waits, once, if it has to.
	RecvBut(idle func()) (msg []byte, files []*os.File, err error)
}

// RecvBut is that of c. If c cannot tell whether it has to wait, idle is called in any case.
func RecvBut(c Conn, idle func()) (msg []byte, files []*os.File, err error) {
	if f, ok := c.(Foreseer); ok {
		return f.RecvBut(idle)
	}
	idle()
	return c.Recv()
}

// packetConn is a SOCK_SEQPACKET socket. A record longer than MessageMax, or one that is no
// message, is an error.
type packetConn struct {
	*net.UnixConn
	raw       syscall.RawConn // of it; nil if it is closed already
	takeFiles bool
	in        receiving // of Recv
	passing   inflight.Queue
}

// Passing implements Conn.
func (c *packetConn) Passing() *inflight.Queue { return &c.passing }

// Close implements Conn.
func (c *packetConn) Close() error { return c.passing.Close(c.UnixConn) }

// buffers are for records that are being received: most sessions of a machine are silent most of
// the time, and 64 KiB for each would be most of what a sleeping proc costs.
var buffers = sync.Pool{New: func() any { return new([sigmap.MessageMax + 1]byte) }}

// givenLeast is the size beyond which a record is not copied out of its buffer, but given away with
// it.
const givenLeast = sigmap.MessageMax / 2

// recycle takes back the buffer of a message of which nobody has anything any more. A machine that
// fetches programs would otherwise touch new memory for each message, which takes longer than
// receiving it.
func recycle(msg []byte) {
	if cap(msg) == sigmap.MessageMax+1 {
		buffers.Put((*[sigmap.MessageMax + 1]byte)(msg[:cap(msg)]))
	}
}

// receiving is what one Recv works with. It is kept from one to the next, as what a closure
// captures would be made anew for each.
type receiving struct {
	try            func(fd uintptr) bool // packetConn.receive
	idle           func()                // called before it waits; nil = not, or not again
	oob            []byte
	buf            *[sigmap.MessageMax + 1]byte
	n, oobn, flags int
	err            error
}

// read is ReadMsgUnix that takes a buffer only when there is something to read. The caller gives it
// back. idle, if not nil, is called before it waits.
func (c *packetConn) read(idle func()) (buf *[sigmap.MessageMax + 1]byte, err error) {
	if c.raw == nil {
		return nil, net.ErrClosed
	}
	c.in.idle, c.in.err, c.in.n, c.in.oobn, c.in.flags = idle, nil, 0, 0, 0
	err = c.raw.Read(c.in.try)
	buf, c.in.buf, c.in.idle = c.in.buf, nil, nil
	if err == nil && c.in.err != nil {
		err = os.NewSyscallError("recvmsg", c.in.err)
	}
	return buf, err
}

// receive is false if there is nothing to read.
func (c *packetConn) receive(fd uintptr) bool {
	in := &c.in
	in.buf = buffers.Get().(*[sigmap.MessageMax + 1]byte)
	in.n, in.oobn, in.flags, in.err = rawio.Recvmsg(int(fd), in.buf[:], in.oob)
	if in.err != syscall.EAGAIN {
		return true
	}
	buffers.Put(in.buf)
	in.buf, in.err = nil, nil
	if in.idle != nil {
		in.idle()
		in.idle = nil
	}
	return false
}

// NewPacketConn wraps a SOCK_SEQPACKET connection. takeFiles says whether file descriptors that
// come are wanted; otherwise the kernel drops them.
func NewPacketConn(c *net.UnixConn, takeFiles bool) Conn {
	raw, err := c.SyscallConn()
	if err != nil {
		raw = nil
	}
	p := &packetConn{UnixConn: c, raw: raw, takeFiles: takeFiles}
	p.in.try = p.receive
	p.passing.Of(raw, 0)
	if takeFiles {
		p.in.oob = make([]byte, syscall.CmsgSpace(4*FilesMax))
	}
	return p
}

// sendMax is how long a peer may leave a full socket unread before a client gives its session up.
const sendMax = 30 * time.Second

// sendNow sends a message if the socket has room; false if it has not.
func (c *packetConn) sendNow(msg []byte) (sent bool, err error) {
	if c.raw == nil {
		return false, net.ErrClosed
	}
	var failed error
	err = c.raw.Control(func(fd uintptr) {
		_, failed = c.passing.Write(int(fd), msg)
	}) // a record goes whole or not at all
	switch {
	case err != nil:
		return false, err
	case failed == syscall.EAGAIN:
		return false, nil
	case failed != nil:
		return false, os.NewSyscallError("write", failed)
	}
	return true, nil
}

// sendIn is Send that gives up after a time.
func sendIn(c Conn, msg []byte, files *inflight.Parcel, most time.Duration) error {
	if p, ok := c.(*packetConn); ok && files == nil {
		if sent, err := p.sendNow(msg); sent || err != nil {
			return err
		}
	}
	if d, ok := c.(interface{ SetWriteDeadline(time.Time) error }); ok {
		d.SetWriteDeadline(time.Now().Add(most))
		defer d.SetWriteDeadline(time.Time{})
	}
	return c.Send(msg, files)
}

// Send sends without sendmsg when no files go along, because a proc's filter does not know sendmsg.
func (c *packetConn) Send(msg []byte, files *inflight.Parcel) error {
	if files == nil {
		if sent, err := c.sendNow(msg); sent || err != nil {
			return err
		}
		_, err := c.UnixConn.Write(msg)
		return err
	}
	if c.raw == nil {
		return net.ErrClosed
	}
	var failed error
	err := c.raw.Write(func(fd uintptr) bool {
		failed = files.Send(int(fd), msg)
		return failed != syscall.EAGAIN
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("sendmsg", failed)
	}
	return err
}

func (c *packetConn) Recv() ([]byte, []*os.File, error) { return c.RecvBut(nil) }

// RecvBut implements Foreseer.
func (c *packetConn) RecvBut(idle func()) ([]byte, []*os.File, error) {
	buf, err := c.read(idle)
	n, oobn, flags := c.in.n, c.in.oobn, c.in.flags
	given := false
	if buf != nil {
		defer func() {
			if !given {
				buffers.Put(buf)
			}
		}()
	}
	if err != nil {
		return nil, nil, err
	}
	files, err := takeFiles(c.in.oob[:oobn])
	switch {
	case err != nil:
	case n == 0 && oobn == 0:
		return nil, nil, io.EOF
	case c.takeFiles && flags&syscall.MSG_CTRUNC != 0:
		err = sigma.Errorf("session.Recv", sigma.KindTooBig, "more than %d file descriptors came with one message",
			FilesMax)
	case n > sigmap.MessageMax || flags&syscall.MSG_TRUNC != 0:
		err = sigma.Errorf("session.Recv", sigma.KindTooBig, "a record is longer than %d bytes", sigmap.MessageMax)
	case n > givenLeast:
		given = true
		return buf[:n], files, nil
	default:
		return append(make([]byte, 0, n), buf[:n]...), files, nil
	}
	CloseFiles(files)
	return nil, nil, err
}

// takeFiles turns control messages into files; all of them are closed on exec.
func takeFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cmsgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range cmsgs {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue // another kind of control message; nothing of ours asks for one
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, nil
}

// CloseFiles closes all of files.
func CloseFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// streamConn is a byte stream, framed by the size that starts each 9P message. It carries no files.
type streamConn struct {
	net.Conn
	sendMu sync.Mutex
}

// NewStreamConn wraps a byte stream, as plain 9P clients use.
func NewStreamConn(c net.Conn) Conn { return &streamConn{Conn: c} }

// Passing implements Conn.
func (c *streamConn) Passing() *inflight.Queue { return nil }

func (c *streamConn) Send(msg []byte, files *inflight.Parcel) error {
	if files != nil {
		return sigma.Errorf("session.Send", sigma.KindUnsupported, "a byte stream carries no file descriptors")
	}
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	_, err := c.Conn.Write(msg)
	return err
}

func (c *streamConn) Recv() ([]byte, []*os.File, error) {
	var head [4]byte
	if _, err := io.ReadFull(c.Conn, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = sigma.Errorf("session.Recv", sigma.KindInvalid, "the stream ends within a message")
		}
		return nil, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n < 7 || n > sigmap.MessageMax {
		return nil, nil, sigma.Errorf("session.Recv", sigma.KindInvalid,
			"a message claims %d bytes; 7 to %d are possible", n, sigmap.MessageMax)
	}
	msg := make([]byte, n)
	copy(msg, head[:])
	if _, err := io.ReadFull(c.Conn, msg[4:]); err != nil {
		return nil, nil, sigma.Errorf("session.Recv", sigma.KindInvalid, "the stream ends within a message")
	}
	return msg, nil, nil
}

// Pair returns two connected packet Conns, and for tests and in-process servers nothing else is
// needed.
func Pair() (a, b Conn, err error) {
	x, y, err := FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		return nil, nil, err
	}
	if a, err = FromFile(x); err != nil {
		y.Close()
		return nil, nil, err
	}
	if b, err = FromFile(y); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// FilePair returns the two ends of a UNIX socket pair of a type (syscall.SOCK_SEQPACKET or
// SOCK_STREAM), closed on exec.
func FilePair(typ int) (a, b *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, typ|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "pair"), os.NewFile(uintptr(fds[1]), "pair"), nil
}

// UnpolledPair is FilePair for who passes both ends on, and uses neither (rawio.Unpolled).
func UnpolledPair(typ int) (a, b *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, typ|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	if a, err = rawio.Unpolled(fds[0], "pair"); err != nil {
		rawio.Close(fds[1])
		return nil, nil, err
	}
	if b, err = rawio.Unpolled(fds[1], "pair"); err != nil {
		a.Close()
		return nil, nil, err
	}
	return a, b, nil
}

// FromFile makes a packet Conn that takes files of a SOCK_SEQPACKET socket; f is closed.
func FromFile(f *os.File) (Conn, error) {
	u, err := UnixConn(f)
	if err != nil {
		return nil, err
	}
	if u.LocalAddr().Network() != "unixpacket" {
		u.Close()
		return nil, sigma.Errorf("session.FromFile", sigma.KindInvalid,
			"the socket keeps no records; SOCK_SEQPACKET does")
	}
	return NewPacketConn(u, true), nil
}

// Ended reports whether err from a Conn only says that this side or the other has closed it.
func Ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) ||
		errors.Is(err, io.ErrClosedPipe)
}

// UnixConn makes a net.UnixConn of a UNIX socket; f is closed.
func UnixConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, sigma.Errorf("session.UnixConn", sigma.KindInvalid, "the file descriptor is not a UNIX socket")
	}
	return u, nil
}

// SmallMax is the size up to which messages are put in line to share a record. Larger ones gain
// nothing by it, and would be copied.
const SmallMax = 4 << 10

// lineKept is the size up to which the room of a line is used again, so that a burst leaves nothing
// behind.
const lineKept = 64 << 10

// roundsMax is how many times who has the turn looks for more before another goroutine takes over,
// so that nobody works for the others without end.
const roundsMax = 32

// lines are the room of lines that are empty, as most are: a session holds none of it while it
// sends nothing.
var lines = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Sender sends messages of many goroutines. Small ones stand in line while another is being sent,
// and then go together, in one record if the peer takes several in one (Several). Whoever puts a
// message in line calls Flush after it; who is sending sends what came meanwhile too, so that the
// others need not wait for their turn.
//
// It promises that messages go in the order in which they were put in line. It bounds nothing: who
// puts messages in line looks at Waiting. Users: Client, treeserver.
//
// Locks: turn is held while something is sent; mu is taken under it, and for moments only.
type Sender struct {
	conn     Conn // turn
	several  atomic.Bool
	patience time.Duration // for how long a peer may leave a full socket unread; 0 = for ever

	turn sync.Mutex

	mu       sync.Mutex
	line     *[]byte // mu; messages one after another; nil = none
	messages int     // mu; in line
	taken    int     // mu; from there, which are being sent
	bytes    int     // mu; of those
	err      error   // mu; why nothing more can be sent
}

// NewSender makes the Sender of a connection, one message to a record.
func NewSender(conn Conn) *Sender { return &Sender{conn: conn} }

// Several tells that the peer takes several messages in one record.
func (s *Sender) Several(is bool) { s.several.Store(is) }

// Put puts a message in line. It keeps nothing of msg.
func (s *Sender) Put(msg []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return // Flush says so
	}
	if s.line == nil {
		s.line = lines.Get().(*[]byte)
	}
	*s.line = append(*s.line, msg...)
	s.messages++
}

// Waiting says how many messages that were put in line have not been sent yet, and of how many
// bytes.
func (s *Sender) Waiting() (messages, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil {
		bytes = len(*s.line)
	}
	return s.messages + s.taken, bytes + s.bytes
}

// Flush sends what is in line, unless somebody is sending already, who will do it. An error closes
// the connection, so that who receives learns of it; nothing more can be sent then.
func (s *Sender) Flush() error {
	for {
		is, err := s.some()
		if !is || !s.turn.TryLock() { // who has the turn looks again after giving it up
			return err
		}
		more, err := s.drain()
		s.turn.Unlock()
		if err != nil {
			return err
		}
		if more {
			go s.Flush()
			return nil
		}
	}
}

// FlushAfter calls before, and then does what Flush does. Messages that others put in line
// meanwhile go with it.
func (s *Sender) FlushAfter(before func()) error {
	if !s.turn.TryLock() {
		return nil
	}
	before()
	_, err := s.drain()
	s.turn.Unlock()
	if err != nil {
		return err
	}
	return s.Flush()
}

// Alone has send called when what is in line has been sent and nobody else is sending.
func (s *Sender) Alone(send func() error) error {
	s.turn.Lock()
	_, err := s.drain()
	if err == nil {
		err = send()
	}
	s.turn.Unlock()
	if err != nil {
		return err
	}
	return s.Flush()
}

// drop forgets what is in line.
func (s *Sender) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line, s.messages = nil, 0
}

// renew forgets what is in line and goes on with another connection, once nobody is sending on the
// one before, which is closed.
func (s *Sender) renew(conn Conn) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn, s.err, s.line, s.messages = conn, nil, nil, 0
}

// AwaitTurn waits while somebody is sending.
func (s *Sender) AwaitTurn() {
	s.turn.Lock()
	s.turn.Unlock()
}

func (s *Sender) some() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line != nil, s.err
}

// drain sends all that is in line, and what comes meanwhile, unless that goes on for long: then
// there may be more. turn is held.
func (s *Sender) drain() (more bool, err error) {
	for range roundsMax {
		s.mu.Lock()
		line, err := s.line, s.err
		if line != nil {
			s.line, s.messages, s.taken, s.bytes = nil, 0, s.messages, len(*line)
		}
		s.mu.Unlock()
		if line == nil || err != nil {
			return false, err
		}
		err = s.sendAll(*line)
		s.mu.Lock()
		s.taken, s.bytes = 0, 0
		if err != nil { // part of a message may have gone
			s.err, s.line, s.messages = err, nil, 0
			go s.conn.Close() // which waits for whoever is receiving, perhaps this goroutine
		}
		s.mu.Unlock()
		if cap(*line) <= lineKept {
			*line = (*line)[:0]
			lines.Put(line)
		}
	}
	return true, nil
}

// sendAll sends whole messages in as few records as can be.
func (s *Sender) sendAll(line []byte) error {
	several := s.several.Load()
	for len(line) > 0 {
		n := 0
		for n < len(line) {
			msg, _, err := sigmap.Cut(line[n:])
			if err != nil {
				return err
			}
			if n > 0 && (!several || n+len(msg) > sigmap.MessageMax) {
				break
			}
			n += len(msg)
		}
		if err := s.send(line[:n]); err != nil {
			return err
		}
		line = line[n:]
	}
	return nil
}

func (s *Sender) send(record []byte) error {
	if s.patience != 0 {
		return sendIn(s.conn, record, nil, s.patience)
	}
	return s.conn.Send(record, nil)
}
