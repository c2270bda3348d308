package member

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"sigmaos.dev/sdk"
)

const (
	// patience is how long a client may take to end its side of a connection that this side ended.
	patience = 10 * time.Second
	// fencedMost is how long a request may take to arrive that its client was writing while the
	// reading half was ended; fencedAgain is the pause between two looks for it.
	fencedMost  = 50 * time.Millisecond
	fencedAgain = time.Millisecond
)

// webListener is a listener whose connections can be ended in good order.
type webListener struct {
	net.Listener
	web *web
}

// Accept implements net.Listener.
func (l *webListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.web.open.Add(1)
	return &webConn{Conn: nc, since: time.Now().UnixNano(), done: l.web.open.Done}, nil
}

// halves is what the connections of the SDK can do besides net.Conn.
type halves interface {
	CloseRead() error
	CloseWrite() error
}

// webConn is a connection that ends when both sides have ended theirs.
type webConn struct {
	net.Conn
	since  int64       // ns since 1970
	done   func()      // it has ended
	begun  bool        // of who reads
	second atomic.Bool // it is one of HTTP/2
	fenced atomic.Bool // the reading half was ended
	closed atomic.Bool
}

// Read implements net.Conn.
func (c *webConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == io.EOF && c.fenced.Load() {
		n, err = c.readRest(p)
	}
	if !c.begun && n > 0 {
		c.begun = true
		c.second.Store(bytes.HasPrefix(p[:n], []byte("PRI")))
	}
	if c.closed.Load() { // the client cannot be answered
		return 0, net.ErrClosed
	}
	return n, err
}

// readRest reads what the client was writing when the reading half was ended. In a ring, unlike in
// a socket, that may arrive a moment later.
func (c *webConn) readRest(p []byte) (n int, err error) {
	for end := time.Now().Add(fencedMost); ; time.Sleep(fencedAgain) {
		if n, err = c.Conn.Read(p); err != io.EOF || time.Now().After(end) {
			return n, err
		}
	}
}

// fence ends the reading half: the client's next write fails, and what it wrote before is read.
func (c *webConn) fence() {
	c.fenced.Store(true)
	c.Conn.(halves).CloseRead()
}

// fences reports whether the client's writes would fail: within one machine they do.
func (c *webConn) fences() bool {
	to, ok := c.LocalAddr().(sdk.EndpointAddr)
	from, is := c.RemoteAddr().(sdk.CallerAddr)
	return ok && is && to.Machine == from.Machine
}

// CloseWrite ends what the server says.
func (c *webConn) CloseWrite() error { return c.Conn.(halves).CloseWrite() }

// Close ends what the server says, and the connection when the client has ended its side.
func (c *webConn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	err := c.CloseWrite()
	go func() {
		defer c.done()
		defer c.Conn.Close()
		c.SetReadDeadline(time.Now().Add(patience))
		io.Copy(io.Discard, c.Conn)
	}()
	return err
}

// answer is a response that counts its request.
type answer struct {
	http.ResponseWriter
	web    *web
	conn   *webConn          // nil = it is not known
	end    func(failed bool) // nil = it was counted
	status int
	failed bool
}

// mark has the response end its connection, in HTTP/2 as a GOAWAY, if the server leaves or the
// connection is to be made anew. Afterwards its header is not changed any more.
func (a *answer) mark() {
	old := a.conn != nil && a.conn.since < a.web.renewed.Load()
	if a.status == 0 && (old || a.web.leaving.Load()) {
		a.Header().Set("Connection", "close")
	}
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if status >= http.StatusOK {
		a.mark()
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.mark()
	return a.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what else the response can do.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Flush implements http.Flusher.
func (a *answer) Flush() {
	a.mark()
	http.NewResponseController(a.ResponseWriter).Flush()
}

// ReadFrom implements io.ReaderFrom.
func (a *answer) ReadFrom(r io.Reader) (int64, error) {
	a.mark()
	return io.Copy(a.ResponseWriter, r)
}

// Hijack implements http.Hijacker. A connection that was taken over may last for hours: its request
// has been served.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := a.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, errors.ErrUnsupported
	}
	c, both, err := h.Hijack()
	if err == nil {
		a.failed = false
		a.finish()
	}
	return c, both, err
}

// finish counts the end of the request.
func (a *answer) finish() {
	if a.end != nil {
		a.end(a.failed)
		a.end = nil
	}
}
