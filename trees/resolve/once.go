package resolve

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// A proc's sigmad may die with a change under way, and another take the connection over
// (wire/session/reset.go). A change by path, of a file that the root's server keeps, is numbered
// (sigma.Once), so that it can be asked for again then: sigmad passes the number on to named, which
// remembers. Servers that remember nothing answer KindLost, as the first attempt was.

// onceTries bounds the attempts at one change. Each ends with a lost reply.
const onceTries = 4

// change is one operation that changes something, with the number of the request that is under way.
type change struct {
	lane  *session.Lane // nil = who asks has numbered it
	again bool          // the last request may have been carried out: it is sent again with its number
}

// do sends a request, with a number if it is for the root's server.
func (c *change) do(ctx context.Context, toRoot bool, send func(ctx context.Context) error) error {
	if !toRoot || c.lane == nil {
		return send(ctx)
	}
	once := c.lane.Last()
	if once.Again = c.again; !c.again {
		once = c.lane.Next()
	}
	err := send(sigma.WithOnce(ctx, once))
	c.again = err != nil && sigma.KindOf(err) == sigma.KindLost
	return err
}

// changing runs op, which finds the file and asks for the change, and runs it again while the reply
// of the root's server is lost.
func (t *Tree) changing(ctx context.Context, op func(c *change) error) error {
	if sigma.OnceOf(ctx).Client != 0 { // who asks sees to it
		return op(&change{})
	}
	c := change{lane: t.lanes.Take()}
	defer t.lanes.Return(c.lane)
	for try := 1; ; try++ {
		err := op(&c)
		if err == nil || !c.again || try == onceTries || ctx.Err() != nil || t.over() {
			return err
		}
	}
}

// over says that there is nobody to ask any more.
func (t *Tree) over() bool {
	select {
	case <-t.cfg.Done:
		return true
	default:
		return false
	}
}

// isRoot reports whether f is the root that the tree was given.
func (t *Tree) isRoot(f sigma.File) bool { return bare(f) == t.cfg.Root }
