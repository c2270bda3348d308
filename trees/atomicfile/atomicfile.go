// Package atomicfile replaces a file as a whole.
//
// A library would use a new temporary name at each attempt, and leave one more file after each
// kill.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"

	"sigmaos.dev/sigma"
)

// Write replaces the file at path, or makes it, readable for its owner alone.
// The new content is on disk, whole, when it returns nil; on an error the old content stays.
// It writes path~ first, so two writers of one path must take turns.
func Write(path string, data []byte) error {
	const op = "atomicfile.Write"
	next := path + "~"
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return sigma.Wrap(op, path, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o600), f.Sync(), f.Close()); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		os.Remove(next)
		return sigma.Wrap(op, path, err)
	}
	return sigma.Wrap(op, path, syncDir(filepath.Dir(path)))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
