package session

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

const (
	// pendingMax bounds requests in flight on one session; it is far above what a program needs (a
	// coordinator waits for each of its procs).
	pendingMax = 16384
	// crowdLeast is how many requests in a row tell that more callers are active. One may be of
	// somebody who asks again whenever something has changed, beside the one who changes things.
	crowdLeast = 2
	// flushWait is how long a caller that gave up waits for the server to say what became of its
	// request, unless FlushWithin says otherwise. A server that lives says so at once.
	flushWait = time.Second
)

// Client is the asking side of one session. Safe for concurrent use.
type Client struct {
	out        *Sender
	done       chan struct{} // closed when the reader has ended
	resettable bool          // the server may be replaced by another (DialSystem)
	redial     Redial        // set before use; nil = the session ends with its connection
	version    string        // set while nothing but its negotiation is under way
	several    atomic.Bool   // as version: a record may hold several messages
	begun      atomic.Bool   // Dial has succeeded
	flushWait  time.Duration // set before use

	// woken counts the callers that a record of several replies has woken and that do not run yet.
	// They are likely to ask for something next.
	woken atomic.Int32
	// waiters holds some whose channels are empty.
	waiters sync.Pool

	gate sync.RWMutex // held by who sends a large request; exclusively while the session begins anew

	mu      sync.Mutex
	conn    Conn               // mu; changes only while gate is held exclusively
	pending map[uint16]*waiter // mu; by tag
	nextTag uint16             // mu
	nextFid uint32             // mu
	freeFid []uint32           // mu
	broken  *sigma.Error       // mu; why no more requests can be made
	asked   int                // mu; requests that were put in line since a reply came
	resets                     // reset.go
}

// waiter is a request whose reply has not come.
type waiter struct {
	// with room for one; nil if nobody waits; used again by the next waiter only if its reply was
	// taken from it
	ch       chan reply
	age      *sigma.Age // what is told how old the reply is; nil = an old one is not wanted
	into     []byte     // where the data of an Rread is wanted; nil = in the message
	clunks   uint32     // the fid that is free when the reply comes; 0 = none
	flushes  *uint16    // the tag that is free when the reply comes, if this is a Tflush
	epoch    uint32     // of the handle it is about; anyEpoch
	resumes  bool       // it is one of those by which a session begins anew
	flushed  bool       // a Tflush for it is under way: the tag stays taken until that is answered (9P flush(5))
	answered bool       // and the reply has come
}

type reply struct {
	msg   sigmap.Message
	files []*os.File
	woken bool // it is counted in Client.woken
}

// encoded is room for a message.
var encoded = sync.Pool{New: func() any { b := make([]byte, 0, 256); return &b }}

// errAbandoned marks the error of a request whose fate the server did not tell in time.
var errAbandoned = errors.New("the server did not confirm the cancellation")

// Abandoned reports whether err is that of a request whose caller gave up and whose fate the server
// did not tell in time: it may have taken effect.
func Abandoned(err error) bool { return errors.Is(err, errAbandoned) }

// unsent marks the error of a request that was not sent: the server, or the one that it was for,
// had gone before.
type unsent struct{ err error }

func (u *unsent) Error() string {
	if u.err == nil {
		return "the request was not sent"
	}
	return u.err.Error()
}

func (u *unsent) Unwrap() error { return u.err }

// notSent is err, why a session or what was open ended, for a request that came later.
func notSent(err *sigma.Error) error {
	e := *err
	e.Err = &unsent{err.Err}
	return &e
}

// Unsent reports whether err is that of a request that was not sent, so that it has taken no
// effect.
func Unsent(err error) bool {
	var u *unsent
	return errors.As(err, &u)
}

// Dial negotiates the version over conn and starts the session. It owns conn from now on.
func Dial(ctx context.Context, conn Conn) (*Client, error) { return dial(ctx, conn, false, nil) }

