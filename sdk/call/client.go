package call

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// Method is what can be called. Generated code has one for each method of a service.
type Method struct {
	Name string // "package.Service/Method"
	// Idempotent says that a call has the same effect made once or more often, so that one whose
	// connection broke can be made again elsewhere. Other calls are made at most once.
	Idempotent bool
}

// triesMax is how often a call is made again in all, as far as it may be.
const triesMax = 4

// Client calls the methods of a server. It connects when it is first used, and anew when a
// connection has ended. Safe for concurrent use: calls share connections, and none waits for
// another one's answer.
type Client struct {
	dial  func(ctx context.Context) (net.Conn, error)
	cfg   Config
	stats *stats
	turn  atomic.Uint32
	lines []line
	over  context.Context // ends with Close
	end   context.CancelFunc

	mu    sync.Mutex
	conns []*clientConn // mu; those that may live
}

// line is the place of one connection.
type line struct {
	mu      sync.Mutex
	conn    *clientConn   // mu; nil: none yet
	dialing chan struct{} // mu; closed when a dial is over
}

// NewClient makes a client of what dial connects to, which may be another server each time, as with
// sdk.Dialer. It starts nothing. Close it.
func NewClient(dial func(ctx context.Context) (net.Conn, error), cfg Config) *Client {
	c := &Client{dial: dial, cfg: cfg.filled(), stats: &stats{}}
	c.lines = make([]line, c.cfg.Connections)
	c.over, c.end = context.WithCancel(context.Background())
	return c
}

// Close ends all connections: calls under way fail with KindLost, later ones with KindUnavailable.
func (c *Client) Close() error {
	c.end()
	c.mu.Lock()
	conns := c.conns
	c.conns = nil
	c.mu.Unlock()
	for _, conn := range conns {
		conn.close(lost(net.ErrClosed))
	}
	return nil
}

// Stats tells of each method that was called.
func (c *Client) Stats() []MethodStats { return c.stats.snapshot() }

// Call makes a unary call: it appends the answer to reply, which may be nil. The deadline and
// cancellation of ctx reach the server. The error has the kind, message and hint that the server's
// handler gave; KindLost: the connection broke, and whether the call took effect is unknown. It
// keeps neither arg nor reply.
func (c *Client) Call(ctx context.Context, m *Method, arg, reply []byte) ([]byte, error) {
	of := c.stats.of(m.Name)
	began := time.Now()
	out, _, err := c.try(ctx, m, began, false, arg, reply)
	of.count(time.Since(began), len(arg), len(out)-len(reply), err)
	if err != nil {
		return reply, sigma.Wrap("call.Call", m.Name, err)
	}
	return out, nil
}

// outcome is what else is known of a call that has ended.
type outcome struct {
	unseen bool   // no handler has seen it
	owner  string // the member that the answer comes from, or that a redirection leads to; "" = not told
}

// elsewhere says of the error of a call that the call can be made once more.
func (how outcome) elsewhere(m *Method, err error) bool {
	return how.unseen || m.Idempotent && sigma.KindOf(err) == sigma.KindLost
}

// try makes a call, again if need be. It was forwarded if a member makes it for its own caller.
func (c *Client) try(ctx context.Context, m *Method, now time.Time, forwarded bool, arg, reply []byte) (out []byte,
	how outcome, err error) {
	if len(arg) > c.cfg.MessageMax {
		return reply, how, tooBig("the argument", len(arg), c.cfg.MessageMax)
	}
	o, err := open(ctx, now)
	if err != nil {
		return reply, how, err
	}
	for try := 1; ; try++ {
		o.forwarded = forwarded
		conn, err := c.connect(ctx)
		if err != nil {
			return reply, outcome{unseen: true}, err
		}
		out, how, err := conn.call(ctx, m, &o, arg, reply)
		if err == nil || try == triesMax || ctx.Err() != nil || !how.elsewhere(m, err) {
			return out, how, err
		}
		if o, err = open(ctx, time.Now()); err != nil {
			return reply, how, err
		}
	}
}

func tooBig(what string, is, most int) error {
	return &sigma.Error{Op: "call.Call", Kind: sigma.KindTooBig, Msg: fmt.Sprintf("%s has %d bytes; %d are possible",
		what, is, most), Hint: "send much as a stream of messages, or pass a path"}
}

