package call

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// serverCall is a call of a server, and the context of its handler. Most handlers ask a context for
// nothing, so it makes a real one when somebody does.
type serverCall struct {
	conn   *serverConn
	method *method
	id     uint32
	total  int32 // of its argument
	more   int32 // conn.mu; bytes of the argument that are still to come
	// forwarded says that another member makes the call. All fields together are 160 bytes, a size
	// class of the heap.
	forwarded bool
	stream    *Stream
	at        time.Time // deadline; zero: none
	trace     *Trace
	arg       []byte                 // of a call with a goroutine of its own
	room      *[]byte                // that arg was put into, of buffers
	owner     atomic.Pointer[string] // the member that the answer comes from; nil = this one

	mu     sync.Mutex
	real   context.Context         // mu
	cancel context.CancelCauseFunc // mu; of real
	ended  error                   // mu; why it has ended
}

type callerKey struct{}

// Caller tells a handler who called, as the machine of the caller knows it. ok is false where that
// is not known, as with ServeNet, and for contexts that are no handler's.
func Caller(ctx context.Context) (p sigma.Principal, ok bool) {
	c, ok := ctx.Value(callerKey{}).(*serverConn)
	if !ok || c.caller == (sigma.Principal{}) {
		return sigma.Principal{}, false
	}
	return c.caller, true
}

// Deadline implements context.Context.
func (c *serverCall) Deadline() (time.Time, bool) {
	if c.at.IsZero() {
		return c.conn.ctx.Deadline()
	}
	return c.at, true
}

// Value implements context.Context.
func (c *serverCall) Value(key any) any {
	switch key.(type) {
	case callerKey:
		return c.conn
	case traceKey:
		return c.trace
	case callKey:
		return c
	}
	return c.created().Value(key) // package context asks so whether it knows us
}

// made makes the real context.
func (c *serverCall) created() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real == nil {
		parent, stop := c.conn.ctx, context.CancelFunc(func() {})
		if !c.at.IsZero() {
			parent, stop = context.WithDeadline(parent, c.at)
		}
		var cancel context.CancelCauseFunc
		c.real, cancel = context.WithCancelCause(parent)
		c.cancel = func(err error) {
			cancel(err)
			stop()
		}
		if c.ended != nil {
			c.cancel(c.ended)
		}
	}
	return c.real
}

// Done implements context.Context.
func (c *serverCall) Done() <-chan struct{} { return c.created().Done() }

// Err implements context.Context.
func (c *serverCall) Err() error {
	c.mu.Lock()
	real, ended := c.real, c.ended
	c.mu.Unlock()
	switch {
	case real != nil:
		return real.Err()
	case ended != nil:
		return context.Canceled
	case !c.at.IsZero() && !time.Now().Before(c.at):
		return context.DeadlineExceeded
	}
	return c.conn.ctx.Err()
}

// finish ends the context.
func (c *serverCall) finish(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = why
		if c.cancel != nil {
			c.cancel(why)
		}
	}
}

// cancelLocked ends a call that nobody wants an answer of any more; conn.mu is held.
func (c *serverCall) cancelLocked(why error) {
	c.finish(why)
	if c.stream != nil {
		c.stream.endLocked(lackOf(why))
	}
	if c.more > 0 { // no handler runs
		c.more = 0
		c.conn.forgetLocked(c)
	}
}

// forgetLocked takes a call from the table and returns what it held.
func (c *serverConn) forgetLocked(call *serverCall) {
	delete(c.calls, call.id)
	c.active--
	c.usedLocked(int(call.total))
	if call.stream != nil {
		c.streams--
		call.stream.over = true
		call.stream.releaseLocked()
	}
}

// pieceLocked takes a further piece of an argument.
func (c *serverCall) pieceLocked(f frame) error {
	n := int32(len(f.body))
	if n == 0 || n > c.more || f.flags&flagFirst != 0 || (n == c.more) != (f.flags&flagMore == 0) {
		return invalid("an argument has another length than it claims")
	}
	c.arg = append(c.arg, f.body...)
	if c.more -= n; c.more == 0 {
		c.conn.tasks.Go(c.run)
	}
	return nil
}

// bufferMost is the largest buffer that is kept.
const bufferMost = 2 * pieceMax

// buffers are for arguments and answers of calls with goroutines of their own.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// release gives a buffer back, of which b is what it has grown to, unless that is too much to keep.
func release(room *[]byte, b []byte) {
	if cap(b) <= bufferMost {
		*room = b[:0]
		buffers.Put(room)
	}
}

// run handles a unary call in a goroutine of its own.
func (c *serverCall) run() {
	var reply []byte
	growStack()
	counted := c.conn.expect(c)
	room := buffers.Get().(*[]byte)
	began := time.Now()
	err := c.lack()
	if err == nil {
		reply, err = c.handle(c.arg, (*room)[:0])
	}
	took := time.Since(began)
	c.method.learn(took)
	c.method.learnLength(len(reply))
	c.method.stats.answered(took, int(c.total), len(reply), c.owner.Load() != nil, err)
	c.answer(reply, err, counted())
	if n := len(reply); n > cap(*room) &&
		n <= bufferMost { // it may be a part of the argument, so it is not kept itself
		*room = make([]byte, 0, n)
	}
	release(room, *room)
	release(c.room, c.arg)
}

// stackBytes is about what handlers need of a stack.
const stackBytes = 4 << 10

