package diskfs

import (
	"context"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// # Descriptors for writing
//
// What is written through a descriptor does not pass this package, and a descriptor that was passed
// cannot be taken back. So one is passed only of a file that nobody else sees yet, and two things
// make up for it:
//
// How much can be written is bounded by the launcher, which gives every proc a limit of file sizes
// (sigma.WriteDescriptorMax). All that the file could grow by is charged to the realm's quota
// before the descriptor is passed; what it did not grow is given back afterwards. So no quota is
// exceeded, not even for a moment.
//
// That it is over is asked of the kernel: it grants a write lease on a file (fcntl(2), F_SETLEASE)
// only if nobody else has it open, or mapped. Until then the file is neither published nor changed
// in another way (KindBusy); so published bytes change by this package alone.

// checkLeases tells whether the file system grants leases; a few do not (NFS).
func checkLeases(t *trash) bool {
	fd, err := openAt(t.fd, "lease", unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return false
	}
	defer closeFD(fd)
	defer unix.Unlinkat(t.fd, "lease", 0)
	return sole(fd) == nil
}

// sole is nil if fd is the only descriptor of its file, EAGAIN if it is not.
func sole(fd int) error {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return err
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}

// PassFile implements sigma.FilePasser. A descriptor of its own is opened by name, since one shared
// with others would share its position; so a file that was removed or replaced meanwhile is
// KindUnsupported, and must be read through ReadAt.
func (f *file) PassFile(ctx context.Context) (*os.File, error) {
	const op = "diskfs.PassFile"
	writes := f.open && f.flags.Writes()
	if err := f.wantBytes(ctx, op, writes); err != nil {
		return nil, err
	}
	if writes {
		return f.passHidden(ctx, op)
	}
	sp := f.sp
	sp.names.RLock()
	defer sp.names.RUnlock()
	sp.mu.Lock()
	n := f.b.node
	sp.mu.Unlock()
	if n == nil {
		return nil, sigma.Errorf(op, sigma.KindUnsupported,
			"the file has been removed or replaced, or is not published")
	}
	fd, err := openAt(n.parent.fd, n.name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, wrap(op, n.name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != f.b.ino {
		closeFD(fd)
		return nil, sigma.Errorf(op, sigma.KindStale, "the file was changed behind the server's back")
	}
	return os.NewFile(uintptr(fd), n.name), nil
}

// passHidden passes a descriptor for writing.
func (f *file) passHidden(ctx context.Context, op string) (*os.File, error) {
	b, sp := f.b, f.sp
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.temp == "":
		return nil, sigma.Errorf(op, sigma.KindPermission,
			"others may see the file, so it is written through the server")
	case sigma.FenceOf(ctx).Name != "":
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "a file under a fence is written through the server")
	case !sp.t.leases:
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "the file system of the server grants no leases")
	}
	more := uint64(0)
	if !b.passed.Load() {
		more = uint64(sigma.WriteDescriptorMax) - min(b.size, uint64(sigma.WriteDescriptorMax))
		if err := sp.charge(op, more); err != nil {
			return nil, err
		}
	}
	flags := unix.O_WRONLY
	if f.flags&sigma.OpenReadWrite != 0 {
		flags = unix.O_RDWR
	}
	sp.names.RLock() // keeps sp.temp open
	fd, err := -1, sp.alive(op)
	if err == nil {
		fd, err = openAt(sp.temp, b.temp, flags|unix.O_NONBLOCK)
	}
	sp.names.RUnlock()
	if err != nil {
		sp.uncharge(more)
		return nil, wrap(op, f.name, err)
	}
	b.spare += more
	sp.mu.Lock()
	sp.promiseLocked(int64(more))
	sp.mu.Unlock()
	b.passed.Store(true)
	return os.NewFile(uintptr(fd), f.name), nil
}

// reclaimLocked makes sure that nobody else has a descriptor for writing, and charges what was
// written by it. With b.mu held.
func (b *body) reclaimLocked(op string) error {
	if !b.passed.Load() {
		return nil
	}
	switch err := sole(b.fd); err {
	case nil:
	case unix.EAGAIN:
		return &sigma.Error{Op: op, Kind: sigma.KindBusy,
			Msg:  "the descriptor that was passed for writing is still open",
			Hint: "close it, and what was mapped by it, first"}
	default:
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		return err
	}
	sp, size, spare := b.sp, uint64(st.Size), b.spare
	if size > b.size+b.spare { // by the provider, who has no limit
		if err := sp.charge(op, size-b.size-b.spare); err != nil {
			b.bad = true
			return err
		}
		b.spare = size - b.size
	}
	sp.mu.Lock()
	sp.unchargeLocked(b.size + b.spare - size)
	sp.promiseLocked(-int64(spare))
	sp.mu.Unlock()
	b.changed(size)
	b.spare = 0
	b.passed.Store(false)
	return nil
}

// endLocked lets go of bytes that nobody refers to. With sp.mu held.
func (b *body) endLocked() {
	if b.node == nil {
		b.sp.unchargeLocked(b.sp.t.entryCost + b.size + b.spare)
		b.sp.promiseLocked(-int64(b.spare))
	}
	b.sp.open--
	closeFD(b.fd)
}

// sweepLocked ends the orphans that nobody has open any more: files that were given up while
// somebody had a descriptor for writing. Until then they use the disk, and so are charged. With
// sp.mu held.
func (sp *space) sweepLocked() {
	sp.orphans = slices.DeleteFunc(sp.orphans, func(b *body) bool {
		over := sole(b.fd) != unix.EAGAIN
		if over {
			b.endLocked()
		}
		return over
	})
}
