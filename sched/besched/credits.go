package besched

import (
	"container/heap"
	"slices"

	"sigmaos.dev/sigma"
)

// credit is an offer that is parked.
type credit struct {
	Offer
	ticket  Ticket
	machine *machine
	jobs    []Job // given in the match that is under way
	at      int   // in the heap; -1 if it has GrantMax jobs, or is gone
}

// before orders credits by what the load of the machine would be for its size; the oldest of
// several.
func (cr *credit) before(other *credit) bool {
	a, b := (uint64(cr.Load)+1)*other.machine.cpu, (uint64(other.Load)+1)*cr.machine.cpu
	return a < b || a == b && cr.ticket < other.ticket
}

// credits are those that are parked.
type credits struct {
	heap     creditHeap // those that can take jobs, the least loaded first
	byTicket map[Ticket]*credit
	asks     int         // those that a lease will do for
	most     sigma.Bytes // none that is not kept for a job has more
	memory   sigma.Bytes // that all offer together
}

type creditHeap []*credit

func (h creditHeap) Len() int           { return len(h) }
func (h creditHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h creditHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }
func (h *creditHeap) Push(x any)        { cr := x.(*credit); cr.at = len(*h); *h = append(*h, cr) }
func (h *creditHeap) Pop() any {
	last := len(*h) - 1
	cr := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	cr.at = -1
	return cr
}

func (cs *credits) add(cr *credit) {
	if cs.byTicket == nil {
		cs.byTicket = map[Ticket]*credit{}
	}
	cs.byTicket[cr.ticket] = cr
	cr.machine.credits = append(cr.machine.credits, cr)
	heap.Push(&cs.heap, cr)
	cs.most = max(cs.most, cr.Memory)
	cs.memory += cr.Memory
	if cr.Ask {
		cs.asks++
	}
}

func (cs *credits) find(t Ticket) *credit { return cs.byTicket[t] }

func (cs *credits) remove(cr *credit) {
	delete(cs.byTicket, cr.ticket)
	cs.memory -= cr.Memory
	cr.machine.credits = slices.DeleteFunc(cr.machine.credits, func(other *credit) bool { return other == cr })
	if cr.at >= 0 {
		heap.Remove(&cs.heap, cr.at)
	}
	if cr.Ask {
		cs.asks--
	}
}

// free counts those that can take jobs.
func (cs *credits) free() int { return len(cs.heap) }

// use takes memory of a credit for a job, which it has already.
func (cs *credits) use(cr *credit, memory sigma.Bytes) {
	cr.Memory -= memory
	cs.memory -= memory
	cr.Load++
	if len(cr.jobs) >= GrantMax {
		heap.Remove(&cs.heap, cr.at)
	} else {
		heap.Fix(&cs.heap, cr.at)
	}
}

// best is the first with so much room whose machine is kept for nobody; nil if there is none.
// Nearly always it is the first of all.
func (cs *credits) best(memory sigma.Bytes) (best *credit) {
	for i, cr := range cs.heap {
		if cr.Memory < memory || cr.machine.kept != nil {
			continue
		}
		if i == 0 {
			return cr
		}
		if best == nil || cr.before(best) {
			best = cr
		}
	}
	return best
}

// roomAt returns a credit of a machine with at least that much room, or nil.
func (m *machine) roomAt(memory sigma.Bytes) *credit {
	for _, cr := range m.credits {
		if cr.Memory >= memory && cr.at >= 0 {
			return cr
		}
	}
	return nil
}

// room is the most that a credit of a machine has.
func (m *machine) room() (most sigma.Bytes) {
	for _, cr := range m.credits {
		most = max(most, cr.Memory)
	}
	return most
}

// asking are those that a lease will do for, most of them at most.
func (cs *credits) asking(most int) (out []*credit) {
	for _, cr := range cs.heap {
		if len(out) >= most || len(out) >= cs.asks {
			break
		}
		if cr.Ask {
			out = append(out, cr)
		}
	}
	return out
}
