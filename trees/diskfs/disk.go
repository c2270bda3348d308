package diskfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
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

// With Policy.Attributes a file has a mode and a time of modification that can be set. On disk all
// files have one mode, because a bit for others would let who was passed a descriptor for reading
// open the file again for writing; and the time is the version. So what differs from the default is
// in an extended attribute of the file, and the sticky bit of its mode on disk, which the kernel
// does not look at here, says that there is one: a file without costs no system call.

const (
	permFile = 0o644 // of a file whose mode nobody set
	permDir  = 0o755

	marked = unix.S_ISVTX // on disk: there is an attribute

	attributeName = "user.sigma"
	attributeSize = 1 + 2 + 8 + 8
	attributeForm = 1 // the first byte: which layout this is
)

// attributes are what was set of a file.
type attributes struct {
	set      bool // there are some
	perm     uint32
	modified int64         // nanoseconds since 1970
	at       sigma.Version // modified is so as long as the file is at this version; 0 = no time was set
}

// permOf is the mode of a file of a kind.
func (a attributes) permOf(kind sigma.FileKind) uint32 {
	switch {
	case isLink(kind):
		return 0o777
	case a.set:
		return a.perm
	case kind == sigma.KindDir:
		return permDir
	}
	return permFile
}

// modifiedAt is the time of modification of a file at a version.
func (a attributes) modifiedAt(v sigma.Version) time.Time {
	if a.at != 0 && a.at == v {
		return time.Unix(0, a.modified)
	}
	return time.Unix(0, int64(v))
}

// save writes the attributes to an open file, and marks it. A file system without such attributes
// is KindUnsupported.
func (a attributes) save(fd int, kind sigma.FileKind) error {
	b := binary.LittleEndian.AppendUint16([]byte{attributeForm}, uint16(a.perm))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.modified))
	b = binary.LittleEndian.AppendUint64(b, uint64(a.at))
	if err := retry(func() error { return unix.Fsetxattr(fd, attributeName, b, 0) }); err != nil {
		return err
	}
	mode := uint32(marked | 0o600)
	if kind == sigma.KindDir {
		mode = marked | 0o700
	}
	return unix.Fchmod(fd, mode)
}

// loadAttributes reads the attributes of a marked file. What is not there, or of another layout,
// was not set.
func loadAttributes(fd int) attributes {
	var b [attributeSize + 1]byte
	n, err := unix.Fgetxattr(fd, attributeName, b[:])
	if err != nil || n != attributeSize || b[0] != attributeForm {
		return attributes{}
	}
	return attributes{set: true, perm: uint32(binary.LittleEndian.Uint16(b[1:])) & 0o777,
		modified: int64(binary.LittleEndian.Uint64(b[3:])), at: sigma.Version(binary.LittleEndian.Uint64(b[11:]))}
}

// attributesOf reads the attributes of an entry of dir that look described.
func attributesOf(dir int, name string, in info) (attributes, error) {
	if !in.marked || isLink(in.kind) {
		return attributes{}, nil
	}
	fd, err := openAt(dir, name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return attributes{}, err
	}
	defer closeFD(fd)
	return loadAttributes(fd), nil
}

// birth gives a new file the mode that it is made with, where the tree keeps modes. A file system
// that cannot keep it is no reason not to make the file.
func (sp *space) birth(fd int, kind sigma.FileKind, perm uint32) attributes {
	a := attributes{set: true, perm: perm & 0o777}
	if !sp.t.cfg.Policy.Attributes || a.perm == (attributes{}).permOf(kind) || a.save(fd, kind) != nil {
		return attributes{}
	}
	return a
}

// checkAttributes says whether mode and time of a file can be set so.
func (f *file) checkAttributes(op string, n *node, c sigma.StatChange) error {
	switch {
	case n == nil || !f.sp.t.cfg.Policy.Attributes || isLink(n.kind):
		return sigma.Errorf(op, sigma.KindUnsupported, "permissions and times cannot be set here")
	case c.Modified != nil && (c.Modified.Before(time.Unix(0, math.MinInt64)) ||
		c.Modified.After(time.Unix(0, math.MaxInt64))):
		return sigma.Errorf(op, sigma.KindInvalid, "%v is not a time that a file can have", c.Modified)
	}
	return nil
}

// setAttributes changes mode and time of a file that has a name, and gives it a new version.
func (f *file) setAttributes(op string, n *node, c sigma.StatChange) error {
	sp := f.sp
	b, err := f.b, error(nil)
	fd := n.fd
	if b == nil && n.kind != sigma.KindDir {
		sp.names.RLock()
		b, err = sp.openBody(op, n)
		sp.names.RUnlock()
		if err != nil {
			return err
		}
		defer b.close()
	}
	if b != nil {
		b.mu.Lock() // no write comes between the version and what is said of it
		defer b.mu.Unlock()
		fd = b.fd
	}
	sp.names.Lock() // nobody reads the attributes from the disk meanwhile
	defer sp.names.Unlock()
	sp.mu.Lock()
	if err = sp.aliveLocked(op); err == nil && b != nil && n.body != b && n.left != b && b != f.b {
		err = sigma.PathError(op, sigma.KindNotFound, n.name)
	}
	a, old := n.attr, n.version
	named := b == nil || n.body == b // else what is open was removed or replaced, and only who has it open sees it
	sp.mu.Unlock()
	if err != nil {
		return err
	}
	a.perm, a.modified = a.permOf(n.kind), a.modifiedAt(old).UnixNano()
	a.set, a.at = true, sp.t.clock.after(old)
	if c.Perm != nil {
		a.perm = *c.Perm & 0o777
	}
	if c.Modified != nil {
		a.modified = c.Modified.UnixNano()
	}
	if err := a.save(fd, n.kind); err != nil {
		return err
	}
	sp.mu.Lock()
	if named || n.removed {
		n.attr = a
	}
	if named {
		n.version = a.at
	}
	if b != nil {
		b.version = a.at
	}
	n.wakeLocked()
	sp.mu.Unlock()
	return stamp(fd, "", a.at)
}

// sizeNow is the size that Stat tells, given the one in memory: while a descriptor is out the
// kernel alone knows.
func (b *body) sizeNow(size uint64) uint64 {
	var st unix.Stat_t
	if b.passed.Load() && unix.Fstat(b.fd, &st) == nil {
		return uint64(st.Size)
	}
	return size
}

// holeLeast is the size from which a file that is open is asked for its holes.
const holeLeast = 64 << 10

// hole is how many of its size bytes no storage holds.
func (b *body) hole(size uint64) uint64 {
	var st unix.Stat_t
	if size < holeLeast || retry(func() error { return unix.Fstat(b.fd, &st) }) != nil {
		return 0
	}
	return holeIn(size, uint64(st.Blocks))
}
