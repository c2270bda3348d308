package text

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/rawio"
)

// protocol is what differs between the two.
type protocol interface {
	// command executes the command that b begins with, and gives how many bytes it has. If it is
	// not whole, used is 0 and need is how many bytes it has at least; with both, used bytes are a
	// part of it. After an error nothing of the connection can be understood; it has been answered.
	command(c *conn, b []byte) (used, need int, err error)
	// busy answers that there is no memory for a long command.
	busy(c *conn)
	// rest drops scratch memory, unless a command has begun.
	rest()
}

// conn is a connection. All of it belongs to the goroutine that serves it.
type conn struct {
	server *Server
	nc     net.Conn
	ctx    context.Context
	id     int64
	name   string   // by CLIENT SETNAME
	talk   protocol // nil = it has not said anything

	in   []byte
	r, w int // in[r:w] was read and not used
	fd   int // while runTCP reads; else -1
	need int // bytes that the next command has at least
	out  []byte
	// What in and value have taken of Config.LongMax.
	inLong, valueLong int64

	now      int64 // ms; of the last read or long write
	limited  bool  // there is a deadline for the rest of a command
	another  bool  // a command was whole since that was set
	came     int   // bytes since then
	unsure   bool  // there is one of confirmAfter
	writable time.Time
	value    []byte // scratch
	op       op.Op  // scratch
	ended    bool   // the client wants no more
}

// confirmAfter is the silence after which a connection is looked at once more, and gives its memory
// back. It is short for a client that waits for the end, and long beside what it costs.
const confirmAfter = 500 * time.Millisecond

var (
	errEnd      = errors.New("the client has ended the connection")
	errProtocol = errors.New("what was sent is no command")
)

// run serves until the connection ends.
func (c *conn) run() {
	if c.w > 0 && !c.serve() { // the beginning was read before
		return
	}
	if tcp, is := c.nc.(*net.TCPConn); is {
		c.runTCP(tcp)
		return
	}
	for {
		room, err := c.prepare()
		if err != nil {
			return
		}
		if !c.limited && !c.unsure {
			c.unsure = true
			c.nc.SetReadDeadline(time.Now().Add(confirmAfter))
			if c.server.over() {
				return
			}
		}
		n, err := c.nc.Read(room)
		if n == 0 && c.unsure && errors.Is(err, os.ErrDeadlineExceeded) {
			if c.rest() != nil || c.server.over() {
				return
			}
			if n, err = c.nc.Read(c.in[c.w:]); n > 0 {
				c.unsure = false
			}
		}
		c.came += n
		if c.w += n; n == 0 && err != nil || !c.serve() {
			return
		}
	}
}

// rest gives back the memory of a connection that is silent, and removes its deadline.
func (c *conn) rest() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
		c.shrink(0)
		if c.talk != nil {
			c.talk.rest()
		}
	}
	return c.nc.SetReadDeadline(time.Time{})
}

// shrink drops buffers of more bytes than most, when no command has begun.
func (c *conn) shrink(most int) {
	if len(c.in) > max(most, bufferFirst) {
		c.in = make([]byte, bufferFirst)
		c.server.charge(&c.inLong, 0)
	}
	if cap(c.out) > 2*most {
		c.out = nil
	}
	if cap(c.value) > most {
		c.value = nil
		c.server.charge(&c.valueLong, 0)
	}
}

// charge has memory of a connection count for Config.LongMax, if that is long. taken is what it
// counted before.
func (s *Server) charge(taken *int64, bytes int) bool {
	n := int64(0)
	if bytes > longLeast {
		n = int64(bytes)
	}
	more := n - *taken
	if more != 0 && s.long.Add(more) > s.cfg.LongMax && more > 0 {
		s.long.Add(-more)
		return false
	}
	*taken = n
	return true
}

// runTCP does the same with fewer system calls. net.Conn.Read asks the kernel before it waits,
// which a client that waits for its answer has never anything for. A read that did not fill its
// buffer has emptied the socket, so that this waits at once: what has come since wakes it. All of
// that is within one call of RawConn.Read, which forgets wake-ups only when it begins.
//
// The end of the client's side may have come with its last bytes, and wakes nobody then. So a
// connection that was silent for confirmAfter is read once more.
func (c *conn) runTCP(tcp *net.TCPConn) {
	raw, err := tcp.SyscallConn()
	for err == nil {
		over := false
		err = raw.Read(func(fd uintptr) bool {
			c.fd = int(fd)
			over = c.readTCP()
			return over
		})
		c.fd = -1
		if over || !c.unsure || c.server.over() {
			return
		}
		c.unsure = false
		if err = c.rest(); c.server.over() {
			return
		}
	}
}

// readTCP reads and answers until the socket is empty, or else reports that the connection is over.
func (c *conn) readTCP() (over bool) {
	for {
		room, err := c.prepare()
		if err != nil {
			return true
		}
		n, err := rawio.Read(c.fd, room)
		if err == syscall.EAGAIN {
			return false
		}
		c.came += n
		if c.w += n; n == 0 || !c.serve() {
			return true
		}
		if n == len(room) || c.w > c.r || c.limited { // a deadline has to be set or removed
			continue
		}
		if !c.unsure {
			c.unsure = true
			c.nc.SetReadDeadline(time.Now().Add(confirmAfter))
			return c.server.over()
		}
		return false
	}
}

// serve answers what was read. It reports false if the connection is to end.
func (c *conn) serve() bool {
	c.now = store.Now()
	err := c.execute()
	return c.flush() == nil && err == nil
}

