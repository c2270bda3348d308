package named

import (
	"fmt"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// putOp is sigma.Putter's Put.
type putOp struct {
	from  uint64
	names []string
	data  []byte
	o     sigma.PutOptions
	by    asker
}

func (o putOp) size() int { return len(o.data) + sigma.NameMax }

func (o putOp) apply(s *step, now time.Time) reply {
	const op = "named.Put"
	if err := o.check(s); err != nil {
		return reply{err: err}
	}
	dirID, name, existing, r := o.find(s)
	if r.err != nil || r.stopped != nil {
		return r
	}
	if o.o.Kind == sigma.KindPipe { // not before it is known that the name is here: a tree beyond may have pipes
		return reply{err: &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "there are no pipes here",
			Hint: "a tree that a proc serves from its memory has them"}}
	}
	link := o.o.Kind != sigma.KindFile
	if err := o.allowed(s, dirID, existing); err != nil {
		return reply{err: err}
	}
	if at := (entry{dirID, name}); o.o.Wait && (existing != nil || s.waited != nil && s.waited(at)) {
		return reply{waits: &at}
	}
	if existing == nil {
		switch {
		case o.o.MustExist:
			return refuse(op, sigma.KindNotFound, name)
		case o.o.IfVersion != 0:
			return refuse(op, sigma.KindVersion, name)
		}
		n := &node{parent: dirID, name: name, kind: o.o.Kind, perm: o.perm(), data: o.data, lease: o.o.Lease}
		return s.make(op, n, now)
	}
	switch {
	case o.o.MustMake:
		return refuse(op, sigma.KindExists, name)
	case existing.kind == sigma.KindDir:
		return refuse(op, sigma.KindIsDir, name)
	case existing.isLink() && !link:
		return reply{stopped: &sigma.Stopped{Walked: len(o.names), Kind: existing.kind, Target: string(existing.data)}}
	case o.o.IfVersion != 0 && o.o.IfVersion != existing.version:
		return refuse(op, sigma.KindVersion, name)
	}
	return o.replace(s, existing, now)
}

// allowed refuses who may not change the directory's entries, if the put would, or not write into
// the file. What the put is refused for anyway comes later.
func (o putOp) allowed(s *step, dir uint64, existing *node) error {
	const op = "named.Put"
	switch {
	case existing == nil && o.o.MustExist, existing != nil &&
		(o.o.MustMake && !o.o.Wait || existing.kind == sigma.KindDir):
		return nil
	case existing != nil && !o.o.Wait && existing.kind == sigma.KindFile:
		if err := o.by.may(op, existing, treeserver.MayWrite); err != nil || o.o.Kind == sigma.KindFile {
			return err
		}
	case existing != nil && existing.isLink() && o.o.Kind == sigma.KindFile && !o.o.Wait: // which is followed
		return nil
	}
	return o.by.changing(op, s, dir)
}

// find walks to the file's directory.
func (o putOp) find(s *step) (dir uint64, name string, existing *node, r reply) {
	const op = "named.Put"
	from := s.node(o.from)
	if from == nil {
		return 0, "", nil, reply{err: staleError(op)}
	}
	dirs := o.names[:len(o.names)-1]
	reached, err := o.by.walk(s, o.from, dirs)
	if stopped := stoppedAt(from, reached, len(dirs), true); stopped != nil {
		return 0, "", nil, reply{stopped: stopped}
	}
	if err != nil {
		return 0, "", nil, reply{err: sigma.Wrap(op, "", err)}
	}
	at := from
	if len(reached) > 0 {
		at = reached[len(reached)-1]
	}
	name = o.names[len(dirs)]
	if at.kind != sigma.KindDir {
		return 0, "", nil, refuse(op, sigma.KindNotDir, at.name)
	}
	if err := sigma.CheckName(name); err != nil {
		return 0, "", nil, reply{err: err}
	}
	if err := o.by.entering(op, s, at.id); err != nil {
		return 0, "", nil, reply{err: err}
	}
	return at.id, name, s.node(s.child(at.id, name)), reply{}
}

// check refuses what is wrong without looking at files.
func (o putOp) check(s *step) error {
	const op = "named.Put"
	bad := func(msg string) error { return sigma.Errorf(op, sigma.KindInvalid, "%s", msg) }
	switch {
	case o.o.Kind != sigma.KindFile && o.o.Kind != sigma.KindSymlink && o.o.Kind != sigma.KindEndpoint &&
		o.o.Kind != sigma.KindPipe:
		return bad("only files, symlinks and endpoints can be put")
	case len(o.names) == 0:
		return bad("a put needs a name")
	case o.o.MustMake && o.o.MustExist:
		return bad("a file cannot be new and exist")
	case o.o.Append && o.o.Kind != sigma.KindFile:
		return bad("a link cannot be appended to")
	case o.o.Wait && !o.o.MustMake:
		return bad("who waits for a name wants to make the file")
	case len(o.data) > FileMax:
		return tooBig(op, "", uint64(len(o.data)))
	}
	if o.o.Lease != 0 {
		l := s.lease(o.o.Lease)
		if l == nil {
			return leaseError(op)
		}
		if l.count >= LeaseFilesMax {
			return &sigma.Error{Op: op, Kind: sigma.KindNoSpace,
				Msg: fmt.Sprintf("the lease has %d files and may have no more", l.count), Hint: "use a second lease"}
		}
	}
	switch o.o.Kind {
	case sigma.KindSymlink:
		return checkTarget(op, string(o.data))
	case sigma.KindEndpoint:
		return checkEndpoint(op, string(o.data))
	}
	return nil
}

// perm is what a new file gets: a Put that says nothing makes a file that can be put again.
func (o putOp) perm() uint32 {
	if p := o.o.Perm & 0o777; p != 0 {
		return p
	}
	return 0o644
}

// replace gives an existing file new data; a file of another kind is replaced by a new one, since
// handles rely on the kind of their file.
func (o putOp) replace(s *step, old *node, now time.Time) reply {
	const op = "named.Put"
	data := o.data
	if o.o.Append {
		if len(data) > FileMax-len(old.data) {
			return reply{err: tooBig(op, old.name, uint64(len(old.data)+len(data)))}
		}
		data = append(append(make([]byte, 0, len(old.data)+len(data)), old.data...), data...)
	}
	if err := s.room(op, 0, len(data)-len(old.data)); err != nil {
		return reply{err: err}
	}
	lease := old.lease
	if o.o.Lease != 0 {
		lease = o.o.Lease
	}
	if old.kind == o.o.Kind {
		r := s.replaceData(old, data, now)
		s.setLease(s.nodes[old.id], lease)
		return r
	}
	id, ok := s.newID()
	if !ok {
		return reply{err: sigma.Errorf(op, sigma.KindNoSpace, "the realm has used up its file numbers")}
	}
	v := s.begin()
	n := &node{id: id, parent: old.parent, name: old.name, pos: old.pos, kind: o.o.Kind, perm: o.perm(),
		mtime: now.UnixNano(), version: v, lease: lease, data: data}
	s.drop(old)
	s.insert(n)
	s.changeDir(n.parent, v, n.mtime, 0)
	return reply{id: n.fileID()}
}
