package remote

import (
	"bytes"
	"context"
	"strings"

	"sigmaos.dev/sigma"
)

// admit asks whether an entry may be made.
func (sp *space) admit(dirKey, name string, kind sigma.FileKind) error {
	if sp.t.cfg.Check == nil {
		return nil
	}
	return sp.t.cfg.Check(dirKey == sp.prefix, name, kind)
}

// inDir runs a change of the entry name of this directory, alone.
func (f *file) inDir(ctx context.Context, op, name string, change func(dirKey string) error) error {
	n, dirKey, err := f.checkDir(ctx, op)
	if err != nil {
		return err
	}
	key, err := join(dirKey, name)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	unlock, err := f.sp.locks.take(ctx, lock{dirKey, false}, lock{key, true})
	if err != nil {
		return err
	}
	defer unlock()
	f.sp.mu.Lock()
	err = n.wantDirLocked(op) // it may have been removed meanwhile
	f.sp.mu.Unlock()
	if err == nil {
		err = change(dirKey)
	}
	return sigma.Wrap(op, f.sp.pathOf(key), err)
}

// Create implements sigma.File.
func (f *file) Create(ctx context.Context, name string, flags sigma.OpenFlags, _ uint32) (sigma.File, error) {
	const op = "remote.Create"
	if flags&sigma.OpenHidden != 0 {
		return nil, sigma.Errorf(op, sigma.KindUnsupported,
			"hidden files are not made here: an object is not seen before it is whole anyway")
	}
	n, dirKey, err := f.checkDir(ctx, op)
	if err != nil {
		return nil, err
	}
	if err := sigma.CheckName(name); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	if err := f.sp.admit(dirKey, name, sigma.KindFile); err != nil {
		return nil, sigma.Wrap(op, name, err)
	}
	key, a, err := f.sp.look(ctx, dirKey, name)
	switch {
	case err == nil && flags&sigma.OpenExclusive != 0:
		return nil, sigma.PathError(op, sigma.KindExists, name)
	case err == nil:
		made := &file{sp: f.sp, n: f.sp.nodeOf(key, name, a)}
		if err := made.Open(ctx, flags); err != nil {
			made.Close()
			return nil, err
		}
		return made, nil
	case sigma.KindOf(err) != sigma.KindNotFound:
		return nil, sigma.Wrap(op, name, err)
	}
	up, err := f.sp.newUpload()
	if err != nil {
		return nil, sigma.Wrap(op, name, err)
	}
	up.key, _ = join(dirKey, name)
	if !flags.Writes() {
		flags |= sigma.OpenReadWrite // it is new: who makes it may fill it
	}
	return &file{sp: f.sp, open: true, flags: flags, up: up, dir: f.sp.take(n), name: name,
		excl: flags&sigma.OpenExclusive != 0}, nil
}

// Mkdir implements sigma.File. A directory is an object without bytes whose key ends with a slash,
// as other clients make them too.
func (f *file) Mkdir(ctx context.Context, name string, _ uint32) error {
	const op = "remote.Mkdir"
	return f.inDir(ctx, op, name, func(dirKey string) error {
		sp := f.sp
		if err := sp.admit(dirKey, name, sigma.KindDir); err != nil {
			return err
		}
		key, _, err := sp.look(ctx, dirKey, name)
		if err == nil {
			return sigma.PathError(op, sigma.KindExists, name)
		} else if sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
		if !strings.HasSuffix(key, "/") {
			key += "/"
		}
		a, err := sp.c.put(ctx, sp.pathOf(key), key, attr{kind: sigma.KindDir, id: newID(), version: sp.after(0)},
			bytes.NewReader(nil), condition{absent: true})
		if err != nil {
			sp.doubt(key)
			if sigma.KindOf(err) == sigma.KindVersion {
				err = sigma.PathError(op, sigma.KindExists, name)
			}
			return err
		}
		sp.changed(key, a, false)
		sp.touch(dirKey)
		return nil
	})
}

