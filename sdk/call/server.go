package call

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// Unary handles a unary call: it appends the answer to reply and returns it. arg is its own until
// it returns. ctx ends with the caller's interest and deadline.
type Unary func(ctx context.Context, arg, reply []byte) ([]byte, error)

// Streaming handles a call with a stream, which ends when it returns.
type Streaming func(ctx context.Context, s *Stream) error

// Server answers calls. Register methods, then serve; safe for concurrent use. Handlers run
// concurrently.
type Server struct {
	// Observe, unless nil, is called when the handler of a unary call begins, and what it gives
	// when that one has returned. Streams are not observed, as they may last for hours, nor
	// StatsMethod. Set it before Serve.
	Observe func() (end func(error))
	// Other, unless nil, serves connections that begin as no client of this package does, so that a
	// server can speak another protocol at the same endpoint. first is what was read of the
	// connection. It closes the connection, and returns when it has ended, or soon after ctx. A
	// connection that says nothing for 10 s is closed. Set it before Serve.
	Other func(ctx context.Context, nc net.Conn, first []byte)
	// ConnsMax bounds the connections at a time, those of Other too; more are closed at once. 0 =
	// no bound. Set it before Serve.
	ConnsMax int
	serving  atomic.Int64 // connections

	cfg   Config
	stats stats

	mu      sync.Mutex
	methods map[string]*method  // mu
	conns   map[*serverConn]any // mu
	closed  bool                // mu
	leaving bool                // mu
	empty   chan struct{}       // mu; closed when leaving and no connection is left
}

// method is a registered handler, one of the two.
type method struct {
	name   string
	unary  Unary
	stream Streaming
	stats  *methodStats
	// score tells how often the handler took long lately, see learn.
	score  atomic.Int32
	length atomic.Int64 // that is expected of answers, if they are long
}

const (
	// inlineMost is how long a handler may take to be run by the goroutine that reads, which takes
	// fewer microseconds than a hand-over to another one.
	inlineMost = 20 * time.Microsecond
	// A call that took longer adds slowStep to its method's score, up to slowMost, any other one
	// takes 1 away. From slowFrom on calls get goroutines: where one of seven or more takes long,
	// and not where the processor was taken away in the middle of one.
	slowStep = 6
	slowFrom = 8
	slowMost = slowFrom + 7
)

// slow says whether calls get goroutines of their own; else the goroutine that reads runs them.
func (m *method) slow() bool { return m.score.Load() >= slowFrom }

// learn notes how long a handler took. Calls that end at the same time may count as one.
func (m *method) learn(took time.Duration) {
	switch score := m.score.Load(); {
	case took > inlineMost:
		m.score.Store(min(score+slowStep, slowMost))
	case score > 0:
		m.score.Store(score - 1)
	}
}

// NewServer makes a server that has StatsMethod only. It starts nothing.
func NewServer(cfg Config) *Server {
	s := &Server{cfg: cfg.filled(), methods: map[string]*method{}, conns: map[*serverConn]any{}}
	s.methods[StatsMethod.Name] = &method{name: StatsMethod.Name, unary: s.tell,
		stats: &methodStats{}} // which counts itself apart
	return s
}

// Handle registers a unary method. KindExists if there is one of that name.
func (s *Server) Handle(m *Method, h Unary) error { return s.register(&method{name: m.Name, unary: h}) }

// HandleStream registers a method that streams.
func (s *Server) HandleStream(m *Method, h Streaming) error {
	return s.register(&method{name: m.Name, stream: h})
}

func (s *Server) register(m *method) error {
	if n := len(m.name); n == 0 || n > nameMax {
		return sigma.Errorf("call.Handle", sigma.KindInvalid, "a method's name has %d bytes", n)
	}
	m.stats = s.stats.of(m.name)
	m.score.Store(slowFrom) // the first call tells
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.methods[m.name] != nil {
		return sigma.PathError("call.Handle", sigma.KindExists, m.name)
	}
	s.methods[m.name] = m
	return nil
}

// Stats tells of each method.
func (s *Server) Stats() []MethodStats { return s.stats.snapshot() }

// Serve answers everybody who dials l until ctx ends, which ends all calls, or the listener is
// closed, whose error it returns when Shutdown or the callers have ended the connections.
func (s *Server) Serve(ctx context.Context, l sigma.Listener) error {
	return s.serve(ctx, func() (net.Conn, sigma.Principal, error) { return l.AcceptFrom(ctx) })
}

