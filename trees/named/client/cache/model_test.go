package cache

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// realm is the truth: the files of a realm at one version. It is replaced, not changed, so that all
// of its past can be kept.
type realm struct {
	at    sigma.Version
	files map[uint64]file
}

type file struct {
	parent  uint64
	name    string
	kind    sigma.FileKind
	perm    uint32
	version sigma.Version
	data    string
}

const rootID = 1

func newRealm() realm {
	return realm{at: 1, files: map[uint64]file{rootID: {kind: sigma.KindDir, version: 1}}}
}

func (r realm) node(id uint64) sigmap.NamesNode {
	f := r.files[id]
	return sigmap.NamesNode{Parent: f.parent,
		Stat: sigma.Stat{ID: sigma.FileID{Kind: f.kind, Path: id, Version: f.version}, Name: f.name, Perm: f.perm,
			Size: uint64(len(f.data))}}
}

func (r realm) child(dir uint64, name string) uint64 {
	for id, f := range r.files {
		if f.parent == dir && f.name == name {
			return id
		}
	}
	return 0
}

// path tells where a file is; "" if there is none.
func (r realm) path(id uint64) string {
	f, ok := r.files[id]
	if !ok || id == rootID {
		return fmt.Sprint(ok)
	}
	return r.path(f.parent) + "/" + f.name
}

func (r realm) look(from uint64, names []string, most int) *sigmap.NamesFound {
	found := &sigmap.NamesFound{At: r.at, Why: sigma.KindOther}
	if _, ok := r.files[from]; !ok {
		found.Why = sigma.KindStale
		return found
	}
	at := from
	found.Nodes = append(found.Nodes, r.node(at))
	for _, n := range names {
		if r.files[at].kind != sigma.KindDir {
			found.Why = sigma.KindNotDir
			return found
		}
		if at = r.child(at, n); at == 0 {
			found.Why = sigma.KindNotFound
			return found
		}
		found.Nodes = append(found.Nodes, r.node(at))
	}
	if f := r.files[at]; f.kind != sigma.KindDir && len(f.data) <= most {
		found.HasData, found.Data = true, []byte(f.data)
	}
	return found
}

func (r realm) list(dir uint64) []sigma.DirEntry {
	var out []sigma.DirEntry
	for id, f := range r.files {
		if f.parent == dir {
			out = append(out, sigma.DirEntry{Name: f.name, ID: r.node(id).Stat.ID, Size: uint64(len(f.data)), Next: id})
		}
	}
	slices.SortFunc(out, func(a, b sigma.DirEntry) int { return int(a.Next) - int(b.Next) })
	return out
}

// change is a random change; it says what who makes it knows of it.
func (r realm) change(rng *rand.Rand, nextID *uint64) (next realm, ids []uint64, places []Place) {
	next = realm{at: r.at + 1, files: map[uint64]file{}}
	var all, dirs []uint64
	for id, f := range r.files {
		next.files[id] = f
		all = append(all, id)
		if f.kind == sigma.KindDir {
			dirs = append(dirs, id)
		}
	}
	slices.Sort(all)
	slices.Sort(dirs)
	touch := func(id uint64) {
		f := next.files[id]
		f.version = next.at
		next.files[id] = f
	}
	dir, name := dirs[rng.IntN(len(dirs))], names[rng.IntN(len(names))]
	id := r.child(dir, name)
	switch rng.IntN(6) {
	case 0, 1: // put
		if id != 0 && r.files[id].kind == sigma.KindDir {
			return next, nil, nil
		}
		if id == 0 {
			*nextID++
			id = *nextID
			next.files[id] = file{parent: dir, name: name, perm: 0o644}
			touch(dir)
		}
		f := next.files[id]
		f.data, f.version = strings.Repeat("x", rng.IntN(30))+fmt.Sprint(next.at), next.at
		next.files[id] = f
		return next, []uint64{id}, []Place{{dir, name}}
	case 2: // mkdir
		if id == 0 {
			*nextID++
			next.files[*nextID] = file{parent: dir, name: name, kind: sigma.KindDir, perm: 0o755, version: next.at}
			touch(dir)
		}
		return next, nil, []Place{{dir, name}}
	case 3: // remove
		if id != 0 && len(r.list(id)) == 0 {
			delete(next.files, id)
			touch(dir)
		}
		return next, nil, []Place{{dir, name}}
	case 4: // chmod
		id = all[rng.IntN(len(all))]
		f := next.files[id]
		f.perm, f.version = uint32(rng.IntN(512)), next.at
		next.files[id] = f
		return next, []uint64{id}, nil
	}
	to, newName := dirs[rng.IntN(len(dirs))], names[rng.IntN(len(names))]
	old := r.child(to, newName)
	below := to
	for below != rootID && below != id {
		below = r.files[below].parent
	}
	if id != 0 && below != id && id != old && (old == 0 || r.files[old].kind == r.files[id].kind &&
		len(r.list(old)) == 0) {
		delete(next.files, old)
		f := next.files[id]
		f.parent, f.name = to, newName
		next.files[id] = f
		touch(dir)
		touch(to)
	}
	return next, nil, []Place{{dir, name}, {to, newName}}
}