func dial(ctx context.Context, conn Conn, resettable bool, redial Redial) (*Client, error) {
	c := &Client{conn: conn, flushWait: flushWait, out: NewSender(conn), done: make(chan struct{}),
		version: sigmap.VersionSigma, pending: map[uint16]*waiter{}, resettable: resettable, redial: redial,
		resets: newResets()}
	c.out.patience = sendMax
	go c.read()
	ok, err := c.speak(ctx, sigmap.VersionSeveral)
	if err == nil && !ok { // a server of the version before that says so
		ok, err = c.speak(ctx, sigmap.VersionSigma)
	}
	if err == nil && !ok {
		err = sigma.Errorf("session.Dial", sigma.KindUnsupported, "the server does not speak %s", sigmap.VersionSigma)
	}
	if err != nil {
		c.Close()
		return nil, sigma.Wrap("session.Dial", "", err)
	}
	c.begun.Store(true)
	return c, nil
}

// speak asks for a version. It is false if the server speaks none of ours then.
func (c *Client) speak(ctx context.Context, version string) (bool, error) {
	r, _, err := c.call(ctx, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: version}, nil, true, anyEpoch)
	if err != nil {
		return false, err
	}
	v, ok := r.(*sigmap.Rversion)
	if !ok {
		return false, unexpected(r)
	}
	several := v.Version == sigmap.VersionSeveral && version == v.Version
	if !several && v.Version != sigmap.VersionSigma || v.Msize < sigmap.MessageMax {
		return false, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version = v.Version
	c.several.Store(several)
	c.out.Several(several)
	return true, nil
}

// Close ends the session and waits for its goroutine. Requests in flight get KindLost.
func (c *Client) Close() {
	c.end()
	c.hangUp()
	<-c.done
}

// hangUp closes the connection that there is.
func (c *Client) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn.Close()
}

// FlushWithin sets how long callers whose context ended wait for the server to tell what became of
// their requests. Used by proxies: their own callers have given up and wait to learn whether the
// request took effect. Call it before the first request.
func (c *Client) FlushWithin(d time.Duration) { c.flushWait = d }

// Done is closed when the session has ended, for whatever reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Attach returns the root of the server's tree (name chooses among several, "" is the default).
func (c *Client) Attach(ctx context.Context, name string) (sigma.File, error) {
	r := newRemote(c, c.newFid(), c.Epoch(), sigma.FileID{})
	if c.lasts() {
		r.epoch = anyEpoch
	}
	m, err := ask[*sigmap.Rattach](ctx, r, &sigmap.Tattach{Fid: r.fid, Afid: sigmap.NoFid, Aname: name,
		NUname: sigmap.NoFid})
	if err != nil {
		c.unmade(r.fid, err)
		return nil, err
	}
	r.id = m.ID
	c.attachedAs(r.fid, name)
	return r, nil
}

// read dispatches replies until the connection ends, and the next if there is one.
func (c *Client) read() {
	var err error
	for conn := c.conn; conn != nil; { // nobody but this goroutine changes it
		for err = nil; err == nil; {
			var msg []byte
			var files []*os.File
			if msg, files, err = conn.Recv(); err == nil {
				err = c.dispatchAll(msg, files)
			}
		}
		conn.Close()
		conn, err = c.reconnect(err)
	}
	c.end()
	c.mu.Lock()
	c.broken = &sigma.Error{Op: "session.Client", Kind: sigma.KindLost, Msg: "the connection to the server is lost",
		Err: err}
	for _, w := range c.pending {
		if w.ch != nil {
			close(w.ch)
		}
	}
	c.pending = nil
	c.usableLocked()
	close(c.lost)
	c.mu.Unlock()
	close(c.done)
}

// dispatchAll takes a record.
func (c *Client) dispatchAll(record []byte, files []*os.File) error {
	if c.several.Load() && len(files) == 0 {
		if _, rest, err := sigmap.Cut(record); err == nil && len(rest) > 0 {
			return c.dispatchSeveral(record)
		}
	}
	return c.dispatch(record, files, false)
}

