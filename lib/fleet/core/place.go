package core

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sigma"
)

// Members are started near what the fleet's members talk with. Each machine deserves members in
// proportion to the bytes that its procs exchange with those that there are. The next member goes
// to the machine that lacks most of what it deserves, if that is half a member at least. So a fleet
// that one machine uses is there, and one that all use alike is everywhere.
//
// A machine gets no more than its cores, and after it had no room nothing for refusedFor: to be
// near is a wish, which the schedulers grant if there is room (docs/adr/0035-near-is-a-wish.md).
// A description with near or spread says itself where members go.
const (
	talkMin    = 1e6              // bytes a second with a machine that count
	talkMax    = 15 * time.Second // after this what was measured is not believed any more
	refusedFor = 30 * time.Second
)

// Peer is what a fleet's members talk with on one machine.
type Peer struct {
	Machine sigma.MachineID
	Rate    float64 // bytes a second, of both directions
	With    string  // the procs that exchange most of it, for people
	Most    int     // members that may be started there; 0 = any number
}

// location is where members of a revision are; "" = anywhere.
type location struct {
	revision uint64
	machine  sigma.MachineID
}

// place is what is known of where members should be.
type place struct {
	peers   []Peer
	at      time.Time                     // when peers were told
	coming  map[location]int              // that Spawn asked for and was not answered
	refused map[sigma.MachineID]time.Time // until then nothing is started near them
}

func (p *place) talked(now time.Time, peers []Peer) {
	p.at, p.peers = now, slices.Clone(peers)
	slices.SortFunc(p.peers, func(a, b Peer) int { // the first of equals is preferred
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Machine, b.Machine))
	})
}

// distribute spreads new members of a revision, of which there shall be n, over machines.
func (f *Fleet) distribute(revision uint64, n, missing int) []Spawn {
	there := map[sigma.MachineID]int{}
	for s, k := range f.place.coming {
		if s.revision == revision {
			there[s.machine] += k
		}
	}
	for _, m := range f.sorted() {
		if m.Revision == revision && m.State != fleet.Draining {
			there[cmp.Or(m.Machine, m.near)]++
		}
	}
	var spawns []Spawn
	for range missing {
		near := f.nearest(n, there)
		there[near]++
		i := slices.IndexFunc(spawns, func(s Spawn) bool { return s.Near == near && s.N < spawnMost })
		if i < 0 {
			i = len(spawns)
			spawns = append(spawns, Spawn{Revision: revision, Near: near})
		}
		spawns[i].N++
	}
	return spawns
}

// nearest is the machine that lacks most of the members that it deserves of n; "" = none does.
func (f *Fleet) nearest(n int, there map[sigma.MachineID]int) (best sigma.MachineID) {
	p, s := &f.place, f.record.Spec
	if len(p.peers) == 0 || s.Near != "" || s.Spread != "" || f.now.Sub(p.at) > talkMax {
		return ""
	}
	total := 0.0
	for _, x := range p.peers {
		total += x.Rate
	}
	most := 0.5
	for i, x := range p.peers {
		lacks := float64(n)*x.Rate/total - float64(there[x.Machine])
		switch {
		case x.Rate < talkMin, x.Most > 0 && there[x.Machine] >= x.Most, f.now.Before(p.refused[x.Machine]):
		case lacks > most || best == "" && lacks == most:
			best, most = p.peers[i].Machine, lacks
		}
	}
	return best
}

// start asks for members, and notes why they shall be where.
func (f *Fleet) start(s Spawn) {
	f.spawning[s.Revision] += s.N
	if s.Near != "" {
		f.place.coming[location{s.Revision, s.Near}] += s.N
		i := slices.IndexFunc(f.place.peers, func(p Peer) bool { return p.Machine == s.Near })
		p, members := f.place.peers[i], "1 member is"
		if s.N > 1 {
			members = fmt.Sprintf("%d members are", s.N)
		}
		rate := p.Rate / 1e6
		f.noteNear(s.Near, fmt.Sprintf("%s started near %s: %.1f MB/s with %s there", members, s.Near, rate, p.With),
			map[string]float64{"mb_s": round(rate), "members": float64(s.N)})
	}
	f.do(s)
}

// came notes the machine of a member. If the member was wanted on another machine, that one had no
// room.
func (f *Fleet) came(m *member, machine sigma.MachineID) {
	if machine == "" || m.Machine == machine {
		return
	}
	m.Machine = machine
	if m.near == "" || m.near == machine {
		return
	}
	f.place.refused[m.near] = f.now.Add(refusedFor)
	f.noteNear(m.near, fmt.Sprintf("%s is on %s, for %s had no room", m.Proc, machine, m.near), nil)
}

func (f *Fleet) noteNear(machine sigma.MachineID, why string, numbers map[string]float64) {
	f.seq++
	f.do(Note{fleet.Decision{Seq: f.seq, Time: f.now, Fleet: f.record.Spec.Name, Reason: fleet.ReasonNear,
		Machine: machine, Why: why, Numbers: numbers}})
}
