// Package hostdir works in a directory of the host on which others may work too: users of this
// host, services, or tenants whose trees are copied into it.
//
// It promises
//   - that no name leads out of the directory: each is resolved by one openat2 from the directory's
//     descriptor, with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS, so that a
//     link that somebody plants is an error and is never followed;
//   - that a directory that it makes is its maker's alone (mode 0700) until Finish gives it a mode,
//     and that Finish and File change modes by descriptor;
//   - that a file appears in its place whole: it is written under a name of its own and renamed
//     within one directory, by that directory's descriptor.
//
// It assumes that the path given to Open, or to Create, is what the caller wants, links on the way
// included.
//
// files and cmd/sigma use it for all that they read, write and hand over in trees of the host,
// diskfs for all that it opens.
package hostdir

import (
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. Its methods may be called concurrently, but for Close. Names are
// relative, with slashes between components; errors are *fs.PathError.
type Dir struct {
	f *os.File
}

// Open opens the directory at a path of the caller's.
func Open(path string) (*Dir, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &Dir{f}, nil
}

// Close closes the descriptor.
func (d *Dir) Close() error { return d.f.Close() }

// OpenAt opens name below the directory with the descriptor dir and follows no link: one is ELOOP,
// or, in the last place and with O_NOFOLLOW, what that says. stricter adds RESOLVE_ flags. A file
// that is made has mode 0600.
func OpenAt(dir int, name string, flags int, stricter uint64) (fd int, err error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | stricter}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	for {
		if fd, err = unix.Openat2(dir, name, &how); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func (d *Dir) open(name string, flags int) (*os.File, error) {
	fd, err := OpenAt(int(d.f.Fd()), name, flags, 0)
	if err != nil {
		return nil, d.error("open", name, err)
	}
	return os.NewFile(uintptr(fd), filepath.Join(d.f.Name(), name)), nil
}

func (d *Dir) error(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: filepath.Join(d.f.Name(), name), Err: err}
}

// Dir opens a directory below.
func (d *Dir) Dir(name string) (*Dir, error) {
	f, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	return &Dir{f}, nil
}

// OpenFile opens a regular file for reading. It waits for nobody: what is no regular file is an
// error.
func (d *Dir) OpenFile(name string) (*os.File, error) {
	f, err := d.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, d.error("read", name, errors.New("it is not a regular file")))
	}
	return f, nil
}

