package treeserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Limits of one session. A request in flight costs a goroutine (about 4 KiB) and its message; a
// proc that waits for thousands of others needs that many. Requests that carry or ask for much data
// cost up to 192 KiB (message, answer, encoded answer) and end soon, so fewer of them do.
const (
	RequestsMax = 4096
	FidsMax     = 65536
	bulkMax     = 128     // requests in flight of more than bulkSize
	bulkSize    = 8 << 10 // bytes
	unsentMax   = 64      // answers that wait for a client to read others
	// Bytes of such answers. Requests that ask for much are few by bulkMax, and hold 8 MiB of
	// answers at most; what a call will be answered nobody knows before, so calls are bounded by
	// their answers: what exceeds this becomes an error of a few bytes.
	unreadMax = 16 << 20
)

// tauth is the type of the message by which a 9P2000.L client begins to authenticate. Who is served
// was decided before, by the socket; an error without an errno tells such a client (diod's) to
// attach without.
const tauth = 102

// Config says what to serve to whom.
type Config struct {
	Tree      sigma.Tree
	Principal sigma.Principal // who is at the other end
	Events    Events
	Reset     bool // the connection was that of a server that died: the client must begin anew
	// Fences refuse requests of deposed leaders. All sessions by which one realm reaches the tree
	// share them. nil: the tree looks after fences itself, or has none.
	Fences  *fence.Table
	Handles Handles // counts the session's handles with those of others; nil = they are bounded by FidsMax alone
	// BulkTicket has serve called with the stream of whoever shows the ticket, unless ctx ends
	// before. It is for sessions that pass no sockets; nil: they do.
	BulkTicket func(ctx context.Context, serve func(net.Conn)) (ticket []byte, err error)
	KeepFiles  bool   // whether file descriptors that come with calls are handed to Callers (else closed)
	Turns      *Turns // shares out the server's work among realms, and counts it; nil: nobody does
	Requests   int    // in flight at most; 0 = RequestsMax
	// the client is a System principal that asks for the realms to whose names it attaches; else
	// all that it asks is its own realm's
	ForRealms bool
}

// Handles counts the handles of several sessions. Safe for concurrent use.
type Handles interface {
	// Take is called before there is one more, unless it returns an error.
	Take() error
	// Give is called when n are gone.
	Give(n int)
}

// Events are called, where set, as things happen; none may block. They stand in place of a logger,
// because the standard one would cost every proc that serves a tree part of its start.
type Events struct {
	// Panicked: a tree's method did, which is a bug. The request was answered with an error.
	Panicked func(op string, value any, stack []byte)
	// Failed: a request was answered with KindOther, whose cause does not travel.
	Failed func(op string, err error)
	// Numbered: the first mutation with a number of this client came (sigma.Once), or one after
	// another client's.
	Numbered func(client uint64)
}

