package files

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/hostdir"
)

// Host is a directory of this host. It is a Tree.
type Host struct {
	dir     *hostdir.Dir
	created []createdDir // directories, parents first
}

type createdDir struct {
	name string
	info fs.FileInfo
	perm uint32
}

var _ Tree = (*Host)(nil)

// OpenHost opens the directory at a path that the user named, links on the way included.
func OpenHost(path string) (*Host, error) {
	d, err := hostdir.Open(path)
	if err != nil {
		return nil, HostError(err)
	}
	return &Host{dir: d}, nil
}

// Close closes the directory.
func (h *Host) Close() error { return h.dir.Close() }

func local(name string) string { return filepath.Join(".", name) }

func (h *Host) Lstat(_ context.Context, name string) (sigma.Stat, error) {
	info, err := h.dir.Stat(local(name))
	if err != nil {
		return sigma.Stat{}, HostError(err)
	}
	return HostStat(info), nil
}

// HostStat describes a file of this host. What is neither a file, a directory nor a link is a pipe.
func HostStat(info fs.FileInfo) sigma.Stat {
	st := sigma.Stat{Name: info.Name(), Perm: uint32(info.Mode().Perm()), ID: sigma.FileID{Kind: sigma.KindPipe}}
	switch info.Mode().Type() {
	case 0:
		st.ID.Kind, st.Size = sigma.KindFile, uint64(info.Size())
	case fs.ModeDir:
		st.ID.Kind = sigma.KindDir
	case fs.ModeSymlink:
		st.ID.Kind = sigma.KindSymlink
	}
	return st
}

func (h *Host) List(_ context.Context, dir string) ([]sigma.DirEntry, error) {
	infos, err := h.dir.List(local(dir))
	entries := make([]sigma.DirEntry, len(infos))
	for i, info := range infos {
		st := HostStat(info)
		entries[i] = sigma.DirEntry{Name: st.Name, ID: st.ID, Size: st.Size}
	}
	return entries, HostError(err)
}

func (h *Host) Source(_ context.Context, name string) (*Source, error) {
	f, err := h.dir.OpenFile(name)
	if err != nil {
		return nil, HostError(err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, HostError(err)
	}
	return &Source{f, uint32(st.Mode().Perm()), []io.Closer{f}}, nil
}

// MakeDir makes a directory that is this user's alone until Finish.
func (h *Host) MakeDir(_ context.Context, name string, perm uint32) error {
	info, err := h.dir.Mkdir(local(name))
	if info != nil {
		h.created = append(h.created, createdDir{local(name), info, perm})
	}
	return HostError(err)
}

func (h *Host) Finish() error {
	for _, m := range slices.Backward(h.created) {
		if err := h.dir.Finish(m.name, m.info, ownMode(m.perm)); err != nil {
			return HostError(err)
		}
	}
	return nil
}

// ownMode is the mode that a file of this host gets of a tenant's: nobody but its owner writes.
func ownMode(perm uint32) fs.FileMode { return fs.FileMode(perm & 0o755) }

// Store writes a file next to its place and puts it there when it is whole.
func (h *Host) Store(ctx context.Context, name string, s *Source, count Counter) error {
	if st, err := h.dir.Stat(name); err == nil && st.IsDir() {
		return &sigma.Error{Op: "files.Store", Path: name, Kind: sigma.KindIsDir, Msg: "is a directory on this machine",
			Hint: "give another local name"}
	}
	f, err := h.dir.Create(name, 0o600)
	if err != nil {
		return HostError(err)
	}
	defer f.Drop()
	err = pour(ctx, f.File, s.Reader, count)
	if err == nil {
		err = f.Chmod(ownMode(s.Perm) | 0o600)
	}
	if err == nil {
		err = f.Commit()
	}
	return HostError(err)
}

// HostError makes an error of this host's files read like one of the realm's.
func HostError(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		e := &sigma.Error{Op: "files.Host", Path: pe.Path, Kind: sigma.KindOf(pe.Err),
			Msg: "cannot " + pe.Op + " on this machine", Err: pe.Err}
		if errors.Is(pe.Err, syscall.ELOOP) {
			e.Msg, e.Hint = "leads through a symbolic link on this machine, which is not followed",
				"name what the link leads to, or remove the link"
		}
		return e
	}
	return err
}
