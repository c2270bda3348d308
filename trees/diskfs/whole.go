package diskfs

import (
	"cmp"
	"context"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// stoppedAt tells of a link that a walk met, with walked names used up.
func (sp *space) stoppedAt(n *node, walked int) *sigma.Stopped {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if !isLink(n.kind) {
		return nil
	}
	return &sigma.Stopped{Walked: walked, Kind: n.kind, Target: n.target}
}

// resolve goes to names for Get and Put; a link that is met is told as stopped. With sp.names held.
func (sp *space) resolve(op string, start *node, names []string) (*node, *sigma.Stopped, error) {
	n, _, err := sp.walk(op, start, nil)
	if err != nil {
		return nil, nil, err
	}
	for i := 0; ; i++ {
		if s := sp.stoppedAt(n, i); s != nil {
			sp.release(n)
			return nil, s, nil
		}
		if i == len(names) {
			return n, nil, nil
		}
		next, err := sp.stepFrom(op, n, names[i])
		sp.release(n)
		if err != nil {
			return nil, nil, err
		}
		n = next
	}
}

// Get implements sigma.Getter. At most sigma.GetMax bytes are returned.
func (f *file) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	const op = "diskfs.Get"
	none := sigma.GetResult{}
	if err := sigma.CheckNames(op, names); err != nil {
		return none, nil, err
	}
	if count < 0 {
		return none, nil, sigma.Errorf(op, sigma.KindInvalid, "%d bytes were asked for", count)
	}
	start, err := f.checkNode(ctx, op)
	if err != nil {
		return none, nil, err
	}
	sp := f.sp
	sp.names.RLock()
	n, stopped, err := sp.resolve(op, start, names)
	if err != nil || stopped != nil {
		sp.names.RUnlock()
		return none, stopped, err
	}
	defer sp.release(n)
	b, err := sp.openBody(op, n)
	sp.names.RUnlock() // the bytes are pinned now
	if err != nil {
		return none, nil, wrap(op, "", err)
	}
	defer b.close()
	// The version is read before the bytes: if they change in between, it is the older one, and a
	// watcher learns of the change.
	sp.mu.Lock()
	size := b.size
	r := sigma.GetResult{ID: sigma.FileID{Kind: sigma.KindFile, Path: b.id, Version: b.version}, Size: size}
	sp.mu.Unlock()
	r.Data = make([]byte, min(uint64(count), uint64(sigma.GetMax), size-min(size, offset)))
	got, err := b.readAt(r.Data, offset)
	r.Data = r.Data[:got]
	return r, nil, wrap(op, "", err)
}

// Recall implements sigma.Recaller for objects that the kernel has in its memory, in directories
// that were walked through before. What it does not find there Get reads from the disk.
func (f *file) Recall(names []string, offset uint64, count int) (r sigma.GetResult, _ *sigma.Stopped, known bool,
	err error) {
	sp := f.sp
	if !sp.t.cfg.Policy.Objects || len(names) == 0 || sigma.CheckNames("diskfs.Recall", names) != nil ||
		!sp.names.TryRLock() {
		return r, nil, false, nil
	}
	defer sp.names.RUnlock()
	dir := f.recent(names[:len(names)-1])
	if dir == nil {
		return r, nil, false, nil
	}
	defer sp.release(dir)
	fd, err := openCachedAt(dir.fd, names[len(names)-1])
	if err != nil {
		return r, nil, false, nil
	}
	defer closeFD(fd)
	in, err := look(fd, "") // an object has its version before its name, and for ever
	if err != nil || in.kind != sigma.KindFile {
		return r, nil, false, nil
	}
	r.ID, r.Size = sigma.FileID{Kind: sigma.KindFile, Path: in.id, Version: in.version}, in.size
	r.Data = make([]byte, min(uint64(max(count, 0)), uint64(sigma.GetMax), in.size-min(in.size, offset)))
	if len(r.Data) > 0 {
		n, err := unix.Preadv2(fd, [][]byte{r.Data}, int64(offset), unix.RWF_NOWAIT)
		if err != nil || n < len(r.Data) {
			return sigma.GetResult{}, nil, false, nil
		}
	}
	return r, nil, true, nil
}