// dispatchSeveral gives each reply memory of its own, so that none keeps the whole record.
func (c *Client) dispatchSeveral(record []byte) error {
	for rest := record; len(rest) > 0; {
		var msg []byte
		var err error
		if msg, rest, err = sigmap.Cut(rest); err == nil {
			err = c.dispatch(bytes.Clone(msg), nil, true)
		}
		if err != nil {
			return err
		}
	}
	recycle(record)
	return nil
}

// dispatch takes one reply, which is one of several or not.
func (c *Client) dispatch(buf []byte, files []*os.File, several bool) error {
	tag, m, err := sigmap.Decode(buf)
	if err != nil {
		CloseFiles(files)
		return err
	}
	if r, ok := m.(*sigmap.Rreset); ok && c.resettable && tag == sigmap.NoTag {
		CloseFiles(files)
		return c.reset(r.Nonce)
	}
	c.mu.Lock()
	c.asked = 0
	w := c.pending[tag]
	if w != nil && w.answered {
		w = nil
	}
	if r, ok := m.(*sigmap.Rwith); ok {
		if m = r.Reply; w != nil && w.age != nil {
			w.age.Note(r.Age)
		} else {
			w = nil
		}
	}
	if w != nil && w.flushed {
		w.answered = true
	} else {
		delete(c.pending, tag)
	}
	if w != nil && w.flushes != nil {
		delete(c.pending, *w.flushes) // no reply to it will follow
	}
	if w != nil && w.clunks != 0 {
		c.freeFid = append(c.freeFid, w.clunks)
	}
	if w != nil && w.resumes {
		err = c.resumedLocked(m)
	}
	if w != nil && w.ch != nil {
		if r, ok := m.(*sigmap.Rread); ok && w.into != nil &&
			len(r.Data) <= len(w.into) { // here, where it is known that somebody waits
			r.Data = w.into[:copy(w.into, r.Data)]
			recycle(buf)
		}
		if several {
			c.woken.Add(1)
		}
		w.ch <- reply{m, files, several} // has room for the one; w is the caller's from here on
		files = nil
	}
	c.mu.Unlock()
	CloseFiles(files)
	if err != nil {
		return err
	}
	if w == nil {
		return sigma.Errorf("session.Client", sigma.KindInvalid, "the server answered a request that was not made")
	}
	return nil
}

// call sends m and waits for its reply. Passed files of the reply belong to the caller.
func (c *Client) call(ctx context.Context, m sigmap.Message, files []*os.File, version bool,
	epoch uint32) (sigmap.Message, []*os.File, error) {
	return c.callInto(ctx, m, nil, files, version, epoch)
}

// callInto is call that has the data of an Rread put where it is wanted. Nothing is written there
// after it has returned.
func (c *Client) callInto(ctx context.Context, m sigmap.Message, into []byte, files []*os.File, version bool,
	epoch uint32) (sigmap.Message, []*os.File, error) {
	w := c.newWaiter()
	w.into, w.epoch = into, epoch
	return c.exchange(ctx, w, m, files, version)
}

// newWaiter gives one that nobody uses.
func (c *Client) newWaiter() *waiter {
	if w, ok := c.waiters.Get().(*waiter); ok {
		return w
	}
	return &waiter{ch: make(chan reply, 1)}
}

// exchange sends m and waits for its reply as w says.
func (c *Client) exchange(ctx context.Context, w *waiter, m sigmap.Message, files []*os.File,
	version bool) (sigmap.Message, []*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, sigma.Wrap("session.call", "", err)
	}
	if !version {
		m = sigmap.With(ctx, m)
	}
	if with, ok := m.(*sigmap.Twith); ok && with.Stale {
		w.age = sigma.AgeOf(ctx)
	}
	tag, err := c.send(ctx, w, m, files, version)
	if err != nil {
		return nil, nil, err
	}
	select {
	case r, ok := <-w.ch:
		if ok { // the reader is done with it
			*w = waiter{ch: w.ch}
			c.waiters.Put(w)
		}
		return c.received(r, ok)
	case <-ctx.Done():
	}
	if version {
		return nil, nil, sigma.Wrap("session.call", "", ctx.Err())
	}
	return c.flush(ctx, tag, w)
}

