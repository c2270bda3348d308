package named

import (
	"cmp"
	"slices"

	"sigmaos.dev/sigma"
)

// step gathers the changes of several mutations on top of a committed tree, without touching the
// tree. Mutations see the changes of those before them in the step; readers see none until the step
// is committed and merged. A step that is dropped leaves no trace.
//
// A mutation first checks everything and then changes: it must not fail between two changes.
type step struct {
	base    *tree
	rec     realmRecord
	nodes   map[uint64]*node         // changed files; nil is removed
	names   map[entry]uint64         // changed entries; 0 is removed
	leases  map[sigma.LeaseID]*lease // changed leases; nil is ended
	clients map[uint64]*client       // changed clients (once.go); nil is forgotten
	writes  map[uint64]struct{}      // clients whose records change
	looked  int                      // of the tree's marks, that were looked at
	stored  bool                     // something must go to the store
	count   int                      // files
	bytes   int64                    // of all data
	cost    int                      // bytes that the batch will have, at most

	raised map[string]sigma.Epoch // newer epochs of fences
	waited func(e entry) bool     // whether others wait for the entry, before the mutation that is applied; nil = no
}

type entry struct {
	dir  uint64
	name string
}

func newStep(t *tree) *step {
	return &step{base: t, rec: t.rec, nodes: map[uint64]*node{}, names: map[entry]uint64{},
		leases: map[sigma.LeaseID]*lease{}, clients: map[uint64]*client{}, writes: map[uint64]struct{}{},
		count: len(t.cells), bytes: t.bytes}
}

// entryCost is about what a record and its key need beside the data.
const entryCost = 400

func (s *step) node(id uint64) *node {
	if n, changed := s.nodes[id]; changed {
		return n
	}
	return s.base.node(id)
}

func (s *step) child(dir uint64, name string) uint64 {
	if id, changed := s.names[entry{dir, name}]; changed {
		return id
	}
	return s.base.child(dir, name)
}

func (s *step) lease(id sigma.LeaseID) *lease {
	if l, changed := s.leases[id]; changed {
		return l
	}
	return s.base.lease(id)
}

// newID gives a number for a file or lease; false when the realm has used up all.
func (s *step) newID() (uint64, bool) {
	if s.rec.nextID >= fileNumberMax {
		return 0, false
	}
	id := s.rec.number<<fileNumberBits | s.rec.nextID
	s.rec.nextID++
	return id, true
}

// begin starts the changes of one mutation and returns the version they get.
func (s *step) begin() sigma.Version {
	s.rec.seq++
	s.stored = true
	return sigma.Version(s.rec.seq)
}

// edit returns a copy of the node that may be changed until the step ends.
func (s *step) edit(id uint64) *node {
	n := *s.node(id)
	s.nodes[id] = &n
	s.cost += entryCost + len(n.data)
	return &n
}

// setData replaces the node's data; n comes from edit or make.
func (s *step) setData(n *node, data []byte) {
	s.bytes += int64(len(data)) - int64(len(n.data))
	s.cost += len(data)
	n.data = data
}

// setLease moves the node to another lease (0: none); n comes from edit or insert.
func (s *step) setLease(n *node, id sigma.LeaseID) {
	if n.lease == id {
		return
	}
	s.countLease(n.lease, -1)
	s.countLease(id, 1)
	n.lease = id
}

func (s *step) countLease(id sigma.LeaseID, by int) {
	if l := s.lease(id); l != nil {
		c := *l
		c.count += by
		s.leases[id] = &c
	}
}

// changeDir notes that the directory has one change of its entries.
func (s *step) changeDir(id uint64, v sigma.Version, mtime int64, by int) {
	d := s.edit(id)
	d.version, d.mtime = v, mtime
	d.count += by
}

// insert makes n a new file of the tree under its parent and name. Its pos is set unless it takes
// the place of another.
func (s *step) insert(n *node) {
	s.nodes[n.id] = n
	s.names[entry{n.parent, n.name}] = n.id
	s.count++
	s.bytes += int64(len(n.data))
	s.cost += entryCost + len(n.data)
	s.countLease(n.lease, 1)
}

// drop takes the file out of the tree; its name may already stand for another.
func (s *step) drop(n *node) {
	s.nodes[n.id] = nil
	if e := (entry{n.parent, n.name}); s.child(n.parent, n.name) == n.id {
		s.names[e] = 0
	}
	s.count--
	s.bytes -= int64(len(n.data))
	s.cost += entryCost
	s.countLease(n.lease, -1)
}

