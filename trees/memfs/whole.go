package memfs

import (
	"context"
	"slices"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// walkLocked goes to names for Get and Put; a link that is met is told as stopped.
func (f *file) walkLocked(op string, names []string) (*node, *sigma.Stopped, error) {
	n := f.n
	for i := 0; ; i++ {
		if isLink(n.kind) {
			return nil, &sigma.Stopped{Walked: i, Kind: n.kind, Target: n.target}, nil
		}
		if i == len(names) {
			return n, nil, nil
		}
		next, err := f.stepLocked(op, n, names[i])
		if err != nil {
			return nil, nil, err
		}
		n = next
	}
}

// Get implements sigma.Getter.
func (f *file) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	const op = "memfs.Get"
	none := sigma.GetResult{}
	if err := sigma.CheckNames(op, names); err != nil {
		return none, nil, err
	}
	if count < 0 {
		return none, nil, sigma.Errorf(op, sigma.KindInvalid, "%d bytes were asked for", count)
	}
	if err := f.begin(ctx, op); err != nil {
		return none, nil, err
	}
	defer f.t.mu.Unlock()
	n, stopped, err := f.walkLocked(op, names)
	if err != nil || stopped != nil {
		return none, stopped, err
	}
	if n.kind == sigma.KindPipe {
		return none, nil, &sigma.Error{Op: op, Path: n.name, Kind: sigma.KindUnsupported, Msg: "the file is a pipe",
			Hint: "open it and read"}
	}
	err = n.wantFileLocked(op)
	if err == nil {
		err = f.mayLocked(op, n, treeserver.MayRead)
	}
	if err != nil {
		return none, nil, err
	}
	rest := n.data[min(offset, uint64(len(n.data))):]
	return sigma.GetResult{Data: slices.Clone(rest[:min(count, len(rest))]), ID: n.fileID(), Size: uint64(len(n.data))},
		nil, nil
}

// Put implements sigma.Putter.
func (f *file) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	const op = "memfs.Put"
	none := sigma.FileID{}
	if err := checkPut(op, names, data, o); err != nil {
		return none, nil, err
	}
	if o.Wait {
		return f.putWaiting(ctx, op, names, data, o)
	}
	id, stopped, _, err := f.putNow(ctx, op, names, data, o, nil)
	return id, stopped, err
}

// putNow is Put as things are now. If w has to wait, it says for what.
func (f *file) putNow(ctx context.Context, op string, names []string, data []byte, o sigma.PutOptions,
	w *waiter) (sigma.FileID, *sigma.Stopped, *waiting, error) {
	none := sigma.FileID{}
	if err := f.begin(ctx, op); err != nil {
		return none, nil, nil, err
	}
	defer f.t.mu.Unlock()
	dir, stopped, err := f.walkLocked(op, names[:len(names)-1])
	if err != nil || stopped != nil {
		return none, stopped, nil, err
	}
	err = dir.wantDirLocked(op)
	if err == nil {
		err = f.mayLocked(op, dir, treeserver.MayPass)
	}
	if err == nil && o.Wait { // which is for making the file
		err = f.mayLocked(op, dir, treeserver.MayWrite)
	}
	if err != nil {
		return none, nil, nil, err
	}
	name := names[len(names)-1]
	n := dir.children[name]
	if n != nil && n.kind == sigma.KindSymlink && !isLink(o.Kind) && !o.MustMake {
		return none, &sigma.Stopped{Walked: len(names), Kind: n.kind, Target: n.target}, nil, nil
	}
	lost := o.Lease != 0 && f.t.leases[o.Lease] == nil
	if w != nil && !lost && f.t.queueLocked(w, place{dir, name}) {
		return none, nil, &waiting{w.wake, f.t.raised}, nil
	}
	if err := allowed(op, name, n, o); err != nil && !(lost && o.Wait) {
		return none, nil, nil, err
	}
	if lost {
		return none, nil, nil, sigma.Errorf(op, sigma.KindNotFound, "there is no such lease")
	}
	if n != nil {
		err = f.mayLocked(op, n, treeserver.MayWrite)
	}
	if err == nil && (n == nil || n.kind != o.Kind || isLink(n.kind)) {
		err = f.mayLocked(op, dir, treeserver.MayWrite)
	}
	if err != nil {
		return none, nil, nil, err
	}
	if n == nil {
		if n, err = f.t.makeLocked(op, dir, name, o.Kind, permOf(o)); err != nil {
			return none, nil, nil, err
		}
		if err := f.t.fillLocked(op, n, data, o); err != nil {
			f.t.unlinkLocked(n)
			return none, nil, nil, err
		}
	} else if err := f.t.fillLocked(op, n, data, o); err != nil {
		return none, nil, nil, err
	}
	return n.fileID(), nil, nil, nil
}

