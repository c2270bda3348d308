package identity

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
)

// OpenAuthority reads the authority from its file, which nobody but its owner may read. If there is
// none and the system is new it makes one, durable before it is returned, since certificates will
// depend on it.
func OpenAuthority(path string, fresh bool, now time.Time) (*Authority, error) {
	const op = "identity.OpenAuthority"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && fresh:
		return makeAuthority(path, now)
	case errors.Is(err, fs.ErrNotExist):
		return nil, &sigma.Error{Op: op, Path: path, Kind: sigma.KindNotFound,
			Msg: "the system has an authority, and its key is not on this machine",
			Hint: "bring the file from another control machine, or from a backup; without it no machine can join or " +
				"renew its certificate"}
	case err != nil:
		return nil, sigma.Wrap(op, path, err)
	case info.Mode().Perm()&0o077 != 0:
		return nil, &sigma.Error{Op: op, Path: path, Kind: sigma.KindPermission,
			Msg:  "others than the owner can read the authority's key",
			Hint: "who has read it can be any machine; if nobody has: chmod 600"}
	case info.Size() > 16<<10:
		return nil, sigma.PathError(op, sigma.KindTooBig, path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, sigma.Wrap(op, path, err)
	}
	a, err := ParseAuthority(text)
	return a, sigma.Wrap(op, path, err)
}

func makeAuthority(path string, now time.Time) (*Authority, error) {
	a, err := NewAuthority(now)
	if err != nil {
		return nil, err
	}
	return a, KeepAuthority(path, a)
}

// KeepAuthority puts the authority into its file, as a whole or not at all, durable before it
// returns.
func KeepAuthority(path string, a *Authority) error { return atomicfile.Write(path, a.Marshal()) }
