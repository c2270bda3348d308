package besched

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

const (
	// heldBand is how many times its part of memory a realm may hold and still have its turn:
	// enough that turns make up for what its procs used too little.
	heldBand = 1.5
	// AwayFor is how long at the least, and half of how long at the most, memory is spared that was
	// left by procs of a realm whose last job was given: its next ones come when those are over.
	AwayFor = 50 * time.Millisecond
	// awayMax bounds the absences that are remembered; with more the older ones end.
	awayMax = 1024
)

// parts is what those hold between whom memory is to be divided: the realms that wait, and those
// that are away for a moment (docs/adr/0039-memory-has-its-part-in-turns.md).
type parts struct {
	held   sigma.Bytes
	shares float64     // whole numbers
	spare  sigma.Bytes // that procs of those left who are away
	away   []absence   // oldest first; some may be over
	period uint64      // numbers the calls of relent
}

// absence is of a realm whose last job was given.
type absence struct {
	q     *queue
	begun uint64 // parts.period
}

// counts says whether a realm is one of those between whom memory is divided.
func (q *queue) counts() bool { return q.class != nil || q.away != 0 }

// spared is what the procs of a realm that is away have left since.
func (q *queue) spared() sigma.Bytes {
	if q.away == 0 || q.held >= q.had {
		return 0
	}
	return q.had - q.held
}

// above is what a realm that waits holds for each share, but for as much as its first job wants.
func (q *queue) above() float64 { return float64(q.held-min(q.held, q.first.Memory)) / q.shares }

// over says whether a realm that waits holds so much more than its part that it loses its turn: by
// one more job at the least, so that parts of few jobs are no rule.
func (t *turns) over(q *queue) bool {
	return q.above()*t.parts.shares > heldBand*float64(t.parts.held)
}

// count changes a realm, and what is known of all with it.
func (t *turns) count(q *queue, change func()) {
	p := &t.parts
	if q.counts() {
		p.held, p.shares, p.spare = p.held-q.held, p.shares-q.shares, p.spare-q.spared()
	}
	change()
	if q.counts() {
		p.held, p.shares, p.spare = p.held+q.held, p.shares+q.shares, p.spare+q.spared()
	}
}

// overHeap has realms of a class that hold too much, in the order of how much that is.
type overHeap []*queue

func (h overHeap) Len() int           { return len(h) }
func (h overHeap) Less(i, j int) bool { return h[i].above() < h[j].above() }
func (h overHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }
func (h *overHeap) Push(x any)        { q := x.(*queue); q.at = len(*h); *h = append(*h, q) }
func (h *overHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}

// sort has the first ones of a class where they belong: those that hold too much aside. Each realm
// changes sides only when what is held has changed.
func (t *turns) sort(c *class) {
	for len(c.over) > 0 && !t.over(c.over[0]) {
		q := heap.Pop(&c.over).(*queue)
		q.aside = false
		heap.Push(&c.heap, q)
	}
	for len(c.heap) > 0 && t.over(c.heap[0]) {
		q := heap.Pop(&c.heap).(*queue)
		q.aside = true
		heap.Push(&c.over, q)
	}
}

// fix gives a realm that waits its place anew in its class, after a change of what it used or
// holds.
func (q *queue) fix() {
	if q.aside {
		heap.Fix(&q.class.over, q.at)
	} else {
		heap.Fix(&q.class.heap, q.at)
	}
}

// absent begins the absence of a realm whose last job was given.
func (t *turns) absent(q *queue) {
	p := &t.parts
	if len(p.away) == awayMax {
		p.period++
		t.relent()
	}
	if p.period == 0 {
		p.period = 1
	}
	t.count(q, func() { q.away, q.had = p.period, q.held })
	p.away = append(p.away, absence{q, p.period})
}

// relent ends the absences that began before it was called last.
func (t *turns) relent() {
	p := &t.parts
	for len(p.away) > 0 && p.away[0].begun < p.period {
		if a := p.away[0]; a.q.away == a.begun {
			t.count(a.q, func() { a.q.away = 0 })
		}
		p.away = p.away[1:]
	}
	p.period++
}

// holds takes note that a realm's procs hold so much more memory of a machine, or less if it is
// negative. What is given counts at once, and ends are told later, so that more than the machine
// has may be counted for a moment.
func (c *Core) holds(m *machine, realm sigma.RealmID, change int64) {
	held := m.held[realm]
	const most = int64(memoryMax)
	now := max(0, min(held+max(-most, min(change, most)), most))
	if now == 0 {
		delete(m.held, realm)
	} else {
		m.held[realm] = now
	}
	q := c.turns.account(realm)
	c.turns.count(q, func() { q.held += sigma.Bytes(now) - sigma.Bytes(held) })
	if q.class != nil {
		q.fix()
	}
}

// forget gives back what procs hold of a machine that is gone.
func (c *Core) forget(m *machine) {
	for _, realm := range slices.Sorted(maps.Keys(m.held)) {
		c.holds(m, realm, -m.held[realm])
	}
}

// Sparing reports whether a realm may be away; then the shell calls Relent after AwayFor.
func (c *Core) Sparing() bool { return len(c.turns.parts.away) > 0 }

// Relent ends absences that have lasted for AwayFor: others may have the memory that was spared for
// those realms.
func (c *Core) Relent() []Grant {
	c.turns.relent()
	return c.match()
}
