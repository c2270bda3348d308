package diskfs

import (
	"cmp"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

func isLink(k sigma.FileKind) bool { return k == sigma.KindSymlink || k == sigma.KindEndpoint }

func (n *node) fileIDLocked() sigma.FileID {
	return sigma.FileID{Kind: n.kind, Path: n.id, Version: n.version}
}

func (n *node) wakeLocked() {
	n.sp.t.cfg.Board.Changed(n.id)
	if n.wake != nil {
		close(n.wake)
		n.wake = nil
	}
}

// find describes an entry of dir that is about to change, with the version known in memory. With
// sp.names held for writing: then nobody can open the file, so that if nobody has it open at the
// second look, that size and version are final.
func (sp *space) find(dir *node, name string) (info, error) {
	in, err := look(dir.fd, name)
	if err != nil {
		return info{}, err
	}
	sp.mu.Lock()
	n := sp.known(in)
	quiet := n == nil || n.body == nil
	if n != nil {
		in.version = n.version
	}
	sp.mu.Unlock()
	if quiet && in.kind == sigma.KindFile {
		last, err := look(dir.fd, name)
		if err != nil {
			return info{}, err
		}
		in.size, in.version = last.size, max(in.version, last.version)
	}
	return in, nil
}

// step returns the node of an entry of dir with a reference. With sp.names held, dir referenced.
func (sp *space) step(op string, dir *node, name string) (*node, error) {
	sp.mu.Lock()
	n := sp.recent[entry{dir, name}]
	if n != nil && !n.removed {
		n.refs++
		sp.mu.Unlock()
		return n, nil
	}
	sp.mu.Unlock()
	in, err := look(dir.fd, name)
	if err != nil {
		return nil, err
	}
	sp.mu.Lock()
	n = sp.known(in)
	attr := attributes{}
	if n == nil && in.marked {
		sp.mu.Unlock()
		if attr, err = attributesOf(dir.fd, name, in); err != nil {
			return nil, err
		}
		sp.mu.Lock()
		n = sp.known(in)
	}
	fresh := n == nil
	if !fresh || in.kind != sigma.KindDir {
		if fresh {
			n = sp.addLocked(dir, name, in, -1)
			n.attr = attr
		}
		n.refs++
		if in.kind == sigma.KindDir {
			sp.rememberLocked(dir, name, n)
		}
		sp.mu.Unlock()
		if fresh && in.kind == sigma.KindFile && !sp.t.cfg.Policy.Objects { // an object has its version before its name
			sp.settleVersion(n)
		}
		return n, nil
	}
	err = sp.reserveLocked(op)
	sp.mu.Unlock()
	if err != nil {
		return nil, err
	}
	fd, err := openDirAt(dir.fd, name)
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err != nil {
		sp.open--
		return nil, err
	}
	if n = sp.known(in); n != nil { // another walk was faster
		closeFD(fd)
		sp.open--
	} else {
		n = sp.addLocked(dir, name, in, fd)
		n.attr = attr
	}
	n.refs++
	sp.rememberLocked(dir, name, n)
	return n, nil
}

// rememberLocked keeps a directory for the next walk. All changes of names go through this package,
// so what is remembered stays true until a directory is moved or removed, upon which all is
// forgotten.
func (sp *space) rememberLocked(dir *node, name string, n *node) {
	if len(sp.recent) >= recentMax {
		sp.forgetLocked()
	}
	if sp.recent[entry{dir, name}] == nil && !sp.dead {
		sp.recent[entry{dir, name}] = n
		n.refs++
	}
}

// forgetLocked lets go of all remembered directories.
func (sp *space) forgetLocked() {
	recent := sp.recent
	sp.recent = map[entry]*node{}
	for _, n := range recent {
		sp.releaseLocked(n)
	}
}

// settleVersion reads the version of a new node again. The one it was made with may have been read
// while the last user of an earlier node had changed the bytes and not yet set the time; whoever
// changes them from now on does it through this node.
func (sp *space) settleVersion(n *node) {
	last, err := look(n.parent.fd, n.name)
	if err != nil {
		return // it will not open either
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if last.ino == n.ino {
		n.version = max(n.version, last.version)
	}
}

// known returns the node of an inode, with sp.mu held. One whose identity differs is of an inode
// that somebody removed behind our back; it is forgotten.
func (sp *space) known(in info) *node {
	n := sp.table[in.ino]
	if n != nil && n.id != in.id {
		sp.goneLocked(n)
		return nil
	}
	return n
}

func (sp *space) addLocked(dir *node, name string, in info, fd int) *node {
	dir.refs++
	n := &node{sp: sp, kind: in.kind, ino: in.ino, id: in.id, version: in.version, target: in.target, parent: dir,
		name: name, fd: fd}
	sp.table[in.ino] = n
	return n
}

// goneLocked marks n as removed and takes it out of the table.
func (sp *space) goneLocked(n *node) {
	n.removed = true
	if sp.table[n.ino] == n {
		delete(sp.table, n.ino)
	}
	if n.left = n.body; n.left != nil {
		n.left.was = n
	}
	n.dropBodyLocked()
	n.wakeLocked()
}

// dropBodyLocked leaves n's bytes to those who have them open.
func (n *node) dropBodyLocked() {
	if n.body != nil {
		n.body.node = nil
		n.body = nil
	}
}

// release gives back a reference to n, and to its parents as far as nobody else has one.
func (sp *space) release(n *node) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	sp.releaseLocked(n)
}

func (sp *space) releaseLocked(n *node) {
	for n != nil {
		if n.refs--; n.refs > 0 {
			return
		}
		if sp.table[n.ino] == n {
			delete(sp.table, n.ino)
		}
		if n.fd >= 0 {
			closeFD(n.fd)
			if n.parent != nil {
				sp.open--
			}
		}
		n = n.parent
	}
}

// touch gives a directory a new version after its entries changed. With sp.names held for writing.
func (sp *space) touch(dir *node) error {
	sp.mu.Lock()
	v := sp.t.clock.after(dir.version)
	dir.version = v
	dir.wakeLocked()
	sp.mu.Unlock()
	return stamp(dir.fd, "", v)
}

// removedOnDisk accounts for an entry that lost its name: what nobody has open is no longer
// charged.
func (sp *space) removedOnDisk(in info) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	cost := sp.t.entryCost
	if in.kind == sigma.KindFile {
		cost += in.size
	}
	if n := sp.known(in); n != nil {
		if n.body != nil {
			cost = 0 // its last close frees it
		}
		sp.goneLocked(n)
	}
	if in.kind == sigma.KindDir {
		sp.forgetLocked()
	}
	sp.unchargeLocked(cost)
}

