package diskfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/hostdir"
)

// This file is the only one that gives names to the kernel. A name is one component, checked by
// sigma.CheckName or made by this package.

// Tags of link targets on disk. They are relative paths to nowhere, should anybody follow them by
// mistake.
const (
	symlinkTag  = "sigma:symlink:"
	endpointTag = "sigma:endpoint:"
	targetMax   = 4095 - len(endpointTag) // what the kernel stores, less the longest tag
)

// info is what the disk says of an entry.
type info struct {
	kind    sigma.FileKind
	ino     uint64
	id      uint64
	size    uint64
	hole    uint64 // bytes of size that no block has
	version sigma.Version
	target  string // of a link
	marked  bool   // it has attributes
}

// holeIn is how many bytes of a file of that size are in none of its blocks, of which stat(2)
// counts 512 bytes each.
func holeIn(size, blocks uint64) uint64 { return size - min(size, blocks*512) }

// retry repeats a system call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func openAt(dir int, name string, flags int) (fd int, err error) {
	return hostdir.OpenAt(dir, name, flags|unix.O_NOFOLLOW, unix.RESOLVE_NO_XDEV)
}

// resolveCached is RESOLVE_CACHED of openat2(2): a name that the kernel has to read from the disk
// is an error.
const resolveCached = 0x20

// openCachedAt opens a file for reading without waiting for the disk.
func openCachedAt(dir int, name string) (int, error) {
	return hostdir.OpenAt(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, unix.RESOLVE_NO_XDEV|resolveCached)
}

func openDirAt(dir int, name string) (int, error) {
	return openAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY)
}

// openRoot opens the served directory, the only path that is the operator's and may contain links.
func openRoot(path string) (int, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return -1, err
	}
	return unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

func openOrMakeDir(dir int, name string) (int, error) {
	if err := unix.Mkdirat(dir, name, 0o700); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return openDirAt(dir, name)
}

func closeFD(fd int) {
	if fd >= 0 {
		unix.Close(fd)
	}
}

// look describes the entry name of dir, or dir itself if name is "". What this package did not make
// (devices, sockets, links without a tag) does not exist: ENOENT.
func look(dir int, name string) (info, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	err := retry(func() error {
		return unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st)
	})
	if err != nil {
		return info{}, err
	}
	in := info{ino: st.Ino, version: versionOf(st.Mtime), marked: st.Mode&marked != 0}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		in.kind, in.size, in.hole = sigma.KindFile, st.Size, holeIn(st.Size, st.Blocks)
	case unix.S_IFDIR:
		in.kind = sigma.KindDir
	case unix.S_IFLNK:
		if in.kind, in.target, err = readLink(dir, name); err != nil {
			return info{}, err
		}
		in.size = uint64(len(in.target))
	default:
		return info{}, unix.ENOENT
	}
	in.id, err = identify(dir, name, &st)
	return in, err
}

func readLink(dir int, name string) (sigma.FileKind, string, error) {
	buf := make([]byte, 4096)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return 0, "", err
	}
	return parseLink(string(buf[:n]))
}

func parseLink(text string) (sigma.FileKind, string, error) {
	if target, ok := strings.CutPrefix(text, symlinkTag); ok {
		return sigma.KindSymlink, target, nil
	}
	if target, ok := strings.CutPrefix(text, endpointTag); ok {
		return sigma.KindEndpoint, target, nil
	}
	return 0, "", unix.ENOENT
}

func linkText(kind sigma.FileKind, target string) string {
	if kind == sigma.KindEndpoint {
		return endpointTag + target
	}
	return symlinkTag + target
}

// identify gives the entry a number that no other file of this file system has or had. Inode
// numbers are used again as soon as they are free, so the kernel's file handle is taken, which
// holds a generation too. It has 8 bytes on ext4 and is hashed elsewhere. File systems without
// handles (overlayfs) give inode and time of birth, which repeats only when a file is removed and
// another made with its inode number within one kernel tick.
func identify(dir int, name string, st *unix.Statx_t) (uint64, error) {
	flags := 0
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	h, _, err := unix.NameToHandleAt(dir, name, flags)
	switch err {
	case nil:
		if b := h.Bytes(); len(b) == 8 {
			return binary.LittleEndian.Uint64(b), nil
		}
		return hash(h.Bytes()), nil
	case unix.ENOENT, unix.ENOTDIR, unix.ESTALE:
		return 0, err
	}
	b := binary.LittleEndian.AppendUint64(nil, st.Ino)
	b = binary.LittleEndian.AppendUint64(b, uint64(st.Btime.Sec)*1e9+uint64(st.Btime.Nsec))
	return hash(b), nil
}