// Symlink implements sigma.File: there are none.
func (f *file) Symlink(ctx context.Context, name, _ string) error {
	const op = "remote.Symlink"
	if err := sigma.CheckName(name); err != nil {
		return sigma.Wrap(op, "", err)
	}
	if _, _, err := f.checkDir(ctx, op); err != nil {
		return err
	}
	return sigma.Errorf(op, sigma.KindUnsupported, "there are no links in this tree")
}

// ReadLink implements sigma.File.
func (f *file) ReadLink(ctx context.Context) (string, error) {
	const op = "remote.ReadLink"
	if _, err := f.checkNode(ctx, op); err != nil {
		return "", err
	}
	return "", sigma.Errorf(op, sigma.KindInvalid, "the file is no link")
}

// Remove implements sigma.File.
func (f *file) Remove(ctx context.Context, name string) error {
	const op = "remote.Remove"
	return f.inDir(ctx, op, name, func(dirKey string) error {
		sp := f.sp
		key, a, err := sp.look(ctx, dirKey, name)
		if err != nil {
			return err
		}
		if a.kind == sigma.KindDir {
			unlock, err := sp.locks.take(ctx,
				lock{key, true}) // nobody makes anything in it; who does waits for no lock of ours
			if err != nil {
				return err
			}
			defer unlock()
			p, err := sp.c.list(ctx, sp.pathOf(key), key, "", "", "", 2)
			if err != nil {
				return err
			}
			for _, o := range p.objects {
				if o.Key != key {
					return sigma.PathError(op, sigma.KindNotEmpty, name)
				}
			}
		}
		if err := sp.c.remove(ctx, sp.pathOf(key), key); err != nil {
			sp.doubt(key)
			return err
		}
		sp.changed(key, a, true)
		sp.touch(dirKey)
		return nil
	})
}

// Rename implements sigma.File. An object is copied by the store and then removed, so that for a
// moment, or if we die in between, it has both names. A directory is not moved: that would be a
// copy of everything in it.
func (f *file) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	const op = "remote.Rename"
	to, ok := newDir.(*file)
	if !ok || to.sp != f.sp {
		return sigma.Errorf(op, sigma.KindInvalid, "the new directory is not of this tree")
	}
	sp := f.sp
	from, fromKey, err := f.checkDir(ctx, op)
	if err != nil {
		return err
	}
	dst, dstKey, err := to.checkDir(ctx, op)
	if err != nil {
		return err
	}
	oldKey, err := join(fromKey, name)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	newKey, err := join(dstKey, newName)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	unlock, err := sp.locks.take(ctx, lock{fromKey, false}, lock{dstKey, false}, lock{oldKey, true}, lock{newKey, true})
	if err != nil {
		return err
	}
	defer unlock()
	for _, n := range []*node{from, dst} {
		sp.mu.Lock()
		err := n.wantDirLocked(op)
		sp.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return sigma.Wrap(op, sp.pathOf(oldKey), sp.rename(ctx, op, fromKey, name, dstKey, newName))
}

// rename moves an object. With both keys locked.
func (sp *space) rename(ctx context.Context, op, fromKey, name, dstKey, newName string) error {
	oldKey, a, err := sp.look(ctx, fromKey, name)
	if err != nil {
		return err
	}
	newKey, old, err := sp.look(ctx, dstKey, newName)
	exists := err == nil
	switch {
	case err != nil && sigma.KindOf(err) != sigma.KindNotFound:
		return err
	case oldKey == newKey && exists:
		return nil
	case a.kind == sigma.KindDir:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg:  "directories of this object store cannot be moved",
			Hint: "copy what is in it: sigma cp -r; then remove it"}
	case exists && old.kind == sigma.KindDir:
		return sigma.PathError(op, sigma.KindIsDir, newName)
	}
	if err := sp.admit(dstKey, newName, sigma.KindFile); err != nil {
		return err
	}
	newKey, err = join(dstKey, newName)
	if err != nil {
		return err
	}
	now := a
	if exists && old.version >= now.version {
		now.version = sp.after(old.version)
	}
	if now, err = sp.c.copy(ctx, sp.pathOf(oldKey), oldKey, newKey, a, now); err != nil {
		sp.doubt(oldKey)
		sp.doubt(newKey)
		return err
	}
	sp.changed(newKey, now, false)
	sp.touch(dstKey)
	if err := sp.c.remove(ctx, sp.pathOf(oldKey), oldKey); err != nil {
		sp.doubt(oldKey)
		return &sigma.Error{Op: op, Kind: sigma.KindOf(err),
			Msg: "copied to " + sp.pathOf(newKey) + ", but the old name could not be removed", Err: err}
	}
	sp.moved(oldKey, newKey, newName, now)
	sp.touch(fromKey)
	return nil
}