// Serve answers requests on conn until the peer closes, breaks the protocol, or ctx ends. It
// returns an error only when the peer broke the protocol. It owns conn.
func Serve(ctx context.Context, conn session.Conn, cfg Config) error {
	ctx, cancel := context.WithCancel(ctx)
	if cfg.Requests <= 0 || cfg.Requests > RequestsMax {
		cfg.Requests = RequestsMax
	}
	s := &server{cfg: cfg, conn: conn, out: session.NewSender(conn), requests: map[uint16]*request{},
		fids: map[uint32]*fid{}, bulk: make(chan struct{}, bulkMax), over: ctx.Done(), ctx: ctx}
	if cfg.Turns != nil {
		s.join(cfg.Principal.Realm)
		defer s.leave()
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := s.reset()
	if err == nil {
		err = s.loop(ctx)
	}
	if ctx.Err() != nil || session.Ended(err) {
		err = nil
	}
	cancel()
	stop()
	conn.Close()
	s.handlers.Wait()
	s.mu.Lock() // who began a stream has counted it
	s.mu.Unlock()
	s.streams.Wait()
	for _, f := range s.fids {
		f.file.Close()
	}
	s.gone(len(s.fids))
	return err
}

type server struct {
	cfg      Config
	conn     session.Conn
	out      *session.Sender
	client   uint64 // that numbered last; of loop only
	plain    bool   // the dialect; set by Tversion, when no other request is in flight
	ready    bool   // as plain
	dataMax  uint32 // as plain; bytes of data in one answer
	handlers sync.WaitGroup
	bulk     chan struct{}
	over     <-chan struct{} // closed when the session is ended by this side
	unsent   atomic.Int32    // large answers that are being sent or wait for their turn
	unread   atomic.Int64    // as unsent; their bytes
	waits    atomic.Int32    // requests that wait for events, where they are counted for realms
	several  bool            // of loop only; records may hold several messages
	pace     pace
	streams  sync.WaitGroup  // of package bulk
	ctx      context.Context // of the session; ends them
	spare    *request        // of loop only; the next request's, if not nil
	sample   uint64          // of loop only; requests since one was measured

	mu       sync.Mutex
	bulks    int                 // mu; streams
	requests map[uint16]*request // mu
	fids     map[uint32]*fid     // mu

	own    *account                  // of the principal's realm; nil = nobody counts; not changed
	shared map[sigma.RealmID]*asking // mu; others for which is asked
}

// request is one that is being worked on, or a Tflush that waits for one.
type request struct {
	turn    turn
	of      *asking // as of a fid
	sampled bool    // what it costs is measured
	prompt  bool    // it is answered without waiting
	cancel  context.CancelFunc
	flushes []uint16 // server.mu; tags of the Tflushes to answer after it
}

// fid is a client's handle. uses counts handlers that work with it, and one for the table; the file
// closes when it is zero.
type fid struct {
	file sigma.File
	uses int     // server.mu
	of   *asking // for whom it is, if not for the session's own realm; not changed

	bulks   sync.WaitGroup     // its streams
	bulkCtx context.Context    // server.mu; of them
	end     context.CancelFunc // server.mu; of bulkCtx; nil = there was none
	ended   bool               // server.mu; there will be no more

	mu   sync.RWMutex    // Open against the rest
	open bool            // mu
	dir  bool            // mu
	mode sigma.OpenFlags // mu
	text []byte          // mu; what reading an open endpoint gives

	fence sigma.Fence // mu; what it was opened for writing under, and so is published under
}

// reset tells the client of a connection that has been taken over to begin anew, and drops
// everything that it sent before it did.
func (s *server) reset() error {
	if !s.cfg.Reset {
		return nil
	}
	var nonce [8]byte
	rand.Read(nonce[:])
	m := &sigmap.Rreset{Nonce: binary.LittleEndian.Uint64(nonce[:])}
	buf, err := sigmap.Encode(nil, sigmap.NoTag, m)
	if err == nil {
		err = s.conn.Send(buf, nil)
	}
	for err == nil {
		var buf []byte
		var files []*os.File
		if buf, files, err = s.conn.Recv(); err != nil {
			break
		}
		session.CloseFiles(files)
		tag, m2, derr := sigmap.Decode(buf)
		v, ok := m2.(*sigmap.Tversion)
		for _, version := range []string{sigmap.VersionSeveral, sigmap.VersionSigma} {
			if ok && derr == nil && v.Version == sigmap.ResetVersion(version, m.Nonce) {
				return s.version(tag, &sigmap.Tversion{Msize: v.Msize, Version: version})
			}
		}
	}
	return err
}

func (s *server) loop(ctx context.Context) error {
	defer s.out.Flush()
	for {
		record, files, err := session.RecvBut(s.conn, s.idle)
		if err != nil {
			return err
		}
		for rest, more := record, true; more; more = len(rest) > 0 {
			msg := rest
			if rest = nil; s.several && len(files) == 0 {
				if msg, rest, err = sigmap.Cut(msg); err != nil {
					return err
				}
			}
			s.pace.more()
			if err := s.take(ctx, msg, files); err != nil {
				return err
			}
		}
		if !s.pace.crowds.Load() {
			if err := s.out.Flush(); err != nil {
				return err
			}
		}
	}
}

// idle is called before the loop waits.
func (s *server) idle() {
	s.pace.end()
	s.out.Flush()
}

// pace tells whether requests come one at a time. Those are answered at once. When several came
// since the loop waited last, their answers are likely to come together too: those of the loop
// stand in line until nothing more is there to be received, and handlers let others that have ended
// speak before they send. Two are not several: one may be of a client that asks again whenever
// something has changed.
type pace struct {
	count  int         // requests since the loop waited last; of loop only
	last   int         // and before that; of loop only
	crowds atomic.Bool // one of them is several
}

const crowdLeast = 3

func (p *pace) more() {
	if p.count++; p.count >= crowdLeast {
		p.crowds.Store(true)
	}
}

func (p *pace) end() {
	if p.count, p.last = 0, p.count; p.last < crowdLeast {
		p.crowds.Store(false)
	}
}

// take begins one request.
func (s *server) take(ctx context.Context, msg []byte, files []*os.File) error {
	if s.crowded() { // a client that does not read is not read
		s.out.Flush()
		s.out.AwaitTurn()
	}
	tag, m, err := sigmap.Decode(msg)
	with := ctx
	if w, ok := m.(*sigmap.Twith); ok && err == nil && s.ready {
		if s.plain {
			err = Unsupported("with")
		}
		with, m = w.Context(ctx), w.Request
		if c := w.Once.Client; c != 0 && c != s.client && s.cfg.Events.Numbered != nil {
			s.client = c
			s.cfg.Events.Numbered(c)
		}
	}
	if _, ok := m.(*sigmap.Tcall); !ok || err != nil || !s.cfg.KeepFiles {
		session.CloseFiles(files)
		files = nil
	}
	if err == nil {
		err = s.begin(with, with == ctx, tag, m, files, len(msg))
	} else if sigma.KindOf(err) == sigma.KindUnsupported && !s.taken(tag) {
		answer := sigmap.Fail(err, s.plain) // a message of a later version; the framing is intact
		if s.plain && msg[4] == tauth {
			answer = &sigmap.Rlerror{}
		}
		err = s.reply(tag, answer)
	}
	if err != nil {
		session.CloseFiles(files)
	}
	return err
}

// crowded says that the client leaves much unread, or that much waits to be sent together.
func (s *server) crowded() bool {
	messages, bytes := s.out.Waiting()
	return int(s.unsent.Load())+messages > unsentMax || s.unread.Load()+int64(bytes) > unreadMax/2
}

// begin starts the handler of one request; alone says that it carries nothing. An error ends the
// session.
func (s *server) begin(ctx context.Context, alone bool, tag uint16, m sigmap.Message, files []*os.File,
	size int) error {
	if v, ok := m.(*sigmap.Tversion); ok {
		return s.version(tag, v)
	}
	if !s.ready {
		return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "a session starts with Tversion")
	}
	if s.taken(tag) {
		return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "tag %d is in use", tag)
	}
	if f, ok := m.(*sigmap.Tflush); ok {
		return s.flush(tag, f.OldTag)
	}
	busy := s.full(m)
	if _, ok := m.(*sigmap.Tclunk); busy && !ok {
		session.CloseFiles(files)
		return s.reply(tag, sigmap.Fail(sigma.Errorf("treeserver.Serve", sigma.KindBusy,
			"%d requests are in flight on one session", s.cfg.Requests), s.plain))
	}
	r, wait, err := s.enter(m, size)
	if err != nil {
		session.CloseFiles(files)
		return s.reply(tag, sigmap.Fail(err, s.plain))
	}
	if wait && !s.cfg.ForRealms { // who floods is not read meanwhile
		s.out.Flush()
		select {
		case <-r.turn.ready:
			wait = false
		case <-ctx.Done():
			s.exit(r)
			return ctx.Err()
		}
	}
	if alone && !wait {
		if done, err := s.recalled(tag, m, r, size); done {
			return err
		}
	}
	release := func() {}
	if size > bulkSize || answerSize(m) > bulkSize {
		s.out.Flush() // before it may have to wait
		select {
		case s.bulk <- struct{}{}:
			release = func() { <-s.bulk }
		case <-ctx.Done():
			s.exit(r)
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	r.cancel, s.spare = cancel, nil
	s.mu.Lock()
	s.requests[tag] = r
	s.mu.Unlock()
	if alone && !wait && size <= bulkSize && r.prompt {
		defer cancel()
		s.handle(ctx, tag, m, files, r, size)
		return nil
	}
	s.handlers.Go(func() {
		defer release()
		defer cancel()
		if wait {
			select {
			case <-r.turn.ready:
			case <-ctx.Done(): // the handler finds that out
			}
		}
		s.handle(ctx, tag, m, files, r, size)
	})
	return nil
}

// full says that the session takes no more requests like m. In one that sigmad has for realms those
// that wait for events have room of their own, so that they do not keep out the others.
func (s *server) full(m sigmap.Message) bool {
	s.mu.Lock()
	n := len(s.requests)
	s.mu.Unlock()
	waits := int(s.waits.Load())
	switch {
	case !s.cfg.ForRealms, s.own == nil:
	case waitsForEvent(m):
		n = waits
	default:
		n -= waits
	}
	return n >= s.cfg.Requests
}

func (s *server) taken(tag uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[tag] != nil || tag == sigmap.NoTag
}

// answerSize is how much data m asks for.
func answerSize(m sigmap.Message) uint32 {
	switch m := m.(type) {
	case *sigmap.Tread:
		return m.Count
	case *sigmap.Treaddir:
		return m.Count
	case *sigmap.Tget:
		return m.Count
	case *sigmap.Treadif:
		return m.Count
	case *sigmap.Tlist:
		return sigmap.DataMax
	}
	return 0
}

// version starts a session. It may come again as long as nothing else has, so that a client can try
// several versions.
func (s *server) version(tag uint16, v *sigmap.Tversion) error {
	s.mu.Lock()
	busy := len(s.requests) + len(s.fids)
	s.mu.Unlock()
	if s.ready && busy > 0 {
		return sigma.Errorf("treeserver.Serve", sigma.KindUnsupported, "Tversion within a session")
	}
	if v.Msize < 8<<10 {
		return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "msize %d is less than 8192", v.Msize)
	}
	s.out.Flush()
	s.handlers.Wait() // the last ones may still be reading what is set here
	s.several = v.Version == sigmap.VersionSeveral
	s.out.Several(s.several)
	r := &sigmap.Rversion{Msize: min(v.Msize, sigmap.MessageMax), Version: "unknown"}
	s.dataMax = r.Msize - sigmap.HeaderRoom
	switch {
	case s.several, v.Version == sigmap.VersionSigma:
		r.Version, s.plain, s.ready = v.Version, false, true
	case v.Version == sigmap.VersionPlain ||
		strings.HasPrefix(v.Version, sigmap.VersionPlain+"."): // what is before a dot is a version too (9P version(5))
		r.Version, s.plain, s.ready = sigmap.VersionPlain, true, true
	}
	return s.reply(tag, r)
}

