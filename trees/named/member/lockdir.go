package member

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"sigmaos.dev/sigma"
)

// lockDir makes the directory and locks it against a second server, which etcd itself would wait
// for without a word. The lock goes with the file descriptor, so also when the process is killed.
func lockDir(dir string) (*os.File, error) {
	const op = "named.lockDir"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sigma.Wrap(op, dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, sigma.Wrap(op, dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &sigma.Error{Op: op, Path: dir, Kind: sigma.KindBusy,
				Msg: "another name server uses the directory", Hint: "stop it first"}
		}
		return nil, sigma.Wrap(op, dir, err)
	}
	return f, nil
}
