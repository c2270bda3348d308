package call

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

const (
	// kept is the largest buffer that a connection keeps for its next frames.
	kept = 1 << 20
	// roomMax is how much may wait to be written before a message in pieces queues its next one: so
	// others' frames wait for at most two pieces.
	roomMax = pieceMax
	// outMax is what can wait to be written in all: two full windows, and errors for all calls. A
	// peer that makes us queue more reads nothing, and breaks the rules.
	outMax = smallWindow + bulkWindow + callsMost*(1+memberMax+failMax)
	// callsMost bounds Config.CallsMax.
	callsMost = 4096
	// roundsMax is how many times one writes for the others before it goes after its own affairs.
	roundsMax = 8
	// tickLeast is how often a busy connection looks after what may be stuck: a handler, a write, a
	// reader that is missing. It is as short as timers are exact.
	tickLeast = time.Millisecond
)

// waiter is a goroutine that waits on a connection: for an answer, a message or room.
type waiter struct {
	wake       chan struct{} // has room for one
	signalled  bool          // conn.mu; what it waits for has come
	parked     bool          // conn.mu; it is in the connection's list, and sleeps
	prev, next *waiter       // conn.mu; in that list
}

// side is what a connection's two sides do differently.
type side interface {
	// frameLocked handles a frame that is not the connection's own business. An error ends the
	// connection.
	frameLocked(f frame) error
	// endedLocked answers all who wait; the connection's err says why.
	endedLocked()
}

// reusable is what a connection uses again.
type reusable struct {
	buffer   []byte    // conn.mu; it was written
	pendings sync.Pool // of *pending
}

// conn moves frames over a connection. Whoever has something to send queues it, and writes all that
// is queued unless somebody is doing so already; so one who is alone does not wait, and many share
// a system call.
//
// On the side that dialled one of those who wait reads for all, so that an answer that one waits
// for alone is read by who asked for it, without a hand-over between goroutines. On the other side
// there is always a reader.
type conn struct {
	nc    net.Conn
	side  side
	tasks sync.WaitGroup // goroutines of the connection

	credit [2]atomic.Int64 // what may be sent; small, bulk

	mu       sync.Mutex
	err      error  // mu; why it has ended
	out      []byte // mu; frames that nobody has begun to write
	reuse    reusable
	writing  bool      // mu; somebody writes
	kicked   bool      // mu; who writes is to leave the rest to a goroutine of its own
	writes   uint64    // mu; that have begun
	queued   uint64    // mu; bytes, ever
	handed   uint64    // mu; of them, those that a write was begun with
	blocked  []*waiter // mu; those who wait for credit
	crowded  []*waiter // mu; those who wait for room in out, first come first served
	active   int       // mu; calls under way
	held     [2]int    // mu; what came and was not used up; small, bulk
	owed     [2]int    // mu; what was used up and the peer was not told of
	reading  bool      // mu; somebody reads, or there is a reader always
	reader   *waiter   // mu; that reads for all; nil: none of those who wait
	handling bool      // mu; it handles what it has read
	parked   waiter    // mu; head of the list of sleeping waiters
	heard    uint64    // mu; reads that brought something
	greeted  bool      // mu; the peer has said hello
	in       input     // of the reader
}

func (c *conn) init(nc net.Conn, s side) {
	c.nc, c.side = nc, s
	c.credit[0].Store(smallWindow)
	c.credit[1].Store(bulkWindow)
	c.parked.prev, c.parked.next = &c.parked, &c.parked
	c.queueLocked(frame{kind: frameHello, body: []byte(magic)}) // nobody else has the connection yet
}

// lane tells which window a message of so many bytes counts for.
func lane(total int) int {
	if total > pieceMax {
		return 1
	}
	return 0
}