var names = []string{"a", "b", "c", "d"}

// changesBetween is what named's feed tells.
func changesBetween(a, b realm) (out []sigmap.NamesChange) {
	add := func(k sigmap.ChangeKind, n sigmap.NamesNode) {
		out = append(out, sigmap.NamesChange{Kind: k, At: b.at, Node: n})
	}
	entry := func(dir uint64, name string) {
		add(sigmap.EntryChanged, sigmap.NamesNode{Parent: dir,
			Stat: sigma.Stat{Name: name, ID: sigma.FileID{Path: b.child(dir, name)}}})
	}
	for id, f := range a.files {
		g, ok := b.files[id]
		switch {
		case !ok:
			add(sigmap.NodeGone, sigmap.NamesNode{Parent: f.parent, Stat: sigma.Stat{ID: sigma.FileID{Path: id}}})
			entry(f.parent, f.name)
		case f != g:
			add(sigmap.NodeChanged, b.node(id))
		}
		if ok && (f.parent != g.parent || f.name != g.name) {
			entry(f.parent, f.name)
			entry(g.parent, g.name)
		}
	}
	for id, g := range b.files {
		if _, ok := a.files[id]; !ok {
			entry(g.parent, g.name)
		}
	}
	return out
}

// model is a machine with a cache, and messages on their way.
type model struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	c       *Cache
	now     time.Time
	past    []realm // the versions that can be seen
	when    []time.Time
	number  uint64
	kept    int // index in past from which the feed knows changes
	nextID  uint64
	polls   []*poll
	fetches []*fetch
	own     []ownChange
	hits    int
}

type poll struct {
	asked  time.Time
	number uint64
	since  sigma.Version
	answer *sigmap.NamesFeed
}

type fetch struct {
	f      *Fetch
	from   uint64
	names  []string
	list   bool
	found  *sigmap.NamesFound
	pieces []sigmap.NamesListing
}

// ownChange was made from here; told says that who made it was answered.
type ownChange struct {
	before, after realm
	ids           []uint64
	places        []Place
	told          bool
	// something was elsewhere when the cache was told, so that it could not know what the change
	// concerned
	blind bool
}

func (m *model) current() realm { return m.past[len(m.past)-1] }

func (m *model) commit(r realm) {
	m.past, m.when = append(m.past, r), append(m.when, m.now)
}

// versionAt is the realm at what the feed has reached.
func (m *model) versionAt(v sigma.Version) realm {
	i := len(m.past) - 1
	for i > 0 && m.past[i].at > v {
		i--
	}
	return m.past[i]
}

func (m *model) step() {
	m.now = m.now.Add(time.Duration(m.rng.IntN(3)) * time.Millisecond)
	switch p := m.rng.IntN(100); {
	case p < 8: // others change, some things at once
		r := m.current()
		for range 1 + m.rng.IntN(2) {
			r, _, _ = r.change(m.rng, &m.nextID)
		}
		m.commit(r)
	case p < 14:
		before := m.current()
		after, ids, places := before.change(m.rng, &m.nextID)
		m.commit(after)
		m.own = append(m.own, ownChange{before, after, ids, places, false, false})
	case p < 20: // the answer comes
		for i := range m.own {
			if o := &m.own[i]; !o.told && m.rng.IntN(2) == 0 {
				_, applied := m.c.Position()
				known := m.versionAt(applied)
				seen := len(o.places) > 0 || len(o.ids) == 0 || known.path(o.ids[0]) == o.before.path(o.ids[0])
				for _, p := range o.places {
					seen = seen && known.path(p.Dir) == o.before.path(p.Dir)
					o.blind = o.blind || known.child(p.Dir, p.Name) != o.before.child(p.Dir, p.Name)
				}
				if !seen { // the answer told the version, or what told where it is did
					m.c.Require(m.now, o.after.at)
				}
				m.c.Forget(o.ids, o.places)
				o.told = true
			}
		}
	case p < 28 && len(m.polls) < 2:
		number, since := m.c.Position()
		m.polls = append(m.polls, &poll{asked: m.now, number: number, since: since})
	case p < 40:
		m.answerPoll()
	case p < 50 && len(m.fetches) < 4:
		from, path := m.somewhere()
		m.fetches = append(m.fetches, &fetch{f: m.c.Begin(), from: from, names: path, list: m.rng.IntN(4) == 0})
	case p < 70:
		m.answerFetch()
	case p == 70 && m.rng.IntN(10) == 0: // another leader
		m.number++
		m.kept = len(m.past) - 1
	case p == 71:
		m.kept = len(m.past) - 1 - m.rng.IntN(min(3, len(m.past)))
	case p == 72:
		m.c.Doubt(m.now)
	case p == 73:
		m.c.Require(m.now, m.current().at)
	case p == 74 && m.rng.IntN(20) == 0:
		m.now = m.now.Add(m.c.cfg.Lease)
	default:
		m.look()
	}
}

