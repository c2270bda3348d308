package named

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
)

// tree is the committed state of one realm. It knows no locks, no clocks and no store: a step
// (step.go) gathers changes on top of it, and merge makes them part of it.
type tree struct {
	realm  sigma.RealmID
	rec    realmRecord
	limits sigma.RealmLimits // the defaults; the record may have others
	cells  map[uint64]*cell
	leases map[sigma.LeaseID]*lease
	fences fence.Epochs
	bytes  int64 // of all data

	clients  map[uint64]*client  // once.go
	marks    []watermark         // every client once, in the order in which they are looked at
	overflow time.Time           // when there were more clients than are remembered; zero = never. Of run only
	dropped  map[uint64]struct{} // forgotten, but with a record in the store
}

// cell is the place of one file in memory. An open handle keeps the cell, and so the last content
// of a file that was removed.
type cell struct {
	n    *node
	dir  *dir // nil unless n is a directory
	gone bool // n was removed; n is what it was last
}

// lease is a grant to keep ephemeral files. Like a node it is replaced, not changed.
type lease struct {
	id       sigma.LeaseID
	ttl      time.Duration
	machine  sigma.MachineID // whose loss ends it; "" = unknown
	deadline time.Time
	count    int                 // ephemeral files; bounded by LeaseFilesMax
	files    map[uint64]struct{} // committed ones; shared by the copies of a lease, changed by merge only
}

// dir has the entries of one directory twice: by name, and in the order of pos for listings.
// Cookies of a listing are values of pos, which a name keeps while it exists, so that a listing
// sees each lasting name once, whatever else happens.
type dir struct {
	names map[string]uint64
	order []place // ascending pos; id 0 marks a removed entry
	holes int
}

type place struct{ pos, id uint64 }

func newTree(realm sigma.RealmID, rec realmRecord, l sigma.RealmLimits) *tree {
	return &tree{realm: realm, rec: rec, limits: l, cells: map[uint64]*cell{}, leases: map[sigma.LeaseID]*lease{},
		clients: map[uint64]*client{}, dropped: map[uint64]struct{}{}}
}

// newRoot is the root of a realm that has just been made.
func newRoot(rec realmRecord) *node {
	return &node{id: rec.rootID(), kind: sigma.KindDir, perm: 0o777, mtime: rec.created, version: 1, pos: 1}
}

// node returns the file with that id, nil if there is none.
func (t *tree) node(id uint64) *node {
	if c := t.cells[id]; c != nil {
		return c.n
	}
	return nil
}

func (t *tree) child(dirID uint64, name string) uint64 {
	if c := t.cells[dirID]; c != nil && c.dir != nil {
		return c.dir.names[name]
	}
	return 0
}

func (t *tree) lease(id sigma.LeaseID) *lease { return t.leases[id] }

// add puts a loaded node into the tree; link must follow when all are there.
func (t *tree) add(n *node) error {
	if t.cells[n.id] != nil {
		return sigma.Errorf("named.load", sigma.KindOther, "two files have the id %x", n.id)
	}
	c := &cell{n: n}
	if n.kind == sigma.KindDir {
		c.dir = &dir{names: map[string]uint64{}}
	}
	t.cells[n.id] = c
	t.bytes += int64(len(n.data))
	return nil
}

// link builds directories and leases from the nodes that were added.
func (t *tree) link() error {
	const op = "named.load"
	root := t.node(t.rec.rootID())
	if root == nil || root.parent != 0 {
		return sigma.Errorf(op, sigma.KindOther, "the realm has no root")
	}
	for id, c := range t.cells {
		if l := t.leases[c.n.lease]; l != nil {
			l.files[id] = struct{}{}
			l.count++
		} else if c.n.lease != 0 {
			return sigma.Errorf(op, sigma.KindOther, "file %x has a lease that does not exist", id)
		}
		if id == root.id {
			continue
		}
		p := t.cells[c.n.parent]
		if p == nil || p.dir == nil {
			return sigma.Errorf(op, sigma.KindOther, "file %x is in no directory", id)
		}
		p.dir.names[c.n.name] = id
		p.dir.order = append(p.dir.order, place{c.n.pos, id})
		p.n.count++ // nobody else has the node yet
	}
	for _, c := range t.cells {
		if c.dir != nil {
			slices.SortFunc(c.dir.order, func(a, b place) int { return cmp.Compare(a.pos, b.pos) })
		}
	}
	return nil
}

// set makes name stand for id at pos. A new name's pos is higher than all there are.
func (d *dir) set(name string, pos, id uint64) {
	d.names[name] = id
	if i, found := d.find(pos); found {
		if d.order[i].id == 0 {
			d.holes--
		}
		d.order[i].id = id
		return
	}
	d.order = append(d.order, place{pos, id})
}

func (d *dir) unset(name string, pos uint64) {
	delete(d.names, name)
	i, found := d.find(pos)
	if !found || d.order[i].id == 0 {
		return
	}
	d.order[i].id = 0
	if d.holes++; d.holes > 16 && d.holes > len(d.order)/2 {
		d.order = slices.DeleteFunc(d.order, func(s place) bool { return s.id == 0 })
		d.holes = 0
	}
}

func (d *dir) find(pos uint64) (int, bool) {
	i := sort.Search(len(d.order), func(i int) bool { return d.order[i].pos >= pos })
	return i, i < len(d.order) && d.order[i].pos == pos
}

// list returns up to most entries after cookie.
func (t *tree) list(d *dir, cookie uint64, most int) (entries []sigma.DirEntry, next uint64, more bool) {
	next = cookie
	i, found := d.find(cookie)
	if found {
		i++
	}
	for ; i < len(d.order); i++ {
		s := d.order[i]
		if s.id == 0 {
			continue
		}
		if len(entries) == most {
			return entries, next, true
		}
		n := t.cells[s.id].n
		entries = append(entries, sigma.DirEntry{Name: n.name, ID: n.fileID(), Size: uint64(len(n.data)), Next: s.pos})
		next = s.pos
	}
	return entries, next, false
}

// view is a tree as somebody sees it: the committed one, or the one of a step with its uncommitted
// changes.
type view interface {
	node(id uint64) *node
	child(dir uint64, name string) uint64
}

// walkFrom goes down names from the file with id and returns the files it reached, without the
// first. err says why it stopped if they are fewer than names; a link in the middle stops it like
// the end of the path.
func walkFrom(v view, id uint64, names []string) (reached []*node, err error) {
	const op = "named.Walk"
	at := v.node(id)
	if at == nil {
		return nil, staleError(op)
	}
	for _, name := range names {
		if at.kind != sigma.KindDir {
			return reached, sigma.PathError(op, sigma.KindNotDir, at.name)
		}
		if err := sigma.CheckName(name); err != nil {
			return reached, err
		}
		next := v.child(at.id, name)
		if next == 0 {
			return reached, sigma.PathError(op, sigma.KindNotFound, name)
		}
		at = v.node(next)
		reached = append(reached, at)
	}
	return reached, nil
}

// stoppedAt returns how a walk that reached these nodes was stopped by a link: in the middle, or at
// the end too if atEnd.
func stoppedAt(from *node, reached []*node, names int, atEnd bool) *sigma.Stopped {
	last := from
	if len(reached) > 0 {
		last = reached[len(reached)-1]
	}
	if !last.isLink() || len(reached) == names && !atEnd {
		return nil
	}
	return &sigma.Stopped{Walked: len(reached), Kind: last.kind, Target: string(last.data)}
}

func staleError(op string) *sigma.Error {
	return &sigma.Error{Op: op, Kind: sigma.KindStale, Msg: "the file was removed"}
}
