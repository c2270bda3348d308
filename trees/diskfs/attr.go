package diskfs

import (
	"encoding/binary"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

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