// handle runs one request to its reply. A panic in a tree is a bug of ours: it is logged and
// answered, because one tenant's request must not end the others' sessions.
func (s *server) handle(ctx context.Context, tag uint16, m sigmap.Message, files []*os.File, r *request, size int) {
	began := s.measure(r)
	var back []*os.File
	reply, cutOff := sigmap.Message(nil), false
	func() {
		defer func() {
			if p := recover(); p != nil {
				if f := s.cfg.Events.Panicked; f != nil {
					f(m.Type().String(), p, debug.Stack())
				}
				reply = sigmap.Fail(sigma.Errorf("treeserver.Serve", sigma.KindOther, "internal error"), s.plain)
			}
		}()
		var err error
		if reply, back, err = s.fenced(ctx, m, files); err != nil {
			session.CloseFiles(back)
			back = nil
			reply, cutOff = sigmap.Fail(err, s.plain), sigma.KindOf(err) == sigma.KindCanceled && s.isOver()
			if f := s.cfg.Events.Failed; f != nil && sigma.KindOf(err) == sigma.KindOther {
				f(m.Type().String(), err)
			}
		}
	}()
	if cutOff {
		// it was this side that gave up: the client must not take that for its own doing, and finds
		// that the connection is lost
		s.done(r, m.Type(), size, 0, began)
		s.conn.Close()
		return
	}
	answer := reply
	if age := sigma.AgeOf(ctx); age != nil && age.Most() > 0 {
		answer = &sigmap.Rwith{Age: age.Most(), Reply: reply}
	}
	reply = nil // while the encoded answer waits for the client, this must not be kept too
	sent, err := s.answer(tag, answer, back)
	switch {
	case err != nil:
	case s.pace.crowds.Load():
		err = s.out.FlushAfter(runtime.Gosched)
	default:
		err = s.out.Flush()
	}
	if err != nil {
		s.conn.Close()
	}
	session.CloseFiles(back)
	s.done(r, m.Type(), size, sent, began)
}

