// Package tail copies files of a realm that grow, such as logs, until what writes them has ended.
package tail

import (
	"context"
	"io"
	"time"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

// WriteError is an error of where a tail writes to, not of what it reads.
type WriteError struct{ Err error }

func (e WriteError) Error() string { return e.Err.Error() }

// Unwrap gives the error itself.
func (e WriteError) Unwrap() error { return e.Err }

// Tail copies a growing file.
type Tail struct {
	Tree   sigma.Namespace
	Path   string
	To     io.Writer
	Offset int64
	Again  bool // a file that has become shorter is another one, which is copied from its beginning
}

// Follow copies with copy until ended is closed and the end of the file is reached. A file that is
// missing then is an empty one.
func (t *Tail) Follow(ctx context.Context, ended <-chan struct{}, copy func(context.Context) (sigma.Version,
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
			_, err = t.Tree.Watch(watching, t.Path, version)
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

// Copy writes from the offset to the end of the file and tells the file's version before that.
func (t *Tail) Copy(ctx context.Context) (sigma.Version, error) {
	h, err := t.Tree.Open(ctx, t.Path, sigma.OpenRead)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	st, err := h.Stat()
	if err != nil {
		return 0, err
	}
	if t.Again && st.ID.Kind == sigma.KindFile && int64(st.Size) < t.Offset {
		t.Offset = 0
	}
	buf := make([]byte, 256<<10)
	for ctx.Err() == nil {
		n, err := h.ReadAt(buf, t.Offset)
		if n > 0 {
			if _, werr := t.To.Write(buf[:n]); werr != nil {
				return 0, WriteError{werr}
			}
			t.Offset += int64(n)
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
