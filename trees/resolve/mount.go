package resolve

import (
	"cmp"
	"context"
	"slices"

	"sigmaos.dev/sigma"
)

// MountsMax bounds the mounts of one Tree.
const MountsMax = 64

// bind says that what is below at is looked up below to.
type bind struct{ at, to []string }

// Mount implements sigma.Namespace. It is this Tree's alone: nobody is asked, and what a path leads
// to is still what the server shows to the program.
func (t *Tree) Mount(_ context.Context, path1, path2 string) error {
	const op = "resolve.Mount"
	from, err := sigma.ParsePath(path1)
	if err != nil {
		return err
	}
	at, err := sigma.ParsePath(path2)
	if err != nil {
		return err
	}
	if len(at) > 0 && (at[0] == sigma.NameSys || at[0] == sigma.NameProc) {
		return &sigma.Error{Op: op, Path: path2, Kind: sigma.KindPermission, Msg: "the place is the system's"}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	to := t.real(from)
	var binds []bind
	if old := t.binds.Load(); old != nil {
		binds = slices.DeleteFunc(slices.Clone(*old), func(b bind) bool { return slices.Equal(b.at, at) })
	}
	binds = append(binds, bind{at, to})
	if len(binds) > MountsMax {
		return sigma.Errorf(op, sigma.KindBusy, "a program can have %d mounts", MountsMax)
	}
	slices.SortFunc(binds, func(a, b bind) int { return cmp.Compare(len(b.at), len(a.at)) })
	t.binds.Store(&binds)
	return nil
}

// Unmount undoes a Mount at path2; KindNotFound if nothing is mounted there.
func (t *Tree) Unmount(path2 string) error {
	at, err := sigma.ParsePath(path2)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.binds.Load()
	if old == nil || t.unmounted(path2) == nil {
		return sigma.PathError("resolve.Unmount", sigma.KindNotFound, path2)
	}
	binds := slices.DeleteFunc(slices.Clone(*old), func(b bind) bool { return slices.Equal(b.at, at) })
	if t.binds.Store(&binds); len(binds) == 0 {
		t.binds.Store(nil)
	}
	return nil
}

// real is where names lead with the mounts: the deepest that is at or above them counts, once.
func (t *Tree) real(names []string) []string {
	binds := t.binds.Load()
	if binds == nil {
		return names
	}
	for _, b := range *binds {
		if len(names) >= len(b.at) && slices.Equal(names[:len(b.at)], b.at) {
			return slices.Concat(b.to, names[len(b.at):])
		}
	}
	return names
}

// Real is the path that leads to the same without mounts, as others know it. A path that is none
// stays as it is.
func (t *Tree) Real(path string) string {
	names, err := sigma.ParsePath(path)
	if err != nil || t.binds.Load() == nil {
		return path
	}
	return sigma.JoinPath(t.real(names)...)
}

// unmounted says that path is not itself a mount, which cannot be removed or moved.
func (t *Tree) unmounted(path string) error {
	names, err := sigma.ParsePath(path)
	if binds := t.binds.Load(); err == nil && binds != nil && slices.ContainsFunc(*binds, func(b bind) bool {
		return slices.Equal(b.at, names)
	}) {
		return &sigma.Error{Op: "resolve.Mount", Path: path, Kind: sigma.KindPermission,
			Msg: "something is mounted there", Hint: "what is mounted can be changed by its own path"}
	}
	return nil
}

// withMounts adds to a listing what is mounted in the directory.
func (t *Tree) withMounts(ctx context.Context, path string, es []sigma.DirEntry) []sigma.DirEntry {
	binds := t.binds.Load()
	names, err := sigma.ParsePath(path)
	if binds == nil || err != nil {
		return es
	}
	for _, b := range *binds {
		n := len(names)
		if len(b.at) != n+1 || !slices.Equal(b.at[:n], names) {
			continue
		}
		name := b.at[n]
		i, there := slices.BinarySearchFunc(es, name, func(e sigma.DirEntry, name string) int {
			return cmp.Compare(e.Name, name)
		})
		st, err := t.Lstat(ctx, sigma.JoinPath(b.at...))
		switch {
		case err != nil && there:
			es = slices.Delete(es, i, i+1)
		case err != nil:
		case there:
			es[i] = sigma.DirEntry{Name: name, ID: st.ID}
		default:
			es = slices.Insert(es, i, sigma.DirEntry{Name: name, ID: st.ID})
		}
	}
	return es
}