// open makes the opening of a call, unless it is too late for it.
func open(ctx context.Context, now time.Time) (o opening, err error) {
	if err := ctx.Err(); err != nil {
		return o, err
	}
	if at, ok := ctx.Deadline(); ok {
		if o.left = at.Sub(now); o.left <= 0 {
			return o, context.DeadlineExceeded
		}
	}
	o.trace = traceOf(ctx)
	return o, nil
}

// connect gives a connection that takes calls.
func (c *Client) connect(ctx context.Context) (*clientConn, error) {
	l := &c.lines[0]
	if len(c.lines) > 1 {
		l = &c.lines[int(c.turn.Add(1))%len(c.lines)]
	}
	for {
		if c.over.Err() != nil {
			return nil, errClosed()
		}
		l.mu.Lock()
		if conn := l.conn; conn != nil && conn.good() {
			l.mu.Unlock() // no defer, which would cost memory in a loop
			return conn, nil
		}
		if wait := l.dialing; wait != nil {
			l.mu.Unlock()
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			continue
		}
		done := make(chan struct{})
		l.dialing = done
		l.mu.Unlock()
		conn, err := c.dialLine(ctx)
		l.mu.Lock()
		if err == nil {
			l.conn = conn
		}
		l.dialing = nil
		close(done)
		l.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

func (c *Client) dialLine(ctx context.Context) (*clientConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.over, cancel)
	defer stop()
	nc, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	conn := newClientConn(nc, c.cfg, c.stats)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over.Err() != nil {
		nc.Close()
		return nil, errClosed()
	}
	c.conns = append(slices.DeleteFunc(c.conns, (*clientConn).ended), conn)
	return conn, nil
}

func errClosed() error {
	return sigma.Errorf("call.Client", sigma.KindUnavailable, "the client is closed")
}

// clientConn is the side of a connection that calls.
type clientConn struct {
	conn
	cfg     Config
	stats   *stats
	slots   []slot            // mu; calls by the low bits of their number
	free    []uint32          // mu; slots without a call
	names   map[string]uint16 // mu; methods that have a number
	leaving bool              // mu; the server wants no new calls
	watch   watch             // mu
}

// slot is the place of a call. Its number is the slot's and, above slotBits, how often the slot was
// used, so that a late answer is not taken for another call's.
type slot struct {
	use  uint32
	call *pending
}

const slotBits = 12

// longLeast is the size of arguments and answers that wait while much is waiting to be written.
// Shorter ones pass them.
const longLeast = 16 << 10

// pending is a call that waits for its answer.
type pending struct {
	waiter
	id    uint32
	start uint64 // where its first frame stands in what was queued
	reply []byte
	more  int // bytes of the reply that are still to come
	total int // of the reply
	done  bool
	outcome
	err     error
	stream  *Stream // nil for a unary call
	replies bool    // the reply has begun
}

func newWaiter() waiter { return waiter{wake: make(chan struct{}, 1)} }

// pending gives a pending of this connection, recycle takes it back. They stay with their
// connection: a channel of one of testing/synctest's bubbles must not get into another.
func (c *conn) pending() *pending {
	if p, ok := c.reuse.pendings.Get().(*pending); ok {
		return p
	}
	return &pending{waiter: newWaiter()}
}

func (c *conn) recycle(p *pending) {
	*p = pending{waiter: waiter{wake: p.wake}}
	c.reuse.pendings.Put(p)
}

func newClientConn(nc net.Conn, cfg Config, st *stats) *clientConn {
	c := &clientConn{cfg: cfg, stats: st, names: map[string]uint16{}}
	c.init(nc, c)
	return c
}

// good says whether new calls can be made.
func (c *clientConn) good() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err == nil && !c.leaving
}

// ended says whether nothing of the connection is left.
func (c *clientConn) ended() bool {
	c.mu.Lock()
	over := c.err != nil
	c.mu.Unlock()
	if over {
		c.tasks.Wait()
	}
	return over
}