// recent is the directory at names below f with a reference, if all on the way are remembered; nil
// if not.
func (f *file) recent(names []string) *node {
	sp := f.sp
	sp.mu.Lock()
	defer sp.mu.Unlock()
	n := f.n
	if sp.dead || f.closed.Load() {
		return nil
	}
	for _, name := range names {
		n = sp.recent[entry{n, name}]
	}
	if n == nil || n.removed || n.kind != sigma.KindDir {
		return nil
	}
	n.refs++
	return n
}

// Put implements sigma.Putter.
func (f *file) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID, *sigma.Stopped,
	error) {
	const op = "diskfs.Put"
	none := sigma.FileID{}
	if err := f.sp.checkPut(op, names, data, o); err != nil {
		return none, nil, err
	}
	start, err := f.checkNode(ctx, op)
	if err != nil {
		return none, nil, err
	}
	sp := f.sp
	sp.names.RLock()
	dir, stopped, err := sp.resolve(op, start, names[:len(names)-1])
	sp.names.RUnlock()
	if err != nil || stopped != nil {
		return none, stopped, err
	}
	defer sp.release(dir)
	switch { // a tree beyond may have what this one lacks
	case o.Kind == sigma.KindPipe:
		return none, nil, sigma.Errorf(op, sigma.KindUnsupported, "there are no pipes here")
	case o.Lease != 0 || o.Wait:
		return none, nil, sigma.Errorf(op, sigma.KindUnsupported,
			"this tree has no leases, and nobody can wait for a name")
	}
	name := names[len(names)-1]
	p := &put{sp: sp, op: op, dir: dir, name: name, o: o, walked: len(names)}
	if o.Append {
		err = p.append(data)
	} else if isLink(o.Kind) {
		err = p.link(string(data))
	} else {
		err = p.replace(data)
	}
	return p.id, p.stopped, wrap(op, name, err)
}

func (sp *space) checkPut(op string, names []string, data []byte, o sigma.PutOptions) error {
	switch {
	case len(names) == 0:
		return sigma.Errorf(op, sigma.KindInvalid, "put needs the name of a file")
	case o.Kind != sigma.KindFile && !isLink(o.Kind) && o.Kind != sigma.KindPipe:
		return sigma.Errorf(op, sigma.KindInvalid, "a %v cannot be put", o.Kind)
	case o.Append && o.Kind != sigma.KindFile:
		return sigma.Errorf(op, sigma.KindInvalid, "nothing can be appended to a %v", o.Kind)
	case o.MustMake && o.MustExist:
		return sigma.Errorf(op, sigma.KindInvalid, "a file cannot both be new and exist")
	case o.Append && sp.t.cfg.Policy.Objects:
		return sigma.Errorf(op, sigma.KindUnsupported, "nothing can be appended to an object")
	case isLink(o.Kind) && !sp.t.cfg.Policy.Links:
		return sigma.Errorf(op, sigma.KindUnsupported, "there are no links in this tree")
	case isLink(o.Kind):
		if err := checkTarget(op, string(data)); err != nil {
			return err
		}
	}
	return sigma.CheckNames(op, names)
}

// put is one Put, or one publishing of an object: a name of a directory, and under what conditions
// it is taken.
type put struct {
	sp     *space
	op     string
	dir    *node
	name   string
	o      sigma.PutOptions
	walked int
	over   *node // if not nil: the file to replace, wherever it is by then, instead of dir and name

	id      sigma.FileID
	stopped *sigma.Stopped
}

