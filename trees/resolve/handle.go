package resolve

import (
	"context"
	"io"
	"os"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// handle is an open file with a position. Like those of an os.File, its operations cannot be given
// up; the context has what it was opened with besides that.
type handle struct {
	ctx    context.Context
	file   sigma.File
	path   string
	pos    uint64
	writes bool // opened for writing, so Close has something to make durable
	// stop ends what waits, when a pipe is closed; nil = the file is no pipe.
	stop context.CancelFunc
	direct
}

// newHandle makes a handle of an open file.
func newHandle(ctx context.Context, file sigma.File, path string, writes bool) *handle {
	h := &handle{ctx: context.WithoutCancel(ctx), file: file, path: path, writes: writes}
	if f, ok := file.(sigma.Identified); ok && f.FileID().Kind == sigma.KindPipe {
		h.ctx, h.stop = context.WithCancel(h.ctx)
	}
	return h
}

// Open implements sigma.Namespace.
func (t *Tree) Open(ctx context.Context, path string, f sigma.OpenFlags) (sigma.Handle, error) {
	var file sigma.File
	_, err := t.at(ctx, path, !f.Writes(), func(from sigma.File, names []string) (stop *sigma.Stopped, err error) {
		if file, stop, err = treeserver.WalkTo(ctx, from, names, true); err != nil || stop != nil {
			return stop, err
		}
		if err = file.Open(ctx, f); err != nil {
			file.Close()
		}
		return nil, err
	})
	if err != nil {
		return nil, err
	}
	h := newHandle(ctx, file, path, f.Writes())
	h.appends = f&sigma.OpenAppend != 0
	return h, nil
}

// Create implements sigma.Namespace.
func (t *Tree) Create(ctx context.Context, path string, f sigma.OpenFlags, perm uint32) (sigma.Handle, error) {
	dir, name, _, err := t.parent(ctx, path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if !f.Writes() {
		f |= sigma.OpenWrite
	}
	file, err := dir.Create(ctx, name, f, perm)
	if err != nil {
		return nil, withPath(err, path)
	}
	h := newHandle(ctx, file, path, true)
	h.appends = f&sigma.OpenAppend != 0
	h.hidden = f&sigma.OpenHidden != 0 && !h.appends
	return h, nil
}

func (h *handle) Read(p []byte) (int, error) {
	if h.stop != nil {
		n, err := h.file.ReadAt(h.ctx, p, 0)
		if n == 0 && err == nil && len(p) > 0 {
			return 0, io.EOF
		}
		return n, withPathOrNil(err, h.path)
	}
	n, err := h.ReadAt(p, int64(h.pos))
	h.pos += uint64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, sigma.Errorf("resolve.ReadAt", sigma.KindInvalid, "negative offset")
	}
	if h.stop != nil {
		return 0, h.noPositions("resolve.ReadAt")
	}
	n, passed, err := h.readDirectly(p, off)
	if passed {
		return n, err
	}
	if err := h.settle(); err != nil {
		return 0, withPath(err, h.path)
	}
	n, err = h.file.ReadAt(h.ctx, p, uint64(off))
	if err == nil && n < len(p) {
		return n, io.EOF
	}
	return n, withPathOrNil(err, h.path)
}

func (h *handle) Write(p []byte) (int, error) {
	n, err := h.WriteAt(p, int64(h.pos))
	h.pos += uint64(n)
	return n, err
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, sigma.Errorf("resolve.WriteAt", sigma.KindInvalid, "negative offset")
	}
	n, passed, err := h.writeDirectly(p, off)
	if !passed {
		if err := h.settle(); err != nil {
			return 0, withPath(err, h.path)
		}
		n, err = h.file.WriteAt(h.ctx, p, uint64(off))
	}
	return n, withPathOrNil(err, h.path)
}

func (h *handle) noPositions(op string) error {
	return &sigma.Error{Op: op, Path: h.path, Kind: sigma.KindInvalid, Msg: "a pipe has no positions"}
}

func (h *handle) Seek(offset int64, whence int) (int64, error) {
	if h.stop != nil {
		return 0, h.noPositions("resolve.Seek")
	}
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += int64(h.pos)
	case io.SeekEnd:
		h.settle()
		st, err := h.file.Stat(h.ctx)
		if err != nil {
			return 0, withPath(err, h.path)
		}
		offset += int64(st.Size)
	default:
		return 0, sigma.Errorf("resolve.Seek", sigma.KindInvalid, "whence %d", whence)
	}
	if offset < 0 {
		return 0, sigma.Errorf("resolve.Seek", sigma.KindInvalid, "negative position")
	}
	h.pos = uint64(offset)
	return offset, nil
}

func (h *handle) Stat() (sigma.Stat, error) {
	h.settle()
	st, err := h.file.Stat(h.ctx)
	return st, withPathOrNil(err, h.path)
}

// Sync implements sigma.Handle.
func (h *handle) Sync() error {
	err := h.settle()
	if err == nil {
		err = h.file.Sync(h.ctx)
	}
	return withPathOrNil(err, h.path)
}

func (h *handle) File() (*os.File, error) {
	h.giveBack()
	f, err := h.pass()
	return f, withPathOrNil(err, h.path)
}

// Discard implements sigma.Handle.
func (h *handle) Discard() {
	h.giveBack()
	if h.stop != nil {
		h.stop()
	}
	h.file.Close()
}

// Close makes what was written durable and visible, then releases the handle. What could not be
// written by a descriptor, of which the server does not know, is not made visible.
func (h *handle) Close() error {
	err := h.giveBack()
	if err != nil {
		h.Discard()
		return withPath(err, h.path)
	}
	if h.stop != nil {
		h.stop()
	} else if h.writes {
		err = h.file.Sync(h.ctx)
	}
	h.file.Close()
	if sigma.KindOf(err) == sigma.KindUnsupported {
		err = nil
	}
	return withPathOrNil(err, h.path)
}
