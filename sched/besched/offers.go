package besched

import (
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// Shard names one besched of the fleet.
type Shard string

// ShardsMax bounds the bescheds of one machine.
const ShardsMax = 8

const (
	// reparkDelay is how long a credit that is large already stays parked after more became free:
	// when many procs end, most of them together change it once.
	reparkDelay = 5 * time.Millisecond
	// turnMax is how long a machine with little room leaves its credit at one shard that does not
	// use it, while jobs may wait at another.
	turnMax = 5 * time.Millisecond
)

// Offers decides what one machine offers to which shard of the fleet
// (docs/adr/0027-besched-is-a-fleet.md): a pure state machine, for the kernel and for the
// simulator. Not safe for concurrent use.
//
// A machine attends at every shard. A lease of a shard says that no job waits there; with the
// leases of all the machine places by itself. While it has much room, or nobody waits, it has a
// credit parked at each shard, so that a job is granted at once wherever it was sent, to the
// machine with the least load of all. What two shards grant at the same moment may be more than
// there is; the machine declines the rest. While it has little room and jobs wait, that would be
// most of the grants: then there is one credit, which goes from one shard where jobs may wait to
// the next, at each grant and at the latest after turnMax. So no job waits for room that there is
// for longer than the shards' number of turns. A shard that keeps the machine for a large job has
// its credit alone, until that job came or is gone.
type Offers struct {
	capacity sigma.Bytes
	closed   bool
	stands   []*stand // in the order in which they were attended
	turn     Shard    // which has the credit while there is little room
	kept     Shard    // that keeps the machine; "" = none
}

// stand is how the machine stands with one shard.
type stand struct {
	shard   Shard
	lease   Lease
	parked  bool
	offer   Offer     // if parked
	since   time.Time // when it was parked
	leaving bool      // it was taken back, and the answer is not here yet
	late    time.Time // when it is to be taken back; zero = not
}

// Move is something to be done with a machine's credit at a shard.
type Move struct {
	Shard Shard
	Back  bool  // take the parked credit back; Granted or Returned follows, as it does without this
	Offer Offer // to be parked, if not Back
}

// NewOffers makes the state of a machine that attends nowhere yet. Capacity is its memory.
func NewOffers(capacity sigma.Bytes) *Offers { return &Offers{capacity: capacity} }

func (o *Offers) find(shard Shard) *stand {
	for _, s := range o.stands {
		if s.shard == shard {
			return s
		}
	}
	return nil
}

// Attend adds a shard; Leave drops one, with all that the machine had there.
func (o *Offers) Attend(shard Shard) {
	o.Leave(shard)
	o.stands = append(o.stands, &stand{shard: shard})
}

// Leave is the end of Attend.
func (o *Offers) Leave(shard Shard) {
	o.stands = slices.DeleteFunc(o.stands, func(s *stand) bool { return s.shard == shard })
	if o.kept == shard {
		o.kept = ""
	}
}

// Shards counts those that are attended.
func (o *Offers) Shards() int { return len(o.stands) }

// Parked is how many credits are at shards, those that are on their way back among them.
func (o *Offers) Parked() (n int) {
	for _, s := range o.stands {
		if s.parked {
			n++
		}
	}
	return n
}

// Close says whether new procs are not wanted here.
func (o *Offers) Close(closed bool) { o.closed = closed }

// Granted takes note that a parked credit was used: for jobs, for a lease, or for the word whether
// the machine is kept.
func (o *Offers) Granted(shard Shard, jobs int, lease Lease, kept bool) {
	s := o.find(shard)
	if s == nil {
		return
	}
	s.parked, s.leaving, s.late = false, false, time.Time{}
	s.lease = max(s.lease, lease)
	switch {
	case kept && o.kept == "":
		o.kept = shard
	case !kept && o.kept == shard:
		o.kept = ""
	}
	if jobs > 0 && o.turn == shard {
		o.next()
	}
}

// Returned takes note that a parked credit came back unused, because it was taken back.
func (o *Offers) Returned(shard Shard) {
	if s := o.find(shard); s != nil {
		s.parked, s.leaving, s.late = false, false, time.Time{}
	}
}

// Recalled takes note that a lease is over.
func (o *Offers) Recalled(shard Shard) {
	if s := o.find(shard); s != nil {
		s.lease = NoLease
	}
}

// Leased says whether all shards that are attended gave a lease, and whether one of them is for one
// of several machines.
func (o *Offers) Leased() (all, shared bool) {
	for _, s := range o.stands {
		if s.lease == NoLease {
			return false, false
		}
		shared = shared || s.lease == LeaseShared
	}
	return len(o.stands) > 0, shared
}

// waiting counts the shards where jobs may wait.
func (o *Offers) waiting() (n int) {
	for _, s := range o.stands {
		if s.lease == NoLease {
			n++
		}
	}
	return n
}

// next gives the turn to the next shard where jobs may wait.
func (o *Offers) next() {
	at := slices.IndexFunc(o.stands, func(s *stand) bool { return s.shard == o.turn })
	for i := range o.stands {
		if s := o.stands[(at+1+i)%len(o.stands)]; s.lease == NoLease {
			o.turn = s.shard
			return
		}
	}
}

// Plan says what is to be done now that so much memory is free and so many procs run, and when it
// is to be asked again at the latest; zero = when something happens.
func (o *Offers) Plan(now time.Time, free sigma.Bytes, load uint32) (moves []Move, again time.Time) {
	waiting := o.waiting()
	little := waiting > 0 && len(o.stands) > 1 && free < o.capacity/2
	if little && o.kept == "" {
		switch s := o.find(o.turn); {
		case s == nil || s.lease != NoLease:
			o.next()
		case s.parked && waiting > 1 && !now.Before(s.since.Add(turnMax)):
			o.next()
		case s.parked && waiting > 1:
			again = s.since.Add(turnMax)
		}
	}
	only := o.kept // who alone is offered something; "" = all are
	if little && only == "" {
		only = o.turn
	}
	taken := false // it is parked elsewhere still
	for _, s := range o.stands {
		taken = taken || only != "" && s.parked && s.shard != only
	}
	for _, s := range o.stands {
		wants := !o.closed && free >= sigma.MemoryLeast && s.lease != LeaseAlone && (only == "" || only == s.shard)
		offer := Offer{Memory: free, Load: load, Ask: s.lease == NoLease, Elsewhere: len(o.stands) > 1 && o.kept == "",
			Kept: o.kept == s.shard}
		switch {
		case s.leaving:
		case s.parked && (!wants || o.stale(now, s, offer)):
			s.leaving = true
			moves = append(moves, Move{Shard: s.shard, Back: true})
		case s.parked && !s.late.IsZero():
			again = earlier(again, s.late)
		case !s.parked && wants && !taken:
			s.parked, s.offer, s.since = true, offer, now
			moves = append(moves, Move{Shard: s.shard, Offer: offer})
			if little && waiting > 1 {
				again = earlier(again, now.Add(turnMax))
			}
		}
	}
	return moves, again
}

// stale reports whether what is parked at a shard is to be offered anew: at once if a large job may
// wait for what became free, or it says something wrong, and soon if it could say more.
func (o *Offers) stale(now time.Time, s *stand, offer Offer) bool {
	was := s.offer
	if was.Ask != offer.Ask || was.Elsewhere != offer.Elsewhere || was.Kept != offer.Kept ||
		offer.Memory > was.Memory && was.Memory < o.capacity/2 {
		return true
	}
	if more := offer.Memory > was.Memory; !more && (s.lease == NoLease && len(o.stands) == 1 || was == offer) {
		s.late = time.Time{}
		return false
	}
	if s.late.IsZero() {
		s.late = now.Add(reparkDelay)
	}
	return !now.Before(s.late)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
