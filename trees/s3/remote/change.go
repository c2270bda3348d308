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
	if err := f.checkDir(ctx, op); err != nil {
		return err
	}
	dirKey := f.key
	key, err := join(dirKey, name)
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	unlock, err := f.sp.locks.take(ctx, lock{dirKey, false}, lock{key, true})
	if err != nil {
		return err
	}
	defer unlock()
	if err = f.sp.missed(ctx, op, dirKey); err == nil { // it may have been removed meanwhile
		err = change(dirKey)
	}
	return sigma.Wrap(op, f.sp.pathOf(key), err)
}

// Create implements sigma.File.
func (f *file) Create(ctx context.Context, name string, flags sigma.OpenFlags, _ uint32) (sigma.File, error) {
	const op = "remote.Create"
	if flags&sigma.OpenHidden != 0 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "hidden files are not made here",
			Hint: "make it without: an object is not seen before it is whole anyway"}
	}
	if err := f.checkDir(ctx, op); err != nil {
		return nil, err
	}
	dirKey := f.key
	if err := sigma.CheckName(name); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	if err := f.sp.admit(dirKey, name, sigma.KindFile); err != nil {
		return nil, sigma.Wrap(op, name, err)
	}
	key, _, err := f.sp.look(ctx, dirKey, name)
	switch {
	case err == nil && flags&sigma.OpenExclusive != 0:
		return nil, sigma.PathError(op, sigma.KindExists, name)
	case err == nil:
		created := &file{sp: f.sp, key: key}
		if err := created.Open(ctx, flags); err != nil {
			created.Close()
			return nil, err
		}
		return created, nil
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
	created := &file{sp: f.sp, key: up.key, open: true, flags: flags, up: up, dirKey: dirKey, name: name,
		excl: flags&sigma.OpenExclusive != 0}
	created.unmade.Store(true)
	return created, nil
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
		a, err := sp.c.put(ctx, sp.pathOf(key), key, attr{kind: sigma.KindDir, version: sp.after(0)},
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
	if err := f.checkDir(ctx, op); err != nil {
		return err
	}
	return noLinks(op)
}

// ReadLink implements sigma.File.
func (f *file) ReadLink(ctx context.Context) (string, error) {
	const op = "remote.ReadLink"
	if err := f.checkMade(ctx, op); err != nil {
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
	for _, dir := range []*file{f, to} {
		if err := dir.checkDir(ctx, op); err != nil {
			return err
		}
	}
	fromKey, dstKey := f.key, to.key
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
	for _, dir := range []string{fromKey, dstKey} {
		if err := sp.missed(ctx, op, dir); err != nil {
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
	sp.changed(oldKey, attr{}, true)
	sp.touch(fromKey)
	return nil
}

// Sync implements sigma.File. It publishes an object too; what the store acknowledged is as durable
// as the store is.
func (f *file) Sync(ctx context.Context) error { return f.publish(ctx, "remote.Sync") }

// Publish implements sigma.Publisher.
func (f *file) Publish(ctx context.Context) error { return f.publish(ctx, "remote.Publish") }

// publish gives an object that was written through this handle its name.
func (f *file) publish(ctx context.Context, op string) error {
	err := f.check(ctx, op)
	if err != nil || f.up == nil || f.up.published() {
		return err
	}
	p := &put{sp: f.sp, op: op, dirKey: f.dirKey, name: f.name, mustMake: f.excl && f.unmade.Load(),
		mustExist: f.existed}
	if f.existed {
		p.dirKey, p.name = f.key[:strings.LastIndexByte(f.key, '/')+1], f.sp.nameOf(f.key)
	}
	if _, err = p.run(ctx, f.up.finish); err == nil {
		f.unmade.Store(false)
	}
	return err
}

// put is one way in which an object becomes visible: a name of a directory, and under what
// conditions it is taken.
type put struct {
	sp        *space
	op        string
	dirKey    string
	name      string
	mustMake  bool
	mustExist bool
	ifVersion sigma.Version
}

// run locks the name, checks the conditions, and has the object written.
func (p *put) run(ctx context.Context, write func(ctx context.Context, key string, a attr, cond condition) (attr,
	error)) (sigma.FileID, error) {
	none := sigma.FileID{}
	key, err := join(p.dirKey, p.name)
	if err != nil {
		return none, sigma.Wrap(p.op, "", err)
	}
	unlock, err := p.sp.locks.take(ctx, lock{p.dirKey, false}, lock{key, true})
	if err != nil {
		return none, err
	}
	defer unlock()
	created, err := p.locked(ctx, key, write)
	if err != nil {
		return none, sigma.Wrap(p.op, p.sp.pathOf(key), err)
	}
	return created.fileID(key), nil
}

func (p *put) locked(ctx context.Context, key string, write func(ctx context.Context, key string, a attr,
	cond condition) (attr, error)) (created attr, err error) {
	sp := p.sp
	if err := sp.alive(p.op); err != nil {
		return created, err
	}
	if err := sp.missed(ctx, p.op, p.dirKey); err != nil {
		return created, err
	}
	if err := sp.admit(p.dirKey, p.name, sigma.KindFile); err != nil {
		return created, err
	}
	_, old, err := sp.look(ctx, p.dirKey, p.name)
	exists := err == nil
	switch {
	case err != nil && sigma.KindOf(err) != sigma.KindNotFound:
		return created, err
	case exists && p.mustMake:
		return created, sigma.PathError(p.op, sigma.KindExists, p.name)
	case exists && old.kind == sigma.KindDir:
		return created, sigma.PathError(p.op, sigma.KindIsDir, p.name)
	case !exists && p.mustExist:
		return created, sigma.PathError(p.op, sigma.KindNotFound, p.name)
	case p.ifVersion != 0 && (!exists || old.version != p.ifVersion):
		return created, sigma.Errorf(p.op, sigma.KindVersion, "the object has changed")
	}
	a := attr{kind: sigma.KindFile, version: sp.after(old.version)}
	cond := condition{absent: p.mustMake}
	if p.ifVersion != 0 {
		cond.etag = old.etag
	}
	created, err = write(ctx, key, a, cond)
	if err != nil {
		sp.doubt(key)
		if p.mustMake && sigma.KindOf(err) == sigma.KindVersion {
			err = sigma.PathError(p.op, sigma.KindExists, p.name)
		}
		return created, err
	}
	if exists && created.version <= old.version { // a large one got its version when its first part was sent
		created.version = sp.after(old.version)
	}
	sp.changed(key, created, false)
	if !exists {
		sp.touch(p.dirKey)
	}
	return created, nil
}

// Put implements sigma.Putter.
func (f *file) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	const op = "remote.Put"
	none := sigma.FileID{}
	if err := checkPut(op, names, o); err != nil {
		return none, nil, err
	}
	if err := f.checkMade(ctx, op); err != nil {
		return none, nil, err
	}
	dir, _, err := f.sp.walk(ctx, op, f.key, names[:len(names)-1])
	if err == nil && dir != f.sp.prefix && !strings.HasSuffix(dir, "/") {
		err = sigma.PathError(op, sigma.KindNotDir, f.sp.pathOf(dir))
	}
	if err != nil {
		return none, nil, sigma.Wrap(op, "", err)
	}
	p := &put{sp: f.sp, op: op, dirKey: dir, name: names[len(names)-1], mustMake: o.MustMake, mustExist: o.MustExist,
		ifVersion: o.IfVersion}
	id, err := p.run(ctx, func(ctx context.Context, key string, a attr, cond condition) (attr, error) {
		a.size = uint64(len(data))
		return f.sp.c.put(ctx, f.sp.pathOf(key), key, a, bytes.NewReader(data), cond)
	})
	return id, nil, err
}

func checkPut(op string, names []string, o sigma.PutOptions) error {
	switch {
	case len(names) == 0:
		return sigma.Errorf(op, sigma.KindInvalid, "put needs the name of an object")
	case o.Kind == sigma.KindPipe || o.Kind == sigma.KindSymlink || o.Kind == sigma.KindEndpoint:
		return noLinks(op)
	case o.Kind != sigma.KindFile:
		return sigma.Errorf(op, sigma.KindInvalid, "a %v cannot be put", o.Kind)
	case o.MustMake && o.MustExist:
		return sigma.Errorf(op, sigma.KindInvalid, "an object cannot both be new and exist")
	case o.Lease != 0 || o.Wait:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg: "this tree has no leases, and nobody can wait for a name", Hint: hintNames}
	case o.Append:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "nothing can be appended to an object",
			Hint: "write it as a whole, or each piece as an object of its own"}
	}
	return sigma.CheckNames(op, names)
}

// hintNames is for who wants a file that is more than an object.
const hintNames = "use a name outside of /s3, which the realm's own directories and /ux have"

func noLinks(op string) error {
	return &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
		Msg: "an object store has no links, endpoints and pipes", Hint: hintNames}
}
