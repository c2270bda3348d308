package sdk

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
	"sigmaos.dev/wire/ring"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// A listener has a socket from sigmad on which each connection comes that somebody dialled, and for
// each proc that dials often a line, on which that proc says which of the connections that were
// made in advance begins (docs/adr/0029). Who accepts waits at all of them by one epoll, and takes
// from it himself what has come, so that no goroutine is between the kernel and him.

// drainMax is how long those who dialled before a listener was closed can be accepted. Who serves
// until Accept says net.ErrClosed, as net/http does, needs a moment; who does not accept any more
// should not let them wait.
const drainMax = 5 * time.Second

// lineMax is how long a listener that is closed hears lines of other machines to their end: what
// their procs said before they knew is under way.
const lineMax = time.Second

// heldMost bounds connections that are held for a proc of another machine. What it has said may be
// late, so there can be more of them than it has.
const heldMost = 4 * sigmap.PoolMost

// hearMost is how much of one line is heard before others have their turn: all that can have begun
// of what is held and of the next batch. The epoll tells of the rest again.
const hearMost = 2 * sigmap.PoolMost

// The next sigmad knows no listeners. Who accepts finds out that sigmad has died, and listens again
// at the same endpoint (docs/adr/0040): texts of it that are about stay good.

type listener struct {
	c        *Client
	endpoint sigma.Endpoint
	ctx      context.Context
	cancel   context.CancelFunc
	epoch    atomic.Uint32 // of the session in which the listener was made; written with turn

	wait *os.File        // the epoll; nil if sigmad gave no socket
	raw  syscall.RawConn // of it
	look func(uintptr) bool

	turn  chan struct{} // held by who accepts, for what follows
	ended bool          // turn; sigmad, which lives, has ended the listener
	queue []arrived     // turn; that has come and was not accepted
	sock  int           // turn; sigmad's socket; -1 = it has ended
	lines map[int]*line // turn; by descriptor
	pools map[uint64]*line
	oob   []byte      // turn
	buf   []byte      // turn
	late  atomic.Bool // lineMax has passed since the socket ended

	mu     sync.Mutex
	closed bool        // mu
	over   *time.Timer // mu; that ends the draining
}

// arrived is a connection that can be accepted, or was made in advance.
type arrived struct {
	files  []*os.File
	from   sigma.Principal
	ticket string
	far    bool // it was made in advance with another machine
}

func (a *arrived) close() { session.CloseFiles(a.files) }

// line is a proc's, with its connections that have not begun.
type line struct {
	fd    int
	pool  uint64
	ready map[uint64]arrived // by number
	far   bool               // it is a TCP connection
	part  []byte             // of one, that came of a number
}

// Listen implements sigma.Endpoints. The listener outlives sigmad while somebody accepts.
func (c *Client) Listen(ctx context.Context, form sigma.ConnForm) (sigma.Listener, error) {
	l := &listener{c: c, turn: make(chan struct{}, 1), sock: -1, lines: map[int]*line{}, pools: map[uint64]*line{}}
	l.endpoint.Form = form
	if err := l.listen(ctx); err != nil {
		return nil, err
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if l.wait != nil {
		context.AfterFunc(l.ctx, l.abandon)
	}
	return l, nil
}

// listen asks for a listener at a new endpoint, or again at the one that there is: once more if
// sigmad dies meanwhile.
func (l *listener) listen(ctx context.Context) error {
	pushed := l.endpoint.ID == "" || l.wait != nil
	for {
		epoch := l.c.session.Epoch()
		e, files, err := sigmap.CallListen.AskFiles(ctx, endpoints{l.c}, sigmap.ListenAsk{Form: l.endpoint.Form,
			Pushed: pushed, Again: l.endpoint.ID})
		switch kind := sigma.KindOf(err); {
		case err == nil:
		case kind == sigma.KindLost && l.c.session.Epoch() != epoch:
			continue
		case kind == sigma.KindExists && l.tell() == nil: // of a request whose answer was lost
			l.tell() // who waits there, too
			continue
		}
		if err == nil {
			l.endpoint = e
		}
		if err == nil && len(files) == 1 {
			err = l.watch(files[0])
		}
		session.CloseFiles(files)
		l.epoch.Store(epoch)
		return err
	}
}

// again is asked by who could not accept in a life of the listener. It reports whether there may be
// something to accept after all: what is under way to a listener that has ended, or what comes
// after the proc listens again with another sigmad. If the proc cannot listen again, err becomes
// why.
func (l *listener) again(life uint32, err *error) bool {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	switch {
	case l.epoch.Load() != life: // another goroutine listened again
		return true
	case l.ctx.Err() != nil || l.isClosed():
		return false
	case l.ended:
		return false
	case l.c.session.Epoch() == life:
		l.ended = true
		return true
	}
	l.dropAll()
	if lerr := l.listen(l.ctx); lerr != nil {
		*err = &sigma.Error{Op: "sdk.Accept", Kind: sigma.KindOf(lerr),
			Msg: "sigmad died, and the proc cannot listen at its endpoint again", Hint: sigma.HintOf(lerr), Err: lerr}
		return false
	}
	if l.isClosed() { // just now, when no sigmad knew it
		l.tell()
	}
	return true
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// watch begins to wait for what comes on the socket, of which it makes a duplicate that Go's own
// poller does not know.
func (l *listener) watch(socket *os.File) error {
	err := l.prepare()
	if err != nil {
		return err
	}
	fd, err := duplicate(socket)
	if err != nil {
		return sigma.Wrap("sdk.Listen", "", err)
	}
	if err := l.add(fd); err != nil {
		rawio.Close(fd)
		return sigma.Wrap("sdk.Listen", "", err)
	}
	l.sock = fd
	return nil
}

// prepare makes the epoll, once.
func (l *listener) prepare() error {
	const op = "sdk.Listen"
	if l.wait != nil {
		return nil
	}
	epoll, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return sigma.Wrap(op, "", os.NewSyscallError("epoll_create1", err))
	}
	rawio.SetNonblock(epoll) // so that os waits for it
	wait := os.NewFile(uintptr(epoll), "arrivals")
	if l.raw, err = wait.SyscallConn(); err != nil {
		wait.Close()
		return sigma.Wrap(op, "", err)
	}
	l.wait = wait
	l.look, l.oob, l.buf = l.onReady, make([]byte, syscall.CmsgSpace(4*session.FilesMax)),
		make([]byte, sigmap.ArrivalMax)
	return nil
}

// duplicate gives a descriptor that is the caller's to close.
func duplicate(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(from uintptr) {
		n, _, no := syscall.Syscall(syscall.SYS_FCNTL, from, syscall.F_DUPFD_CLOEXEC, 0)
		if fd = int(n); no != 0 {
			err = os.NewSyscallError("fcntl", no)
		}
	}); e != nil {
		err = e
	}
	return fd, err
}