// call makes a call.
func (c *clientConn) call(ctx context.Context, m *Method, o *opening, arg, reply []byte) (out []byte, how outcome,
	err error) {
	p := c.pending()
	defer c.recycle(p)
	p.reply = reply
	c.mu.Lock()
	defer c.mu.Unlock()
	number, err := c.beginLocked(ctx, p, m, len(arg))
	if err != nil {
		return reply, outcome{unseen: true}, err
	}
	rest := c.queueMessageLocked(frame{kind: frameCall, method: number, call: p.id}, o, arg)
	c.flushLocked()
	if rest != nil {
		err = c.piecesLocked(ctx, &p.waiter, p.id, rest, func() bool { return !p.done })
	}
	for err == nil && !p.done {
		err = c.awaitLocked(ctx, &p.waiter)
	}
	if p.done {
		return p.reply, p.outcome, p.err
	}
	c.abandonLocked(p)
	return reply, how, err
}

// beginLocked gives a call its place and takes credit for its argument.
func (c *clientConn) beginLocked(ctx context.Context, p *pending, m *Method, arg int) (method uint16, err error) {
	if n := len(m.Name); n == 0 || n > nameMax {
		return 0, sigma.Errorf("call.Call", sigma.KindInvalid, "a method's name has %d bytes", n)
	}
	for {
		switch {
		case c.err != nil:
			return 0, c.err
		case c.leaving:
			return 0, sigma.Errorf("call.Call", sigma.KindUnavailable, "the server is leaving")
		case len(c.free) == 0 && len(c.slots) == c.cfg.CallsMax:
		case len(c.out) > roomMax && arg > longLeast: // the buffer would grow with all that are under way
			if err := c.roomLocked(ctx, &p.waiter); err != nil {
				return 0, err
			}
			continue
		case c.take(arg):
			method, err := c.nameLocked(m.Name)
			if err != nil {
				c.giveLocked(arg)
				return 0, err
			}
			c.placeLocked(p)
			c.watchLocked()
			return method, nil
		}
		if len(c.out) > 0 && !c.writing { // of CallMany: what is queued has to be answered first
			c.flushLocked()
			continue
		}
		if err := c.blockLocked(ctx, &p.waiter); err != nil {
			return 0, err
		}
	}
}

func (c *clientConn) placeLocked(p *pending) {
	var at uint32
	if n := len(c.free); n > 0 {
		at, c.free = c.free[n-1], c.free[:n-1]
	} else {
		at = uint32(len(c.slots))
		c.slots = append(c.slots, slot{})
	}
	s := &c.slots[at]
	if s.use++; s.use >= 1<<(32-slotBits) {
		s.use = 1
	}
	s.call = p
	p.id, p.start = s.use<<slotBits|at, c.queued
	c.active++
}

// nameLocked gives a method's number, of which the server is told first.
func (c *clientConn) nameLocked(name string) (uint16, error) {
	if n, ok := c.names[name]; ok {
		return n, nil
	}
	n := uint16(len(c.names))
	if n == namesMax {
		return 0, sigma.Errorf("call.Call", sigma.KindTooBig, "more than %d methods on one connection", namesMax)
	}
	c.names[name] = n
	c.queueLocked(frame{kind: frameName, method: n, body: []byte(name)})
	return n, nil
}

func (c *clientConn) find(id uint32) *pending {
	if at := id & (1<<slotBits - 1); int(at) < len(c.slots) {
		if p := c.slots[at].call; p != nil && p.id == id {
			return p
		}
	}
	return nil
}

// dropLocked takes a call's place away.
func (c *clientConn) dropLocked(p *pending) {
	if c.find(p.id) != p {
		return
	}
	at := p.id & (1<<slotBits - 1)
	c.slots[at].call = nil
	c.free = append(c.free, at)
	c.active--
	if p.replies && p.more > 0 {
		c.usedLocked(p.total)
	}
	if p.stream != nil {
		p.stream.dropPartialLocked()
	}
	if len(c.blocked) > 0 {
		c.unblockLocked()
	}
	if c.leaving && c.active == 0 {
		c.failLocked(lost(io.EOF))
	}
}