func (s *server) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// reply answers tag, frees it, and answers the flushes that wait for it. A flush must not overtake
// the answer of what it flushes, nor may a client that has an answer find the tag still taken; so
// all this is done under one lock: that of the line, or the turn of who sends a large answer. What
// is in line is sent by whoever calls Flush next.
func (s *server) reply(tag uint16, m sigmap.Message) error {
	_, err := s.answer(tag, m, nil)
	return err
}

// answer sends a reply together with descriptors, and returns its size in bytes.
func (s *server) answer(tag uint16, m sigmap.Message, files []*os.File) (int, error) {
	data := m
	if w, ok := m.(*sigmap.Rwith); ok {
		data = w.Reply
	}
	room, large := encoded.Get().(*[]byte), false
	switch r := data.(type) {
	case *readReply:
		large = true
		defer readBuffers.Put(r.room)
	case *sigmap.Rget:
		large = len(r.Data) >= largeRead
	}
	to := (*room)[:0]
	if large {
		b := sendBuffers.Get().(*[sigmap.MessageMax]byte)
		defer sendBuffers.Put(b)
		to = b[:0]
	}
	buf, err := sigmap.Encode(to, tag, m)
	var parcel *inflight.Parcel
	if err == nil { // before it waits for its turn, so that what waits is bounded, too
		parcel, err = s.conn.Passing().Pack(files)
		defer func() { parcel.Drop() }()
	}
	if err != nil { // our own reply does not fit, or the files: the client still gets an answer
		if buf, err = sigmap.Encode(nil, tag, sigmap.Fail(err, s.plain)); err != nil {
			return 0, err
		}
	}
	n := int64(len(buf))
	if _, waiting := s.out.Waiting(); s.unread.Add(n)+int64(waiting) > unreadMax {
		parcel.Drop() // whoever gave the files closes them
		parcel = nil
		if buf, err = sigmap.Encode(nil, tag,
			sigmap.Fail(sigma.Errorf("treeserver.Serve", sigma.KindLost,
				"answers of more than %d MiB are not read on this session", unreadMax>>20), s.plain)); err != nil {
			s.unread.Add(-n)
			return 0, err
		}
		s.unread.Add(int64(len(buf)) - n)
		n = int64(len(buf))
	}
	defer s.unread.Add(-n)
	if parcel != nil || n > session.SmallMax {
		return int(n), s.replyAlone(tag, buf, parcel)
	}
	s.mu.Lock()
	waiting := s.freeLocked(tag)
	s.out.Put(buf)
	s.flushedLocked(waiting)
	s.mu.Unlock()
	*room = buf[:0]
	encoded.Put(room)
	return int(n), nil
}