// add has the epoll tell of a descriptor.
func (l *listener) add(fd int) (err error) {
	if e := l.raw.Control(func(epoll uintptr) {
		err = syscall.EpollCtl(int(epoll), syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN,
			Fd: int32(fd)})
	}); e != nil {
		return e
	}
	return os.NewSyscallError("epoll_ctl", err)
}

func (l *listener) Endpoint() sigma.Endpoint { return l.endpoint }
func (l *listener) Addr() net.Addr           { return EndpointAddr{l.endpoint} }

// Accept implements net.Listener. After Close it gives those who had dialled before, then
// net.ErrClosed, so that a server that shuts down leaves nobody without an answer.
func (l *listener) Accept() (net.Conn, error) {
	c, _, err := l.AcceptFrom(l.ctx)
	return c, err
}

func (l *listener) AcceptFrom(ctx context.Context) (net.Conn, sigma.Principal, error) {
	life := l.epoch.Load()
	a, err := l.arrival(ctx)
	for err != nil {
		if ctx.Err() != nil || !l.again(life, &err) {
			return nil, sigma.Principal{}, l.acceptError(ctx, err)
		}
		life = l.epoch.Load()
		a, err = l.arrival(ctx)
	}
	if a.far {
		c, err := l.c.farStream(a.files[0], ring.Accepted, EndpointAddr{l.endpoint}, CallerAddr{a.from})
		return c, a.from, err
	}
	c, err := l.c.streamOf(l.endpoint.Form, a.files, ring.Accepted, a.ticket, EndpointAddr{l.endpoint},
		CallerAddr{a.from})
	return c, a.from, err
}

// arrival waits for one on the listener's socket, or has sigmad answer if there is none; of a
// listener that has ended sigmad says why.
func (l *listener) arrival(ctx context.Context) (a arrived, err error) {
	if l.wait != nil {
		if a, err = l.next(ctx); err != errEnded {
			return a, err
		}
	}
	return l.ask(ctx)
}

// ask has sigmad answer when somebody dials.
func (l *listener) ask(ctx context.Context) (a arrived, err error) {
	got, files, err := sigmap.CallAccept.AskFiles(ctx, endpoints{l.c}, sigmap.AcceptAsk{ID: l.endpoint.ID, Rings: true})
	return arrived{files: files, from: got.From, ticket: got.Ticket}, err
}

// errEnded says that nothing comes on the listener's socket any more.
var errEnded = errors.New("the listener's socket has ended")

