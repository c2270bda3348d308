package treeserver

import (
	"context"

	"sigmaos.dev/sigma"
)

// WalkTo walks names and says where it stopped: at a file (not nil) or at a link. The file must be
// closed. A link at the end stops the walk only if followLast. A missing name is KindNotFound, a
// file in the middle KindNotDir.
func WalkTo(ctx context.Context, f sigma.File, names []string, followLast bool) (sigma.File, *sigma.Stopped, error) {
	file, ids, err := f.Walk(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	n := len(ids)
	if file != nil {
		if n == 0 {
			return file, nil, nil
		}
		if k := ids[n-1].Kind; !followLast || k != sigma.KindSymlink && k != sigma.KindEndpoint {
			return file, nil, nil
		}
	} else {
		kind := sigma.KindDir
		if n > 0 {
			kind = ids[n-1].Kind
		}
		if kind != sigma.KindSymlink && kind != sigma.KindEndpoint {
			reason := sigma.KindNotFound
			if kind != sigma.KindDir {
				reason = sigma.KindNotDir
			}
			return nil, nil, sigma.PathError("treeserver.Walk", reason, sigma.JoinPath(names...))
		}
	}
	stop, err := StopAt(ctx, f, names, file, ids)
	return nil, stop, err
}

// StopAt reads the link that ended a walk of names from f, which gave file and ids. It closes file.
func StopAt(ctx context.Context, f sigma.File, names []string, file sigma.File, ids []sigma.FileID) (*sigma.Stopped,
	error) {
	n := len(ids)
	if file == nil {
		var err error
		if file, _, err = f.Walk(ctx, names[:n]); err != nil {
			return nil, err
		}
		if file == nil {
			return nil, sigma.PathError("treeserver.Walk", sigma.KindNotFound, sigma.JoinPath(names...))
		}
	}
	defer file.Close()
	target, err := file.ReadLink(ctx)
	if err != nil {
		return nil, err
	}
	return &sigma.Stopped{Walked: n, Kind: ids[n-1].Kind, Target: target}, nil
}

// Get is f's own Get, or one made of walk, open and read.
func Get(ctx context.Context, f sigma.File, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if g, ok := f.(sigma.Getter); ok {
		return g.Get(ctx, names, offset, count)
	}
	return plainGet(ctx, f, names, offset, count)
}

// Plainly carries out Get or Put by plain calls of f, whatever f has of its own. It is for a
// handler whose walks lead to other servers.
func Plainly(ctx context.Context, f sigma.File, r sigma.Request) (a sigma.Reply, err error) {
	if r.Op == sigma.OpPut {
		a.ID, a.Stop, err = plainPut(ctx, f, r.Names, r.Data, r.Put)
		return a, err
	}
	g, stop, err := plainGet(ctx, f, r.Names, r.Offset, r.Count)
	return sigma.Reply{Data: g.Data, ID: g.ID, Size: g.Size, Stop: stop}, err
}

func plainGet(ctx context.Context, f sigma.File, names []string, offset uint64, count int) (sigma.GetResult,
	*sigma.Stopped, error) {
	file, stop, err := WalkTo(ctx, f, names, true)
	if err != nil || stop != nil {
		return sigma.GetResult{}, stop, err
	}
	defer file.Close()
	if g, ok := file.(sigma.Getter); ok && len(names) > 0 {
		r, stop, err := g.Get(ctx, nil, offset, count)
		if stop != nil {
			stop.Walked += len(names)
		}
		return r, stop, err
	}
	if err := file.Open(ctx, sigma.OpenRead); err != nil {
		return sigma.GetResult{}, nil, err
	}
	st, err := file.Stat(ctx)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	if st.ID.Kind == sigma.KindDir {
		return sigma.GetResult{}, nil, sigma.PathError("treeserver.Get", sigma.KindIsDir, sigma.JoinPath(names...))
	}
	buf := make([]byte, count)
	n, err := file.ReadAt(ctx, buf, offset)
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	// A file of unknown size (/proc) is as large as what could be read, and larger if there is
	// another byte.
	size := max(st.Size, offset+uint64(n))
	if n == count && size == offset+uint64(n) {
		more, err := file.ReadAt(ctx, make([]byte, 1), size)
		if err != nil {
			return sigma.GetResult{}, nil, err
		}
		size += uint64(more)
	}
	return sigma.GetResult{Data: buf[:n], ID: st.ID, Size: size}, nil, nil
}

// Put is the directory's own Put, or one made of create, write and sync, which has no conditions
// and is not atomic.
func Put(ctx context.Context, f sigma.File, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	if p, ok := f.(sigma.Putter); ok {
		return p.Put(ctx, names, data, o)
	}
	return plainPut(ctx, f, names, data, o)
}

func plainPut(ctx context.Context, f sigma.File, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	if len(names) == 0 {
		return sigma.FileID{}, nil, Unsupported("put")
	}
	dir, stop, err := WalkTo(ctx, f, names[:len(names)-1], true)
	if err != nil || stop != nil {
		return sigma.FileID{}, stop, err
	}
	defer dir.Close()
	last := names[len(names)-1]
	if p, ok := dir.(sigma.Putter); ok && len(names) > 1 {
		id, stop, err := p.Put(ctx, []string{last}, data, o)
		if stop != nil {
			stop.Walked += len(names) - 1
		}
		return id, stop, err
	}
	if o.Kind != sigma.KindFile || o.IfVersion != 0 || o.Lease != 0 || o.MustExist || o.Wait {
		return sigma.FileID{}, nil, Unsupported("put with conditions")
	}
	flags := sigma.OpenWrite | sigma.OpenTruncate
	if o.Append {
		flags = sigma.OpenWrite | sigma.OpenAppend
	}
	if o.MustMake {
		flags |= sigma.OpenExclusive
	}
	file, err := dir.Create(ctx, last, flags, o.Perm)
	if sigma.KindOf(err) == sigma.KindExists && !o.MustMake { // a link
		if found, stop, _ := WalkTo(ctx, dir, names[len(names)-1:], true); stop != nil {
			stop.Walked = len(names)
			return sigma.FileID{}, stop, nil
		} else if found != nil {
			found.Close()
		}
	}
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	defer file.Close()
	if _, err = file.WriteAt(ctx, data, 0); err == nil {
		err = file.Sync(ctx)
	}
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	st, err := file.Stat(ctx)
	return st.ID, nil, AfterEffect(err)
}

// AfterEffect is what becomes of an error that came after a change had taken effect. The error's
// own kind might promise that nothing has happened.
func AfterEffect(err error) error {
	if err == nil {
		return nil
	}
	return &sigma.Error{Op: "treeserver.AfterEffect", Kind: sigma.KindLost,
		Msg: "the file was changed, and what it is now cannot be told", Err: err}
}
