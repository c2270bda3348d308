package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/test/attack/forge"
)

// descriptor tries what a descriptor that was given for reading must not allow.
func descriptor(ctx context.Context, args []string) error {
	runtime.LockOSThread()
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	if len(args) > 0 {
		f, err := os.OpenFile(args[0], os.O_RDWR, 0)
		if err != nil {
			return err
		}
		misuse(out, "", f)
		return nil
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	for _, path := range []string{forge.UX + "/secret", forge.Object, "/bin/forger"} {
		h, err := c.Open(ctx, path, sigma.OpenRead)
		if err != nil {
			return err
		}
		f, err := h.File()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		misuse(out, path+": ", f)
	}
	fmt.Fprintln(out, endLine)
	return nil
}

// endLine shows that the program has not become another.
const endLine = "all of them"

func misuse(out *bufio.Writer, prefix string, f *os.File) {
	fd := int(f.Fd())
	call := func(nr uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := syscall.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		return nil
	}
	text := func(s string) uintptr { return uintptr(unsafe.Pointer(unsafe.StringData(s + "\x00"))) }
	for _, x := range []struct {
		name, attempt string
		try           func() error
	}{
		{"write", "write to a passed file", func() error { _, err := unix.Write(fd, []byte("x")); return err }},
		{"pwrite", "write to a passed file", func() error { _, err := unix.Pwrite(fd, []byte("x"), 0); return err }},
		{"pwritev", "write to a passed file", func() error {
			_, err := unix.Pwritev(fd, [][]byte{[]byte("x")}, 0)
			return err
		}},
		{"writev", "write to a passed file", func() error {
			_, err := unix.Writev(fd, [][]byte{[]byte("x")})
			return err
		}},
		{"ftruncate", "change the length of a passed file", func() error { return unix.Ftruncate(fd, 1) }},
		{"fallocate", "change the length of a passed file", func() error { return unix.Fallocate(fd, 0, 0, 1) }},
		{"fchmod", "change the attributes of a passed file", func() error { return unix.Fchmod(fd, 0o777) }},
		{"fchown", "change the attributes of a passed file", func() error { return unix.Fchown(fd, -1, -1) }},
		{"futimens", "change the attributes of a passed file", func() error {
			return call(unix.SYS_UTIMENSAT, uintptr(fd), 0, 0, 0)
		}},
		{"fsync", "make the disk work for a passed file", func() error { return unix.Fsync(fd) }},
		{"flock", "lock a passed file against others", func() error {
			return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
		}},
		{"flock alone", "lock a passed file against others", func() error {
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}},
		{"lock", "lock a passed file against others", func() error {
			return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
		}},
		{"lease", "take a lease", func() error {
			return reached(fcntl(fd, unix.F_SETLEASE, unix.F_RDLCK), unix.EAGAIN)
		}},
		{"notify", "have a signal sent by a descriptor", func() error { return fcntl(fd, unix.F_SETOWN, os.Getpid()) }},
		{"open again by /proc", "open a passed file again for writing", func() error {
			_, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR, 0)
			return err
		}},
		{"open again by /dev", "open a passed file again for writing", func() error {
			_, err := unix.Open(fmt.Sprintf("/dev/fd/%d", fd), unix.O_RDWR, 0)
			return err
		}},
		{"its name", "learn where a passed file lies", func() error {
			_, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			return err
		}},
		{"map for writing", "map a passed file for writing", func() error {
			b, err := unix.Mmap(fd, 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err == nil {
				b[0] = 'x'
			}
			return err
		}},
		{"map and protect for writing", "map a passed file for writing", func() error {
			b, err := unix.Mmap(fd, 0, 1, unix.PROT_READ, unix.MAP_SHARED)
			if err == nil {
				err = unix.Mprotect(b[:1:1], unix.PROT_READ|unix.PROT_WRITE)
			}
			return err
		}},
		{"set an attribute", "change the attributes of a passed file", func() error {
			return unix.Fsetxattr(fd, "user.attack", []byte("x"), 0)
		}},
		{"set flags", "change the attributes of a passed file", func() error {
			_, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
			return err
		}},
		{"link to it", "give a passed file another name", func() error {
			name := fmt.Sprintf("%s/sigma-attack-%d", os.TempDir(), os.Getpid())
			err := unix.Linkat(fd, "", unix.AT_FDCWD, name, unix.AT_EMPTY_PATH)
			os.Remove(name)
			return err
		}},
		{"copy into it", "copy into a passed file", func() error {
			_, err := unix.Sendfile(fd, fd, new(int64), 1)
			return reached(err, unix.EINVAL)
		}},
		{"open above it", "walk out beneath a passed descriptor", func() error {
			_, err := unix.Openat(fd, "..", unix.O_RDONLY, 0)
			return reached(err, unix.ENOTDIR)
		}},
		{"stat above it", "walk out beneath a passed descriptor", func() error {
			err := unix.Fstatat(fd, "..", &unix.Stat_t{}, 0)
			return reached(err, unix.ENOTDIR)
		}},
		{"change to it", "walk out beneath a passed descriptor", func() error {
			return reached(unix.Fchdir(fd), unix.ENOTDIR)
		}},
		{"list it", "walk out beneath a passed descriptor", func() error {
			_, err := unix.Getdents(fd, make([]byte, 100))
			return reached(err, unix.ENOTDIR)
		}},
		{"execute it", "execute a passed file", func() error { return execute(call, text, fd, unix.AT_EMPTY_PATH) }},
		{"execute it as 1000", "execute a passed file", func() error {
			if err := unix.Dup3(fd, 1000, 0); err != nil {
				return err
			}
			return execute(call, text, 1000, unix.AT_EMPTY_PATH)
		}},
	} {
		tell(out, act{prefix + x.name, x.attempt, "files passed"}, x.try(), "blocked")
		out.Flush() // the next one may make this another program
	}
}

// reached takes for success an errno that comes only when the call was let through: of a lease on
// what is open for writing, of a copy of a file onto itself, of the execution of what is open for
// writing.
func reached(err error, proofs ...syscall.Errno) error {
	for _, proof := range proofs {
		if errors.Is(err, proof) {
			return nil
		}
	}
	return err
}

func fcntl(fd, cmd, arg int) error {
	_, err := unix.FcntlInt(uintptr(fd), cmd, arg)
	return err
}

// execute replaces this process, if it may, by a program that says nothing: then the line of this
// attempt is missing.
func execute(call func(uintptr, ...uintptr) error, text func(string) uintptr, fd, flags int) error {
	args := [3]uintptr{text("forger"), text("nothing"), 0}
	env := [1]uintptr{0}
	return reached(call(unix.SYS_EXECVEAT, uintptr(fd), text(""), uintptr(unsafe.Pointer(&args)),
		uintptr(unsafe.Pointer(&env)), uintptr(flags)), unix.ETXTBSY)
}
