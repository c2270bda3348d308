package host

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

// listenRealms makes the socket, which the launcher hands to sigmad, on DATA, which is locked.
func listenRealms(dir string) (*os.File, error) {
	const op = "sigma.boot"
	path := filepath.Join(dir, datadir.RealmSocket)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, sigma.Wrap(op, path, err)
	}
	d, err := os.Open(dir) // socket paths are limited to 107 bytes; going through the directory makes any path short
	if err != nil {
		return nil, datadir.Explain(dir, err)
	}
	defer d.Close()
	short := filepath.Join("/proc/self/fd", strconv.Itoa(int(d.Fd())), datadir.RealmSocket)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: short, Net: "unixpacket"})
	if err != nil {
		return nil, sigma.Wrap(op, path, err)
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, sigma.Wrap(op, path, err)
	}
	f, err := l.File()
	if err != nil {
		return nil, sigma.Wrap(op, path, err)
	}
	return f, nil
}
