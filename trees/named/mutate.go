package named

import (
	"fmt"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// mutation is one change of a realm, as one caller wants it. apply checks it against the step and
// adds its changes, or changes nothing and answers an error. It does nothing that takes long, and
// gets the time as an argument.
type mutation interface {
	apply(s *step, now time.Time) reply
	// size is about how many bytes the mutation holds while it waits.
	size() int
}

// reply answers a mutation.
type reply struct {
	id      sigma.FileID
	lease   sigma.LeaseID
	stopped *sigma.Stopped
	waits   *entry // not nil: nothing was done, and it is to be applied again when the entry is free
	err     error
}

func refuse(op string, kind sigma.Kind, path string) reply {
	return reply{err: sigma.PathError(op, kind, path)}
}

// createOp makes a file, directory or symlink, or opens a file that is there.
type createOp struct {
	dir      uint64
	name     string
	kind     sigma.FileKind
	perm     uint32
	data     []byte           // of a symlink
	open     bool             // an existing file is as good
	truncate bool             // cut an existing file
	needs    treeserver.Right // in an existing file
	by       asker
}

func (o createOp) size() int { return len(o.data) + len(o.name) }

func (o createOp) apply(s *step, now time.Time) reply {
	const op = "named.Create"
	if err := checkDir(op, s, o.dir); err != nil {
		return reply{err: err}
	}
	if err := sigma.CheckName(o.name); err != nil {
		return reply{err: err}
	}
	if err := o.by.entering(op, s, o.dir); err != nil {
		return reply{err: err}
	}
	if id := s.child(o.dir, o.name); id != 0 {
		return o.existing(s, s.node(id), now)
	}
	if err := o.by.changing(op, s, o.dir); err != nil {
		return reply{err: err}
	}
	n := &node{parent: o.dir, name: o.name, kind: o.kind, perm: o.perm & 0o777, data: o.data}
	return s.make(op, n, now)
}

func (o createOp) existing(s *step, n *node, now time.Time) reply {
	const op = "named.Create"
	switch {
	case !o.open || n.isLink():
		return refuse(op, sigma.KindExists, o.name)
	case n.kind == sigma.KindDir:
		return refuse(op, sigma.KindIsDir, o.name)
	}
	if err := o.by.may(op, n, o.needs); err != nil {
		return reply{err: err}
	}
	if o.truncate {
		return resizeOp{id: n.id, size64: 0}.apply(s, now)
	}
	return reply{id: n.fileID()}
}

// make adds a new file to a directory that has no such name. It sets what the caller of a mutation
// cannot choose.
func (s *step) make(op string, n *node, now time.Time) reply {
	if err := s.room(op, 1, len(n.data)); err != nil {
		return reply{err: err}
	}
	id, ok := s.newID()
	if !ok {
		return reply{err: sigma.Errorf(op, sigma.KindNoSpace, "the realm has used up its file numbers")}
	}
	v := s.begin()
	n.id, n.version, n.pos, n.mtime = id, v, uint64(v), now.UnixNano()
	s.insert(n)
	s.changeDir(n.parent, v, n.mtime, 1)
	return reply{id: n.fileID()}
}

// room says whether the realm may hold so many more files and bytes.
func (s *step) room(op string, files, bytes int) error {
	switch l := s.limits(); {
	case files > 0 && uint64(s.count+files) > l.Names:
		return limitError(op, "names", uint64(s.count), l.Names, "remove some, or keep many files under /s3 or /ux")
	case bytes > 0 && uint64(s.bytes)+uint64(bytes) > uint64(l.Bytes):
		return limitError(op, "bytes", uint64(s.bytes), uint64(l.Bytes), "keep data under /s3 or /ux")
	}
	return nil
}

func checkDir(op string, v view, id uint64) error {
	switch n := v.node(id); {
	case n == nil:
		return staleError(op)
	case n.kind != sigma.KindDir:
		return sigma.PathError(op, sigma.KindNotDir, n.name)
	}
	return nil
}

func checkFile(op string, v view, id uint64) (*node, error) {
	n := v.node(id)
	switch {
	case n == nil:
		return nil, staleError(op)
	case n.kind == sigma.KindDir:
		return nil, sigma.PathError(op, sigma.KindIsDir, n.name)
	case n.isLink():
		return nil, &sigma.Error{Op: op, Path: n.name, Kind: sigma.KindInvalid, Msg: "the file is a " + n.kind.String(),
			Hint: "use ReadLink and Put"}
	}
	return n, nil
}

func tooBig(op, name string, size uint64) error {
	return &sigma.Error{Op: op, Path: name, Kind: sigma.KindTooBig,
		Msg:  fmt.Sprintf("a file of names may have %d bytes, not %d", FileMax, size),
		Hint: "keep big files under /s3 or /ux and put a symlink here"}
}

// writeOp writes a part of a file; a gap before it is filled with zeros.
type writeOp struct {
	id        uint64
	offset    uint64
	atEnd     bool
	ifVersion sigma.Version // if not 0: only if the file is at it
	data      []byte
}

func (o writeOp) size() int { return len(o.data) }

func (o writeOp) apply(s *step, now time.Time) reply {
	const op = "named.WriteAt"
	n, err := checkFile(op, s, o.id)
	if err != nil {
		return reply{err: err}
	}
	if o.ifVersion != 0 && o.ifVersion != n.version {
		return refuse(op, sigma.KindVersion, n.name)
	}
	if len(o.data) == 0 {
		return reply{id: n.fileID()}
	}
	if o.atEnd {
		o.offset = uint64(len(n.data))
	}
	if o.offset > FileMax || uint64(len(o.data)) > FileMax-o.offset {
		return reply{err: tooBig(op, n.name, saturate(o.offset, len(o.data)))}
	}
	end := int(o.offset) + len(o.data)
	if err := s.room(op, 0, end-len(n.data)); err != nil {
		return reply{err: err}
	}
	data := make([]byte, max(end, len(n.data)))
	copy(data, n.data)
	copy(data[o.offset:], o.data)
	return s.replaceData(n, data, now)
}

func saturate(a uint64, b int) uint64 {
	if sum := a + uint64(b); sum >= a {
		return sum
	}
	return 1<<64 - 1
}

func (s *step) replaceData(n *node, data []byte, now time.Time) reply {
	v := s.begin()
	e := s.edit(n.id)
	e.version, e.mtime = v, now.UnixNano()
	s.setData(e, data)
	return reply{id: e.fileID()}
}

// resizeOp cuts a file or extends it with zeros.
type resizeOp struct {
	id     uint64
	size64 uint64
	by     asker
}

func (o resizeOp) size() int { return 0 }

func (o resizeOp) apply(s *step, now time.Time) reply {
	const op = "named.Truncate"
	n, err := checkFile(op, s, o.id)
	if err == nil {
		err = o.by.may(op, n, treeserver.MayWrite)
	}
	switch {
	case err != nil:
		return reply{err: err}
	case o.size64 > FileMax:
		return reply{err: tooBig(op, n.name, o.size64)}
	case o.size64 == uint64(len(n.data)):
		return reply{id: n.fileID()}
	}
	if err := s.room(op, 0, int(o.size64)-len(n.data)); err != nil {
		return reply{err: err}
	}
	data := make([]byte, o.size64)
	copy(data, n.data)
	return s.replaceData(n, data, now)
}

// statOp changes attributes. The mode and the time are the owner's to change, whatever the mode is.
type statOp struct {
	id     uint64
	change sigma.StatChange
	by     asker // of the size
}

func (o statOp) size() int { return 0 }

func (o statOp) apply(s *step, now time.Time) reply {
	const op = "named.SetStat"
	n := s.node(o.id)
	if n == nil {
		return reply{err: staleError(op)}
	}
	var mtime int64
	if m := o.change.Modified; m != nil {
		if m.Year() < 1678 || m.Year() > 2261 {
			return reply{err: sigma.Errorf(op, sigma.KindInvalid, "the time %v is out of range", *m)}
		}
		mtime = m.UnixNano()
	}
	if o.change.Size != nil {
		if r := (resizeOp{id: o.id, size64: *o.change.Size, by: o.by}).apply(s, now); r.err != nil {
			return r
		}
	}
	if o.change.Perm == nil && o.change.Modified == nil {
		return reply{id: s.node(o.id).fileID()}
	}
	v := s.begin()
	e := s.edit(o.id)
	e.version = v
	if o.change.Perm != nil {
		e.perm = *o.change.Perm & 0o777
	}
	if o.change.Modified != nil {
		e.mtime = mtime
	}
	return reply{id: e.fileID()}
}

// removeOp removes one entry.
type removeOp struct {
	dir  uint64
	name string
	by   asker
}

func (o removeOp) size() int { return len(o.name) }

func (o removeOp) apply(s *step, now time.Time) reply {
	const op = "named.Remove"
	if err := checkDir(op, s, o.dir); err != nil {
		return reply{err: err}
	}
	if err := sigma.CheckName(o.name); err != nil {
		return reply{err: err}
	}
	if err := o.by.entering(op, s, o.dir); err != nil {
		return reply{err: err}
	}
	n := s.node(s.child(o.dir, o.name))
	if n == nil {
		return refuse(op, sigma.KindNotFound, o.name)
	}
	switch err := o.by.changing(op, s, o.dir); {
	case err != nil:
		return reply{err: err}
	case n.count > 0:
		return refuse(op, sigma.KindNotEmpty, o.name)
	}
	s.drop(n)
	s.changeDir(o.dir, s.begin(), now.UnixNano(), -1)
	return reply{id: n.fileID()}
}

// renameOp moves an entry and replaces what has its new name.
type renameOp struct {
	dir     uint64
	name    string
	newDir  uint64
	newName string
	by      asker
}

func (o renameOp) size() int { return len(o.name) + len(o.newName) }

func (o renameOp) apply(s *step, now time.Time) reply {
	n, old, err := o.check(s)
	if err != nil {
		return reply{err: err}
	}
	if n == old {
		return reply{id: n.fileID()}
	}
	v := s.begin()
	pos, grows := uint64(v), 1
	if old != nil {
		// The name keeps its place in listings, so that one that is under way shows it once.
		pos, grows = old.pos, 0
		s.drop(old)
	}
	e := s.edit(n.id)
	s.names[entry{o.dir, o.name}] = 0
	e.parent, e.name, e.pos = o.newDir, o.newName, pos
	s.names[entry{o.newDir, o.newName}] = n.id
	s.changeDir(o.dir, v, now.UnixNano(), -1)
	s.changeDir(o.newDir, v, now.UnixNano(), grows)
	return reply{id: e.fileID()}
}

// check returns what moves and what it replaces (nil if nothing).
func (o renameOp) check(s *step) (n, old *node, err error) {
	const op = "named.Rename"
	for _, d := range []uint64{o.dir, o.newDir} {
		if err := checkDir(op, s, d); err != nil {
			return nil, nil, err
		}
		if err := o.by.entering(op, s, d); err != nil {
			return nil, nil, err
		}
	}
	for _, name := range []string{o.name, o.newName} {
		if err := sigma.CheckName(name); err != nil {
			return nil, nil, err
		}
	}
	if n = s.node(s.child(o.dir, o.name)); n == nil {
		return nil, nil, sigma.PathError(op, sigma.KindNotFound, o.name)
	}
	old = s.node(s.child(o.newDir, o.newName))
	if n == old {
		return n, old, nil
	}
	for _, d := range []uint64{o.dir, o.newDir} {
		if err := o.by.changing(op, s, d); err != nil {
			return nil, nil, err
		}
	}
	if n.kind == sigma.KindDir {
		if err := checkNotBelow(op, s, n.id, o.newDir); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case old == nil:
	case old.kind == sigma.KindDir && n.kind != sigma.KindDir:
		return nil, nil, sigma.PathError(op, sigma.KindIsDir, o.newName)
	case old.kind != sigma.KindDir && n.kind == sigma.KindDir:
		return nil, nil, sigma.PathError(op, sigma.KindNotDir, o.newName)
	case old.count > 0:
		return nil, nil, sigma.PathError(op, sigma.KindNotEmpty, o.newName)
	}
	return n, old, nil
}

// checkNotBelow refuses a move of the directory with id into itself or below. No path is deeper
// than PathMax allows.
func checkNotBelow(op string, v view, id, newDir uint64) error {
	at := newDir
	for range sigma.PathMax {
		if at == id {
			return sigma.Errorf(op, sigma.KindInvalid, "a directory cannot move into itself")
		}
		if at = v.node(at).parent; at == 0 {
			return nil
		}
	}
	return sigma.Errorf(op, sigma.KindInvalid, "the new directory is too deep")
}

func checkTarget(op, target string) error {
	if target == "" || len(target) > sigma.PathMax || strings.IndexByte(target, 0) >= 0 {
		return sigma.Errorf(op, sigma.KindInvalid, "a symlink's target has 1 to %d bytes and no NUL", sigma.PathMax)
	}
	return nil
}

// endpointMax is what sigma.ParseEndpoint takes at most.
const endpointMax = 511

// checkEndpoint bounds an endpoint's text. Whoever follows it parses it: its form may be newer than
// this server.
func checkEndpoint(op, text string) error {
	if text == "" || len(text) > endpointMax || strings.IndexByte(text, 0) >= 0 {
		return sigma.Errorf(op, sigma.KindInvalid, "an endpoint has 1 to %d bytes and no NUL", endpointMax)
	}
	return nil
}
