package lcsched

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"sigmaos.dev/sigma"
)

// How a machine is found for a job among many: the machines in order of the room that they have,
// and their shapes.

// rooms are the machines that attend, in order of what is not reserved, and how many there are of
// each shape.
type rooms struct {
	byRoom []*machine // the least room first
	open   int        // of byRoom, those that take something new
	shapes map[string]*shape
}

// shape is what machines have that are the same. Those that may come back count.
type shape struct {
	key    string
	cpu    sigma.MilliCPU
	memory sigma.Bytes
	of     *machine // one that is so, for the labels
	many   int
}

// wish is what jobs have in common that fit the same machines.
type wish struct {
	realm  sigma.RealmID
	cpu    sigma.MilliCPU
	memory sigma.Bytes
	where  string
}

func wishOf(w *waiting) wish {
	return wish{w.Realm, w.CPU, w.Memory, strings.Join(w.Where, ",")}
}

func newRooms() rooms { return rooms{shapes: map[string]*shape{}} }

// leftCPU is what is not reserved of the processors, below 0 where it is more than there is.
func (m *machine) leftCPU() int64 { return int64(m.cpu) - int64(m.heldCPU) }

func (m *machine) leftMemory() int64 { return int64(m.memory) - int64(m.heldMem) }

func byRoom(a, b *machine) int {
	return cmp.Or(cmp.Compare(a.leftCPU(), b.leftCPU()), cmp.Compare(a.leftMemory(), b.leftMemory()),
		cmp.Compare(a.life.Machine, b.life.Machine))
}

// list enters a machine; what it holds must not change until unlist.
func (r *rooms) list(m *machine) {
	at, _ := slices.BinarySearchFunc(r.byRoom, m, byRoom)
	r.byRoom = slices.Insert(r.byRoom, at, m)
	m.listed = true
	if !m.closed {
		r.open++
	}
}

func (r *rooms) unlist(m *machine) {
	if !m.listed {
		return
	}
	at, _ := slices.BinarySearchFunc(r.byRoom, m, byRoom)
	r.byRoom = slices.Delete(r.byRoom, at, at+1)
	m.listed = false
	if !m.closed {
		r.open--
	}
}

// with are those that have so much of processors left, the least room first.
func (r *rooms) with(cpu sigma.MilliCPU) []*machine {
	at, _ := slices.BinarySearchFunc(r.byRoom, int64(cpu), func(m *machine, least int64) int {
		return cmp.Or(cmp.Compare(m.leftCPU(), least), 1)
	})
	return r.byRoom[at:]
}

func (r *rooms) addShape(m *machine) {
	var key strings.Builder
	fmt.Fprint(&key, m.cpu, " ", uint64(m.memory))
	for _, name := range slices.Sorted(maps.Keys(m.labels)) {
		fmt.Fprintf(&key, " %q=%q", name, m.labels[name])
	}
	s := r.shapes[key.String()]
	if s == nil {
		s = &shape{key: key.String(), cpu: m.cpu, memory: m.memory, of: m}
		r.shapes[s.key] = s
	}
	s.many++
	m.shape = s
}

func (r *rooms) unshape(m *machine) {
	if m.shape.many--; m.shape.many == 0 {
		delete(r.shapes, m.shape.key)
	}
}

// most is the most that one of some machines has of each.
func (c *Core) most(of map[*machine]bool) (a Amount) {
	for m := range of {
		free := Amount{m.cpu, m.memory}.less(Amount{m.heldCPU, m.heldMem})
		a = Amount{max(a.CPU, free.CPU), max(a.Memory, free.Memory)}
	}
	if len(of) == 0 {
		return Amount{} // for a job that wants nothing, too: nothing has changed for it
	}
	return a
}

// crowd counts the procs of a job's group in the failure domain of a machine.
func (c *Core) crowd(w *waiting) func(*machine) int {
	of := c.spread[group{w.Realm, w.Name}]
	if w.Spread == "" {
		return func(m *machine) int { return of[m] }
	}
	domains := map[string]int{}
	for m, k := range of {
		domains[m.labels[w.Spread]] += k
	}
	return func(m *machine) int { return domains[m.labels[w.Spread]] }
}

// rank orders machines for a job, the best first: where its failure domain has the fewest of its
// group, then where no best-effort proc has to go, then the fullest that has room, so that large
// jobs find room later.
type rank struct {
	crowd, evicts int
	left, memory  int64
	name          sigma.MachineID
}

func (r rank) compare(other rank) int {
	return cmp.Or(cmp.Compare(r.crowd, other.crowd), cmp.Compare(r.evicts, other.evicts),
		cmp.Compare(r.left, other.left), cmp.Compare(r.memory, other.memory), cmp.Compare(r.name, other.name))
}

func (m *machine) rank(w *waiting, crowd func(*machine) int) rank {
	r := rank{crowd: crowd(m), left: m.leftCPU(), memory: m.leftMemory(), name: m.life.Machine}
	if m.heldMem+m.lent+w.Memory > m.memory {
		r.evicts = 1
	}
	return r
}

