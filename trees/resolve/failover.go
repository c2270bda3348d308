package resolve

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// A directory of endpoints is a union of the trees behind them: DIR/~any/NAME is NAME of the first
// member, by order of names, that lives and has it, and DIR/~local/NAME the same of the members on
// this machine (000 §6.2 lets clerks fail over so). A member that lacks what the request needs, or
// cannot be reached, has certainly done nothing, and the next one is asked. One that dies in the
// middle may have done it: only what reads goes on then.

// passOver prepares the cursor for the next member and reports whether there may be one. Without a
// choice, a server that died while it was read from is asked once more: it may have been started
// again. The root's is asked as often as another has taken its place.
func (t *Tree) passOver(c *cursor, err error, again bool) bool {
	kind := sigma.KindOf(err)
	switch {
	case kind == sigma.KindNotFound || kind == sigma.KindUnavailable:
	case kind == sigma.KindLost && again:
	default:
		return false
	}
	if c.before == nil {
		if kind != sigma.KindLost || c.mount == "" && c.epoch == t.epoch() || c.mount != "" && c.redialled {
			return false
		}
		c.redialled = c.mount != ""
		t.atRoot(c)
		return true
	}
	if c.passed == nil {
		c.passed, c.reason = map[string]bool{}, err
	}
	c.passed[c.member] = true
	c.path, c.before = c.before, nil
	t.atRoot(c)
	return true
}

// reading walks to the file at path and does something to it that may be done again, at another
// server too.
func (t *Tree) reading(ctx context.Context, path string, followLast bool, do func(f sigma.File) error) error {
	_, err := t.at(ctx, path, true, func(f sigma.File, names []string) (*sigma.Stopped, error) {
		file, stop, err := treeserver.WalkTo(ctx, f, names, followLast)
		if err != nil || stop != nil {
			return stop, err
		}
		defer file.Close()
		return nil, do(file)
	})
	return err
}
