package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"sigmaos.dev/sigma"
)

// nothing is a progress that nobody sees.
type nothing struct{}

func (nothing) Add(int64)           {}
func (nothing) Set(int64)           {}
func (nothing) Done()               {}
func (nothing) Beside(write func()) { write() }

// download copies a file of the realm to w.
func download(ctx context.Context, c sigma.Namespace, p string, w io.Writer, count progress) error {
	st, err := c.Stat(ctx, p)
	switch {
	case err != nil:
		return err
	case st.ID.Kind == sigma.KindDir:
		return &sigma.Error{Op: "sigma.download", Path: p, Kind: sigma.KindIsDir, Hint: "list it with: sigma ls " + p + "; fetch it with: sigma get -r " + p}
	case st.ID.Kind == sigma.KindCallable:
		return noContent(p)
	}
	_, err = fetch(ctx, c, p, w, count)
	return err
}

func noContent(p string) error {
	return &sigma.Error{Op: "sigma.download", Path: p, Kind: sigma.KindUnsupported, Msg: "answers calls and has no content"}
}

// fetch is download of what is known to be a file. It tells the file's mode.
func fetch(ctx context.Context, c sigma.Namespace, p string, w io.Writer, count progress) (perm uint32, err error) {
	s, err := openSource(ctx, c, p)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	return s.perm, pour(ctx, w, s.reader(), count)
}

// source is a file of the realm to read.
type source struct {
	sigma.Handle
	passed *os.File // nil unless the server passes its file, so that the bytes need not go through it
	perm   uint32
}

func openSource(ctx context.Context, c sigma.Namespace, p string) (*source, error) {
	h, err := c.Open(ctx, p, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	st, err := h.Stat()
	if err != nil {
		h.Close()
		return nil, err
	}
	s := &source{Handle: h, perm: st.Perm}
	if f, err := h.File(); err == nil {
		s.passed = f
	}
	return s, nil
}

func (s *source) reader() io.Reader {
	if s.passed != nil {
		return s.passed
	}
	return s.Handle
}

func (s *source) Close() {
	if s.passed != nil {
		s.passed.Close()
	}
	s.Handle.Close()
}

// localError makes an error of this machine's files read like one of the realm's.
func localError(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		e := &sigma.Error{Op: "sigma.local", Path: pe.Path, Kind: sigma.KindOf(pe.Err), Msg: "cannot " + pe.Op + " on this machine", Err: pe.Err}
		if errors.Is(pe.Err, syscall.ELOOP) {
			e.Msg, e.Hint = "leads through a symbolic link on this machine, which is not followed", "name what the link leads to, or remove the link"
		}
		return e
	}
	return err
}
