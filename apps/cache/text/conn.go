package text

import (
	"context"
	"errors"
	"net"
	"time"

	"sigmaos.dev/apps/cache/op"
	"sigmaos.dev/apps/cache/store"
	"sigmaos.dev/sigma"
)

// protocol is what differs between the two.
type protocol interface {
	// command executes the command that b begins with, and gives how many bytes it has. If it is not
	// whole, used is 0 and need is how many bytes it has at least. After an error nothing of the
	// connection can be understood; it has been answered.
	command(c *conn, b []byte) (used, need int, err error)
	// busy answers that there is no memory for a long command.
	busy(c *conn)
}

// conn is a connection. All of it belongs to the goroutine that serves it.
type conn struct {
	server *Server
	nc     net.Conn
	ctx    context.Context
	id     int64
	talk   protocol // nil = it has not said anything

	in   []byte
	r, w int // in[r:w] was read and not used
	need int // bytes that the next command has at least
	long int64
	out  []byte

	now      int64 // ms; of the last read
	limited  bool  // there is a deadline for reading
	writable time.Time
	value    []byte // scratch
	ended    bool   // the client wants no more
}

var (
	errEnd      = errors.New("the client has ended the connection")
	errProtocol = errors.New("what was sent is no command")
)

// run serves until the connection ends.
func (c *conn) run() {
	for {
		if begun := c.now == 0 && c.w > 0; !begun {
			if err := c.fill(); err != nil {
				return
			}
		}
		c.now = store.Now()
		err := c.execute()
		if ferr := c.flush(); err != nil || ferr != nil {
			return
		}
	}
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
		c.server.count.Add(1)
		c.r += used
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

// fill reads more.
func (c *conn) fill() error {
	if err := c.makeRoom(); err != nil {
		return err
	}
	if part := c.w > c.r; part != c.limited || part {
		c.limited = part
		var at time.Time
		if part {
			at = time.Now().Add(stallMax)
		}
		c.nc.SetReadDeadline(at)
		if c.server.over(c) {
			return errEnd
		}
	}
	n, err := c.nc.Read(c.in[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return err
}

// over says whether the server ends; a deadline that was set since is not the one that it set.
func (s *Server) over(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaving
}

// makeRoom has the buffer have room for the command that has begun.
func (c *conn) makeRoom() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
		if len(c.in) > longLeast { // it was for a long command
			c.in = make([]byte, bufferFirst)
			c.server.long.Add(-c.long)
			c.long = 0
		}
		if cap(c.out) > 2*flushAt {
			c.out = nil
		}
		if cap(c.value) > longLeast {
			c.value = nil
		}
	}
	want := max(c.need, c.w-c.r+1)
	switch {
	case want <= len(c.in)-c.r && c.w < len(c.in):
		return nil
	case want <= len(c.in):
		c.w = copy(c.in, c.in[c.r:c.w])
		c.r = 0
		return nil
	}
	// The buffer grows as bytes come, so that who only announces a long command holds little.
	size := min(max(2*len(c.in), bufferFirst), max(want, 2*(c.w-c.r)))
	if size > longLeast {
		more := int64(size) - c.long
		if c.server.long.Add(more) > c.server.cfg.LongMax {
			c.server.long.Add(-more)
			c.talk.busy(c)
			c.flush()
			return errEnd
		}
		c.long += more
	}
	b := make([]byte, size)
	c.w = copy(b, c.in[c.r:c.w])
	c.in, c.r = b, 0
	return nil
}

// flush sends the answers.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	// The deadline is renewed now and then only, as that costs about as much as a command.
	if now := time.UnixMilli(c.now); now.Add(stallMax).After(c.writable) {
		c.writable = time.Now().Add(3 * stallMax / 2)
		c.nc.SetWriteDeadline(c.writable)
	}
	_, err := c.nc.Write(c.out)
	c.out = c.out[:0]
	return err
}

// do applies an operation; its value is in the connection's scratch memory.
func (c *conn) do(o *op.Op) (op.Result, error) {
	res, err := c.server.cfg.Backend.Do(c.ctx, o, c.value[:0])
	if res.Value != nil {
		c.value = res.Value
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
