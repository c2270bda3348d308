package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// DATA, the directory that holds all state of one machine's system. The rules here keep a slip of
// the keyboard from damaging another directory: a directory that has something in it is only taken
// if it was a DATA before, because up changes its mode and its programs write below it.
const (
	lockName     = "lock"      // flock'ed while a system runs; its text is the keeper's pid
	instanceName = "instance"  // 8 hex digits, from which the launcher derives uids and cgroup names
	logName      = "sigma.log" // what launcher, sigmad and services print
	logMax       = 64 << 20    // bytes; a longer log is put aside at the next start
	spaceLeast   = 128 << 20   // bytes; etcd alone sets 64 MiB aside for its log
)

var instanceForm = regexp.MustCompile(`^[0-9a-f]{8}$`)

// dataDir gives the DATA of the machine that commands talk to: of several on this host, one of
// theirs.
func (a *app) dataDir() (string, error) {
	dir, err := a.dataRoot()
	if err != nil {
		return "", err
	}
	return homeOf(dir), nil
}

// dataRoot gives DATA as an absolute path without symlinks and .. in it.
func (a *app) dataRoot() (string, error) {
	if a.data == "" || strings.IndexByte(a.data, 0) >= 0 {
		return "", dataError(a.data, sigma.KindInvalid, "is not a directory name",
			"write for example: --data "+dataDefault)
	}
	dir, err := filepath.Abs(a.data)
	if err != nil {
		return "", sigma.Wrap("sigma.dataRoot", a.data, err)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	if dir == "/" {
		return "", dataError(dir, sigma.KindInvalid, "cannot be the data directory",
			"write for example: --data "+dataDefault)
	}
	return dir, nil
}

func dataError(dir string, kind sigma.Kind, msg, hint string) error {
	return &sigma.Error{Op: "sigma.data", Kind: kind, Msg: fmt.Sprintf("data directory %.200s %s", dir, msg),
		Hint: hint}
}

// defaultData is where DATA is if nobody says: below the home directory for an ordinary user, as
// the XDG base directory specification has it.
func (a *app) defaultData() string {
	if os.Geteuid() == 0 {
		return dataDefault
	}
	if dir := a.getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sigmaos")
	}
	if home := a.getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local/share/sigmaos")
	}
	return dataDefault
}

// prepareData makes DATA, or checks that what is there is one.
func prepareData(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return explainWrite(dir, err)
		}
	case err != nil:
		return explainWrite(dir, err)
	case !st.IsDir():
		return dataError(dir, sigma.KindNotDir, "is a file", "choose another with --data DIR")
	case st.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()):
		hint := "choose another with --data DIR"
		if os.Geteuid() == 0 {
			hint += ", or give it to root: chown root " + dir
		}
		return dataError(dir, sigma.KindPermission, "belongs to another user", hint)
	default:
		if err := checkIsData(dir); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o711)
	if os.Geteuid() != 0 {
		mode = 0o700 // the launcher's child and this user reach what is below as its owner
	}
	if err := os.Chmod(dir, mode); err != nil { // MkdirAll is subject to umask
		return explainWrite(dir, err)
	}
	var space unix.Statfs_t
	if err := unix.Statfs(dir, &space); err == nil && space.Bavail*uint64(space.Bsize) < spaceLeast {
		return fullError(dir)
	}
	return nil
}

func checkIsData(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return explainWrite(dir, err)
	}
	defer d.Close()
	names, _ := d.Readdirnames(1)
	if len(names) == 0 {
		return nil
	}
	for _, n := range []string{lockName, instanceName, clusterName} {
		if _, err := os.Lstat(filepath.Join(dir, n)); err == nil {
			return nil
		}
	}
	return dataError(dir, sigma.KindInvalid, "has files in it that are not sigmaOS's",
		"choose a new or empty directory with --data DIR")
}

func fullError(dir string) error {
	return dataError(dir, sigma.KindNoSpace, fmt.Sprintf("is on a disk that is full (less than %v are free)",
		sigma.Bytes(spaceLeast)), "free some space, or choose another with --data DIR")
}

