package call

import (
	"context"
	"encoding/binary"
	"io"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// Stream is a call in which messages go both ways. Each message arrives whole, in order and once,
// or the stream ends with an error. Send is for one goroutine at a time and so is Recv; both may be
// called at once.
type Stream struct {
	c      *conn
	id     uint32
	ctx    context.Context
	server bool
	most   int // bytes of a message

	sendMu    sync.Mutex // orders senders; taken before mu
	buf, rest []byte     // of Read: the message that it reads, and what it has not read of it

	// All of these are guarded by the connection's mu.
	inbox   []message // that came and were not taken
	partial []byte    // of the message that is coming
	total   int       // of it; 0: none is
	held    int       // of the stream's window, by what was not taken
	owed    int       // of it, which the peer was not told of
	sent    int       // of the peer's window
	closed  bool      // the caller has sent its last message
	over    bool      // the call has ended
	err     error     // why; nil: well
	recv    waiter
	send    waiter

	// Of the side that calls.
	pending *pending
	owner   *clientConn
	stop    func() bool // of the context's AfterFunc
	of      *methodStats
	began   time.Time
	counted bool // mu
}

type message struct {
	data []byte
	bulk bool
}

// Stream begins a call of a method that streams. It ends when the server's handler returns, with
// Close, with ctx, or with its connection.
func (c *Client) Stream(ctx context.Context, m *Method) (*Stream, error) {
	of := c.stats.of(m.Name)
	began := time.Now()
	s, err := c.stream(ctx, m)
	if err != nil {
		of.count(time.Since(began), 0, 0, err)
		return nil, sigma.Wrap("call.Stream", m.Name, err)
	}
	s.of, s.began = of, began
	if ctx.Done() != nil {
		s.stop = context.AfterFunc(ctx, func() { s.giveUp(ctx.Err()) })
	}
	return s, nil
}

func (c *Client) stream(ctx context.Context, m *Method) (*Stream, error) {
	for try := 1; ; try++ {
		o, err := open(ctx, time.Now())
		if err != nil {
			return nil, err
		}
		conn, err := c.connect(ctx)
		if err != nil {
			return nil, err
		}
		s, err := conn.stream(ctx, m, &o)
		if err == nil || try == triesMax || ctx.Err() != nil {
			return s, err
		}
	}
}

// stream begins a stream. Its first frame goes with the first message, or when something is waited
// for.
func (c *clientConn) stream(ctx context.Context, m *Method, o *opening) (*Stream, error) {
	s := &Stream{c: &c.conn, ctx: ctx, most: c.cfg.MessageMax, recv: newWaiter(), send: newWaiter(), owner: c,
		pending: &pending{waiter: newWaiter()}}
	c.mu.Lock()
	defer c.mu.Unlock()
	method, err := c.beginLocked(ctx, s.pending, m, 0)
	if err != nil {
		return nil, err
	}
	s.pending.stream, s.id = s, s.pending.id
	c.queueMessageLocked(frame{kind: frameCall, flags: flagStream, method: method, call: s.id}, o, nil)
	return s, nil
}

// Context is that of the call: on the server's side it ends with the caller's interest.
func (s *Stream) Context() context.Context { return s.ctx }

// Send sends a message, which it does not keep, when the other side has room for it. io.EOF: the
// call has ended, and Recv says how.
func (s *Stream) Send(msg []byte) error {
	if len(msg) > s.most {
		return tooBig("the message", len(msg), s.most)
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case s.over:
			return io.EOF
		case s.closed && !s.server:
			return sigma.Errorf("call.Send", sigma.KindInvalid, "the last message has been sent")
		case len(msg) <= pieceMax && s.sent+cost(len(msg)) <= streamWindow:
			s.sent += cost(len(msg))
			c.queueMessageLocked(frame{kind: frameData, call: s.id}, nil, msg)
			c.flushLocked()
			return nil
		case len(msg) > pieceMax && c.take(len(msg)):
			rest := c.queueMessageLocked(frame{kind: frameData, call: s.id}, nil, msg)
			return s.waited(c.piecesLocked(s.ctx, &s.send, s.id, rest, func() bool { return !s.over }))
		}
		c.flushLocked()
		if err := s.waited(c.blockLocked(s.ctx, &s.send)); err != nil {
			return err
		}
	}
}

// waited turns the error of a wait into that of a message.
func (s *Stream) waited(err error) error {
	if err == nil {
		return nil
	}
	return sigma.Wrap("call.Stream", "", err)
}

// Recv appends the next message to buf. io.EOF after the last one, if the call (or, on the server's
// side, what the caller sends) has ended well; else the error that ended it.
func (s *Stream) Recv(buf []byte) ([]byte, error) {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if len(s.inbox) > 0 {
			m := s.inbox[0]
			s.inbox[0] = message{}
			if s.inbox = s.inbox[1:]; len(s.inbox) == 0 {
				s.inbox = nil
			}
			s.takenLocked(m)
			return append(buf, m.data...), nil
		}
		if s.over && s.err != nil {
			return buf, s.err
		}
		if s.over || s.server && s.closed {
			return buf, io.EOF
		}
		c.flushLocked()
		if s.over || len(s.inbox) > 0 || s.server && s.closed {
			continue // it came while that was written
		}
		if err := c.awaitLocked(s.ctx, &s.recv); err != nil && !s.over {
			return buf, s.waited(err)
		}
	}
}

