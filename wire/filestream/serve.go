package filestream

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Config says what is served.
type Config struct {
	File sigma.File // open
	// Check says whether its handle may read, or write.
	Check func(write bool) error
	Meter Meter // nil: nobody counts
}

// Meter is told of each piece of a stream: Begin before it is worked on, and End, by the same
// goroutine, with the bytes that came and that were sent.
type Meter interface {
	Begin()
	End(in, out int)
}

// server is one stream.
type server struct {
	Config
	conn net.Conn
	raw  syscall.RawConn // of conn; nil = it has none
	file *os.File        // nil = none is passed
	over bool            // none will be asked for (again)
	sent int             // of the present piece, but for its answer's beginning
	buf  []byte
}

// Serve answers requests on conn, which it owns, until the peer closes, says what is no request, or
// ctx ends.
func Serve(ctx context.Context, conn net.Conn, cfg Config) {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	defer conn.Close()
	s := &server{Config: cfg, conn: conn}
	if c, ok := conn.(syscall.Conn); ok {
		s.raw, _ = c.SyscallConn()
	}
	defer func() {
		if s.file != nil {
			s.file.Close()
		}
	}()
	var head [headSize]byte
	for {
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		r, err := parseRequest(head[:])
		if err != nil {
			return
		}
		if err = s.piece(ctx, r); err != nil {
			return
		}
	}
}

// piece answers one request.
func (s *server) piece(ctx context.Context, r request) (err error) {
	in := headSize
	if s.sent = 0; s.Meter != nil {
		s.Meter.Begin()
		defer func() { s.Meter.End(in, headSize+s.sent) }()
	}
	if r.op == opRead {
		return s.read(ctx, r)
	}
	in += int(r.count)
	return s.write(ctx, r)
}

// room gives a buffer of n bytes, the same each time, with room for the beginning of an answer
// before it.
func (s *server) room(n int) []byte {
	if cap(s.buf) < headSize+n {
		s.buf = make([]byte, headSize+n)
	}
	return s.buf[:headSize+n]
}

// refuse answers with an error.
func (s *server) refuse(err error) error {
	text, err := sigmap.Encode(make([]byte, headSize, 256), 0, sigmap.Fail(err, false))
	if err != nil {
		return err
	}
	answer{status: 1, count: uint32(len(text) - headSize)}.encode(text)
	_, err = s.conn.Write(text)
	return err
}

func (s *server) write(ctx context.Context, r request) error {
	b := s.room(int(r.count))[headSize:]
	if _, err := io.ReadFull(s.conn, b); err != nil {
		return err
	}
	err := s.Check(true)
	for done := 0; err == nil && done < len(b); {
		var n int
		if n, err = s.File.WriteAt(ctx, b[done:], r.offset+uint64(done)); err == nil && n == 0 {
			err = sigma.Errorf("filestream.Serve", sigma.KindOther, "nothing was written")
		}
		done += n
	}
	if err != nil {
		return s.refuse(err)
	}
	var head [headSize]byte
	answer{count: r.count}.encode(head[:])
	_, err = s.conn.Write(head[:])
	return err
}

// read answers one. Its version is that of a moment before its bytes are read.
func (s *server) read(ctx context.Context, r request) error {
	if err := s.Check(false); err != nil {
		return s.refuse(err)
	}
	st, err := s.File.Stat(ctx)
	if err != nil {
		return s.refuse(err)
	}
	if !s.over && s.raw != nil {
		s.over = true
		if p, ok := s.File.(sigma.FilePasser); ok &&
			s.Check(true) != nil { // one that is passed of a handle that writes keeps that from writing
			s.file, _ = p.PassFile(ctx)
		}
	}
	if s.file == nil {
		b := s.room(int(r.count))
		n, err := s.File.ReadAt(ctx, b[headSize:], r.offset)
		if err != nil {
			return s.refuse(err)
		}
		s.sent = n
		answer{count: uint32(n), version: st.ID.Version}.encode(b)
		_, err = s.conn.Write(b[:headSize+n])
		return err
	}
	n := uint64(0)
	if st.Size > r.offset {
		n = min(uint64(r.count), st.Size-r.offset)
	}
	var head [headSize]byte
	answer{count: uint32(n), version: st.ID.Version}.encode(head[:])
	if n == 0 {
		_, err := s.conn.Write(head[:])
		return err
	}
	s.sent = int(n)
	return s.send(head[:], int64(r.offset), int(n))
}

// send sends the beginning of an answer, and then bytes of the file, in a packet with it. If there
// are fewer, as the file was cut meanwhile, it is an error: more were announced.
func (s *server) send(head []byte, off int64, n int) (err error) {
	src := int(s.file.Fd())
	werr := s.raw.Write(func(fd uintptr) bool {
		for n > 0 {
			var sent int
			if len(head) > 0 {
				sent, err = unix.SendmsgN(int(fd), head, nil, nil, unix.MSG_MORE|unix.MSG_NOSIGNAL)
			} else {
				sent, err = unix.Sendfile(int(fd), src, &off, n)
			}
			switch {
			case err == unix.EINTR:
			case err == unix.EAGAIN:
				err = nil
				return false
			case err != nil:
				return true
			case sent == 0:
				err = io.ErrUnexpectedEOF
				return true
			case len(head) > 0:
				head = head[sent:]
			default:
				n -= sent
			}
		}
		return true
	})
	if err == nil {
		err = werr
	}
	return err
}