// next waits for an arrival.
func (l *listener) next(ctx context.Context) (a arrived, err error) {
	const op = "sdk.Accept"
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return a, sigma.Wrap(op, "", ctx.Err())
	}
	defer func() { <-l.turn }()
	if ctx != l.ctx {
		defer context.AfterFunc(ctx, func() { l.wait.SetReadDeadline(time.Now()) })()
	}
	for {
		switch {
		case len(l.queue) > 0:
			a, l.queue = l.queue[0], l.queue[1:]
			return a, nil
		case ctx.Err() != nil:
			return a, sigma.Wrap(op, "", ctx.Err())
		case l.sock < 0 && !l.ended && !l.isClosed(): // sigmad has died, perhaps
			return a, errEnded
		case l.sock < 0 && l.late.Load():
			l.dropAll()
			return a, errEnded
		case l.sock < 0 && len(l.lines) == 0:
			return a, errEnded
		}
		if err := l.raw.Read(l.look); errors.Is(err, os.ErrDeadlineExceeded) { // perhaps that of a call before
			l.wait.SetReadDeadline(time.Time{})
		} else if err != nil {
			return a, errEnded
		}
	}
}

// onReady takes what has come. It reports whether there is anything for next.
func (l *listener) onReady(epoll uintptr) bool {
	var events [16]syscall.EpollEvent
	for len(l.queue) == 0 && (l.sock >= 0 || len(l.lines) > 0) {
		n := rawio.EpollWait(int(epoll), events[:])
		if n == 0 {
			return false
		}
		for _, e := range events[:n] {
			if int(e.Fd) == l.sock {
				l.receive()
			} else if from := l.lines[int(e.Fd)]; from != nil {
				most := 1 // the epoll tells of the rest again, and no call finds nothing
				if from.far {
					most = hearMost // its line may end before that
				}
				l.hear(from, most)
			}
		}
	}
	return true
}

// receive takes one record from sigmad. It reports whether there was one.
func (l *listener) receive() bool {
	if l.sock < 0 {
		return false
	}
	n, oobn, flags, err := rawio.Recvmsg(l.sock, l.buf, l.oob)
	if err == syscall.EAGAIN {
		return false
	}
	files := passed(l.oob[:oobn])
	if err != nil || n == 0 {
		session.CloseFiles(files)
		l.end()
		return false
	}
	var a sigmap.Arrival
	if err := sigmap.Parse(l.buf[:n], func(c *sigmap.Coder) {
		c.Arrival(&a)
	}); err != nil || flags&(syscall.MSG_CTRUNC|syscall.MSG_TRUNC) != 0 { // this proc has no descriptors left
		if err != nil {
			a.Tickets = nil
		}
		lose(&a, files)
		l.c.discard(files, a.Tickets, true)
		return true
	}
	if a.Pool != 0 {
		l.keep(&a, files)
	} else if len(files) > 0 && len(a.Tickets) == 1 {
		l.queue = append(l.queue, arrived{files, a.From, a.Tickets[0], false})
	} else {
		l.c.discard(files, a.Tickets, false)
	}
	return true
}

// passed are the descriptors that came with a record.
func passed(oob []byte) (files []*os.File) {
	if len(oob) == 0 {
		return nil
	}
	cmsgs, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range cmsgs {
		fds, _ := syscall.ParseUnixRights(&cmsgs[i])
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "connection"))
		}
	}
	return files
}

// lose ends the line that came with a, which this proc cannot keep: of one to another machine
// sigmad has a duplicate, so that closing it does not.
func lose(a *sigmap.Arrival, files []*os.File) {
	if !a.Line || len(files) == 0 {
		return
	}
	if raw, err := files[0].SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
}

// keep holds connections that were made in advance, each until its dialler says that it begins.
func (l *listener) keep(a *sigmap.Arrival, files []*os.File) {
	of := l.pools[a.Pool]
	if a.Line && len(files) > 0 && of == nil {
		fd, err := duplicate(files[0])
		if err == nil {
			err = rawio.SetNonblock(fd) // it is read so
		}
		if err == nil {
			err = l.add(fd)
		}
		if err == nil {
			of = &line{fd: fd, pool: a.Pool, ready: map[uint64]arrived{}, far: a.From.Machine != l.endpoint.Machine}
			l.lines[fd], l.pools[a.Pool] = of, of
		} else {
			lose(a, files)
			if fd >= 0 {
				rawio.Close(fd)
			}
		}
		files[0].Close()
		files = files[1:]
	}
	n := len(a.Tickets)
	if of == nil || len(files) != n && len(files) != 2*n {
		l.c.discard(files, a.Tickets, false)
		l.drop(of)
		return
	}
	for i := range n {
		one := arrived{files[i : i+1 : i+1], a.From, a.Tickets[i], of.far}
		if len(files) > n { // their memory is behind the sockets
			one.files = append(one.files, files[n+i])
		}
		if _, is := of.ready[a.First+uint64(i)]; is { // its dialler may have begun that one
			l.refuse(one)
			continue
		}
		of.ready[a.First+uint64(i)] = one
	}
	most := sigmap.PoolMost
	if of.far {
		most = heldMost
	}
	if len(of.ready) > most { // what has begun meanwhile is still on the line, perhaps some of these
		l.hear(of, hearMost)
		if len(of.ready) > most { // who dials keeps no count: it dials as others do
			l.drop(of)
		}
	}
}