// replyAlone is reply for what goes by itself. Who sends it waits until it is sent, so that its
// memory is bounded by how many do.
func (s *server) replyAlone(tag uint16, buf []byte, files *inflight.Parcel) error {
	s.unsent.Add(1)
	defer s.unsent.Add(-1)
	return s.out.Alone(func() error {
		s.mu.Lock()
		waiting := s.freeLocked(tag)
		s.mu.Unlock()
		err := s.conn.Send(buf, files)
		if files != nil && sigma.KindOf(err) == sigma.KindBusy { // the kernel takes none now
			if buf, err = sigmap.Encode(nil, tag, sigmap.Fail(sigma.Wrap("treeserver.Serve", "", err),
				s.plain)); err == nil {
				err = s.conn.Send(buf, nil)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flushedLocked(waiting)
		return err
	})
}

// flushedLocked answers flushes, and those of them.
func (s *server) flushedLocked(waiting []uint16) {
	for len(waiting) > 0 {
		tag := waiting[0]
		waiting = append(waiting[1:], s.freeLocked(tag)...)
		if buf, err := sigmap.Encode(nil, tag, &sigmap.Rflush{}); err == nil {
			s.out.Put(buf)
		}
	}
}

// freeLocked forgets tag and returns the tags of the flushes that wait for it.
func (s *server) freeLocked(tag uint16) []uint16 {
	r := s.requests[tag]
	if r == nil {
		return nil
	}
	delete(s.requests, tag)
	return r.flushes
}

// flush cancels the request old and has the flush answered after it; at once if there is no such
// request (any more).
func (s *server) flush(tag, old uint16) error {
	s.mu.Lock()
	r := s.requests[old]
	if r != nil {
		r.flushes = append(r.flushes, tag)
		s.requests[tag] = &request{cancel: func() {}}
	}
	s.mu.Unlock()
	if r == nil {
		return s.reply(tag, &sigmap.Rflush{})
	}
	r.cancel()
	return nil
}

// get finds a fid and counts the use; put ends it.
func (s *server) get(n uint32) (*fid, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fids[n]
	if f == nil {
		return nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "fid %d is not in use", n)
	}
	f.uses++
	return f, nil
}

func (s *server) put(f *fid) {
	s.mu.Lock()
	f.uses--
	last := f.uses == 0
	s.mu.Unlock()
	if last {
		f.file.Close()
	}
}

// add enters a file under a new fid; the file is closed if that fails.
func (s *server) add(n uint32, file sigma.File, of *asking) error {
	if s.cfg.Handles != nil {
		if err := s.cfg.Handles.Take(); err != nil {
			file.Close()
			return err
		}
	}
	s.mu.Lock()
	_, dup := s.fids[n]
	full := len(s.fids) >= FidsMax
	if !dup && !full && n != sigmap.NoFid {
		s.fids[n] = &fid{file: file, uses: 1, of: of}
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	s.gone(1)
	file.Close()
	if full {
		return sigma.Errorf("treeserver.Serve", sigma.KindBusy, "more than %d files are open in one session", FidsMax)
	}
	return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "fid %d is in use", n)
}

// gone tells who counts handles that there are n less.
func (s *server) gone(n int) {
	if s.cfg.Handles != nil && n > 0 {
		s.cfg.Handles.Give(n)
	}
}

// replace makes by what fid n is, if it is f still. Who works with f goes on doing so.
func (s *server) replace(n uint32, f, by *fid) error {
	s.mu.Lock()
	same := s.fids[n] == f
	if same {
		s.fids[n] = by
	}
	s.mu.Unlock()
	if !same {
		by.file.Close()
		return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "fid %d was changed meanwhile", n)
	}
	s.put(f)
	return nil
}