func (m *model) somewhere() (uint64, []string) {
	from := uint64(rootID)
	if m.rng.IntN(3) == 0 {
		from = 1 + m.rng.Uint64N(m.nextID)
	}
	var path []string
	for range m.rng.IntN(4) {
		path = append(path, names[m.rng.IntN(len(names))])
	}
	return from, path
}

func (m *model) answerPoll() {
	if len(m.polls) == 0 {
		return
	}
	i := m.rng.IntN(len(m.polls))
	p := m.polls[i]
	switch {
	case p.answer == nil:
		r := m.current()
		p.answer = &sigmap.NamesFeed{Number: m.number, At: r.at}
		if p.number != m.number || p.since < m.past[m.kept].at {
			p.answer.Reset = true
			return
		}
		for j := m.kept + 1; j < len(m.past); j++ {
			if m.past[j].at > p.since {
				p.answer.Changes = append(p.answer.Changes, changesBetween(m.past[j-1], m.past[j])...)
			}
		}
	default:
		m.polls = slices.Delete(m.polls, i, i+1)
		if m.rng.IntN(10) > 0 { // else it is lost
			m.c.Apply(p.asked, p.answer)
		}
	}
}

func (m *model) answerFetch() {
	if len(m.fetches) == 0 {
		return
	}
	i := m.rng.IntN(len(m.fetches))
	f := m.fetches[i]
	switch r := m.current(); {
	case f.list && len(f.pieces) == 0:
		if r.files[f.from].kind == sigma.KindDir {
			f.pieces = append(f.pieces, sigmap.NamesListing{Number: m.number, At: r.at, Dir: r.node(f.from),
				Entries: r.list(f.from)})
			return
		}
	case f.list && m.rng.IntN(2) == 0: // two pieces
		p := &f.pieces[0]
		if d, ok := r.files[f.from]; ok && len(p.Entries) > 1 && len(f.pieces) == 1 && d.kind == sigma.KindDir {
			p.Entries = p.Entries[:1]
			rest := r.list(f.from)
			rest = slices.DeleteFunc(rest, func(e sigma.DirEntry) bool { return e.Next <= p.Entries[0].Next })
			f.pieces = append(f.pieces, sigmap.NamesListing{Number: m.number, At: r.at, Dir: r.node(f.from),
				Entries: rest})
		}
		return
	case f.list:
		f.f.EnterList(m.now, f.pieces)
	case f.found == nil:
		f.found = r.look(f.from, f.names, 20)
		f.found.Number = m.number
		return
	default:
		f.f.Enter(m.now, f.names, f.found)
	}
	f.f.End()
	m.fetches = slices.Delete(m.fetches, i, i+1)
}

