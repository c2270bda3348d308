package call

import (
	"context"
	"slices"
	"time"
)

// CallMany makes unary calls of a method on one connection, and so at one server, without waiting
// for the answers in between: the calls share system calls and need no goroutine each. It gives
// what became of each call, in the order of args; the handlers run in any order. The answers are
// in memory together, so it is for as many as a program wants to hold. Each call is one as of Call:
// made at most once, unless its method is idempotent or no handler has seen it.
func (c *Client) CallMany(ctx context.Context, m *Method, args [][]byte) []Answer {
	of := c.stats.of(m.Name)
	began := time.Now()
	out := make([]Answer, len(args))
	left := make([]int, len(args))
	for i := range left {
		left[i] = i
	}
	for try := 1; len(left) > 0; try++ {
		again := c.many(ctx, m, args, out, left)
		if try == triesMax || ctx.Err() != nil {
			break
		}
		left = again
	}
	took := time.Since(began)
	for i := range out {
		of.count(took, len(args[i]), len(out[i].Reply), out[i].Err)
	}
	return out
}

// many makes the calls of some of args, and gives those that can be made again.
func (c *Client) many(ctx context.Context, m *Method, args [][]byte, out []Answer, of []int) (again []int) {
	o, err := open(ctx, time.Now())
	var conn *clientConn
	if err == nil {
		conn, err = c.connect(ctx)
	}
	if err != nil {
		for _, i := range of {
			out[i].Err = err
		}
		return nil
	}
	conn.mu.Lock()
	defer conn.mu.Unlock()
	under := make([]*pending, len(of))
	for at, i := range of {
		if len(args[i]) > c.cfg.MessageMax {
			out[i].Err = tooBig("the argument", len(args[i]), c.cfg.MessageMax)
			continue
		}
		under[at], out[i] = &pending{waiter: newWaiter()}, Answer{}
		if err := conn.startLocked(ctx, m, &o, under[at], args[i]); err != nil {
			out[i].Err, under[at].unseen = err, under[at].id == 0
		}
	}
	conn.flushLocked()
	for at, i := range of {
		p := under[at]
		if p == nil {
			continue
		}
		for err := out[i].Err; !p.done && p.id != 0; err = conn.awaitLocked(ctx, &p.waiter) {
			if err != nil {
				out[i].Err = err
				conn.abandonLocked(p)
				break
			}
		}
		if p.done {
			out[i].Reply, out[i].Err = p.reply, p.err
		}
		if p.outcome.elsewhere(m, out[i].Err) {
			again = append(again, i)
		}
	}
	return slices.Clip(again)
}

// startLocked queues a call. If its error is not nil and p has no number, the call was not begun.
func (c *clientConn) startLocked(ctx context.Context, m *Method, o *opening, p *pending, arg []byte) error {
	number, err := c.beginLocked(ctx, p, m, len(arg))
	if err != nil {
		return err
	}
	rest := c.queueMessageLocked(frame{kind: frameCall, method: number, call: p.id}, o, arg)
	if rest != nil {
		return c.piecesLocked(ctx, &p.waiter, p.id, rest, func() bool { return !p.done })
	}
	if len(c.out) > batchMost {
		c.flushLocked()
	}
	return nil
}