func (c *Client) received(r reply, ok bool) (sigmap.Message, []*os.File, error) {
	c.runs(r)
	if !ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.broken == nil {
			return nil, nil, errReset()
		}
		return nil, nil, c.broken
	}
	if err := sigmap.Err(r.msg); err != nil {
		CloseFiles(r.files)
		return nil, nil, err
	}
	return r.msg, r.files, nil
}

// runs is called by who has taken a reply.
func (c *Client) runs(r reply) {
	if r.woken {
		c.woken.Add(-1)
	}
}

// flush takes back the request tag. A reply that comes before the flush's own is used after all:
// the request took effect. A server that answers neither is waited for only a little.
func (c *Client) flush(ctx context.Context, tag uint16, w *waiter) (sigmap.Message, []*os.File, error) {
	canceled := &sigma.Error{Op: "session.call", Kind: sigma.KindOf(ctx.Err()), Err: ctx.Err()}
	c.mu.Lock()
	w.flushed = c.pending[tag] == w
	c.mu.Unlock()
	if !w.flushed { // its reply came just now, or the session has ended
		r, ok := <-w.ch
		return c.taken(r, ok, canceled)
	}
	fw := &waiter{ch: make(chan reply, 1), flushes: &tag, epoch: w.epoch}
	if _, err := c.send(context.WithoutCancel(ctx), fw, &sigmap.Tflush{OldTag: tag}, nil, false); err != nil {
		c.abandon(w)
		c.unflush(tag, w)
		canceled.Err = errors.Join(ctx.Err(), errAbandoned)
		return nil, nil, canceled
	}
	patience := time.NewTimer(c.flushWait)
	defer patience.Stop()
	select {
	case r, ok := <-w.ch:
		c.abandon(fw)
		return c.taken(r, ok, canceled)
	case r := <-fw.ch:
		c.runs(r)
		select {
		case r, ok := <-w.ch: // both were there
			return c.taken(r, ok, canceled)
		default:
			return nil, nil, canceled
		}
	case <-patience.C:
		c.abandon(w)
		c.abandon(fw)
		canceled.Err = errors.Join(ctx.Err(), errAbandoned)
		return nil, nil, canceled
	}
}

// taken is received for a request that was taken back: if the server says so too, the caller's own
// reason is the better one.
func (c *Client) taken(r reply, ok bool, canceled *sigma.Error) (sigmap.Message, []*os.File, error) {
	m, files, err := c.received(r, ok)
	if e := (*sigma.Error)(nil); sigma.KindOf(err) == sigma.KindCanceled && errors.As(err, &e) {
		if e.Hint != "" { // the server says what it was waiting for
			canceled.Msg, canceled.Hint = e.Msg, e.Hint
		}
		err = canceled
	}
	return m, files, err
}

// unflush notes that w is not being flushed after all.
func (c *Client) unflush(tag uint16, w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w.flushed = false
	if w.answered {
		delete(c.pending, tag)
	}
}

// abandon leaves the reply of w to the reader.
func (c *Client) abandon(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case r := <-w.ch: // it came just now, or the session has ended
		c.runs(r)
		CloseFiles(r.files)
	default:
		w.ch = nil
	}
}

// send sends a request, or puts it in line to be sent with others. Its tag is in use from then on.
func (c *Client) send(ctx context.Context, w *waiter, m sigmap.Message, files []*os.File, version bool) (uint16,
	error) {
	room := encoded.Get().(*[]byte)
	buf, err := sigmap.Encode((*room)[:0], 0, m)
	if err != nil {
		return 0, err
	}
	if len(files) > 0 || len(buf) > SmallMax {
		return c.sendAlone(ctx, w, buf, files, version)
	}
	defer func() {
		*room = buf[:0]
		encoded.Put(room)
	}()
	if err := c.lockUsable(ctx, w.epoch); err != nil {
		return 0, err
	}
	tag, err := c.enterLocked(w, buf, version)
	others := c.asked >= crowdLeast || c.woken.Load() > 0
	if err == nil {
		c.out.Put(buf)
		c.asked++
	}
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if others { // who may be about to speak put their messages in line while this one has the turn
		c.out.FlushAfter(runtime.Gosched)
	} else {
		c.out.Flush()
	}
	return tag, nil // an error has closed the connection, of which everyone learns by the reader
}