// explainWrite makes an error of what went wrong in DATA.
func explainWrite(path string, err error) error {
	e := &sigma.Error{Op: "sigma.data", Path: path, Kind: sigma.KindOf(err), Err: err}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fullError(path)
	case errors.Is(err, syscall.ENOTDIR):
		return dataError(path, sigma.KindNotDir, "lies below a file", "choose another with --data DIR")
	case errors.Is(err, syscall.EROFS):
		return dataError(path, sigma.KindPermission, "is on a read-only file system", "choose another with --data DIR")
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "run as root, or with sudo"
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		e.Err = pe.Err // the path is said already
		e.Msg = "cannot " + pe.Op
	}
	return e
}

// instance returns DATA's 8 hex digits, made at its first use.
func instance(dir string) (string, error) {
	path := filepath.Join(dir, instanceName)
	b, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(b))
		if !instanceForm.MatchString(id) {
			return "", &sigma.Error{Op: "sigma.instance", Path: path, Kind: sigma.KindInvalid,
				Msg: "does not hold 8 hex digits",
				Hint: "restore it from a backup; or, if no process of this system is left, write any 8 of 0-9a-f " +
					"into it"}
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", explainWrite(path, err)
	}
	var raw [4]byte
	rand.Read(raw[:])
	id := hex.EncodeToString(raw[:])
	return id, writeWhole(path, id+"\n", -1)
}

// lockData takes DATA's lock for as long as the file or an inherited copy of it is open. Somebody
// who only looks whether it is free holds it for a moment, so a holder that is not alive is waited
// for.
func lockData(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, explainWrite(path, err)
	}
	for try := 0; ; try++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		pid := lockHolder(f)
		if !errors.Is(err, unix.EWOULDBLOCK) || alive(pid) || try == 20 {
			f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, explainWrite(path, err)
			}
			return nil, &sigma.Error{Op: "sigma.lockData", Kind: sigma.KindExists,
				Msg:  fmt.Sprintf("a sigmaOS is already running on %s (pid %d)", dir, pid),
				Hint: "stop it with: " + commandOn("down", dir) + "; or give this one another --data DIR"}
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			f.Close()
			return nil, err
		}
	}
}

// commandOn is a command line for people about the system on dir.
func commandOn(verb, dir string) string {
	if dir == dataDefault {
		return "sigma " + verb
	}
	return "sigma " + verb + " --data " + dir
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// lockHolder reads the pid that the holder wrote; 0 if there is none.
func lockHolder(f *os.File) int {
	var b [20]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) != syscall.ESRCH }

func writeHolder(f *os.File, pid int) error {
	text := fmt.Sprintf("%d\n", pid)
	if err := f.Truncate(0); err != nil {
		return explainWrite(f.Name(), err)
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return explainWrite(f.Name(), err)
	}
	return nil
}

// running tells whether a system holds DATA's lock, and the keeper's pid. free takes and gives back
// the lock, so it is asked sparingly.
func running(dir string) (pid int, held bool, err error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, explainWrite(path, err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, false, nil
	}
	return lockHolder(f), true, nil
}

// waitStopped returns once nothing holds DATA's lock.
func waitStopped(ctx context.Context, dir string) error {
	for {
		_, held, err := running(dir)
		if err != nil || !held {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// openLog opens DATA's log for appending and tells where it ends now. A log that has become long is
// put aside, once.
func openLog(dir string) (*os.File, int64, error) {
	path := filepath.Join(dir, logName)
	if st, err := os.Stat(path); err == nil && st.Size() > logMax {
		os.Rename(path, path+".old") // if it fails the log just goes on growing
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, explainWrite(path, err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, explainWrite(path, err)
	}
	return f, st.Size(), nil
}

// lastLines returns the last n lines of f after from.
func lastLines(f *os.File, from int64, n int) string {
	st, err := f.Stat()
	if err != nil {
		return ""
	}
	from = max(from, st.Size()-32<<10)
	b := make([]byte, st.Size()-from)
	k, _ := f.ReadAt(b, from)
	lines := strings.Split(strings.TrimRight(string(b[:k]), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
