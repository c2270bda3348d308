package resolve

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// cycle is a directory that has itself in it twice.
type cycle struct {
	sigma.File
	asked *atomic.Int64
}

func (c cycle) Remove(context.Context, string) error {
	c.asked.Add(1)
	return sigma.PathError("cycle", sigma.KindNotEmpty, "")
}

func (c cycle) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return c, nil, nil
}
func (c cycle) Open(context.Context, sigma.OpenFlags) error { return nil }
func (c cycle) Close()                                      {}

func (c cycle) ReadDir(context.Context, uint64, int) ([]sigma.DirEntry, uint64, bool, error) {
	return []sigma.DirEntry{{Name: "a"}, {Name: "b"}}, 0, false, nil
}

// Goal: the removal of a tree that has no end fails soon, whether it is deep or only large, and
// says why.
func TestRemoveEndsOfEndlessTrees(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, seen := range []int64{0, removeMax - 5} {
		c := cycle{asked: new(atomic.Int64)}
		r := remover{turns: make(chan struct{}, removersMax)}
		r.seen.Store(seen)
		err := r.all(ctx, c, "x", 0)
		if sigma.KindOf(err) != sigma.KindTooBig || sigma.HintOf(err) == "" {
			t.Errorf("with %d entries before: %v", seen, err)
		}
		if n := c.asked.Load(); n > 20*removeDepth {
			t.Errorf("with %d entries before it went on for %d", seen, n)
		}
	}
}