// conditions finds the entry as it is (ok == false if there is none) and says whether it may be
// replaced. With sp.names held for writing.
func (p *put) conditions() (old info, ok bool, err error) {
	if err := p.sp.aliveDir(p.op, p.dir); err != nil {
		return info{}, false, err
	}
	old, err = p.sp.find(p.dir, p.name)
	ok = err == nil
	switch {
	case err != nil && err != unix.ENOENT:
		return old, false, err
	case ok && p.o.MustMake:
		return old, ok, sigma.PathError(p.op, sigma.KindExists, p.name)
	case ok && old.kind == sigma.KindSymlink && !isLink(p.o.Kind):
		p.stopped = &sigma.Stopped{Walked: p.walked, Kind: old.kind, Target: old.target}
		return old, ok, nil
	case !ok && p.o.MustExist:
		return old, ok, sigma.PathError(p.op, sigma.KindNotFound, p.name)
	case p.o.IfVersion != 0 && (!ok || old.version != p.o.IfVersion):
		return old, ok, sigma.PathError(p.op, sigma.KindVersion, p.name)
	case ok && old.kind == sigma.KindDir:
		return old, ok, sigma.PathError(p.op, sigma.KindIsDir, p.name)
	case ok && p.o.Append && old.kind != sigma.KindFile:
		return old, ok, sigma.Errorf(p.op, sigma.KindInvalid, "nothing can be appended to a %v", old.kind)
	case ok:
		return old, ok, nil
	}
	return old, ok, p.sp.admit(p.dir, p.name, p.o.Kind)
}

// replace publishes data as a new file.
func (p *put) replace(data []byte) error {
	b, err := p.sp.newBody(p.op)
	if err != nil {
		return err
	}
	n := (*node)(nil)
	if _, err = b.writeAt(p.op, data, place{}); err == nil {
		n, err = p.publish(b)
	}
	b.close()
	if n != nil {
		p.sp.release(n)
	}
	return err
}