// Write implements io.Writer: what is longer than a piece goes as several messages. With Read on
// the other side, bytes of any length go over a stream, of which neither side has more than the
// stream's window in memory: io.Copy(stream, file).
func (s *Stream) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		piece := p[:min(len(p), pieceMax, s.most)]
		if err = s.Send(piece); err == nil {
			n, p = n+len(piece), p[len(piece):]
		}
	}
	return n, err
}

// Read implements io.Reader: it reads the messages that come, one after another, until the last.
// What it has not read of a message Recv does not give.
func (s *Stream) Read(p []byte) (n int, err error) {
	for len(s.rest) == 0 && len(p) > 0 {
		if s.buf, err = s.Recv(s.buf[:0]); err != nil {
			return 0, err
		}
		s.rest = s.buf
	}
	n = copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// takenLocked returns a message's part of the windows.
func (s *Stream) takenLocked(m message) {
	if m.bulk {
		s.c.usedLocked(len(m.data))
		s.c.flushLocked()
		return
	}
	n := cost(len(m.data))
	s.held -= n
	if s.owed += n; s.owed >= streamWindow/4 && !s.over {
		s.c.queueLocked(frame{kind: frameCredit, call: s.id, body: binary.LittleEndian.AppendUint32(nil,
			uint32(s.owed))})
		s.owed = 0
		s.c.flushLocked()
	}
}

// CloseSend tells the server that the caller's last message was sent.
func (s *Stream) CloseSend() error {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.server || s.closed || s.over {
		return nil
	}
	s.closed = true
	s.c.queueLocked(frame{kind: frameData, flags: flagClose, call: s.id})
	s.c.flushLocked()
	return nil
}

// Close ends the call: the server's handler is told that nobody wants its messages any more. After
// the end of the call it does nothing.
func (s *Stream) Close() error {
	if !s.server {
		s.giveUp(context.Canceled)
		if s.stop != nil {
			s.stop()
		}
	}
	return nil
}

func (s *Stream) giveUp(err error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if !s.over {
		s.owner.abandonLocked(s.pending)
		s.endLocked(sigma.Wrap("call.Stream", "", err))
	}
	s.releaseLocked()
	s.c.flushLocked()
}

// endLocked notes that the call has ended.
func (s *Stream) endLocked(err error) {
	if s.over {
		return
	}
	s.over, s.err = true, err
	s.c.signalLocked(&s.recv)
	s.c.signalLocked(&s.send)
	if s.of != nil && !s.counted {
		s.counted = true
		s.of.count(time.Since(s.began), 0, 0, err)
	}
}

// releaseLocked drops what came and will not be taken, and returns its part of the connection's
// window.
func (s *Stream) releaseLocked() {
	for _, m := range s.inbox {
		if m.bulk {
			s.c.usedLocked(len(m.data))
		}
	}
	s.inbox = nil
	s.dropPartialLocked()
}

func (s *Stream) dropPartialLocked() {
	if s.total > pieceMax {
		s.c.usedLocked(s.total)
	}
	s.partial, s.total = nil, 0
}

// dataLocked takes a frame of data. refused is why the call cannot go on; err why the connection
// cannot.
func (s *Stream) dataLocked(f frame) (refused, err error) {
	if s.closed && s.server {
		return nil, invalid("a message after the last one")
	}
	switch {
	case f.flags&flagFirst != 0:
		refused, err = s.firstLocked(f)
	case s.total != 0:
		err = s.pieceLocked(f)
	case len(f.body) > 0 || f.flags&flagClose == 0:
		err = invalid("a piece of no message")
	}
	if err == nil && refused == nil && f.flags&flagClose != 0 && s.server {
		if s.total != 0 {
			return nil, invalid("the last message is not complete")
		}
		s.closed = true
		s.c.signalLocked(&s.recv)
	}
	return refused, err
}

func (s *Stream) firstLocked(f frame) (refused, err error) {
	total, piece, err := parseFirst(f.flags, f.body)
	if err == nil && s.total != 0 {
		err = invalid("a message begins within another one")
	}
	if err != nil {
		return nil, err
	}
	if total > pieceMax {
		err = s.c.receiveLocked(total)
		s.total, s.partial = total, append([]byte(nil), piece...)
	} else {
		if s.held += cost(total); s.held > streamWindow {
			err = invalid("more came on a stream than there was room for")
		}
		s.inbox = append(s.inbox, message{data: append([]byte(nil), piece...)})
		s.c.signalLocked(&s.recv)
	}
	if err == nil && total > s.most {
		refused = tooBig("the message", total, s.most)
	}
	return refused, err
}

func (s *Stream) pieceLocked(f frame) error {
	n := len(s.partial) + len(f.body)
	if len(f.body) == 0 || n > s.total || (n == s.total) != (f.flags&flagMore == 0) {
		return invalid("a message has another length than it claims")
	}
	if s.partial = append(s.partial, f.body...); n == s.total {
		s.inbox = append(s.inbox, message{data: s.partial, bulk: true})
		s.partial, s.total = nil, 0
		s.c.signalLocked(&s.recv)
	}
	return nil
}

func (s *Stream) creditLocked(f frame) error {
	n, err := parseCredit(f.body)
	if err != nil {
		return err
	}
	if s.sent -= int(n); s.sent < 0 {
		return invalid("more credit than was used")
	}
	s.c.signalLocked(&s.send)
	return nil
}