// Stat describes what is at name, a link as a link.
func (d *Dir) Stat(name string) (fs.FileInfo, error) {
	f, err := d.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// List describes what is in a directory, by name, links as links. What is removed meanwhile is left
// out.
func (d *Dir) List(name string) ([]fs.FileInfo, error) {
	sub, err := d.Dir(name)
	if err != nil {
		return nil, err
	}
	defer sub.Close()
	names, err := sub.f.Readdirnames(-1)
	slices.Sort(names)
	var infos []fs.FileInfo
	for _, n := range names {
		info, serr := sub.Stat(n)
		if serr == nil {
			infos = append(infos, info)
		} else if err == nil && !errors.Is(serr, fs.ErrNotExist) {
			err = serr
		}
	}
	return infos, err
}

// Walk calls visit for what is at name, "." for the directory itself, and for all below, by name, a
// directory before what is in it, until visit fails.
func (d *Dir) Walk(name string, visit func(name string, info fs.FileInfo) error) error {
	info, err := d.Stat(name)
	if err == nil {
		err = visit(name, info)
	}
	if err != nil || !info.IsDir() {
		return err
	}
	in, err := d.List(name)
	for _, info := range in {
		if err == nil {
			err = d.Walk(filepath.Join(name, info.Name()), visit)
		}
	}
	return err
}

// Mkdir makes a directory with mode 0700, that only this user may work in, and tells which it is;
// nil if there was one already, which stays as it is.
func (d *Dir) Mkdir(name string) (created fs.FileInfo, err error) {
	parent, err := d.Dir(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	err = unix.Mkdirat(int(parent.f.Fd()), filepath.Base(name), 0o700)
	if err != nil && err != unix.EEXIST {
		return nil, d.error("mkdir", name, err)
	}
	sub, openErr := parent.Dir(filepath.Base(name))
	if openErr != nil {
		return nil, openErr
	}
	defer sub.Close()
	if err == unix.EEXIST {
		return nil, nil
	}
	if _, err := sub.f.Readdirnames(1); err != io.EOF { // who may write in parent could have put another in its place
		return nil, d.error("mkdir", name, errors.New("another was put in its place"))
	}
	return sub.f.Stat()
}

// Own gives what is in the directory to the user and group id, as after files were put back from
// elsewhere. It looks at the owners of so many levels, and hands over with all below it what has
// another. A link is handed over itself, never what it leads to.
func (d *Dir) Own(id uint32, levels int) error {
	names, err := d.f.Readdirnames(-1)
	for _, name := range names {
		if err == nil {
			err = d.ownEntry(name, id, levels-1)
		}
	}
	return err
}

func (d *Dir) ownEntry(name string, id uint32, levels int) error {
	info, err := d.Stat(name)
	if err != nil {
		return err
	}
	if info.Sys().(*syscall.Stat_t).Uid != id {
		return d.Walk(name, func(name string, _ fs.FileInfo) error { return d.chown(name, id) })
	}
	if levels == 0 || !info.IsDir() {
		return nil
	}
	sub, err := d.Dir(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	return sub.Own(id, levels)
}

func (d *Dir) chown(name string, id uint32) error {
	f, err := d.open(name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fchownat(int(f.Fd()), "", int(id), int(id), unix.AT_EMPTY_PATH); err != nil {
		return d.error("chown", name, err)
	}
	return nil
}

// Finish gives a directory that Mkdir made its mode.
func (d *Dir) Finish(name string, created fs.FileInfo, perm fs.FileMode) error {
	sub, err := d.Dir(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	if st, err := sub.f.Stat(); err != nil || !os.SameFile(st, created) {
		return errors.Join(err, d.error("chmod", name, errors.New("another was put in its place")))
	}
	return sub.f.Chmod(perm)
}

// File is a file that is written beside its place. Drop follows Create; Commit may come between.
type File struct {
	*os.File
	dir        *Dir
	temp, name string // temp is "" once nothing is to be removed
}

// Create begins a file that is to be at path, and makes it with the mode perm less the umask.
func Create(path string, perm fs.FileMode) (*File, error) {
	d, err := Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Create(filepath.Base(path), perm)
}

// Create begins a file that is to be at name.
func (d *Dir) Create(name string, perm fs.FileMode) (*File, error) {
	parent, err := d.Dir(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	base := filepath.Base(name)
	temp := ".sigma-" + rand.Text()[:16] + "~"
	fd, err := unix.Openat(int(parent.f.Fd()), temp,
		unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(perm.Perm()))
	if err != nil {
		parent.Close()
		return nil, d.error("create", name, err)
	}
	return &File{os.NewFile(uintptr(fd), filepath.Join(parent.f.Name(), temp)), parent, temp, base}, nil
}

// Commit closes the file and puts it in its place, where it replaces a file or a link.
func (f *File) Commit() error {
	if err := f.File.Close(); err != nil {
		return err
	}
	dir := int(f.dir.f.Fd())
	if err := unix.Renameat(dir, f.temp, dir, f.name); err != nil {
		return f.dir.error("replace", f.name, err)
	}
	f.temp = ""
	return nil
}

// Drop closes the file and removes what Commit has not put in its place.
func (f *File) Drop() {
	f.File.Close()
	if f.temp != "" {
		unix.Unlinkat(int(f.dir.f.Fd()), f.temp, 0)
	}
	f.dir.Close()
}