// clunk forgets a fid. If the client asks for that, what it wrote is published, and the error is of
// that; the fid is gone all the same.
func (s *server) clunk(ctx context.Context, n uint32, publish bool) error {
	s.mu.Lock()
	f := s.fids[n]
	delete(s.fids, n)
	s.mu.Unlock()
	if f == nil {
		return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "fid %d is not in use", n)
	}
	s.gone(1)
	s.endBulk(f)
	defer s.put(f)
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !publish || !f.open || !f.mode.Writes() {
		return nil
	}
	if f.fence.Name != "" {
		ctx = sigma.WithFence(ctx, f.fence)
	}
	ctx, leave, err := s.cfg.Fences.Enter(ctx, f.fence)
	if err != nil {
		return err
	}
	defer leave(nil)
	_, err = f.do(ctx, sigma.Request{Op: sigma.OpPublish})
	return err
}

// fenced carries out one request, unless its leader has been deposed.
func (s *server) fenced(ctx context.Context, m sigmap.Message, files []*os.File) (reply sigmap.Message, back []*os.File,
	err error) {
	f := sigma.FenceOf(ctx)
	if _, ok := m.(*sigmap.Tclunk); ok || f.Name == "" ||
		s.cfg.Fences == nil { // a clunk is under the fence of what it publishes
		return s.do(ctx, m, files)
	}
	ctx, leave, err := s.cfg.Fences.Enter(ctx, f)
	if err != nil {
		session.CloseFiles(files)
		return nil, nil, err
	}
	left := false
	defer func() {
		if !left { // a panic
			leave(nil)
		}
	}()
	reply, back, err = s.do(ctx, m, files)
	left = true
	return reply, back, leave(err)
}
