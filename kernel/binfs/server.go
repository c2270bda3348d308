package binfs

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
)

const (
	rootNode    = 1
	errProtocol = int32(syscall.EPROTO)

	// patience is how long a READ goes on after the kernel said that who waits for it has a signal.
	// Any signal does that, not only one that kills: a system call that is passed memory of the
	// program, and has no other chance to get its page, fails with EFAULT if the READ is given up.
	// So that is for those who would wait long, and could not be killed meanwhile.
	patience = time.Second
)

// nodes are what a server shows: one flat directory.
type nodes interface {
	// lookup finds a file by name; each success adds one to what forget takes away.
	lookup(name string) (node uint64, size int64, ok bool)
	size(node uint64) (size int64, ok bool)
	forget(node, lookups uint64)
	// began says that the connection is new: the kernel knows no node.
	began()
	// read fills p from offset; fewer bytes only at the end. It may wait until ctx ends.
	read(ctx context.Context, node uint64, p []byte, offset int64) (int, error)
}

// server answers the kernel on one FUSE connection. The connection outlives it: another server, in
// this process or the next, takes up where it left off (launcher-protocol.md). So it keeps nothing
// that the next could not find out: replies need no more than the request and the nodes.
type server struct {
	device   *os.File
	nodes    nodes
	patience time.Duration

	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	reading map[uint64]context.CancelFunc // mu; READs under way, by number
}

func newServer(device *os.File, n nodes) *server {
	s := &server{device: device, nodes: n, patience: patience, reading: map[uint64]context.CancelFunc{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// run serves until the connection is gone or the device is closed. First it asks for what a server
// before it has read and not answered; a kernel older than 6.9 does not know that, and who waits
// for one of those waits for ever.
func (s *server) run() error {
	s.device.Write(resend())
	defer s.work.Wait()
	defer s.stop()
	buf := make([]byte, requestMax)
	for {
		n, err := s.device.Read(buf)
		switch {
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINTR): // the request was taken back just now
			continue
		case errors.Is(err, syscall.ENODEV), errors.Is(err, os.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
		r, err := decodeRequest(buf[:n])
		if err != nil {
			return err
		}
		s.serve(r)
	}
}

// serve answers a request: at once, but for READs. That a LOOKUP is answered at once matters, since
// it is this very process that waits for it.
func (s *server) serve(r request) {
	switch r.op {
	case opInit:
		s.nodes.began()
		s.send(initReply(r.unique, r.body.init))
	case opLookup:
		node, size, ok := uint64(0), int64(0), false
		switch {
		case r.node == rootNode && r.body.name == settleName:
			node, ok = settleNode, true
		case r.node == rootNode:
			node, size, ok = s.nodes.lookup(r.body.name)
		}
		if !ok {
			s.fail(r, syscall.ENOENT)
			return
		}
		s.send(entryReply(r.unique, node, size))
	case opGetattr:
		size, ok := s.nodes.size(r.node)
		if !ok && r.node != rootNode {
			s.fail(r, syscall.ENOENT)
			return
		}
		s.send(attrReply(r.unique, r.node, size))
	case opForget, opBatchForget: // have no reply
		for _, f := range r.body.forgets {
			s.nodes.forget(f.node, f.lookups)
		}
	case opInterrupt: // neither, unless it came too early, which it cannot: one goroutine reads requests
		s.mu.Lock()
		if cancel := s.reading[r.body.unique]; cancel != nil {
			time.AfterFunc(s.patience, cancel)
		}
		s.mu.Unlock()
	case opRead:
		ctx, cancel := context.WithCancel(s.ctx)
		s.mu.Lock()
		s.reading[r.unique] = cancel
		s.mu.Unlock()
		s.work.Go(func() {
			s.read(ctx, r)
			s.mu.Lock()
			delete(s.reading, r.unique)
			s.mu.Unlock()
			cancel()
		})
	case opDestroy:
		s.send(reply(r.unique, 0, 0))
	default: // OPEN too: from the first such answer on the kernel opens files without asking
		s.fail(r, syscall.ENOSYS)
	}
}

// read answers a READ. One that was still waiting when this server was stopped is left for the
// next.
func (s *server) read(ctx context.Context, r request) {
	if r.body.size > pagesMax*4096 || r.body.offset >= 1<<62 {
		s.fail(r, syscall.EINVAL)
		return
	}
	buf := make([]byte, replyHeader+int(r.body.size))
	n, err := s.nodes.read(ctx, r.node, buf[replyHeader:], int64(r.body.offset))
	switch {
	case s.ctx.Err() != nil:
	case ctx.Err() != nil:
		s.fail(r, syscall.EINTR)
	case err != nil:
		errno := sigma.KindOf(err).Errno()
		if errno != syscall.ENOENT && errno != syscall.ESTALE {
			errno = syscall.EIO
		}
		s.fail(r, errno)
	default:
		buf = buf[:replyHeader+n]
		putReply(buf, r.unique, 0)
		s.send(buf)
	}
}

func (s *server) fail(r request, errno syscall.Errno) { s.send(reply(r.unique, int32(errno), 0)) }

// send writes one reply. Errors mean that the request was taken back, or that the connection is
// gone, which run notices.
func (s *server) send(b []byte) { s.device.Write(b) }