// permOf is what a new file gets: a Put that says nothing makes a file that can be put again.
func permOf(o sigma.PutOptions) uint32 {
	if o.Perm&0o777 == 0 {
		return 0o644
	}
	return o.Perm
}

func checkPut(op string, names []string, data []byte, o sigma.PutOptions) error {
	switch {
	case len(names) == 0:
		return sigma.Errorf(op, sigma.KindInvalid, "put needs the name of a file")
	case o.Kind == sigma.KindPipe && len(data) > 0:
		return sigma.Errorf(op, sigma.KindInvalid, "a pipe is made empty")
	case o.Kind != sigma.KindFile && o.Kind != sigma.KindPipe && !isLink(o.Kind):
		return sigma.Errorf(op, sigma.KindInvalid, "a %v cannot be put", o.Kind)
	case o.Append && o.Kind != sigma.KindFile:
		return sigma.Errorf(op, sigma.KindInvalid, "nothing can be appended to a %v", o.Kind)
	case o.MustMake && o.MustExist:
		return sigma.Errorf(op, sigma.KindInvalid, "a file cannot both be new and exist")
	case o.Wait && !o.MustMake:
		return sigma.Errorf(op, sigma.KindInvalid, "who waits for a name wants to make the file")
	case isLink(o.Kind):
		if err := checkTarget(op, string(data)); err != nil {
			return err
		}
	}
	return sigma.CheckNames(op, names)
}

// allowed checks the conditions of a Put on the file n, which may be nil.
func allowed(op, name string, n *node, o sigma.PutOptions) error {
	switch {
	case n == nil && o.MustExist:
		return sigma.PathError(op, sigma.KindNotFound, name)
	case o.IfVersion != 0 && (n == nil || n.version != o.IfVersion):
		return sigma.PathError(op, sigma.KindVersion, name)
	case n == nil:
		return nil
	case o.MustMake || o.Kind == sigma.KindPipe:
		return sigma.PathError(op, sigma.KindExists, name)
	case n.kind == sigma.KindPipe:
		return &sigma.Error{Op: op, Path: name, Kind: sigma.KindInvalid, Msg: "the file is a pipe",
			Hint: "open it and write, or remove it first"}
	case n.kind == sigma.KindDir:
		return sigma.PathError(op, sigma.KindIsDir, name)
	case o.Append && n.kind != sigma.KindFile:
		return sigma.Errorf(op, sigma.KindInvalid, "nothing can be appended to a %v", n.kind)
	}
	return nil
}

// fillLocked gives n its new content, all or nothing, and its lease.
func (t *Tree) fillLocked(op string, n *node, data []byte, o sigma.PutOptions) error {
	if o.Append {
		if err := t.writeLocked(op, n, data, uint64(len(n.data))); err != nil {
			return err
		}
	} else {
		old := n.size()
		if more := uint64(len(data)); more > old {
			if err := t.chargeLocked(op, more-old); err != nil {
				return err
			}
		} else {
			t.used -= old - more
		}
		n.kind, n.data, n.target = o.Kind, nil, ""
		if isLink(o.Kind) {
			n.target = string(data)
		} else {
			n.data = slices.Clone(data)
		}
		if o.Perm != 0 {
			n.perm = o.Perm & 0o777
		}
		t.changedLocked(n)
	}
	if o.Lease != 0 {
		if l := t.leases[n.lease]; l != nil {
			delete(l.files, n)
		}
		n.lease = o.Lease
		t.leases[o.Lease].files[n] = struct{}{}
	}
	return nil
}
