package bench

import (
	"context"
	"sync"
)

// group runs functions at the same time; the first that fails stops the others by their context.
type group struct {
	all  sync.WaitGroup
	stop context.CancelCauseFunc
}

func newGroup(ctx context.Context) (*group, context.Context) {
	ctx, stop := context.WithCancelCause(ctx)
	return &group{stop: stop}, ctx
}

// Go starts f. While others run it may be called by them.
func (g *group) Go(f func() error) {
	g.all.Go(func() {
		if err := f(); err != nil {
			g.stop(err)
		}
	})
}

// wait returns the first error of the group, whose context is ctx.
func (g *group) wait(ctx context.Context) error {
	g.all.Wait()
	err := context.Cause(ctx)
	g.stop(nil)
	return err
}