// look asks the cache and checks what it says: it is the truth at the version that the feed has
// reached, or at a later one if nobody could tell; no change made from here that was answered is
// missing; and it is not older than the lease.
func (m *model) look() {
	from, path := m.somewhere()
	number, applied := m.c.Position()
	check := func(what string, got any, truth func(realm) any) {
		m.hits++
		for _, o := range m.own {
			if _, ok := o.after.files[from]; o.blind && !ok {
				// a handle on a file that was removed under a name which another machine gave it
				// just now: the feed tells
				continue
			}
			if o.told && o.after.at > applied && !reflect.DeepEqual(truth(o.before), truth(o.after)) {
				m.t.Fatalf("seed %d: %s of %d %q does not know of a change made from here", m.seed, what, from, path)
			}
		}
		for i, w := range m.when {
			if m.past[i].at > applied && m.now.Sub(w) >= m.c.cfg.Lease {
				m.t.Fatalf("seed %d: %s of %d %q is older than the lease: version %d, now %d", m.seed, what, from, path,
					applied, m.current().at)
			}
		}
		if want := truth(m.versionAt(applied)); !reflect.DeepEqual(got, want) {
			m.t.Fatalf("seed %d: %s of %d %q at %d of feed %d:\ngot  %+v\nwant %+v", m.seed, what, from, path, applied,
				number, got, want)
		}
	}
	if l, ok := m.c.List(m.now, from, 0); ok {
		check("listing", l.Entries, func(r realm) any { return append([]sigma.DirEntry{}, r.list(from)...) })
	}
	exact := m.rng.IntN(2) == 0
	want := Want(0)
	if exact {
		want = WantExact
	}
	if m.rng.IntN(2) == 0 {
		want |= WantData
	}
	nodes, why, ok := m.c.Look(m.now, from, path, want, nil)
	if !ok {
		return
	}
	type seen struct {
		id    uint64
		stat  sigma.Stat
		place Place
	}
	var got []seen
	for i, n := range nodes {
		s := seen{id: n.Stat.ID.Path}
		if i == len(nodes)-1 && why == sigma.KindOther || exact {
			s.stat, s.place = n.Stat, Place{n.Parent, n.Stat.Name}
		}
		got = append(got, s)
	}
	check(fmt.Sprint("look, why ", why, ", exact ", exact), got, func(r realm) any {
		found := r.look(from, path, 0)
		var want []seen
		for i, n := range found.Nodes {
			s := seen{id: n.Stat.ID.Path}
			if i == len(found.Nodes)-1 && found.Why == sigma.KindOther || exact && (found.Why != sigma.KindNotFound ||
				i < len(found.Nodes)-1) {
				s.stat, s.place = n.Stat, Place{n.Parent, n.Stat.Name}
			}
			want = append(want, s)
		}
		if exact && found.Why == sigma.KindNotFound && len(want) == len(got) && len(got) > 0 {
			want[len(want)-1] = got[len(got)-1] // its attributes were not asked for
		}
		return want
	})
	if n := nodes[len(nodes)-1]; why == sigma.KindOther && n.HasData {
		check("content", string(n.Data), func(r realm) any { return r.files[n.Stat.ID.Path].data })
	}
}

func (m *model) run(steps int) {
	for range steps {
		m.step()
		if b := m.c.budget.Counts().Bytes; b > uint64(m.c.cfg.Bytes) {
			m.t.Fatalf("seed %d: %d bytes are remembered, %d are allowed", m.seed, b, m.c.cfg.Bytes)
		}
	}
	for len(m.past) > 40 { // nobody asks for what is that old
		m.past, m.when, m.kept = m.past[1:], m.when[1:], max(0, m.kept-1)
	}
}

// Whatever comes in whatever order, the cache answers what is true.
func TestModel(t *testing.T) {
	trials := 400
	if testing.Short() {
		trials = 50
	}
	hits := 0
	for seed := range uint64(trials) {
		m := &model{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), now: time.Unix(1000, 0), number: 1,
			nextID: rootID}
		m.c = New(Config{Bytes: []int{2500, 8000, 1 << 20}[seed%3], DataMax: 16, ListMax: 3 + int(seed%8),
			Lease: 100 * time.Millisecond})
		m.commit(newRealm())
		m.run(600)
		hits += m.hits
		if n := m.c.budget.Counts(); int(n.Entries) != len(m.c.places) || int(n.Bytes) != m.c.bytes {
			t.Errorf("seed %d: %+v is counted, %d entries and %d bytes are there", seed, n, len(m.c.places), m.c.bytes)
		}
		m.c.Clear()
		if n := m.c.budget.Counts(); n.Entries+n.Bytes+n.Feeds != 0 {
			t.Errorf("seed %d: of nothing, %+v is counted", seed, n)
		}
		if c := m.c; len(m.fetches) == 0 && (c.recent != nil || c.fetches != 0) {
			t.Errorf("seed %d: something is kept for fetches that are over", seed)
		}
	}
	if hits < trials*10 {
		t.Errorf("only %d answers came from the cache: the test shows little", hits)
	}
	t.Logf("%d answers", hits)
}