// hear takes what a line says: up to its end, or most numbers.
func (l *listener) hear(from *line, most int) {
	for range most {
		at, err := from.number()
		if err == syscall.EAGAIN {
			return
		}
		if err != nil {
			l.drop(from)
			return
		}
		a, known := from.ready[at]
		for !known && l.receive() { // sigmad gave it to us before its dialler
			a, known = from.ready[at]
		}
		if l.lines[from.fd] != from {
			return
		}
		if known {
			delete(from.ready, at)
			l.queue = append(l.queue, a)
		}
	}
}

// number reads the next one that a line says: EAGAIN if there is none, io.EOF at its end or if it
// is none.
func (of *line) number() (uint64, error) {
	var b [8]byte
	had := copy(b[:], of.part)
	n, err := rawio.Read(of.fd, b[had:])
	switch {
	case err != nil:
		return 0, err
	case had+n < len(b):
		if !of.far || n == 0 {
			return 0, io.EOF
		}
		of.part = append(of.part, b[had:had+n]...)
		return 0, syscall.EAGAIN // the epoll tells of the rest
	}
	of.part = of.part[:0]
	return binary.LittleEndian.Uint64(b[:]), nil
}

// drop ends a line, and what has not begun.
func (l *listener) drop(of *line) {
	if of == nil || l.lines[of.fd] != of {
		return
	}
	delete(l.lines, of.fd)
	delete(l.pools, of.pool)
	if of.far {
		syscall.Shutdown(of.fd,
			syscall.SHUT_RDWR) // sigmad has it, too; so closing it does not take it out of the epoll
		l.raw.Control(func(epoll uintptr) { syscall.EpollCtl(int(epoll), syscall.EPOLL_CTL_DEL, of.fd, nil) })
	}
	rawio.Close(of.fd) // which takes it out of the epoll
	for _, a := range of.ready {
		l.refuse(a)
	}
}

// end notes that nothing comes from sigmad any more. What had begun by then is still accepted:
// sigmad has ended the lines before, of those to other machines our direction. These are heard
// until the dialler has ended the other, for lineMax at most.
func (l *listener) end() {
	if l.sock < 0 {
		return
	}
	rawio.Close(l.sock)
	l.sock = -1
	for _, of := range l.lines {
		if of.far {
			syscall.Shutdown(of.fd, syscall.SHUT_WR)
			continue
		}
		l.hear(of, math.MaxInt)
		l.drop(of)
	}
	l.late.Store(false)
	if life := l.epoch.Load(); len(l.lines) > 0 {
		time.AfterFunc(lineMax, func() {
			if l.epoch.Load() == life {
				l.late.Store(true)
				l.wait.SetReadDeadline(time.Now())
			}
		})
	}
}

// dropAll ends what there still is, after what has been said.
func (l *listener) dropAll() {
	for _, of := range l.lines {
		l.hear(of, hearMost)
		l.drop(of)
	}
}

// abandon sends everybody away.
func (l *listener) abandon() {
	l.wait.Close() // whoever waits there leaves
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	l.end()
	l.dropAll()
	for _, a := range l.queue {
		l.refuse(a)
	}
	l.queue = nil
}

// refuse closes what nobody accepts any more.
func (l *listener) refuse(a arrived) {
	a.close()
	if len(a.files) > 1 {
		l.c.releaseRing([]byte(a.ticket))
	}
}

// acceptError makes the error of a listener that is closed what net/http and others expect.
func (l *listener) acceptError(ctx context.Context, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed || ctx != l.ctx && ctx.Err() != nil {
		return err
	}
	if l.over != nil {
		l.over.Stop()
	}
	l.cancel()
	return &sigma.Error{Op: "sdk.Accept", Kind: sigma.KindUnavailable, Msg: "the listener is closed",
		Err: net.ErrClosed}
}

// Close implements net.Listener. It can be called again.
func (l *listener) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if again {
		return nil
	}
	err := l.tell()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil { // sigmad has forgotten it, or is gone
		l.cancel()
		if l.c.session.Epoch() != l.epoch.Load() { // with it the listener
			return nil
		}
		return err
	}
	l.over = time.AfterFunc(drainMax, func() {
		l.tell()
		l.cancel()
	})
	return nil
}

// tell has sigmad close the listener, or if it is closed already send those away who wait.
func (l *listener) tell() error {
	return sigmap.CallClose.Tell(context.Background(), endpoints{l.c}, l.endpoint.ID)
}