// moved lets handles follow an object.
func (sp *space) moved(oldKey, newKey, newName string, a attr) {
	sp.mu.Lock()
	n, replaced := sp.nodes[oldKey], sp.nodes[newKey]
	if n != nil {
		delete(sp.nodes, oldKey)
		if replaced != nil {
			sp.goneLocked(replaced)
		}
		n.key, n.name, n.a = newKey, newName, a
		sp.nodes[newKey] = n
		sp.wakeLocked(n)
	}
	sp.mu.Unlock()
	sp.changed(oldKey, attr{}, true)
}

// Sync implements sigma.File. It publishes an object too; what the store acknowledged is as durable
// as the store is.
func (f *file) Sync(ctx context.Context) error { return f.publish(ctx, "remote.Sync") }

// Publish implements sigma.Publisher.
func (f *file) Publish(ctx context.Context) error { return f.publish(ctx, "remote.Publish") }

// publish gives an object that was written through this handle its name.
func (f *file) publish(ctx context.Context, op string) error {
	n, err := f.check(ctx, op)
	if err != nil || f.up == nil || f.up.published() {
		return err
	}
	p := &put{sp: f.sp, op: op, over: n, dir: f.dir, name: f.name, mustMake: f.excl && n == nil}
	made, err := p.run(ctx, f.up.finish)
	if err != nil {
		return err
	}
	f.sp.mu.Lock()
	fresh := f.n == nil
	if fresh {
		f.n = made // with its reference
	}
	f.sp.mu.Unlock()
	if !fresh {
		f.sp.release(made)
	}
	return nil
}

// put is one way in which an object becomes visible: a name of a directory, and under what
// conditions it is taken.
type put struct {
	sp        *space
	op        string
	over      *node // if not nil: the object to replace, wherever it is by then, instead of dir and name
	dir       *node
	name      string
	mustMake  bool
	mustExist bool
	ifVersion sigma.Version
}

// where says what key is meant now, and in which directory.
func (p *put) where() (dirKey, name string, err error) {
	p.sp.mu.Lock()
	defer p.sp.mu.Unlock()
	if err := p.sp.aliveLocked(p.op); err != nil {
		return "", "", err
	}
	if p.over == nil {
		return p.dir.key, p.name, p.dir.wantDirLocked(p.op)
	}
	return p.over.key[:strings.LastIndexByte(p.over.key, '/')+1], p.over.name, p.over.wantFileLocked(p.op)
}

// run locks the name, checks the conditions, and has the object written. It returns its node with a
// reference.
func (p *put) run(ctx context.Context, write func(ctx context.Context, key string, a attr, cond condition) (attr,
	error)) (*node, error) {
	for {
		dirKey, name, err := p.where()
		if err != nil {
			return nil, err
		}
		key, err := join(dirKey, name)
		if err != nil {
			return nil, sigma.Wrap(p.op, "", err)
		}
		unlock, err := p.sp.locks.take(ctx, lock{dirKey, false}, lock{key, true})
		if err != nil {
			return nil, err
		}
		if dir, now, err := p.where(); err == nil && (dir != dirKey || now != name) {
			unlock()
			continue // it was renamed meanwhile
		} else if err != nil {
			unlock()
			return nil, err
		}
		n, err := p.locked(ctx, dirKey, key, name, write)
		unlock()
		return n, sigma.Wrap(p.op, p.sp.pathOf(key), err)
	}
}

