package procs

import (
	"context"
	"errors"
	"io"
	"path"
	"time"

	"sigmaos.dev/cmd/sigma/tail"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// streams copies what a proc writes to our own streams. Its files grow while it runs and stay when
// it has ended; sigmad changes their version with every piece and at the end.
type streams struct {
	cancel context.CancelFunc
	broken chan error    // an error of our own streams
	ended  chan struct{} // closed: the proc has ended, so the end of file is the end
	done   chan struct{} // closed: all is copied
}

// Follow starts to copy both streams.
func (a *app) follow(ctx context.Context, c *sdk.Client, id sigma.ProcID) *streams {
	ctx, cancel := context.WithCancel(ctx)
	o := &streams{cancel: cancel, broken: make(chan error, 2), ended: make(chan struct{}), done: make(chan struct{})}
	copied := make(chan struct{}, 2)
	for name, w := range map[string]io.Writer{"stdout": term.Raw(a.Out), "stderr": term.Raw(a.Err)} {
		go func() {
			defer func() { copied <- struct{}{} }()
			c.WaitStart(ctx, id) // there are no files before; if it failed, there may be none at all
			t := logTail{Tail: tail.Tail{Tree: c, Path: procFile(id, name), To: w}, lines: -1}
			var e tail.WriteError
			if err := t.Follow(ctx, o.ended, t.copy); errors.As(err, &e) {
				o.broken <- e.Err
			}
		}()
	}
	go func() {
		<-copied
		<-copied
		close(o.done)
	}()
	return o
}

// finish copies what remains after the proc's end, for at most patience if that is not 0.
func (o *streams) finish(patience time.Duration) {
	close(o.ended)
	var enough <-chan time.Time
	if patience > 0 {
		t := time.NewTimer(patience)
		defer t.Stop()
		enough = t.C
	}
	select {
	case <-o.done:
	case <-enough:
	}
}

func procFile(id sigma.ProcID, name string) string {
	return path.Join("/proc", string(id), name)
}