// ServeNet is Serve for a listener that does not know who calls: handlers find no Caller.
func (s *Server) ServeNet(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	return s.serve(ctx, func() (net.Conn, sigma.Principal, error) {
		nc, err := l.Accept()
		return nc, sigma.Principal{}, err
	})
}

func (s *Server) serve(ctx context.Context, accept func() (net.Conn, sigma.Principal, error)) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		nc, p, err := accept()
		if err != nil {
			return err
		}
		conns.Go(func() { s.ServeConn(ctx, nc, p) })
	}
}

// ServeConn answers the calls of one connection until it or ctx ends. p is who called, the zero
// value if that is not known.
func (s *Server) ServeConn(ctx context.Context, nc net.Conn, p sigma.Principal) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.serving.Add(-1)
	if n := s.serving.Add(1); s.ConnsMax > 0 && n > int64(s.ConnsMax) {
		nc.Close()
		return
	}
	in := input{limited: true}
	nc.SetReadDeadline(time.Now().Add(helloMax))
	if s.Other != nil && !s.mine(ctx, nc, &in) {
		return
	}
	c := &serverConn{server: s, ctx: ctx, caller: p, methods: map[uint16]*method{}, calls: map[uint32]*serverCall{}}
	c.init(nc, c)
	c.reading = true
	if !s.add(c) {
		nc.Close()
		return
	}
	stop := context.AfterFunc(ctx, func() { c.end(lost(context.Cause(ctx))) })
	defer stop()
	r := &reader{c: c, in: in, dirty: true, now: time.Now()}
	c.tasks.Go(r.run)
	c.tasks.Wait()
	s.remove(c)
}

// mine reads the beginning of a connection, which Other gets if it is of another protocol.
func (s *Server) mine(ctx context.Context, nc net.Conn, in *input) bool {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	err := in.fill(nc)
	if stop(); err != nil {
		nc.Close()
		return false
	}
	if in.buf[0] == helloFirst {
		return true
	}
	nc.SetReadDeadline(time.Time{})
	s.Other(ctx, nc, in.buf[:in.w])
	return false
}

func (s *Server) add(c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[c] = nil
	if s.leaving { // it dialled before
		c.out = appendFrame(c.out, frame{kind: frameLeaving})
	}
	return true
}

func (s *Server) remove(c *serverConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	if s.leaving && len(s.conns) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// Renew has callers make their connections anew, and so choose a server anew where there are
// several. Calls that were made are answered. Streams go on, and their connections with them.
func (s *Server) Renew() {
	s.mu.Lock()
	conns := s.all()
	s.mu.Unlock()
	tellToLeave(conns)
}

// tellToLeave has callers make no further calls over these connections.
func tellToLeave(conns []*serverConn) {
	for _, c := range conns {
		c.mu.Lock()
		c.queueLocked(frame{kind: frameLeaving})
		c.flushLocked()
		c.mu.Unlock()
	}
}

// Shutdown ends the server in good order: callers are told to go elsewhere, and calls that were
// made are answered, those that are on their way too. It returns when no connection is left; if ctx
// ends before, it ends what is left as Close does, with the context's error. Withdraw the server's
// name and close the listener before.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.leaving = true
	var empty chan struct{}
	if len(s.conns) > 0 {
		if s.empty == nil {
			s.empty = make(chan struct{})
		}
		empty = s.empty
	}
	conns := s.all()
	s.mu.Unlock()
	tellToLeave(conns)
	if empty == nil {
		return nil
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		s.Close()
		return ctx.Err()
	}
}

func (s *Server) all() (out []*serverConn) {
	for c := range s.conns {
		out = append(out, c)
	}
	return out
}

// Close ends all connections, and refuses further ones. The listener is not its own.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	conns := s.all()
	s.mu.Unlock()
	for _, c := range conns {
		c.end(lost(net.ErrClosed))
	}
	return nil
}

// serverConn is the side of a connection that answers.
type serverConn struct {
	conn
	server *Server
	ctx    context.Context
	caller sigma.Principal

	methods map[uint16]*method     // of the reader; nil: unknown
	calls   map[uint32]*serverCall // conn.mu; those that the reader does not run itself
	streams int                    // conn.mu; among them
	answers atomic.Int64           // bytes of answers that wait for credit

	tending tending
}

