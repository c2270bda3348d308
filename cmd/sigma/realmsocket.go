package main

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

// closedTo is the first directory on the way to path that other users may not pass; "" if they may
// pass all.
func closedTo(path string) (closed string) {
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o001 == 0 {
			closed = dir
		}
		if dir == filepath.Dir(dir) {
			return closed
		}
	}
}

// realmSocketFindings say whether programs with a credential can connect to the system that runs
// here; none if none does.
func (a *app) realmSocketFindings() []finding {
	const check = "realm socket"
	dir := datadir.HomeOf(a.Data)
	if _, held, err := datadir.Running(dir); err != nil || !held {
		return nil
	}
	path := filepath.Join(dir, datadir.RealmSocket)
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return []finding{weak(check, path+" is not there",
			"who has a credential of a realm cannot connect: start the system again, by sigma down and sigma up")}
	case st.Mode().Perm()&0o006 != 0o006:
		return []finding{weak(check, path+" is not for all users",
			"who has a credential of a realm cannot connect: chmod 666 "+path)}
	}
	if closed := closedTo(path); closed != "" {
		return []finding{weak(check, path+" is there, and other users cannot reach it: "+closed+" is closed to them",
			"if they are to use credentials: chmod o+x "+closed)}
	}
	return []finding{ok(check, path+" takes programs with a credential of a realm")}
}