func hash(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}

// readNames lists a directory in the kernel's order. It opens the directory anew, so that listings
// do not share a position.
func readNames(dir int, limit int) (names []string, bytes int, err error) {
	fd, err := openDirAt(dir, ".")
	if err != nil {
		return nil, 0, err
	}
	defer closeFD(fd)
	buf := make([]byte, 64<<10)
	for {
		n := 0
		err := retry(func() (err error) { n, err = unix.ReadDirent(fd, buf); return err })
		if err != nil || n == 0 {
			return names, bytes, err
		}
		from := len(names)
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
		for _, name := range names[from:] {
			bytes += len(name) + 16 // and its string header
		}
		if limit > 0 && bytes > limit {
			return nil, 0, sigma.Errorf("diskfs.ReadDir", sigma.KindBusy, "the realm has too large listings under way")
		}
	}
}

// clock gives versions: nanoseconds, and each greater than all before.
type clock struct{ last atomic.Uint64 }

// after returns a version that is greater than v and than all that were given.
func (c *clock) after(v sigma.Version) sigma.Version {
	now := uint64(time.Now().UnixNano())
	for {
		last := c.last.Load()
		next := max(now, last+1, uint64(v)+1)
		if c.last.CompareAndSwap(last, next) {
			return sigma.Version(next)
		}
	}
}

func versionOf(ts unix.StatxTimestamp) sigma.Version {
	return sigma.Version(max(1, ts.Sec*1e9+int64(ts.Nsec)))
}

// stamp writes a version to the entry name of dir, or to the open file dir itself if name is "".
func stamp(dir int, name string, v sigma.Version) error {
	flags := unix.AT_SYMLINK_NOFOLLOW
	if name == "" {
		flags = unix.AT_EMPTY_PATH
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(int64(v))}
	return unix.UtimesNanoAt(dir, name, times, flags)
}

// checkTimes refuses a file system on which a version would not survive.
func checkTimes(dir int) error {
	const v = sigma.Version(1_700_000_000_123_456_789)
	if err := stamp(dir, "", v); err != nil {
		return err
	}
	var st unix.Statx_t
	if err := unix.Statx(dir, "", unix.AT_EMPTY_PATH, unix.STATX_MTIME, &st); err != nil {
		return err
	}
	if got := versionOf(st.Mtime); got != v {
		return &sigma.Error{Kind: sigma.KindUnsupported,
			Msg:  fmt.Sprintf("the file system keeps times coarsely: %d became %d", v, got),
			Hint: "use a directory on ext4 (with 256-byte inodes), xfs, btrfs or tmpfs"}
	}
	return nil
}

// wrap turns errors of the kernel into sigma errors; nil stays nil.
func wrap(op, path string, err error) error {
	var no syscall.Errno
	if err == nil {
		return nil
	}
	if _, told := err.(*sigma.Error); told || !errors.As(err, &no) {
		return sigma.Wrap(op, path, err)
	}
	e := &sigma.Error{Op: op, Path: path, Kind: sigma.KindOf(no), Err: err}
	switch no { // the cause stays here, and the kind alone would not tell
	case unix.EMFILE, unix.ENFILE:
		e.Kind, e.Msg = sigma.KindBusy, "the server has too many files open"
	case unix.ENOSPC, unix.EDQUOT:
		e.Msg, e.Hint = "the disk of the server is full", "remove files, or ask the provider for room"
	case unix.EROFS:
		e.Kind, e.Msg, e.Hint = sigma.KindPermission, "the disk of the server can only be read",
			"ask the provider: the disk may be failing"
	case unix.EIO:
		e.Msg, e.Hint = "the disk of the server fails", "ask the provider; what it last kept may be lost"
	}
	return e
}