// failLocked ends the connection.
func (c *conn) failLocked(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.nc.Close()
	c.side.endedLocked()
	c.unblockLocked()
	c.crowded = nil // they sleep or read
	for w := c.parked.next; w != &c.parked; w = c.parked.next {
		c.signalLocked(w)
	}
}

// signalLocked tells a waiter that what it waits for has come.
func (c *conn) signalLocked(w *waiter) {
	w.signalled = true
	c.rouseLocked(w)
	if c.reader == w && !c.handling { // it sleeps in a read, and this did not come by that
		c.nc.SetReadDeadline(time.Unix(1, 0))
	}
}

func (c *conn) rouseLocked(w *waiter) {
	if w.parked {
		w.parked = false
		w.prev.next, w.next.prev = w.next, w.prev
		w.wake <- struct{}{}
	}
}

// unblockLocked has those who wait for credit look again.
func (c *conn) unblockLocked() {
	for _, w := range c.blocked {
		c.signalLocked(w)
	}
	c.blocked = c.blocked[:0]
}

// awaitLocked waits until w is signalled, which it clears. The error is the context's or the
// connection's. Meanwhile it reads, if nobody else does.
func (c *conn) awaitLocked(ctx context.Context, w *waiter) error {
	for !w.signalled {
		if c.err != nil {
			return c.err
		}
		if ctx.Err() != nil {
			c.passLocked()
			return ctx.Err()
		}
		if !c.reading {
			c.reading, c.reader = true, w
			c.mu.Unlock()
			c.readFor(ctx, w)
			c.mu.Lock()
			continue
		}
		w.parked = true
		w.prev, w.next = c.parked.prev, &c.parked
		w.prev.next, w.next.prev = w, w
		c.mu.Unlock()
		if done := ctx.Done(); done == nil {
			<-w.wake
			c.mu.Lock()
			continue
		} else {
			select {
			case <-w.wake:
				c.mu.Lock()
				continue
			case <-done:
			}
		}
		c.mu.Lock()
		if !w.parked { // roused meanwhile
			<-w.wake
		}
		if w.parked {
			w.parked = false
			w.prev.next, w.next.prev = w.next, w.prev
		}
	}
	w.signalled = false
	c.passLocked()
	return nil
}

// passLocked has another one of those who sleep read, if nobody does.
func (c *conn) passLocked() {
	if w := c.parked.next; !c.reading && w != &c.parked {
		c.rouseLocked(w)
	}
}

// blockLocked waits until credit has come.
func (c *conn) blockLocked(ctx context.Context, w *waiter) error {
	c.blocked = append(c.blocked, w)
	err := c.awaitLocked(ctx, w)
	if i := slices.Index(c.blocked, w); i >= 0 { // something else came
		c.blocked = slices.Delete(c.blocked, i, i+1)
	}
	return err
}

// roomLocked waits until so little is queued that a long piece may be, too.
func (c *conn) roomLocked(ctx context.Context, w *waiter) error {
	for len(c.out) > roomMax && c.err == nil {
		if c.flushLocked(); len(c.out) <= roomMax {
			break
		}
		c.crowded = append(c.crowded, w)
		err := c.awaitLocked(ctx, w)
		if i := slices.Index(c.crowded, w); i >= 0 { // something else came
			c.crowded = slices.Delete(c.crowded, i, i+1)
		}
		if err != nil {
			c.admitLocked() // the turn may have been its own
			return err
		}
	}
	return c.err
}

// admitLocked has the first of those who wait for room go on, if there is some. When it has queued
// its piece, which it then flushes, it is the next one's turn.
func (c *conn) admitLocked() {
	if len(c.crowded) > 0 && len(c.out) <= roomMax {
		w := c.crowded[0]
		c.crowded = slices.Delete(c.crowded, 0, 1)
		c.signalLocked(w)
	}
}

// take takes credit for a message, if there is enough.
func (c *conn) take(total int) bool {
	lane, n := &c.credit[lane(total)], int64(cost(total))
	if lane.Add(-n) >= 0 {
		return true
	}
	lane.Add(n)
	return false
}

