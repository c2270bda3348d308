package besched

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sigma"
)

// Charge is what procs of one realm used on one machine since its last report. Costs are those that
// Cost tells.
type Charge struct {
	Realm   sigma.RealmID
	Used    time.Duration // cost of all that were reported
	Prepaid time.Duration // what was charged already when those were granted that are reported for the first time
	Ended   uint32        // those that ended
	Whole   time.Duration // cost of the latter, from their starts on
	Held    int64         // bytes by which what its procs hold there has changed, but for jobs that this shard gave
}

// Cost is what a proc's realm is charged with: the CPU time, or the part of the machine's CPU that
// belongs to the memory that the proc kept from others, if that is more. Memory counts half, so
// that of procs that compute, however slowly because there are many, the CPU alone decides.
func Cost(cpu time.Duration, memory sigma.Bytes, held time.Duration, machineCPU sigma.MilliCPU,
	machineMemory sigma.Bytes) time.Duration {
	if machineMemory == 0 {
		return max(cpu, 0)
	}
	part := float64(memory) / float64(machineMemory) * float64(machineCPU) / 1000 / 2
	return max(cpu, time.Duration(part*float64(held)), 0)
}

const (
	// spanMax is how long, with all machines, a realm can be made to wait for what it had, or
	// others for what it could not have: what is beyond that is forgiven.
	spanMax = 5 * time.Second
	// guess is what a job is thought to cost before one of its realm ended.
	guess = 20 * time.Millisecond
	// weigh jobs that ended are what a realm's mean is of, about.
	weigh = 8
	// accountsMax accounts are kept without looking which are of no use any more.
	accountsMax = 4096
)

// waiting is a job in its realm's queue.
type waiting struct {
	Job
	q          *queue
	prev, next *waiting
	hopes      bool // see Core.hopes
	told       decision.Reason
	served     uint64 // turns.grants when it came
	granted    uint64 // queue.granted when it came
}

// queue is a realm's account, with its jobs that wait.
type queue struct {
	realm       sigma.RealmID
	shares      float64
	used        float64 // seconds for each share; that with the least has its turn
	floor       float64 // used when the first of those that wait came; nothing that is given back leads below it
	mean        float64 // seconds that a job costs
	served      uint64  // when it last was, for who is first of those that used the same
	granted     uint64  // jobs
	many        int     // jobs that wait
	first, last *waiting
	class       *class // of first; nil if there is none
	at          int    // in class
	aside       bool   // in class.over
	// that procs hold that took turns; of those that were placed under leases, from the first look
	// on
	held      sigma.Bytes
	had       sigma.Bytes // that it held when it went away
	away      uint64      // parts.period in which it did; 0 if it is not
	overtaken sigma.Bytes // by so much, while its first job did not fit when it was its turn
	kept      *machine    // for its first job
}

func (q *queue) before(other *queue) bool {
	return q.used < other.used || q.used == other.used && q.served < other.served
}

// class is the realms whose first job wants the same memory.
type class struct {
	memory sigma.Bytes
	heap   queueHeap // that whose turn it is first
	over   overHeap  // those that hold too much, when it was looked last
}

type queueHeap []*queue

func (h queueHeap) Len() int           { return len(h) }
func (h queueHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h queueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }
func (h *queueHeap) Push(x any)        { q := x.(*queue); q.at = len(*h); *h = append(*h, q) }
func (h *queueHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}

// turns are the realms' accounts. Each says how much the realm used for each of its shares,
// compared with the others that wait: an amount without a zero, which only grows.
type turns struct {
	accounts map[sigma.RealmID]*queue
	many     int                      // accounts; with more it is looked which are of no use
	shares   map[sigma.RealmID]uint32 // of those that have not 1
	classes  []*class                 // by memory; none is empty
	now      float64                  // what realms begin to wait with: the most that one had used when it was its turn
	most     float64                  // that one used
	served   uint64
	grants   uint64 // jobs that were given
	parts    parts
}

func newTurns() turns { return turns{accounts: map[sigma.RealmID]*queue{}, many: accountsMax} }

// settle makes all even, when nobody waits: what is used then is taken from nobody.
func (t *turns) settle() { t.now = max(t.now, t.most) }

func (t *turns) account(realm sigma.RealmID) *queue {
	q := t.accounts[realm]
	if q == nil {
		if len(t.accounts) >= t.many {
			t.tidy()
		}
		q = &queue{realm: realm, shares: float64(max(1, t.shares[realm])), used: t.now, mean: guess.Seconds()}
		t.accounts[realm] = q
	}
	return q
}

// tidy drops accounts that say nothing but what a job costs.
func (t *turns) tidy() {
	for realm, q := range t.accounts {
		if q.first == nil && q.used <= t.now && q.held == 0 && q.away == 0 {
			delete(t.accounts, realm)
		}
	}
	t.many = max(accountsMax, 2*len(t.accounts))
}