// sendAlone is send for a request that is large or has files. It need not stand in line: nothing
// that may be there is about it.
func (c *Client) sendAlone(ctx context.Context, w *waiter, buf []byte, files []*os.File, version bool) (uint16, error) {
	for {
		c.gate.RLock()
		c.mu.Lock()
		if c.isUsable {
			break
		}
		c.mu.Unlock()
		c.gate.RUnlock()
		if err := c.lockUsable(ctx, anyEpoch); err != nil {
			return 0, err
		}
		c.mu.Unlock()
	}
	defer c.gate.RUnlock()
	var tag uint16
	err := c.currentLocked(w.epoch)
	if err == nil {
		tag, err = c.enterLocked(w, buf, version)
	}
	conn := c.conn
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	parcel, err := conn.Passing().Pack(files)
	if err == nil {
		err = sendIn(conn, buf, parcel, sendMax)
		parcel.Drop()
	}
	if err == nil {
		return tag, nil
	}
	if _, ok := err.(*sigma.Error); !ok { // the socket's: part of the message may have gone
		conn.Close()
		err = &sigma.Error{Op: "session.send", Kind: sigma.KindLost, Msg: "the connection to the server is lost",
			Err: err}
	}
	c.mu.Lock()
	delete(c.pending, tag)
	c.mu.Unlock()
	return 0, err
}

// enterLocked gives a request its tag.
func (c *Client) enterLocked(w *waiter, buf []byte, version bool) (tag uint16, err error) {
	if c.broken != nil {
		return 0, notSent(c.broken)
	}
	if len(c.pending) >= pendingMax {
		return 0, sigma.Errorf("session.send", sigma.KindBusy, "%d requests are in flight on one session", pendingMax)
	}
	tag = sigmap.NoTag
	if !version {
		tag = c.newTagLocked()
	}
	sigmap.SetTag(buf, tag)
	c.pending[tag] = w
	return tag, nil
}

func (c *Client) newTagLocked() uint16 {
	tag := c.nextTag
	for ; tag == sigmap.NoTag || c.pending[tag] != nil; tag++ {
	}
	c.nextTag = tag + 1
	return tag
}

func (c *Client) newFid() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.freeFid); n > 0 {
		fid := c.freeFid[n-1]
		c.freeFid = c.freeFid[:n-1]
		return fid
	}
	c.nextFid++
	return c.nextFid
}

// unmade gives back the number of a fid that the server did not make because of err. If the server
// may still make it, the number is not used again.
func (c *Client) unmade(fid uint32, err error) {
	if errors.Is(err, errAbandoned) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeFid = append(c.freeFid, fid)
}

// unexpected is the error for a reply of another type than the request's.
func unexpected(m sigmap.Message) error {
	return sigma.Errorf("session.Client", sigma.KindInvalid, "the server answered with an unexpected %s", m.Type())
}

// Epoch changes whenever the session has begun anew; files of another epoch cannot be used any
// more.
func (c *Client) Epoch() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// lockUsable takes mu, for a request about a handle of an epoch, when the session has begun.
func (c *Client) lockUsable(ctx context.Context, epoch uint32) error {
	for {
		c.mu.Lock()
		if err := c.currentLocked(epoch); err != nil {
			c.mu.Unlock()
			return err
		}
		if c.isUsable {
			return nil
		}
		usable := c.usable
		c.mu.Unlock()
		select {
		case <-usable: // also when the session ends
		case <-ctx.Done():
			return sigma.Wrap("session.call", "", ctx.Err())
		}
	}
}

func (c *Client) currentLocked(epoch uint32) error {
	if epoch != anyEpoch && epoch != c.epoch {
		return notSent(&sigma.Error{Op: "session.Client", Kind: sigma.KindLost,
			Msg: "sigmad died, and what was open with it", Hint: "open it again"})
	}
	return nil
}
