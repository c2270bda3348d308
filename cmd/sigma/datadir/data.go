// Package datadir is DATA, the directory on a host that holds all state of one machine's system, or
// of several machines: who runs on it, which instance it is, where its sockets and its log are.
//
// The rules here keep a slip of the keyboard from damaging another directory: a directory that has
// something in it is only taken if it was a DATA before, because "sigma up" changes its mode, and
// its programs write below it.
package datadir

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
	"sigmaos.dev/trees/hostdir"
)

// What is right below DATA, and its limits.
const (
	LockName     = "lock"      // flock'ed while a system runs; its text is the keeper's pid
	InstanceName = "instance"  // 8 hex digits, from which the launcher derives uids and cgroup names
	LogName      = "sigma.log" // what launcher, sigmad and services print
	logMax       = 64 << 20    // bytes; a longer log is put aside at the next start
	SpaceLeast   = 128 << 20   // bytes; etcd alone sets 64 MiB aside for its log
)

// InstanceForm is what an instance looks like.
var InstanceForm = regexp.MustCompile(`^[0-9a-f]{8}$`)

// Error is an error about a DATA.
func Error(dir string, kind sigma.Kind, msg, hint string) error {
	return &sigma.Error{Op: "sigma.data", Kind: kind, Msg: fmt.Sprintf("data directory %.200s %s", dir, msg),
		Hint: hint}
}

// Prepare makes DATA, or checks that what is there is one.
func Prepare(dir string) error {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return Explain(dir, err)
		}
	case err != nil:
		return Explain(dir, err)
	case !st.IsDir():
		return Error(dir, sigma.KindNotDir, "is a file", "choose another with --data DIR")
	case st.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()):
		hint := "choose another with --data DIR"
		if os.Geteuid() == 0 {
			hint += ", or give it to root: chown root " + dir
		}
		return Error(dir, sigma.KindPermission, "belongs to another user", hint)
	default:
		if err := checkIs(dir); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o711)
	if os.Geteuid() != 0 {
		mode = 0o700 // the launcher's child and this user reach what is below as its owner
	}
	if err := os.Chmod(dir, mode); err != nil { // MkdirAll is subject to umask
		return Explain(dir, err)
	}
	var space unix.Statfs_t
	if err := unix.Statfs(dir, &space); err == nil && space.Bavail*uint64(space.Bsize) < SpaceLeast {
		return fullError(dir)
	}
	return nil
}

func checkIs(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return Explain(dir, err)
	}
	defer d.Close()
	names, _ := d.Readdirnames(1)
	if len(names) == 0 {
		return nil
	}
	for _, n := range []string{LockName, InstanceName, clusterName} {
		if _, err := os.Lstat(filepath.Join(dir, n)); err == nil {
			return nil
		}
	}
	return Error(dir, sigma.KindInvalid, "has files in it that are not sigmaOS's",
		"choose a new or empty directory with --data DIR")
}

func fullError(dir string) error {
	return Error(dir, sigma.KindNoSpace, fmt.Sprintf("is on a disk that is full (less than %v are free)",
		sigma.Bytes(SpaceLeast)), "free some space, or choose another with --data DIR")
}