// giveLocked gives back credit that was not used.
func (c *conn) giveLocked(total int) {
	c.credit[lane(total)].Add(int64(cost(total)))
	c.unblockLocked()
}

// takeLocked waits for credit.
func (c *conn) takeLocked(ctx context.Context, w *waiter, total int) error {
	for !c.take(total) {
		if err := c.blockLocked(ctx, w); err != nil {
			return err
		}
	}
	return c.err
}

// queueLocked appends a frame that flushLocked will write.
func (c *conn) queueLocked(f frame) {
	c.out = appendFrame(c.out, f)
	c.queued += uint64(headBytes + len(f.body))
	if len(c.out) > outMax {
		c.failLocked(sigma.Errorf("call.conn", sigma.KindTooBig, "the peer reads nothing"))
	}
}

// queueMessageLocked queues the first frame of a message, as far as it goes into one, and gives the
// rest. Credit for it was taken.
func (c *conn) queueMessageLocked(f frame, o *opening, msg []byte) (rest []byte) {
	f.flags |= flagFirst
	prefix := 0
	if o != nil {
		f.flags |= o.flags()
		if o.left > 0 {
			prefix += 8
		}
		if o.trace != nil {
			prefix += traceBytes
		}
		if o.owner != nil {
			prefix += 1 + len(*o.owner)
		}
	}
	piece := msg
	if len(msg) > pieceMax {
		f.flags |= flagMore
		prefix += 4
		piece, rest = msg[:pieceMax], msg[pieceMax:]
	}
	before := len(c.out)
	c.out = appendHead(c.out, f, prefix+len(piece))
	if o != nil {
		c.out = o.append(c.out)
	}
	if rest != nil {
		c.out = binary.LittleEndian.AppendUint32(c.out, uint32(len(msg)))
	}
	c.out = append(c.out, piece...)
	c.queued += uint64(len(c.out) - before)
	return rest
}

// piecesLocked sends what queueMessageLocked left. live is asked before each piece whether the call
// still wants it.
func (c *conn) piecesLocked(ctx context.Context, w *waiter, call uint32, rest []byte, live func() bool) error {
	for len(rest) > 0 {
		c.flushLocked()
		if err := c.roomLocked(ctx, w); err != nil {
			return err
		}
		if !live() {
			return nil
		}
		f := frame{kind: frameData, call: call, body: rest[:min(len(rest), pieceMax)]}
		if rest = rest[len(f.body):]; len(rest) > 0 {
			f.flags = flagMore
		}
		c.queueLocked(f)
	}
	c.flushLocked()
	return nil
}

// flushLocked writes what is queued, unless somebody is writing, who will take it along. It
// releases mu meanwhile.
func (c *conn) flushLocked() {
	c.admitLocked()
	if c.writing || len(c.out) == 0 {
		return
	}
	c.writing = true
	if c.active > 1 &&
		len(c.out) < roomMax { // those who were answered at once with us are about to queue their next calls
		c.mu.Unlock()
		runtime.Gosched()
		c.mu.Lock()
	}
	for round := 0; len(c.out) > 0 && c.err == nil; round++ {
		if round == roundsMax {
			c.tasks.Go(func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.writing = false
				c.flushLocked()
			})
			return
		}
		buf := c.out
		c.out, c.reuse.buffer = c.reuse.buffer[:0], nil
		c.writes++
		c.handed += uint64(len(buf))
		c.admitLocked()
		c.mu.Unlock()
		n, err := c.nc.Write(buf)
		c.mu.Lock()
		if err != nil {
			c.resumeLocked(buf[n:], err)
			return
		}
		if cap(buf) <= kept && c.reuse.buffer == nil {
			c.reuse.buffer = buf[:0]
		}
	}
	c.writing = false
}

