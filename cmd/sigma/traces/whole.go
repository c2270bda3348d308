package traces

import (
	"os"
	"path/filepath"

	"sigmaos.dev/hostdir"
)

// Whole is a local file that is put in its place when all of it is on the disk, so that who reads
// it, or finds it after a crash, has the old one or the new one. What is no regular file, as
// /dev/stdout, is written as it is.
type whole struct {
	*os.File
	beside *hostdir.File // nil = it is in its place
}

// newWhole begins a file that takes the place of what path leads to, with its mode.
func newWhole(path string) (*whole, error) {
	mode := os.FileMode(0o666)
	if st, err := os.Stat(path); err == nil {
		if mode = st.Mode().Perm(); !st.Mode().IsRegular() {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			return &whole{File: f}, err
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, err
		}
	}
	f, err := hostdir.Create(path, mode)
	if err != nil {
		return nil, err
	}
	return &whole{f.File, f}, nil
}

// end puts the file in its place. drop follows.
func (w *whole) end() error {
	if w.beside == nil {
		return w.Close()
	}
	if err := w.Sync(); err != nil {
		return err
	}
	return w.beside.Commit()
}

// drop removes what end has not put in its place.
func (w *whole) drop() {
	if w.beside == nil {
		w.Close()
		return
	}
	w.beside.Drop()
}