// Explain makes an error of what went wrong in DATA.
func Explain(path string, err error) error {
	e := &sigma.Error{Op: "sigma.data", Path: path, Kind: sigma.KindOf(err), Err: err}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fullError(path)
	case errors.Is(err, syscall.ENOTDIR):
		return Error(path, sigma.KindNotDir, "lies below a file", "choose another with --data DIR")
	case errors.Is(err, syscall.EROFS):
		return Error(path, sigma.KindPermission, "is on a read-only file system", "choose another with --data DIR")
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

// Instance returns DATA's 8 hex digits, made at its first use.
func Instance(dir string) (string, error) {
	path := filepath.Join(dir, InstanceName)
	b, err := os.ReadFile(path)
	if err == nil {
		id := strings.TrimSpace(string(b))
		if !InstanceForm.MatchString(id) {
			return "", &sigma.Error{Op: "sigma.instance", Path: path, Kind: sigma.KindInvalid,
				Msg: "does not hold 8 hex digits",
				Hint: "restore it from a backup; or, if no process of this system is left, write any 8 of 0-9a-f " +
					"into it"}
		}
		return id, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", Explain(path, err)
	}
	var raw [4]byte
	rand.Read(raw[:])
	id := hex.EncodeToString(raw[:])
	return id, Write(path, id+"\n", -1)
}

// Lock takes DATA's lock for as long as the file or an inherited copy of it is open. Somebody
// who only looks whether it is free holds it for a moment, so a holder that is not alive is waited
// for.
func Lock(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, LockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, Explain(path, err)
	}
	for try := 0; ; try++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		pid := holder(f)
		if !errors.Is(err, unix.EWOULDBLOCK) || alive(pid) || try == 20 {
			f.Close()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, Explain(path, err)
			}
			return nil, &sigma.Error{Op: "sigma.lockData", Kind: sigma.KindExists,
				Msg:  fmt.Sprintf("a sigmaOS is already running on %s (pid %d)", dir, pid),
				Hint: "stop it with: " + CommandOn("down", dir) + "; or give this one another --data DIR"}
		}
		if err := Pause(ctx, 50*time.Millisecond); err != nil {
			f.Close()
			return nil, err
		}
	}
}

// CommandOn is a command line for people about the system on dir.
func CommandOn(verb, dir string) string {
	if dir == Default {
		return "sigma " + verb
	}
	return "sigma " + verb + " --data " + dir
}

// Pause waits, unless ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// holder reads the pid that the holder wrote; 0 if there is none.
func holder(f *os.File) int {
	var b [20]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid
}

func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) != syscall.ESRCH }

// WriteHolder notes in the lock f which process holds it.
func WriteHolder(f *os.File, pid int) error {
	text := fmt.Sprintf("%d\n", pid)
	if err := f.Truncate(0); err != nil {
		return Explain(f.Name(), err)
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return Explain(f.Name(), err)
	}
	return nil
}

// Running tells whether a system holds DATA's lock, and the keeper's pid. free takes and gives back
// the lock, so it is asked sparingly.
func Running(dir string) (pid int, held bool, err error) {
	path := filepath.Join(dir, LockName)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, Explain(path, err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
		return 0, false, nil
	}
	return holder(f), true, nil
}

// WaitStopped returns once nothing holds DATA's lock.
func WaitStopped(ctx context.Context, dir string) error {
	for {
		_, held, err := Running(dir)
		if err != nil || !held {
			return err
		}
		if err := Pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

// OpenLog opens DATA's log for appending and tells where it ends now. A log that has become long is
// put aside, once.
func OpenLog(dir string) (*os.File, int64, error) {
	path := filepath.Join(dir, LogName)
	if st, err := os.Stat(path); err == nil && st.Size() > logMax {
		os.Rename(path, path+".old") // if it fails the log just goes on growing
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, Explain(path, err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, Explain(path, err)
	}
	return f, st.Size(), nil
}

// LastLines returns the last n lines of f after from.
func LastLines(f *os.File, from int64, n int) string {
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

// RealmSocket is where programs with a credential of a realm connect, below DATA. All users may;
// what they get is what their credential says.
const RealmSocket = "realm.sock"

// Where things are unless a flag or the environment says otherwise.
const (
	Default     = "/var/lib/sigma"    // root's; an ordinary user's is told by app.DefaultData
	AdminSocket = "sigmad/admin.sock" // below DATA
)

func NotRunning(dir string) error {
	verb := "up --detach"
	if os.Geteuid() != 0 {
		verb = "up --rootless --detach"
	}
	return &sigma.Error{Op: "sigma.running", Kind: sigma.KindUnavailable, Msg: "no sigmaOS is running on " + dir,
		Hint: "start it with: " + CommandOn(verb, dir)}
}

// Write makes a small file, for its owner alone, that is there whole or not at all, also when
// the disk is full or the machine stops. A uid other than -1 owns it.
func Write(path, text string, uid int) error {
	f, err := hostdir.Create(path, 0o600)
	if err != nil {
		return Explain(path, err)
	}
	defer f.Drop()
	if _, err = f.WriteString(text); err == nil {
		err = f.Chown(uid, uid)
	}
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = f.Commit()
	}
	if err != nil {
		return Explain(path, err)
	}
	return nil
}
