package diskfs

import (
	"context"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// trash is a directory of what is to be removed. Trees are moved into it in one rename and taken
// apart there. A tenant may have made one many thousands of levels deep, so subdirectories are
// moved up into the trash instead of being descended into: neither the stack nor the number of open
// descriptors grows with the depth.
type trash struct {
	fd int

	mu   sync.Mutex // one emptying at a time, and next
	next uint64     // guarded by mu
}

// take moves name of dir into the trash.
func (t *trash) take(dir int, name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takeLocked(dir, name)
}

func (t *trash) takeLocked(dir int, name string) error {
	for {
		t.next++
		// RENAME_NOREPLACE because an earlier server's trash has the same names.
		err := unix.Renameat2(dir, name, t.fd, strconv.FormatUint(t.next, 10), unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return err
		}
	}
}

// empty removes everything in the trash.
func (t *trash) empty(ctx context.Context) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		names, _, err := readNames(t.fd, 0)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return sigma.Wrap("diskfs.RemoveRealm", "", err)
			}
			if err := t.removeLocked(name); err != nil {
				return err
			}
		}
	}
}

// removeLocked removes one entry of the trash, and moves the directories in it up.
func (t *trash) removeLocked(name string) error {
	if err := unix.Unlinkat(t.fd, name, 0); err != unix.EISDIR {
		return err
	}
	fd, err := openDirAt(t.fd, name)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	names, _, err := readNames(fd, 0)
	if err != nil {
		return err
	}
	for _, n := range names {
		err := unix.Unlinkat(fd, n, 0)
		if err == unix.EISDIR {
			err = t.takeLocked(fd, n)
		}
		if err != nil {
			return err
		}
	}
	return unix.Unlinkat(t.fd, name, unix.AT_REMOVEDIR)
}

func (t *trash) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	closeFD(t.fd)
	t.fd = -1
}