// filesOf returns the ephemeral files of a lease.
func (s *step) filesOf(id sigma.LeaseID) []*node {
	var files []*node
	if l := s.lease(id); l != nil {
		for f := range l.files {
			if _, changed := s.nodes[f]; !changed {
				files = append(files, s.base.node(f))
			}
		}
	}
	for _, n := range s.nodes {
		if n != nil && n.lease == id {
			files = append(files, n)
		}
	}
	slices.SortFunc(files, func(a, b *node) int { return cmp.Compare(a.id, b.id) })
	return files
}

// full reports whether the step should be committed before it takes another mutation.
func (s *step) full() bool {
	return len(s.nodes) >= batchNodes || s.cost >= batchBytes || len(s.writes) >= batchNodes
}

// Bounds of a batch: etcd copies and logs a transaction as one piece, and everyone in it waits for
// all of it.
const (
	batchNodes = 128
	batchBytes = 1 << 20
)

// batch returns what must be written to make the step durable. ok is false if nothing must.
func (s *step) batch() (puts []KV, deletes []string, ok bool) {
	if !s.stored {
		return nil, nil, false
	}
	realm := s.base.realm
	written := map[string]bool{}
	put := func(key string, value []byte) {
		puts = append(puts, KV{key, value})
		written[key] = true
	}
	put(realmKey(realm), s.rec.encode())
	for _, n := range s.nodes {
		if n != nil {
			put(nodeKey(realm, n.parent, n.name), n.encode())
		}
	}
	for id := range s.nodes {
		if old := s.base.node(id); old != nil {
			if key := nodeKey(realm, old.parent, old.name); !written[key] {
				deletes = append(deletes, key)
			}
		}
	}
	for id, l := range s.leases {
		switch old := s.base.lease(id); {
		case l == nil && old != nil:
			deletes = append(deletes, leaseKey(realm, id))
		case l != nil && (old == nil || old.ttl != l.ttl):
			put(leaseKey(realm, id), leaseRecord{l.ttl, l.machine}.encode())
		}
	}
	for name, e := range s.raised {
		put(fenceKey(realm, name), encodeFence(e))
	}
	clients, forgotten := s.onceRecords()
	puts, deletes = append(puts, clients...), append(deletes, forgotten...)
	slices.SortFunc(puts, func(a, b KV) int { return cmp.Compare(a.Key, b.Key) })
	slices.Sort(deletes)
	return puts, deletes, true
}

// merge makes a committed step part of the tree and returns the ids of all files that changed. The
// step must not be used afterwards.
func (t *tree) merge(s *step) []uint64 {
	t.rec, t.bytes = s.rec, s.bytes
	t.mergeLeases(s)
	t.mergeFences(s)
	t.mergeClients(s)
	t.unlinkOld(s)
	changed := make([]uint64, 0, len(s.nodes))
	for id, n := range s.nodes {
		changed = append(changed, id)
		c := t.cells[id]
		switch {
		case n == nil && c != nil:
			c.gone = true
			delete(t.cells, id)
		case n != nil && c != nil:
			c.n = n
		case n != nil:
			c = &cell{n: n}
			if n.kind == sigma.KindDir {
				c.dir = &dir{names: map[string]uint64{}}
			}
			t.cells[id] = c
		}
	}
	t.linkNew(s)
	return changed
}

func (t *tree) mergeLeases(s *step) {
	for id, l := range s.leases {
		if l == nil {
			delete(t.leases, id)
		} else {
			t.leases[id] = l
		}
	}
	for id, n := range s.nodes {
		if old := t.node(id); old != nil && t.leases[old.lease] != nil {
			delete(t.leases[old.lease].files, id)
		}
		if n != nil && t.leases[n.lease] != nil {
			t.leases[n.lease].files[id] = struct{}{}
		}
	}
}

// unlinkOld takes away the entries that vanish or move; it needs the nodes as they were.
func (t *tree) unlinkOld(s *step) {
	for e, id := range s.names {
		old := t.node(t.child(e.dir, e.name))
		if old == nil {
			continue
		}
		if n := s.node(id); n == nil || n.pos != old.pos {
			t.cells[e.dir].dir.unset(e.name, old.pos)
		}
	}
}

// linkNew adds the entries that came, in the order of pos, which is the order of listings.
func (t *tree) linkNew(s *step) {
	var came []*node
	for e, id := range s.names {
		if n := t.node(id); n != nil && t.cells[e.dir] != nil {
			came = append(came, n)
		}
	}
	slices.SortFunc(came, func(a, b *node) int { return cmp.Compare(a.pos, b.pos) })
	for _, n := range came {
		t.cells[n.parent].dir.set(n.name, n.pos, n.id)
	}
}