// abandonLocked ends a call whose answer nobody wants any more.
func (c *clientConn) abandonLocked(p *pending) {
	if c.err == nil && c.find(p.id) == p {
		c.queueLocked(frame{kind: frameCancel, call: p.id})
		c.flushLocked()
	}
	c.dropLocked(p)
}

// answerLocked ends a call.
func (c *clientConn) answerLocked(p *pending, err error) {
	c.dropLocked(p)
	p.done, p.err = true, err
	if p.stream != nil {
		p.stream.endLocked(err)
	}
	c.signalLocked(&p.waiter)
}

// endedLocked implements side.
func (c *clientConn) endedLocked() {
	if c.watch.timer != nil {
		c.watch.timer.Stop()
	}
	for _, s := range c.slots {
		if p := s.call; p != nil {
			p.unseen = p.start >= c.handed
			c.answerLocked(p, c.err)
		}
	}
}

// frameLocked implements side.
func (c *clientConn) frameLocked(f frame) error {
	if f.kind == frameLeaving {
		if c.leaving = true; c.active == 0 {
			c.failLocked(lost(io.EOF))
		}
		return nil
	}
	p := c.find(f.call)
	switch f.kind {
	case frameReply, frameData:
		if p == nil {
			return c.ignoreLocked(f)
		}
		if p.stream == nil {
			return c.replyLocked(p, f)
		}
		if f.kind == frameData {
			refused, err := p.stream.dataLocked(f)
			if refused != nil && err == nil {
				c.queueLocked(frame{kind: frameCancel, call: p.id})
				c.answerLocked(p, refused)
			}
			return err
		}
		c.answerLocked(p, nil)
		return nil
	case frameFail:
		failed, owner, err := parseFailure(f)
		if err != nil || p == nil {
			return err
		}
		p.owner = owner
		p.unseen = f.flags&flagRefused != 0 && sigma.KindOf(failed) == sigma.KindUnavailable
		c.answerLocked(p, failed)
		return nil
	case frameCredit:
		if p == nil || p.stream == nil {
			return nil
		}
		return p.stream.creditLocked(f)
	}
	return invalid("a server does not send frames of kind %d", f.kind)
}

// ignoreLocked returns the credit of a message that nobody wants any more. A stream's message of
// one piece took credit of its stream only, which has ended.
func (c *conn) ignoreLocked(f frame) error {
	if f.flags&flagFirst == 0 {
		return nil
	}
	rest, err := f.body, error(nil)
	if f.kind == frameReply {
		_, rest, err = parseOwner(f.flags, rest)
	}
	if err != nil {
		return err
	}
	total, _, err := parseFirst(f.flags, rest)
	if err == nil && (f.kind != frameData || lane(total) == 1) {
		c.oweLocked(lane(total), cost(total))
	}
	return err
}

// replyLocked takes a piece of a unary call's answer.
func (c *clientConn) replyLocked(p *pending, f frame) error {
	piece := f.body
	if f.kind == frameReply {
		if p.replies || f.flags&flagFirst == 0 {
			return invalid("a call is answered twice")
		}
		owner, rest, err := parseOwner(f.flags, f.body)
		if err != nil {
			return err
		}
		total, first, err := parseFirst(f.flags, rest)
		if err != nil {
			return err
		}
		p.owner = owner
		if f.flags&flagMore == 0 {
			c.oweLocked(0, cost(total))
			p.reply = append(p.reply, first...)
			c.answerLocked(p, nil)
			return nil
		}
		if total > c.cfg.MessageMax {
			c.queueLocked(frame{kind: frameCancel, call: p.id})
			c.oweLocked(lane(total), cost(total))
			c.answerLocked(p, tooBig("the answer", total, c.cfg.MessageMax))
			return nil
		}
		if err := c.receiveLocked(total); err != nil {
			return err
		}
		p.replies, p.total, p.more, piece = true, total, total, first
	} else if !p.replies {
		return invalid("a piece of no answer")
	}
	if p.more -= len(piece); p.more < 0 || len(piece) == 0 || (p.more == 0) != (f.flags&flagMore == 0) {
		return invalid("an answer has another length than it claims")
	}
	p.reply = append(p.reply, piece...)
	if p.more == 0 {
		c.usedLocked(p.total)
		c.answerLocked(p, nil)
	}
	return nil
}