// setShares makes a realm even whose share is another than before: what it used under the other
// share is not held against it, nor owed to it. Realms whose shares stay keep what they have.
func (t *turns) setShares(of map[sigma.RealmID]uint32) {
	t.shares = of
	for realm, q := range t.accounts {
		now := float64(max(1, of[realm]))
		if q.shares == now {
			continue
		}
		t.count(q, func() { q.shares, q.used, q.floor = now, t.now, t.now })
		if q.class != nil {
			q.fix()
		}
	}
}

// add puts a job at the end of its realm's queue. A realm that did not wait begins with what the
// others have: it saved up nothing, but its debts stay.
func (t *turns) add(j Job) *waiting {
	q := t.account(j.Realm)
	w := &waiting{Job: j, q: q, prev: q.last, served: t.grants, granted: q.granted}
	q.many++
	if q.last != nil {
		q.last.next = w
		q.last = w
		return w
	}
	q.first, q.last = w, w
	q.used = max(q.used, t.now)
	q.floor = q.used
	t.served++
	q.served = t.served
	t.enter(q)
	return w
}

func (t *turns) remove(w *waiting) {
	q := w.q
	q.many--
	was := q.first
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		q.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		q.last = w.prev
	}
	if q.first == was {
		return
	}
	if q.overtaken -= min(q.overtaken, was.Memory); q.first == nil {
		q.overtaken = 0
	}
	if q.first != nil && q.first.Memory == q.class.memory {
		q.fix()
		return
	}
	t.leave(q)
	if q.first != nil {
		t.enter(q)
	}
}

func (t *turns) find(memory sigma.Bytes) (int, bool) {
	return slices.BinarySearchFunc(t.classes, memory, func(c *class, m sigma.Bytes) int {
		return cmp.Compare(c.memory, m)
	})
}

func (t *turns) enter(q *queue) {
	i, ok := t.find(q.first.Memory)
	if !ok {
		t.classes = slices.Insert(t.classes, i, &class{memory: q.first.Memory})
	}
	t.count(q, func() { q.class, q.away, q.aside = t.classes[i], 0, false })
	heap.Push(&q.class.heap, q)
}

func (t *turns) leave(q *queue) {
	if q.aside {
		heap.Remove(&q.class.over, q.at)
	} else {
		heap.Remove(&q.class.heap, q.at)
	}
	if len(q.class.heap)+len(q.class.over) == 0 {
		i, _ := t.find(q.class.memory)
		t.classes = slices.Delete(t.classes, i, i+1)
	}
	t.count(q, func() { q.class = nil })
}

// next is the realm whose turn it is of those whose first job wants no more than most, and one
// whose turn is before that, but whose first job wants more, though not more than a machine has,
// and has no machine kept for it. Who holds far more than its part of memory is passed. If all do
// whose first job fits it is the turn of who holds least, but what is spared for those who are away
// is not theirs, though it is free.
func (t *turns) next(most, largest, free sigma.Bytes) (fits, late *queue) {
	var least *queue
	for _, c := range t.classes {
		t.sort(c)
		if len(c.heap) == 0 {
			if c.memory <= most && (least == nil || c.over[0].above() < least.above()) {
				least = c.over[0]
			}
			continue
		}
		q := c.heap[0]
		switch {
		case c.memory <= most:
			if fits == nil || q.before(fits) {
				fits = q
			}
		case c.memory <= largest && q.kept == nil && (late == nil || q.before(late)):
			late = q
		}
	}
	if fits == nil {
		if fits = least; fits == nil || t.parts.spare > 0 && free < fits.first.Memory+t.parts.spare {
			return nil, nil
		}
	}
	if late == nil || !late.before(fits) && !fits.aside {
		return fits, nil
	}
	return fits, late
}

// overtake notes that the first job of q is given before that of late, if it is late's turn.
func (t *turns) overtake(late, q *queue) {
	if late != nil && (late.before(q) || q.aside) {
		late.overtaken = min(late.overtaken+q.first.Memory, 2*late.first.Memory)
	}
}

// prepay charges a realm with what the job that it is given is likely to cost. What it cost in fact
// is known only later; until then nobody could tell that it has its part already.
func (t *turns) prepay(q *queue, w *waiting, span float64) {
	q.used = max(q.used, t.now-span)
	t.now = max(t.now, q.used)
	w.Prepaid = time.Duration(min(q.mean,
		span*q.shares) * 1e9) // no more than can be held against it: what is lost with a machine is not given back
	q.used += w.Prepaid.Seconds() / q.shares
	t.most = max(t.most, q.used)
	t.served++
	t.grants++
	q.granted++
	q.served = t.served
}

func (t *turns) charge(ch Charge, span float64) {
	q := t.account(ch.Realm)
	if ch.Ended > 0 {
		mean := max(0, ch.Whole.Seconds()) / float64(ch.Ended)
		q.mean += (mean - q.mean) * min(1, float64(ch.Ended)/weigh)
	}
	before := q.used
	q.used = max(q.used+(ch.Used.Seconds()-ch.Prepaid.Seconds())/q.shares, min(q.floor, before))
	if q.used > before {
		q.used = max(before, min(q.used, t.now+span))
	}
	t.most = max(t.most, q.used)
	if q.class != nil {
		q.fix()
	}
}