// growStack has a new goroutine's stack grow once, while there is next to nothing on it. To copy it
// in the depth of a handler costs more than most handlers do.
//
//go:noinline
func growStack() {
	var room [stackBytes]byte
	runtime.KeepAlive(&room)
}

// lack is the error of a call whose context ended before its handler began, nil if it goes on.
// KindUnavailable: the server has ended, and the caller still waits.
func (c *serverCall) lack() error {
	err := c.Err()
	c.mu.Lock()
	ended := c.ended
	c.mu.Unlock()
	if err == nil || ended != nil || !errors.Is(err, context.Canceled) {
		return lackOf(err)
	}
	return &sigma.Error{Op: "call.Server", Kind: sigma.KindUnavailable, Msg: "the server has ended",
		Err: context.Cause(c.conn.ctx)}
}

// handle has the handler of a unary call append the answer to reply.
func (c *serverCall) handle(arg, reply []byte) ([]byte, error) {
	observe := c.conn.server.Observe
	if observe == nil || c.method.name == StatsMethod.Name {
		return c.method.unary(c, arg, reply)
	}
	end := observe()
	out, err := c.method.unary(c, arg, reply)
	end(err)
	return out, err
}

func (c *serverCall) runStream() {
	began := time.Now()
	err := c.Err()
	if err == nil {
		err = c.method.stream(c, c.stream)
	}
	c.method.stats.answered(time.Since(began), 0, 0, false, err)
	c.answer(nil, err, 0)
}

// Bounds of the answers of a connection that wait for credit, so that a client that makes calls and
// reads no answers has the server hold few. No handler begins while answersMax wait, or are
// expected of handlers that run. An expectation ends after expectMax, as the handler may block for
// long. Answers that were not expected wait too, up to answersSpare longest messages, and fail
// then. answerCost is what an answer takes besides its bytes: a goroutine and its call.
const (
	answersMax   = 2 * bulkWindow
	answersSpare = 8
	answerCost   = 16 << 10
	expectMax    = 50 * time.Millisecond
)

// expect waits until the handler of a call may begin, or the call ends. It counts the bytes that
// are expected of the answer. done ends that, and gives how many are counted still.
func (c *serverConn) expect(call *serverCall) (done func() int64) {
	n := call.method.length.Load()
	if c.answers.Add(n) > answersMax {
		c.answers.Add(-n)
		p := c.pending()
		defer c.recycle(p)
		c.mu.Lock()
		defer c.mu.Unlock()
		for c.answers.Load()+n > answersMax && c.blockLocked(call, &p.waiter) == nil {
		}
		c.answers.Add(n)
	}
	if n == 0 {
		return none
	}
	over := time.AfterFunc(expectMax, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers.Add(-n)
		c.unblockLocked()
	})
	return func() int64 {
		if over.Stop() {
			return n
		}
		return 0
	}
}

func none() int64 { return 0 }

// learnLength notes how long an answer is; longer ones than usual are expected for some calls.
func (m *method) learnLength(n int) {
	usual := m.length.Load()
	if usual -= usual / 8; usual < longLeast {
		usual = 0
	}
	if n > longLeast {
		usual = max(usual, int64(n))
	}
	if usual != m.length.Load() {
		m.length.Store(usual)
	}
}

// countAnswer counts bytes of an answer that waits. It fails if there are too many.
func (c *serverConn) countAnswer(n int64) error {
	if c.answers.Add(n) <= answersMax+answersSpare*int64(c.server.cfg.MessageMax) {
		return nil
	}
	return &sigma.Error{Op: "call.Server", Kind: sigma.KindBusy, Msg: "too many answers wait for the caller to read",
		Hint: "read answers, or use more connections"}
}

// answer ends a call that has a goroutine of its own. It waits for room for the answer, of which
// counted bytes are counted.
func (c *serverCall) answer(reply []byte, err error, counted int64) {
	conn := c.conn
	if err == nil && len(reply) > conn.server.cfg.MessageMax {
		err = tooBig("the answer", len(reply), conn.server.cfg.MessageMax)
	}
	if more := int64(len(reply)) - counted; more > 0 && err == nil {
		err = conn.countAnswer(more)
		counted += more
	}
	p := conn.pending()
	defer conn.recycle(p)
	w := &p.waiter
	conn.mu.Lock()
	defer conn.mu.Unlock()
	live := func() bool { return c.wanted() }
	switch {
	case conn.err != nil || !live():
	case err != nil:
		conn.queueLocked(failure(c.id, err, c.owner.Load()))
	case c.stream != nil:
		conn.queueLocked(frame{kind: frameReply, call: c.id})
	default:
		if conn.takeLocked(c, w, len(reply)) != nil {
			break
		}
		if len(reply) > longLeast {
			conn.roomLocked(c, w)
		}
		if conn.err != nil || !live() {
			conn.giveLocked(len(reply))
			break
		}
		rest := conn.queueMessageLocked(frame{kind: frameReply, call: c.id}, &opening{owner: c.owner.Load()}, reply)
		conn.piecesLocked(c, w, c.id, rest, live)
	}
	if counted > 0 {
		conn.answers.Add(-counted)
		conn.unblockLocked()
	}
	conn.forgetLocked(c)
	conn.flushLocked()
	c.finish(errOver)
}

// wanted says whether the caller still waits.
func (c *serverCall) wanted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended == nil
}
