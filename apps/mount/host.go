package mount

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// Host does for a mount what only root may do, in another process, so that the process that serves
// the mount needs no rights. Its methods are safe for concurrent use.
type Host interface {
	// Attach mounts, and gives the kernel's end of the mount.
	Attach() (*os.File, error)
	// Back has the kernel read a file by itself, and gives the number by which an answer to open
	// names it.
	Back(fd *os.File) (id int32, err error)
	// Unback ends what Back began. Files that are open stay so.
	Unback(id int32) error
}

// Device is the kernel's end of a mount.
type Device struct{ f *os.File }

// Attach mounts as cfg says, without a server. It needs CAP_SYS_ADMIN.
func Attach(cfg Config) (*Device, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC,
		0) // os.Open would make it non-blocking for the server
	if err != nil {
		return nil, mountError(cfg.Dir, err)
	}
	f := os.NewFile(uintptr(fd), "/dev/fuse")
	flags, options := uintptr(unix.MS_NOSUID|unix.MS_NODEV), []string{fmt.Sprintf("fd=%d", fd),
		fmt.Sprintf("rootmode=%o", unix.S_IFDIR),
		fmt.Sprintf("user_id=%d", os.Getuid()), fmt.Sprintf("group_id=%d", os.Getgid()),
		fmt.Sprintf("max_read=%d", ioSize), "default_permissions"}
	if cfg.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	if cfg.AllowOther {
		options = append(options, "allow_other")
	}
	if err := unix.Mount(cfg.Source, cfg.Dir, Type, flags, strings.Join(options, ",")); err != nil {
		f.Close()
		return nil, mountError(cfg.Dir, err)
	}
	return &Device{f}, nil
}

// File is the descriptor by which the mount is served. The mount ends when all copies of it are
// closed.
func (d *Device) File() *os.File { return d.f }

// Close closes this process's copy of it.
func (d *Device) Close() error { return d.f.Close() }

// What the kernel calls FUSE_DEV_IOC_BACKING_OPEN and FUSE_DEV_IOC_BACKING_CLOSE.
const (
	backingOpen  = 0x4010e501
	backingClose = 0x4004e502
)

// Back implements Host.Back. The kernel opens a backing file again without asking for rights, for
// writing too. So a file that others than its owner may open is refused: a server without rights
// could have opened it, whereas the files that services of the system pass are theirs alone.
func (d *Device) Back(fd *os.File) (int32, error) {
	const op = "mount.Back"
	st, err := fd.Stat()
	if err != nil {
		return 0, sigma.Wrap(op, "", err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return 0, sigma.Errorf(op, sigma.KindPermission, "this is no file of a service of the system")
	}
	m := fuse.BackingMap{Fd: int32(fd.Fd())}
	id, _, errno := syscall.Syscall(syscall.SYS_IOCTL, d.f.Fd(), backingOpen,
		uintptr(unsafe.Pointer(&m))) // SAFETY: the kernel reads 16 bytes of m during the call
	if errno != 0 {
		return 0, sigma.Wrap(op, "", errno)
	}
	return int32(id), nil
}

// Unback implements Host.Unback.
func (d *Device) Unback(id int32) error {
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, d.f.Fd(), backingClose,
		uintptr(unsafe.Pointer(&id))) // SAFETY: the kernel reads 4 bytes of id during the call
	if errno != 0 {
		return sigma.Wrap("mount.Unback", "", errno)
	}
	return nil
}

// backed puts into answers to open by which backing file the kernel reads, which go-fuse can do
// only for a process that may make backing files itself.
type backed struct {
	fuse.RawFileSystem
	m *Mount
}

// Open implements fuse.RawFileSystem.
func (b *backed) Open(request <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	status := b.RawFileSystem.Open(request, in, out)
	b.answer(request, out)
	return status
}

// Create implements fuse.RawFileSystem.
func (b *backed) Create(request <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	status := b.RawFileSystem.Create(request, in, name, out)
	b.answer(request, &out.OpenOut)
	return status
}

func (b *backed) answer(request <-chan struct{}, out *fuse.OpenOut) {
	if id, ok := b.m.backings.LoadAndDelete(request); ok {
		out.BackingID = id.(int32)
		out.OpenFlags = out.OpenFlags&^fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_PASSTHROUGH
	}
}

// passes says whether the kernel shall read a file by a backing file, which it makes of fd if there
// is none. n.mu is held, also while the host is asked, which answers at once.
func (n *node) passesLocked(fd *os.File) bool {
	if n.uses.passed > 0 {
		return true
	}
	if fd == nil || n.uses.cached > 0 || !n.m.canPass.Load() {
		return false
	}
	id, err := n.m.cfg.Host.Back(fd)
	if sigma.KindOf(err) == sigma.KindUnsupported && err != nil {
		n.m.canPass.Store(false) // the kernel does not
	}
	n.backing = id
	return err == nil
}
