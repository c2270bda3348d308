package kernel

import (
	"errors"
	"os"

	"sigmaos.dev/sigma"
)

// replaceFile replaces a file that only root reads, as a whole or not at all, also if the power fails. On an error it leaves nothing beside it.
func replaceFile(path string, text []byte) error {
	const op = "kernel.replaceFile"
	f, err := os.OpenFile(path+"~", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return sigma.Wrap(op, path, err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(path+"~", path)
	}
	if err != nil {
		os.Remove(path + "~")
	}
	return sigma.Wrap(op, path, err)
}
