package treekit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Limits of one session. A request in flight costs a goroutine (about 4 KiB) and a message buffer; a proc that waits for thousands of others needs that many.
const (
	RequestsMax = 4096
	FidsMax     = 65536
)

// Config says what to serve to whom.
type Config struct {
	Tree      sigma.Tree
	Principal sigma.Principal // who is at the other end
	Log       *slog.Logger    // nil = discard
	KeepFiles bool            // whether file descriptors that come with calls are handed to Callers (else closed)
}

// Serve answers requests on conn until the peer closes, breaks the protocol, or ctx ends. It returns nil when the peer closed in an orderly way. It owns conn.
func Serve(ctx context.Context, conn session.Conn, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &server{cfg: cfg, conn: conn, requests: map[uint16]*request{}, fids: map[uint32]*fid{}, slots: make(chan struct{}, RequestsMax)}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := s.loop(ctx)
	cancel()
	stop()
	conn.Close()
	s.handlers.Wait()
	for _, f := range s.fids {
		f.file.Close()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

type server struct {
	cfg      Config
	conn     session.Conn
	plain    bool // the dialect; set by Tversion, when no other request is in flight
	ready    bool
	handlers sync.WaitGroup
	slots    chan struct{}

	mu       sync.Mutex
	requests map[uint16]*request // mu
	fids     map[uint32]*fid     // mu
}

// request is one that is being worked on.
type request struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// fid is a client's handle. uses counts handlers that work with it, and one for the table; the file closes when it is zero.
type fid struct {
	mu   sync.RWMutex // Open and Create against the rest
	file sigma.File
	open bool            // mu
	mode sigma.OpenFlags // mu
	uses int             // server.mu
}

func (s *server) loop(ctx context.Context) error {
	for {
		buf, files, err := s.conn.Recv()
		if err != nil {
			return err
		}
		if !s.cfg.KeepFiles {
			session.CloseFiles(files)
			files = nil
		}
		tag, m, err := sigmap.Decode(buf)
		if err == nil {
			err = s.begin(ctx, tag, m, files)
		} else if tag != sigmap.NoTag && sigma.KindOf(err) == sigma.KindUnsupported {
			session.CloseFiles(files)
			err = s.reply(tag, sigmap.Fail(err, s.plain), nil) // a message of a later version; the framing is intact
		}
		if err != nil {
			session.CloseFiles(files)
			s.cfg.Log.Debug("session ended by a bad message", "realm", s.cfg.Principal.Realm, "proc", s.cfg.Principal.Proc, "err", err)
			return err
		}
	}
}

// begin starts the handler of one request. An error ends the session.
func (s *server) begin(ctx context.Context, tag uint16, m sigmap.Message, files []*os.File) error {
	if v, ok := m.(*sigmap.Tversion); ok {
		return s.version(tag, v)
	}
	if !s.ready {
		return sigma.Errorf("treekit.Serve", sigma.KindInvalid, "a session starts with Tversion")
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	rctx, cancel := context.WithCancel(ctx)
	r := &request{cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	_, dup := s.requests[tag]
	if !dup {
		s.requests[tag] = r
	}
	s.mu.Unlock()
	if dup {
		cancel()
		return sigma.Errorf("treekit.Serve", sigma.KindInvalid, "tag %d is in use", tag)
	}
	s.handlers.Go(func() { s.handle(rctx, tag, r, m, files) })
	return nil
}

func (s *server) version(tag uint16, v *sigmap.Tversion) error {
	s.mu.Lock()
	busy := len(s.requests) + len(s.fids)
	s.mu.Unlock()
	if s.ready && busy > 0 {
		return sigma.Errorf("treekit.Serve", sigma.KindUnsupported, "Tversion within a session")
	}
	r := &sigmap.Rversion{Msize: min(v.Msize, sigmap.MessageMax), Version: "unknown"}
	if v.Msize < 8<<10 {
		return sigma.Errorf("treekit.Serve", sigma.KindInvalid, "msize %d is less than 8192", v.Msize)
	}
	if v.Version == sigmap.VersionSigma || v.Version == sigmap.VersionPlain {
		r.Version, s.plain, s.ready = v.Version, v.Version == sigmap.VersionPlain, true
	}
	return s.reply(tag, r, nil)
}

// handle runs one request to its reply. A panic in a tree is a bug of ours: it is logged and answered, because one tenant's request must not end the others' sessions.
func (s *server) handle(ctx context.Context, tag uint16, r *request, m sigmap.Message, files []*os.File) {
	var back []*os.File
	reply := sigmap.Message(nil)
	func() {
		defer func() {
			if p := recover(); p != nil {
				s.cfg.Log.Error("handler panicked", "op", m.Type().String(), "err", fmt.Sprint(p), "stack", string(debug.Stack()))
				reply = sigmap.Fail(sigma.Errorf("treekit.Serve", sigma.KindOther, "internal error"), s.plain)
			}
		}()
		var err error
		if reply, back, err = s.do(ctx, m, files); err != nil {
			reply = sigmap.Fail(err, s.plain)
		}
	}()
	s.mu.Lock()
	delete(s.requests, tag)
	s.mu.Unlock()
	if err := s.reply(tag, reply, back); err != nil {
		s.conn.Close()
	}
	session.CloseFiles(back)
	r.cancel()
	close(r.done)
	<-s.slots
}

func (s *server) reply(tag uint16, m sigmap.Message, files []*os.File) error {
	buf, err := sigmap.Encode(make([]byte, 0, 128), tag, m)
	if err != nil { // our own reply does not fit: the client still gets an answer
		if buf, err = sigmap.Encode(nil, tag, sigmap.Fail(err, s.plain)); err != nil {
			return err
		}
		files = nil
	}
	return s.conn.Send(buf, files)
}

// get finds a fid and counts the use; put ends it.
func (s *server) get(n uint32) (*fid, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.fids[n]
	if f == nil {
		return nil, sigma.Errorf("treekit.Serve", sigma.KindInvalid, "fid %d is not in use", n)
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
func (s *server) add(n uint32, file sigma.File) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, dup := s.fids[n]
	switch {
	case dup || n == sigmap.NoFid:
		file.Close()
		return sigma.Errorf("treekit.Serve", sigma.KindInvalid, "fid %d is in use", n)
	case len(s.fids) >= FidsMax:
		file.Close()
		return sigma.Errorf("treekit.Serve", sigma.KindBusy, "more than %d files are open in one session", FidsMax)
	}
	s.fids[n] = &fid{file: file, uses: 1}
	return nil
}

func (s *server) clunk(n uint32) error {
	s.mu.Lock()
	f := s.fids[n]
	delete(s.fids, n)
	s.mu.Unlock()
	if f == nil {
		return sigma.Errorf("treekit.Serve", sigma.KindInvalid, "fid %d is not in use", n)
	}
	s.put(f)
	return nil
}

func (s *server) flush(tag uint16) {
	s.mu.Lock()
	r := s.requests[tag]
	s.mu.Unlock()
	if r != nil {
		r.cancel()
		<-r.done
	}
}