// publish gives a temporary file its name and returns its node with a reference; nil if p.stopped
// or if it has its name already.
func (p *put) publish(b *body) (*node, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.temp == "" {
		return nil, nil
	}
	if err := b.reclaimLocked(p.op); err != nil {
		return nil, err
	}
	if b.bad {
		return nil, sigma.Errorf(p.op, sigma.KindOther, "a write failed, so the file is not published")
	}
	p.sp.names.Lock()
	defer p.sp.names.Unlock()
	if p.over != nil {
		p.sp.mu.Lock()
		err := p.over.wantFileLocked(p.op)
		p.dir, p.name = p.over.parent, p.over.name
		p.sp.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	in := info{kind: sigma.KindFile, ino: b.ino, id: b.id, size: b.size}
	n, err := p.moveIn(b.temp, in, b)
	if n != nil {
		b.temp = ""
	}
	return n, err
}

// publish gives an object that was written through this handle its name. It returns the directory
// with a reference, or nil if there was nothing to publish.
func (f *file) publish(op string) (*node, error) {
	sp := f.sp
	if !f.flags.Writes() || f.flags&sigma.OpenHidden == 0 && !sp.t.cfg.Policy.Objects {
		return nil, nil
	}
	sp.mu.Lock()
	p := &put{sp: sp, op: op, dir: f.dir, name: f.name, over: f.n, o: sigma.PutOptions{MustMake: f.excl}}
	sp.mu.Unlock()
	n, err := p.publish(f.b)
	if p.stopped != nil {
		err = sigma.PathError(op, sigma.KindExists, f.name)
	}
	if n == nil {
		return nil, err
	}
	sp.mu.Lock()
	p.dir.refs++
	fresh := f.n == nil
	if fresh {
		f.n = n // with its reference
	}
	sp.mu.Unlock()
	if !fresh {
		sp.release(n)
	}
	return p.dir, err
}

// link publishes a symlink or endpoint.
func (p *put) link(target string) error {
	sp := p.sp
	if err := sp.charge(p.op, sp.t.entryCost); err != nil {
		return err
	}
	sp.names.Lock()
	defer sp.names.Unlock()
	if err := sp.aliveDir(p.op, p.dir); err != nil {
		sp.uncharge(sp.t.entryCost)
		return err
	}
	temp := sp.tempName()
	err := unix.Symlinkat(linkText(p.o.Kind, target), sp.temp, temp)
	var in info
	if err == nil {
		in, err = look(sp.temp, temp)
	}
	var n *node
	if err == nil {
		n, err = p.moveIn(temp, in, nil)
	}
	if n == nil {
		unix.Unlinkat(sp.temp, temp, 0)
		sp.uncharge(sp.t.entryCost)
		return err
	}
	sp.release(n)
	return err
}

// moveIn renames a temporary entry to its place if the conditions hold. Handles on what was there
// before refer to the new inode from now on, except that those who have the old bytes open keep
// them. It returns the node with a reference. With sp.names held for writing.
func (p *put) moveIn(temp string, in info, b *body) (*node, error) {
	sp := p.sp
	old, exists, err := p.conditions()
	if err != nil || p.stopped != nil {
		return nil, err
	}
	attr := attributes{}
	if b != nil {
		perm := p.o.Perm
		if perm == 0 {
			before := attributes{}
			if exists {
				before, _ = attributesOf(p.dir.fd, p.name, old)
			}
			perm = before.permOf(sigma.KindFile)
		}
		attr = sp.birth(b.fd, sigma.KindFile, perm)
	}
	in.version = sp.t.clock.after(old.version)
	if err := stamp(sp.temp, temp, in.version); err != nil {
		return nil, err
	}
	if err := retry(func() error { return unix.Renameat(sp.temp, temp, p.dir.fd, p.name) }); err != nil {
		return nil, err
	}
	sp.mu.Lock()
	n := (*node)(nil)
	if exists {
		cost := sp.t.entryCost + old.size
		if n = sp.known(old); n != nil && n.body != nil {
			cost = 0 // the last close of the old bytes frees it
		}
		if old.kind != sigma.KindFile {
			cost = sp.t.entryCost
		}
		sp.unchargeLocked(cost)
	}
	if stale := sp.known(in); stale != nil && stale != n {
		sp.goneLocked(stale)
	}
	if n == nil {
		n = sp.addLocked(p.dir, p.name, in, -1)
	} else {
		delete(sp.table, n.ino)
		n.dropBodyLocked()
		n.kind, n.ino, n.id, n.version, n.target = in.kind, in.ino, in.id, in.version, in.target
		sp.table[n.ino] = n
		n.wakeLocked()
	}
	n.refs++
	n.attr = attr
	if b != nil {
		b.version, b.node, n.body = in.version, n, b
	}
	p.id = n.fileIDLocked()
	sp.mu.Unlock()
	return n, sp.touch(p.dir)
}

// append adds data to the end of the file, which is made if there is none.
func (p *put) append(data []byte) error {
	sp := p.sp
	sp.names.Lock()
	_, exists, err := p.conditions()
	if err != nil || p.stopped != nil {
		sp.names.Unlock()
		return err
	}
	var f *file
	if !exists {
		f, err = sp.createNow(p.op, p.dir, p.name, sigma.OpenWrite, cmp.Or(p.o.Perm, permFile))
	} else if n, serr := sp.step(p.op, p.dir, p.name); serr != nil {
		err = serr
	} else if b, berr := sp.openBody(p.op, n); berr != nil {
		sp.release(n)
		err = berr
	} else {
		f = &file{sp: sp, n: n, b: b}
	}
	sp.names.Unlock()
	if err != nil {
		return err
	}
	defer f.Close()
	// Another append may have come between the conditions and the lock of the bytes, so the version
	// is compared with that held.
	at := place{atEnd: true}
	if exists {
		at.ifVersion = p.o.IfVersion
	}
	_, err = f.b.writeAt(p.op, data, at)
	p.id = f.b.fileID()
	return err
}