// openBody returns n's bytes with a reference. With sp.names held.
func (sp *space) openBody(op string, n *node) (*body, error) {
	sp.mu.Lock()
	if err := n.wantFileLocked(op); err != nil {
		sp.mu.Unlock()
		return nil, err
	}
	if b := cmp.Or(n.body, n.left); b != nil {
		b.refs++
		sp.mu.Unlock()
		return b, nil
	}
	err := sp.reserveLocked(op)
	sp.mu.Unlock()
	if err != nil {
		return nil, err
	}
	flags := unix.O_RDWR
	if sp.t.cfg.Policy.Objects {
		flags = unix.O_RDONLY
	}
	fd, err := openAt(n.parent.fd, n.name, flags|unix.O_NONBLOCK) // never waits, should it be no file after all
	fixed := err == unix.EROFS
	if fixed {
		fd, err = openAt(n.parent.fd, n.name, unix.O_RDONLY|unix.O_NONBLOCK)
	}
	var st unix.Stat_t
	if err == nil {
		if err = unix.Fstat(fd, &st); err == nil && st.Ino != n.ino {
			err = unix.ESTALE
		}
	}
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if err != nil || n.body != nil {
		closeFD(fd)
		sp.open--
		if err != nil {
			return nil, err
		}
		n.body.refs++
		return n.body, nil
	}
	n.body = &body{sp: sp, fd: fd, ino: n.ino, id: n.id, size: uint64(st.Size), version: n.version, node: n, refs: 1,
		fixed: fixed}
	return n.body, nil
}

// wantFileLocked checks that the node is a file that has a name, or is open still.
func (n *node) wantFileLocked(op string) error {
	switch {
	case n.removed && n.left == nil:
		return sigma.PathError(op, sigma.KindNotFound, n.name)
	case n.kind == sigma.KindDir:
		return sigma.PathError(op, sigma.KindIsDir, n.name)
	case n.kind != sigma.KindFile:
		return sigma.Errorf(op, sigma.KindInvalid, "the file is a %v", n.kind)
	}
	return nil
}

func (n *node) wantDirLocked(op string) error {
	switch {
	case n.kind != sigma.KindDir:
		return sigma.PathError(op, sigma.KindNotDir, n.name)
	case n.removed:
		return sigma.PathError(op, sigma.KindNotFound, n.name)
	}
	return nil
}

// newBody makes an empty temporary file, charged as an entry, with one reference.
func (sp *space) newBody(op string) (*body, error) {
	if err := sp.charge(op, sp.t.entryCost); err != nil {
		return nil, err
	}
	sp.mu.Lock()
	err := sp.reserveLocked(op)
	sp.mu.Unlock()
	if err != nil {
		sp.uncharge(sp.t.entryCost)
		return nil, err
	}
	b := &body{sp: sp, fd: -1, refs: 1}
	if err := sp.openTemp(op, b); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (sp *space) openTemp(op string, b *body) (err error) {
	sp.names.RLock() // keeps sp.temp open
	defer sp.names.RUnlock()
	if err := sp.alive(op); err != nil {
		return err
	}
	temp := sp.tempName()
	if b.fd, err = openAt(sp.temp, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL); err != nil {
		return err
	}
	b.temp = temp
	in, err := look(b.fd, "")
	b.ino, b.id = in.ino, in.id
	return err
}

// close gives back a reference. With the last one the descriptor goes, the temporary file if it was
// not published, and the charge unless the bytes have a name.
func (b *body) close() {
	sp := b.sp
	sp.mu.Lock()
	if b.refs--; b.refs > 0 {
		sp.mu.Unlock()
		return
	}
	if b.node != nil {
		b.node.body = nil
	}
	if b.was != nil {
		b.was.left = nil
	}
	if b.passed.Load() {
		sp.orphans = append(sp.orphans, b)
		sp.sweepLocked()
	} else {
		b.endLocked()
	}
	sp.mu.Unlock()
	if b.temp != "" {
		sp.names.RLock()
		defer sp.names.RUnlock()
		if sp.temp >= 0 {
			unix.Unlinkat(sp.temp, b.temp, 0)
		}
	}
}
