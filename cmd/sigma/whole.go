package main

import (
	"os"
	"path/filepath"

	"sigmaos.dev/sigma"
)

// whole is a local file that is written beside its place and put there when all of it is on the disk, so that who reads it, or finds it after a crash, has the old one or the new one. What is no regular file, as /dev/stdout, is written as it is.
type whole struct {
	*os.File
	path string // its place; "" = it is there
}

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
	f, err := os.OpenFile(path+".new-"+string(sigma.NewProcID()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	return &whole{f, path}, err
}

// end puts the file in its place. drop follows.
func (w *whole) end() error {
	if w.path == "" {
		return w.Close()
	}
	if err := w.Sync(); err != nil {
		return err
	}
	return os.Rename(w.Name(), w.path)
}

// drop removes what end has not put in its place.
func (w *whole) drop() {
	w.Close()
	if w.path != "" {
		os.Remove(w.Name())
	}
}
