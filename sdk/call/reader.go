package call

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// reader is the goroutine that reads a server's connection. It runs handlers itself that are known
// to be quick, one after the other, and writes the answers of what it has read at once: so calls
// that came together share their system calls, and none needs a goroutine. A handler that takes
// long all the same, or a write that the peer leaves waiting, keeps its goroutine, and another one
// becomes the reader (tend).
type reader struct {
	c     *serverConn
	in    input
	now   time.Time
	first time.Time // when the batch's first call began
	batch []byte    // frames of answers
	owe   int       // credit of what was handled
	dirty bool      // others may have queued frames
	went  bool      // a frame was handled since a limit was set
	seq   uint64

	// What the next reader needs if this one is stuck. They are not changed while tending.busy is
	// not 0.
	call *serverCall // that is being handled
	done int         // how much of batch is complete
}

// Bounds of a batch: answers do not wait for more than this.
const (
	batchMost     = 32 << 10
	batchTimeMost = 50 * time.Microsecond
)

// tending is how a server's connection is looked after while it is in use.
type tending struct {
	busy   atomic.Uint64 // the number of what the reader does that may take long; 0: nothing
	rounds atomic.Uint64 // of reading
	armed  atomic.Bool   // tend will be called; it counts as a task of the connection

	timer   *time.Timer // conn.mu
	reader  *reader     // conn.mu
	last    uint64      // conn.mu; busy when it looked last
	seen    uint64      // conn.mu; rounds when it looked last
	writes  uint64      // conn.mu; conn.writes when it looked last
	limited bool        // conn.mu; a write deadline is set
}

// arm has tend called soon.
func (c *serverConn) arm() {
	t := &c.tending
	if t.armed.Load() || !t.armed.CompareAndSwap(false, true) {
		return
	}
	c.tasks.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.timer == nil {
		t.timer = time.AfterFunc(tickLeast, c.tend)
	} else {
		t.timer.Reset(tickLeast)
	}
}

// tend gives a connection another reader if the one it has does the same as a tick before, and
// writes a limit.
func (c *serverConn) tend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.tending
	busy, rounds := t.busy.Load(), t.rounds.Load()
	if c.err == nil && busy != 0 && busy == t.last && t.busy.CompareAndSwap(busy, 0) {
		c.replaceLocked()
	}
	stuck := c.writing && c.writes == t.writes
	if stuck != t.limited {
		t.limited = stuck
		var at time.Time
		if stuck {
			at = time.Now().Add(writeMax)
		}
		c.nc.SetWriteDeadline(at)
	}
	idle := busy == 0 && rounds == t.seen && !c.writing
	t.last, t.seen, t.writes = busy, rounds, c.writes
	if c.err == nil && !idle {
		t.timer.Reset(tickLeast)
		return
	}
	t.armed.Store(false)
	if c.err == nil && t.rounds.Load() != rounds && t.armed.CompareAndSwap(false, true) {
		t.timer.Reset(tickLeast)
		return
	}
	c.tasks.Done()
}

// replaceLocked makes another reader.
func (c *serverConn) replaceLocked() {
	old := c.tending.reader
	if old.call != nil {
		c.adoptLocked(old.call)
		old.call.method.score.Store(slowMost)
	}
	c.out = append(c.out, old.batch[:old.done]...)
	c.queued += uint64(old.done)
	c.oweLocked(0, old.owe)
	r := &reader{c: c, in: old.in.moved(), now: time.Now(), seq: old.seq, dirty: true, went: true}
	c.tending.reader = r
	c.tasks.Go(r.run)
}

// adoptLocked enters a call of the reader's into the table.
func (c *serverConn) adoptLocked(call *serverCall) {
	if c.calls[call.id] == nil {
		c.calls[call.id] = call
	}
	c.active++
	c.held[0] += cost(int(call.total))
}