// execute answers all commands that are whole.
func (c *conn) execute() error {
	for c.r < c.w {
		if c.w-c.r < c.need {
			return nil
		}
		if c.talk == nil {
			if c.talk = protocolOf(c.in[c.r]); c.talk == nil {
				c.out = append(c.out, "-ERR this is neither RESP nor memcached's protocol\r\n"...)
				return errProtocol
			}
		}
		used, need, err := c.talk.command(c, c.in[c.r:c.w])
		if err != nil {
			return err
		}
		if c.need = need; used == 0 {
			return nil
		}
		c.need = 0
		c.r += used
		if need == 0 {
			c.another = true
			c.server.count.Add(1)
		}
		if c.ended {
			return errEnd
		}
		if len(c.out) >= flushAt {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// protocolOf tells by the first byte of a connection what it speaks.
func protocolOf(first byte) protocol {
	switch {
	case first == '*' || first >= 'A' && first <= 'Z':
		return &resp{}
	case first >= 'a' && first <= 'z':
		return &memcached{}
	}
	return nil
}

// prepare gives the room for what is read next. The rest of a command has to come in time, each
// further paceBytes of a long one as well.
func (c *conn) prepare() (room []byte, err error) {
	if begun := c.w > c.r; begun != c.limited || begun && (c.another || c.came >= paceBytes) {
		c.limited, c.unsure, c.another, c.came = begun, false, false, 0
		var at time.Time
		if c.limited {
			at = time.Now().Add(stallMax)
		}
		c.nc.SetReadDeadline(at)
		if c.server.over() {
			return nil, errEnd
		}
	}
	err = c.makeRoom()
	return c.in[c.w:], err
}

// over says whether the server ends; a deadline that was set since is not the one that it set.
func (s *Server) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// makeRoom has the buffer have room for the command that has begun. It grows when it is full, so
// that who only announces a long command holds little.
func (c *conn) makeRoom() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
		c.shrink(longLeast)
	}
	want := max(c.need, c.w-c.r+1)
	if c.w < len(c.in) && (want <= len(c.in)-c.r || want > len(c.in)) {
		return nil
	}
	if c.r > 0 {
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
		return nil
	}
	size := 2 * len(c.in)
	if c.need > len(c.in) {
		size = min(size, c.need)
	}
	if !c.server.charge(&c.inLong, size) {
		c.talk.busy(c)
		c.flush()
		return errEnd
	}
	b := make([]byte, size)
	c.w = copy(b, c.in[:c.w])
	c.in = b
	return nil
}

// flush sends the answers.
func (c *conn) flush() error {
	out := c.out
	if len(out) == 0 {
		return nil
	}
	c.out = out[:0]
	return c.write(out)
}

// write sends bytes.
func (c *conn) write(out []byte) (err error) {
	for len(out) > 0 && err == nil {
		part := out[:min(len(out), paceBytes)]
		out = out[len(part):]
		// The deadline is renewed now and then only, as that costs about as much as a command.
		if now := time.UnixMilli(c.now); now.Add(stallMax).After(c.writable) {
			c.writable = time.Now().Add(3 * stallMax / 2)
			c.nc.SetWriteDeadline(c.writable)
		}
		rest := part
		if c.fd >= 0 {
			n := 0
			if n, err = rawio.Write(c.fd, part); err == syscall.EAGAIN {
				err = nil
			}
			rest = part[max(n, 0):]
		}
		if err == nil && len(rest) > 0 {
			_, err = c.nc.Write(rest)
		}
		if len(part) >= flushAt { // it may have taken long
			c.now = store.Now()
		}
	}
	return err
}

// put adds bytes to the answers. A long value is written at once, so that it is not copied. An
// error of that ends the connection.
func (c *conn) put(b []byte) {
	if len(b) <= longLeast {
		c.out = append(c.out, b...)
	} else if c.flush() != nil || c.write(b) != nil {
		c.ended = true
	}
}

// do applies an operation; its value is in the connection's scratch memory. KindBusy: the value is
// long, and other connections have too many of these.
func (c *conn) do(o *op.Op) (op.Result, error) {
	c.op = *o // so that callers' need no memory of the heap
	res, err := c.server.cfg.Backend.Do(c.ctx, &c.op, c.value[:0])
	if res.Value != nil {
		c.value = res.Value
		if n := cap(c.value); (n > longLeast || c.valueLong > 0) && !c.server.charge(&c.valueLong, n) {
			c.value = nil
			c.server.charge(&c.valueLong, 0)
			return op.Result{}, sigma.Errorf("text.Server", sigma.KindBusy,
				"too many long values are on their way; try again")
		}
	}
	return res, err
}

// says is the text of an error for a client.
func says(err error) string {
	text := err.Error()
	var e *sigma.Error
	if errors.As(err, &e) && e.Msg != "" {
		text = e.Msg
	}
	b := []byte(text)
	for i, x := range b {
		if x < ' ' {
			b[i] = ' '
		}
	}
	return string(b[:min(len(b), 400)])
}

// number reads a decimal number of a command.
func number(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 20 {
		return 0, false
	}
	negative := b[0] == '-'
	if negative || b[0] == '+' {
		b = b[1:]
	}
	if len(b) == 0 {
		return 0, false
	}
	limit := uint64(1<<63 - 1)
	if negative {
		limit++
	}
	u := uint64(0)
	for _, x := range b {
		d := uint64(x - '0')
		if x < '0' || x > '9' || u > (limit-d)/10 {
			return 0, false
		}
		u = u*10 + d
	}
	if negative {
		return -int64(u), true
	}
	return int64(u), true
}
