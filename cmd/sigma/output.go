package main

import (
	"context"
	"errors"
	"io"
	"path"
	"time"

	"sigmaos.dev/cmd/sigma/datadir"
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

// follow starts to copy both streams.
func (a *app) follow(ctx context.Context, c *sdk.Client, id sigma.ProcID) *streams {
	ctx, cancel := context.WithCancel(ctx)
	o := &streams{cancel: cancel, broken: make(chan error, 2), ended: make(chan struct{}), done: make(chan struct{})}
	copied := make(chan struct{}, 2)
	for name, w := range map[string]io.Writer{"stdout": term.Raw(a.Out), "stderr": term.Raw(a.Err)} {
		go func() {
			defer func() { copied <- struct{}{} }()
			c.WaitStart(ctx, id) // there are no files before; if it failed, there may be none at all
			t := logTail{tail: tail{tree: c, path: procFile(id, name), to: w}, lines: -1}
			var e writeError
			if err := t.follow(ctx, o.ended, t.copy); errors.As(err, &e) {
				o.broken <- e.error
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

// writeError is an error of where a tail writes to, not of what it reads.
type writeError struct{ error }

// tail copies a growing file.
type tail struct {
	tree   sigma.Namespace
	path   string
	to     io.Writer
	offset int64
	again  bool // a file that has become shorter is another one, which is copied from its beginning
}

// follow copies with copy until ended is closed and the end of the file is reached. A file that is
// missing then is an empty one.
func (t *tail) follow(ctx context.Context, ended <-chan struct{}, copy func(context.Context) (sigma.Version,
	error)) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-ended:
			stop()
		case <-watching.Done():
		}
	}()
	for {
		last := closed(ended) // before looking, so that nothing written before the end is missed
		version, err := copy(ctx)
		if last || ctx.Err() != nil {
			if sigma.KindOf(err) == sigma.KindNotFound {
				err = nil
			}
			return err
		}
		if err == nil {
			_, err = t.tree.Watch(watching, t.path, version)
		}
		if err != nil && !closed(ended) {
			if k := sigma.KindOf(err); k != sigma.KindNotFound && k != sigma.KindUnsupported {
				return err
			}
			// Not there yet, or a server that cannot watch: look again now and then.
			datadir.Pause(watching, 100*time.Millisecond)
		}
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// copy writes from the offset to the end of the file and tells the file's version before that.
func (t *tail) copy(ctx context.Context) (sigma.Version, error) {
	h, err := t.tree.Open(ctx, t.path, sigma.OpenRead)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	st, err := h.Stat()
	if err != nil {
		return 0, err
	}
	if t.again && st.ID.Kind == sigma.KindFile && int64(st.Size) < t.offset {
		t.offset = 0
	}
	buf := make([]byte, 256<<10)
	for ctx.Err() == nil {
		n, err := h.ReadAt(buf, t.offset)
		if n > 0 {
			if _, werr := t.to.Write(buf[:n]); werr != nil {
				return 0, writeError{werr}
			}
			t.offset += int64(n)
		}
		if err == io.EOF || n == 0 && err == nil {
			return st.ID.Version, nil
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, ctx.Err()
}