func (p *put) locked(ctx context.Context, dirKey, key, name string, write func(ctx context.Context, key string, a attr,
	cond condition) (attr, error)) (*node, error) {
	sp := p.sp
	if err := sp.admit(dirKey, name, sigma.KindFile); err != nil {
		return nil, err
	}
	_, old, err := sp.look(ctx, dirKey, name)
	exists := err == nil
	switch {
	case err != nil && sigma.KindOf(err) != sigma.KindNotFound:
		return nil, err
	case exists && p.mustMake:
		return nil, sigma.PathError(p.op, sigma.KindExists, name)
	case exists && old.kind == sigma.KindDir:
		return nil, sigma.PathError(p.op, sigma.KindIsDir, name)
	case !exists && p.mustExist:
		return nil, sigma.PathError(p.op, sigma.KindNotFound, name)
	case p.ifVersion != 0 && (!exists || old.version != p.ifVersion):
		return nil, sigma.Errorf(p.op, sigma.KindVersion, "the object has changed")
	}
	a := attr{kind: sigma.KindFile, id: old.id, version: sp.after(old.version)}
	cond := condition{absent: p.mustMake}
	if p.ifVersion != 0 {
		cond.etag = old.etag
	}
	if !exists {
		a.id = newID()
	}
	made, err := write(ctx, key, a, cond)
	if err != nil {
		sp.doubt(key)
		if p.mustMake && sigma.KindOf(err) == sigma.KindVersion {
			err = sigma.PathError(p.op, sigma.KindExists, name)
		}
		return nil, err
	}
	if exists && made.version <= old.version { // a large one got its version when its first part was sent
		made.version = sp.after(old.version)
	}
	sp.changed(key, made, false)
	if !exists {
		sp.touch(dirKey)
	}
	return sp.nodeOf(key, name, made), nil
}

// Put implements sigma.Putter.
func (f *file) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	const op = "remote.Put"
	none := sigma.FileID{}
	if err := checkPut(op, names, o); err != nil {
		return none, nil, err
	}
	start, err := f.checkNode(ctx, op)
	if err != nil {
		return none, nil, err
	}
	dir, _, err := f.sp.walk(ctx, op, start, names[:len(names)-1])
	if err != nil {
		return none, nil, sigma.Wrap(op, "", err)
	}
	defer f.sp.release(dir)
	p := &put{sp: f.sp, op: op, dir: dir, name: names[len(names)-1], mustMake: o.MustMake, mustExist: o.MustExist,
		ifVersion: o.IfVersion}
	n, err := p.run(ctx, func(ctx context.Context, key string, a attr, cond condition) (attr, error) {
		a.size = uint64(len(data))
		return f.sp.c.put(ctx, f.sp.pathOf(key), key, a, bytes.NewReader(data), cond)
	})
	if err != nil {
		return none, nil, err
	}
	defer f.sp.release(n)
	f.sp.mu.Lock()
	defer f.sp.mu.Unlock()
	return n.a.fileID(), nil, nil
}

func checkPut(op string, names []string, o sigma.PutOptions) error {
	switch {
	case len(names) == 0:
		return sigma.Errorf(op, sigma.KindInvalid, "put needs the name of an object")
	case o.Kind == sigma.KindPipe || o.Kind == sigma.KindSymlink || o.Kind == sigma.KindEndpoint:
		return sigma.Errorf(op, sigma.KindUnsupported, "there are no links and pipes in this tree")
	case o.Kind != sigma.KindFile:
		return sigma.Errorf(op, sigma.KindInvalid, "a %v cannot be put", o.Kind)
	case o.MustMake && o.MustExist:
		return sigma.Errorf(op, sigma.KindInvalid, "an object cannot both be new and exist")
	case o.Lease != 0 || o.Wait:
		return sigma.Errorf(op, sigma.KindUnsupported, "this tree has no leases, and nobody can wait for a name")
	case o.Append:
		return sigma.Errorf(op, sigma.KindUnsupported, "nothing can be appended to an object")
	}
	return sigma.CheckNames(op, names)
}