// best chooses the machine for a job among some; nil if none takes it.
func (c *Core) best(w *waiting, of iter.Seq[*machine]) (best *machine) {
	if bars, _ := c.bars(&w.Job); bars {
		return nil
	}
	var least rank
	crowd := c.crowd(w)
	for m := range of {
		if !c.takes(m, w) {
			continue
		}
		if r := m.rank(w, crowd); best == nil || r.compare(least) < 0 {
			best, least = m, r
		}
	}
	return best
}

// anywhere chooses it among all. They are in order of rank where there is no crowd and nobody has
// to go, so that nearly always the first that takes it is the best. What no machine takes is noted
// in full.
func (c *Core) anywhere(w *waiting, full map[wish]bool) (best *machine) {
	bars, _ := c.bars(&w.Job)
	wish := wishOf(w)
	if bars || full[wish] {
		return nil
	}
	if m := c.machines[w.Near]; m != nil && c.takes(m, w) {
		return m
	}
	var least rank
	crowd := c.crowd(w)
	declined := false
	for _, m := range c.rooms.with(w.CPU) {
		if !c.takes(m, w) {
			declined = declined || m.declined[w.ID]
			continue
		}
		r := m.rank(w, crowd)
		if r.crowd == 0 && r.evicts == 0 {
			return m
		}
		if best == nil || r.compare(least) < 0 {
			best, least = m, r
		}
	}
	full[wish] = best == nil && !declined
	return best
}

// keep reserves for a job the machine with the most room of those that are large enough: nobody
// else is placed there. Half of the machines at most are kept, but one always may be. What none can
// be kept for is noted in unkept.
func (c *Core) keep(w *waiting, unkept map[wish]bool) {
	wish := wishOf(w)
	if c.keeping > 0 && 2*(c.keeping+1) > c.rooms.open || unkept[wish] {
		return
	}
	if bars, _ := c.bars(&w.Job); bars { // by its own realm
		return
	}
	for _, m := range slices.Backward(c.rooms.byRoom) {
		if m.closed || m.keptFor != nil {
			continue
		}
		if whole := m.whole(w.Realm); w.CPU > whole.CPU || w.Memory > whole.Memory || !m.has(w.Where) ||
			!m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max) {
			continue
		}
		m.keptFor, w.kept = w, m
		c.keeping++
		return
	}
	unkept[wish] = true
}

// yield gives up machines that are kept for jobs which their own realms' limits stop there.
func (c *Core) yield() {
	if c.keeping == 0 {
		return
	}
	for _, w := range c.queue {
		m := w.kept
		if m == nil {
			continue
		}
		if bars, _ := c.bars(&w.Job); bars || !m.of[w.Realm].plus(w.amount()).within(c.limits[w.Realm].Max) {
			c.unkeep(m)
		}
	}
}

// never reports whether a job would wait for ever.
func (c *Core) never(j *Job) bool {
	if bars, never := c.bars(j); bars {
		return never
	}
	for _, s := range c.rooms.shapes {
		if j.CPU <= s.cpu && j.Memory <= s.memory && s.of.has(j.Where) {
			return false
		}
	}
	return true
}

// lacks says what a job waits for.
func (c *Core) lacks(j *Job) string {
	if why, _ := c.barred(j); why != "" {
		return why
	}
	var named, cores, memory, both int
	var mostCPU sigma.MilliCPU
	var mostMemory sigma.Bytes
	for _, s := range c.rooms.shapes {
		if !s.of.has(j.Where) {
			continue
		}
		named++
		mostCPU, mostMemory = max(mostCPU, s.cpu), max(mostMemory, s.memory)
		if j.CPU <= s.cpu {
			cores++
		}
		if j.Memory <= s.memory {
			memory++
		}
		if j.CPU <= s.cpu && j.Memory <= s.memory {
			both++
		}
	}
	of := "machine"
	if len(j.Where) > 0 {
		of += " with " + strings.Join(j.Where, ", ")
	}
	switch {
	case named == 0:
		return fmt.Sprintf("there is no %s", of)
	case cores == 0:
		return fmt.Sprintf("it reserves %v cores; no %s has more than %v", cpus(j.CPU), of, cpus(mostCPU))
	case memory == 0:
		return fmt.Sprintf("it reserves %v of memory; no %s has more than %v", j.Memory, of, mostMemory)
	case both == 0:
		return fmt.Sprintf("it reserves %v cores and %v of memory; no single %s has both", cpus(j.CPU), j.Memory, of)
	}
	reserved := "what is reserved"
	if c.minima.others(j.Realm) {
		reserved += ", or kept for realms by their minima,"
	}
	return fmt.Sprintf("%s leaves no %s with %v cores and %v of memory", reserved, of, cpus(j.CPU), j.Memory)
}

func cpus(c sigma.MilliCPU) string {
	return strings.TrimSuffix(fmt.Sprintf("%.3g", float64(c)/1000), ".0")
}
