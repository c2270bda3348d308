package call

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// The buffer that a connection is read into begins small, as most connections are idle, and grows
// when a read fills it.
const (
	inputLeast = 4 << 10
	inputMost  = 64 << 10
)

// input is what was read from a connection and not handled yet. It belongs to whoever reads.
type input struct {
	buf     []byte
	r, w    int
	needs   int  // size of the frame that begins at r, as far as it is known
	limited bool // a read deadline is set
}

// next gives the next frame if all of it is there. The frame is good until fill.
func (in *input) next() (f frame, ok bool, err error) {
	f, size, ok, err := parseFrame(in.buf[in.r:in.w])
	if ok {
		in.r += size
	}
	in.needs = size
	return f, ok, err
}

// fill reads more, at least a byte.
func (in *input) fill(r io.Reader) error {
	if in.r == in.w {
		in.r, in.w = 0, 0
	}
	full := len(in.buf)
	switch {
	case full == 0:
		in.buf = make([]byte, inputLeast)
	case in.needs > full || in.w == full && in.r == 0 && full < inputMost:
		grown := make([]byte, max(in.needs, min(4*full, inputMost)))
		in.w = copy(grown, in.buf[in.r:in.w])
		in.buf, in.r = grown, 0
	case in.r+in.needs > full || in.w == full:
		in.w = copy(in.buf, in.buf[in.r:in.w])
		in.r = 0
	}
	n, err := r.Read(in.buf[in.w:])
	in.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// part says whether a frame has begun and not ended.
func (in *input) part() bool { return in.r < in.w }

// moved gives what was not handled yet as an input of its own, so that what was handled stays as it
// is.
func (in *input) moved() input {
	rest := in.buf[in.r:in.w]
	buf := make([]byte, max(len(rest), inputLeast))
	return input{buf: buf, w: copy(buf, rest), needs: in.needs, limited: in.limited}
}

// readFor reads for all who wait until w is signalled or ctx ends; then somebody else may.
func (c *conn) readFor(ctx context.Context, w *waiter) {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { c.nc.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	for {
		over, err := c.readOnce(ctx.Err() == nil)
		c.mu.Lock()
		if err != nil {
			c.failLocked(lost(err))
		}
		if over || c.err != nil || w.signalled || ctx.Err() != nil {
			c.reading, c.reader = false, nil
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

// readOnce reads what there is and handles it. A read that was interrupted is over, unless the
// interruption was meant for another reader.
func (c *conn) readOnce(goOn bool) (over bool, err error) {
	if !goOn {
		return true, nil
	}
	err = c.in.fill(c.nc)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.nc.SetReadDeadline(time.Time{})
		return false, nil // the context is looked at again
	}
	if err != nil {
		return true, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard++
	c.handling = true
	for c.err == nil {
		f, ok, err := c.in.next()
		if err == nil && ok {
			err = c.handleLocked(f)
		}
		if err != nil {
			c.failLocked(err)
		}
		if !ok {
			break
		}
	}
	c.handling = false
	c.flushLocked()
	return false, nil
}

func (c *conn) handleLocked(f frame) error {
	own, err := c.commonLocked(f)
	if own && err == nil {
		err = c.side.frameLocked(f)
	}
	return err
}