func (c *serverConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(err)
}

// endedLocked implements side.
func (c *serverConn) endedLocked() {
	for _, call := range c.calls {
		call.cancelLocked(context.Canceled)
	}
}

// frameLocked implements side, for the frames that the reader does not handle itself.
func (c *serverConn) frameLocked(f frame) error {
	call := c.calls[f.call]
	switch f.kind {
	case frameData:
		if call == nil || call.stream == nil && call.more == 0 {
			return c.ignoreLocked(f)
		}
		if call.stream == nil {
			return call.pieceLocked(f)
		}
		refused, err := call.stream.dataLocked(f)
		if refused != nil && err == nil {
			c.failCallLocked(f.call, refused, false)
			call.cancelLocked(refused)
		}
		return err
	case frameCancel:
		if call != nil {
			call.cancelLocked(context.Canceled)
		}
		return nil
	case frameCredit:
		if call == nil || call.stream == nil {
			return nil
		}
		return call.stream.creditLocked(f)
	}
	return invalid("a client does not send frames of kind %d", f.kind)
}

// failCallLocked answers a call with an error. Who calls it flushes.
func (c *serverConn) failCallLocked(id uint32, err error, unseen bool) {
	f := failure(id, err, nil)
	if unseen {
		f.flags = flagRefused
	}
	c.queueLocked(f)
}

// refuseLocked answers a call that no handler sees.
func (c *serverConn) refuseLocked(f frame, err error) error {
	c.failCallLocked(f.call, err, true)
	return c.ignoreLocked(f)
}

// nameLocked gives a method a number on this connection.
func (c *serverConn) nameLocked(f frame) error {
	if f.method >= namesMax || len(f.body) == 0 || len(f.body) > nameMax {
		return invalid("a name of %d bytes for method %d", len(f.body), f.method)
	}
	c.server.mu.Lock()
	m := c.server.methods[string(f.body)]
	c.server.mu.Unlock()
	if m == nil {
		m = &method{name: string(f.body)}
	}
	c.methods[f.method] = m
	return nil
}

// beginLocked begins a call that gets a goroutine of its own. body is what follows the opening.
func (c *serverConn) beginLocked(m *method, call *serverCall, f frame) error {
	if c.calls[f.call] != nil {
		return invalid("two calls have the number %d", f.call)
	}
	streaming := f.flags&flagStream != 0
	switch {
	case m.unary == nil && m.stream == nil:
		return c.refuseLocked(f, refused(sigma.KindUnsupported, fmt.Sprintf("the server has no method %s", m.name),
			"is the client newer than the server, or is another service published there?"))
	case streaming != (m.stream != nil):
		return c.refuseLocked(f, refused(sigma.KindInvalid,
			fmt.Sprintf("%s is called in another way than it is: one side streams and the other does not", m.name), ""))
	case c.active >= c.server.cfg.CallsMax || streaming && c.streams >= c.server.cfg.StreamsMax:
		return c.refuseLocked(f, refused(sigma.KindBusy, "too many calls are under way on this connection",
			"use more connections"))
	}
	total, piece, err := parseFirst(f.flags, f.body)
	if err != nil {
		return err
	}
	if total > c.server.cfg.MessageMax {
		return c.refuseLocked(f, tooBig("the argument", total, c.server.cfg.MessageMax))
	}
	if streaming && total != 0 {
		return invalid("a stream begins with a message")
	}
	if err := c.receiveLocked(total); err != nil {
		return err
	}
	call.id, call.conn, call.method, call.total = f.call, c, m, int32(total)
	c.calls[f.call] = call
	c.active++
	if streaming {
		c.streams++
		call.stream = &Stream{c: &c.conn, id: f.call, ctx: call, server: true, most: c.server.cfg.MessageMax,
			recv: newWaiter(), send: newWaiter()}
		c.tasks.Go(call.runStream)
		return nil
	}
	call.room = buffers.Get().(*[]byte)
	call.arg = append((*call.room)[:0], piece...)
	if call.more = int32(total - len(piece)); call.more == 0 {
		c.tasks.Go(call.run)
	}
	return nil
}

// lackOf is the error of a call whose context ended before its handler began.
func lackOf(err error) error {
	return sigma.Wrap("call.Server", "", err)
}

// errOver ends the context of a handler that has returned.
var errOver = errors.New("the call is over")
