package treeserver

import (
	"context"
	"net"
	"os"
	"syscall"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/filestream"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// bulksMax bounds the streams of one session. Each costs a goroutine, a socket, the file's
// descriptor and up to 256 KiB.
const bulksMax = 64

// passBulk gives the client a stream of the open file, which ends with its fid. A file that others
// serve may have one of its own; of the rest those have one that know versions and cost a server
// least to send, which are those of which descriptors are passed.
func (s *server) passBulk(ctx context.Context, f *fid) (sigmap.Message, []*os.File, error) {
	const op = "treeserver.bulk"
	switch {
	case !f.open:
		return nil, nil, sigma.Errorf(op, sigma.KindInvalid, "the file is not open")
	case f.dir || f.text != nil || s.plain:
		return nil, nil, Unsupported("a stream")
	case f.fence.Name != "" || sigma.FenceOf(ctx).Name != "" || f.mode&sigma.OpenAppend != 0:
		return nil, nil, sigma.Errorf(op, sigma.KindUnsupported,
			"what is written under a fence, or to the end, goes by messages")
	}
	if s.cfg.BulkTicket == nil {
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpPassBulk})
		if err == nil && len(a.Files) == 1 || err != nil && sigma.KindOf(err) != sigma.KindUnsupported {
			return &sigmap.Rbulk{}, a.Files, err
		}
	}
	if !f.ask(sigma.Request{Op: sigma.OpStreams}).Yes {
		return nil, nil, Unsupported("a stream")
	}
	if !f.mode.Writes() { // else others may see the file, or there is a limit to descriptors for writing
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpPassFile})
		if err != nil {
			return nil, nil, err
		}
		session.CloseFiles(a.Files)
	}
	serve := s.stream(f)
	if s.cfg.BulkTicket != nil {
		ticket, err := s.cfg.BulkTicket(s.ctx, serve)
		return &sigmap.Rbulk{Ticket: ticket}, nil, err
	}
	ours, theirs, err := session.FilePair(syscall.SOCK_STREAM)
	if err != nil {
		return nil, nil, err
	}
	conn, err := session.UnixConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	conn.SetWriteBuffer(bulkBuffer)
	go serve(conn)
	return &sigmap.Rbulk{}, []*os.File{theirs}, nil
}

// bulkBuffer is how much may be under way on a socket of this machine, if the kernel allows
// (net.core.wmem_max): what is sent by sendfile is not copied, so the more the fewer times who
// reads is woken.
const bulkBuffer = 2 << 20

// stream makes what serves a stream of the fid; it may be called once, or not at all.
func (s *server) stream(f *fid) func(net.Conn) {
	check := func(write bool) error {
		f.mu.RLock()
		defer f.mu.RUnlock()
		return f.check(write)
	}
	return func(conn net.Conn) {
		ctx, ok := s.beginBulk(f)
		if !ok {
			conn.Close()
			return
		}
		defer s.streams.Done()
		filestream.Serve(ctx, conn, filestream.Config{File: f.file, Check: check, Meter: s.streamMeter(f)})
		s.mu.Lock()
		s.bulks--
		s.mu.Unlock()
		s.gone(1)
		f.bulks.Done()
		s.put(f)
	}
}

// beginBulk counts a stream, as a handle too, unless the fid is gone, or there are too many.
func (s *server) beginBulk(f *fid) (context.Context, bool) {
	if s.cfg.Handles != nil && s.cfg.Handles.Take() != nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isOver() || f.ended || s.bulks >= bulksMax {
		s.gone(1)
		return nil, false
	}
	if f.end == nil {
		f.bulkCtx, f.end = context.WithCancel(s.ctx)
	}
	s.bulks++
	f.uses++
	f.bulks.Add(1)
	s.streams.Add(1)
	return f.bulkCtx, true
}

// endBulk ends the streams of a fid that is gone, so that nothing is written to what is published.
func (s *server) endBulk(f *fid) {
	s.mu.Lock()
	f.ended = true
	end := f.end
	s.mu.Unlock()
	if end != nil {
		end()
		f.bulks.Wait()
	}
}