// run reads until the connection ends or another reader has taken over.
func (r *reader) run() {
	c := r.c
	c.mu.Lock()
	c.tending.reader = r
	c.mu.Unlock()
	for {
		f, ok, err := r.in.next()
		r.went = r.went || ok
		switch {
		case err != nil:
		case !ok:
			if !r.flush() {
				return
			}
			err = r.fill()
		case f.kind == frameCall && c.greeted:
			var gone bool
			if gone, err = r.handle(f); gone {
				return
			}
		case f.kind == frameName && c.greeted:
			err = c.nameLocked(f)
		default:
			c.mu.Lock()
			err = c.handleLocked(f)
			c.mu.Unlock()
			r.dirty = true
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// fill reads more. Who has not said hello, or has begun a frame, has to go on in time.
func (r *reader) fill() error {
	c, in := r.c, &r.in
	if limit := !c.greeted || in.part(); limit != in.limited || limit && r.went {
		in.limited, r.went = limit, false
		var at time.Time
		if limit {
			at = time.Now().Add(partMax)
		}
		c.nc.SetReadDeadline(at)
	}
	if err := in.fill(c.nc); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return invalid("the client says nothing, or half")
		}
		return lost(err)
	}
	c.tending.rounds.Add(1)
	c.arm()
	r.now = time.Now()
	return nil
}

// handle handles the frame that begins a call. gone says that there is another reader now.
func (r *reader) handle(f frame) (gone bool, err error) {
	c := r.c
	m := c.methods[f.method]
	if m == nil || f.call == 0 || f.flags&flagFirst == 0 {
		return false, invalid("a call of method %d, which has no name, or without a number", f.method)
	}
	o, rest, err := parseOpening(f.flags, f.body)
	if err != nil {
		return false, err
	}
	f.body = rest
	call := &serverCall{conn: c, method: m, id: f.call, trace: o.trace, forwarded: o.forwarded}
	if o.left > 0 {
		call.at = r.now.Add(o.left)
	}
	if m.unary == nil || f.flags&(flagStream|flagMore) != 0 || m.slow() || c.answers.Load() >= answersMax {
		c.mu.Lock()
		defer c.mu.Unlock()
		r.dirty = true
		return false, c.beginLocked(m, call, f)
	}
	if len(f.body) > min(pieceMax, c.server.cfg.MessageMax) {
		c.mu.Lock()
		defer c.mu.Unlock()
		r.dirty = true
		return false, c.refuseLocked(f, tooBig("the argument", len(f.body), c.server.cfg.MessageMax))
	}
	return r.inline(m, call, f.body)
}

// inline runs a handler and queues its answer in the batch.
func (r *reader) inline(m *method, call *serverCall, arg []byte) (gone bool, err error) {
	c := r.c
	if len(r.batch) == 0 {
		r.first = r.now
	}
	call.total = int32(len(arg))
	r.call, r.done = call, len(r.batch)
	r.batch = appendHead(r.batch, frame{kind: frameReply, flags: flagFirst, call: call.id}, 0)
	at := len(r.batch)
	r.seq++
	seq := r.seq
	c.tending.busy.Store(seq)
	reply, failed := call.handle(arg, r.batch[at:])
	if n := len(reply); failed == nil && n > c.server.cfg.MessageMax {
		reply, failed = nil, tooBig("the answer", n, c.server.cfg.MessageMax)
	}
	if !c.tending.busy.CompareAndSwap(seq, 0) {
		m.stats.answered(time.Since(r.now), len(arg), len(reply), call.owner.Load() != nil, failed)
		call.answer(reply, failed, 0)
		return true, nil
	}
	now := time.Now()
	took := now.Sub(r.now)
	r.now, r.call = now, nil
	m.learn(took)
	owner := call.owner.Load()
	m.stats.answered(took, len(arg), len(reply), owner != nil, failed)
	switch {
	case failed == nil && owner == nil && len(reply) <= min(pieceMax, c.server.cfg.MessageMax) && c.take(len(reply)):
		r.batch = place(r.batch, at, reply)
	case failed != nil && len(failed.Error()) <= textMax:
		r.batch = appendFrame(r.batch[:r.done], failure(call.id, failed, owner))
	default: // it has to wait for room, or goes in pieces
		r.batch = r.batch[:r.done]
		counted := int64(len(reply) + answerCost)
		if busy := c.countAnswer(counted); busy != nil {
			reply, failed = nil, busy
		}
		reply = append([]byte(nil), reply...)
		c.mu.Lock()
		c.adoptLocked(call)
		c.mu.Unlock()
		c.tasks.Go(func() { call.answer(reply, failed, counted) })
		return r.enough()
	}
	call.finish(errOver)
	r.owe += cost(len(arg))
	return r.enough()
}

// place puts a reply behind its head, which ends at at. Handlers append to what follows it, so that
// most often it is there already.
func place(batch []byte, at int, reply []byte) []byte {
	if n := len(reply); n > 0 && cap(batch) >= at+n && &batch[at : at+1][0] == &reply[0] {
		batch = batch[:at+n]
	} else {
		batch = append(batch, reply...)
	}
	n := len(reply)
	batch[at-headBytes], batch[at-headBytes+1], batch[at-headBytes+2] = byte(n), byte(n>>8), byte(n>>16)
	return batch
}

// enough flushes a batch that is large or old.
func (r *reader) enough() (gone bool, err error) {
	if len(r.batch) > batchMost || r.now.Sub(r.first) > batchTimeMost {
		return !r.flush(), nil
	}
	return false, nil
}

// flush writes the batch's answers. It reports whether this is the reader still.
func (r *reader) flush() bool {
	if len(r.batch) == 0 && r.owe == 0 && !r.dirty {
		return true
	}
	c := r.c
	r.dirty = false
	c.mu.Lock()
	c.queued += uint64(len(r.batch))
	if len(c.out) == 0 {
		c.out, r.batch = r.batch, c.out[:0]
	} else {
		c.out = append(c.out, r.batch...)
		r.batch = r.batch[:0]
	}
	c.oweLocked(0, r.owe)
	r.owe, r.done = 0, 0
	if len(c.out) > outMax {
		c.failLocked(sigma.Errorf("call.conn", sigma.KindTooBig, "the client reads nothing"))
	}
	r.seq++
	seq := r.seq
	c.tending.busy.Store(seq)
	c.flushLocked()
	c.mu.Unlock()
	return c.tending.busy.CompareAndSwap(seq, 0)
}