// resumeLocked decides what becomes of a write that did not end. One that was kicked because it
// takes long goes on in a goroutine of its own, so that who began it can wait for its answer as
// long as its context says; then this is not the writer any more.
func (c *conn) resumeLocked(rest []byte, err error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) || c.err != nil || !c.kicked {
		c.failLocked(lost(err))
		c.writing = false
		return
	}
	c.tasks.Go(func() {
		c.nc.SetWriteDeadline(time.Now().Add(writeMax))
		_, err := c.nc.Write(rest)
		c.nc.SetWriteDeadline(time.Time{})
		c.mu.Lock()
		defer c.mu.Unlock()
		c.writing, c.kicked = false, false
		if err != nil {
			c.failLocked(lost(err))
			return
		}
		c.flushLocked()
	})
}

// writeMax is how long a peer may leave a full connection unread.
const writeMax = 30 * time.Second

// lost makes the error of a connection that broke. Whether what was under way had an effect is
// unknown.
func lost(err error) error {
	return &sigma.Error{Op: "call.conn", Kind: sigma.KindLost, Msg: "the connection to the server ended", Err: err}
}

// receiveLocked notes that a message begins to arrive.
func (c *conn) receiveLocked(total int) error {
	l := lane(total)
	if c.held[l] += cost(total); c.held[l] > [...]int{smallWindow, bulkWindow}[l] {
		return invalid("more came than there was room for")
	}
	return nil
}

// usedLocked notes that a message that receiveLocked was told of is not held any more.
func (c *conn) usedLocked(total int) {
	l := lane(total)
	c.held[l] -= cost(total)
	c.oweLocked(l, cost(total))
}

// oweLocked returns credit to the peer, when it is worth a frame. Who calls it flushes.
func (c *conn) oweLocked(lane, n int) {
	c.owed[lane] += n
	if lane == 0 && c.owed[0] < smallWindow/4 { // the longest message of several pieces needs all there is
		return
	}
	f := frame{kind: frameCredit, body: binary.LittleEndian.AppendUint32(nil, uint32(c.owed[lane]))}
	if lane == 1 {
		f.flags = flagBulk
	}
	c.owed[lane] = 0
	c.queueLocked(f)
}

// commonLocked handles the frames that are the same on both sides; own says that it is another one.
func (c *conn) commonLocked(f frame) (own bool, err error) {
	if !c.greeted {
		if f.kind != frameHello || string(f.body) != magic {
			return false, &sigma.Error{Op: "call.conn", Kind: sigma.KindUnsupported,
				Msg:  "the peer does not speak this protocol",
				Hint: "is it a service of package call that is published there?"}
		}
		c.greeted = true
		return false, nil
	}
	switch f.kind {
	case frameHello:
		return false, invalid("a second hello")
	case framePing:
		c.queueLocked(frame{kind: framePong})
		return false, nil
	case framePong:
		return false, nil
	case frameCredit:
		if f.call != 0 {
			return true, nil
		}
		return false, c.creditLocked(f)
	}
	return true, nil
}

func (c *conn) creditLocked(f frame) error {
	n, err := parseCredit(f.body)
	if err != nil {
		return err
	}
	l, window := 0, int64(smallWindow)
	if f.flags&flagBulk != 0 {
		l, window = 1, bulkWindow
	}
	if c.credit[l].Add(n) > window {
		return invalid("more credit than was used")
	}
	c.unblockLocked()
	return nil
}

func parseCredit(body []byte) (int64, error) {
	if len(body) != 4 {
		return 0, invalid("a credit of %d bytes", len(body))
	}
	n := binary.LittleEndian.Uint32(body)
	if n == 0 || n > bulkWindow {
		return 0, invalid("a credit of %d", n)
	}
	return int64(n), nil
}

// close ends the connection and waits for its goroutines.
func (c *conn) close(err error) {
	c.mu.Lock()
	c.failLocked(err)
	c.mu.Unlock()
	c.tasks.Wait()
}
