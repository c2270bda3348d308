package core

import (
	"fmt"
	"math"
	"time"

	"sigmaos.dev/lib/fleet"
)

// The size follows the load. It grows when members have been busier than the target for two looks,
// and shrinks when fewer would have been enough for all of the last calmFor. A growth that leaves
// members as busy as before and brings less than gainMin more requests is taken back, and not tried
// again for a while (002 §3.3.3: the best size may be a small one).
const (
	targetDefault = 0.7
	saturated     = 0.92             // from here on how busy members are does not tell how many are missing
	holdFor       = 2 * Every        // a growth waits until it was wanted for so long
	calmFor       = 2 * time.Second  // a shrinkage waits until it was right for so long
	shrinkTo      = 0.9              // of the target: members are no busier than that after a shrinkage
	settleFor     = 2 * Every        // after new members are ready, until loads tell of them
	judgeFor      = 4 * Every        // until a growth is judged; no other comes before
	gainMin       = 1.05             // of requests per second
	ceilingMin    = 30 * time.Second // how long a growth that was taken back is not tried again
	ceilingMax    = 8 * time.Minute
	idleDefault   = 30 * time.Second
)

// size is how many members are wanted, and what was seen that decides it.
type size struct {
	want    int
	looks   []look    // of the last calmFor, oldest first
	high    time.Time // since when more are wanted; zero = they are not
	settled time.Time // when the loads began to tell of as many as are wanted; zero = they do not
	active  time.Time // when the fleet was last used
	from    int       // the size before the last growth by load
	marked  bool      // the counts of requests since then are known
	step    *step     // the last growth, until it is judged
	search  *search   // for the best size, after a growth that brought nothing

	ceiling      int // sizes beyond it were of no use; 0 = none is known
	ceilingUntil time.Time
	ceilingFor   time.Duration
}

// look is one observation: how many members would have been enough at that moment.
type look struct {
	at     time.Time
	enough int
}

// step is a growth by load.
type step struct {
	from, before int // the size, and that of the growth before; 0 = it was none by load
	rate         float64
}

// search is for the smallest size that serves as much as another.
type search struct {
	low, high int // low is too small, high is enough
	rate      float64
	trying    bool // a size between them
}

func (s *size) start(now time.Time) { s.active = now }

// demand gives the number of members at which the load is at the target. full: the members are so
// busy that the load may be larger than was measured.
func (f *Fleet) demand() (n float64, full bool) {
	var sum fleet.Load
	known := 0
	ready := f.ready(0)
	for _, m := range ready {
		if f.now.Sub(m.reported) > silentMax {
			continue
		}
		known++
		sum.Busy += m.Load.Busy
		sum.InFlight += m.Load.InFlight
		sum.CPU += m.Load.CPU
		sum.QueueAge = max(sum.QueueAge, m.Load.QueueAge)
	}
	if known == 0 { // nothing is known of those that serve, such as after a change of coordinators
		return float64(len(ready)) * shrinkTo, false
	}
	scale := float64(len(ready)) / float64(known) // those that say nothing are as busy as the others
	t := f.record.Spec.Target
	switch {
	case t.InFlight != 0:
		n = sum.InFlight * scale / t.InFlight
		return n, n > float64(len(ready))
	case t.CPU != 0:
		n = sum.CPU * scale / t.CPU
		return n, n > float64(len(ready))
	case t.QueueAge != 0 && sum.QueueAge > time.Duration(t.QueueAge):
		over := float64(sum.QueueAge) / float64(t.QueueAge)
		return float64(len(ready)) * min(over, 2), true
	}
	target := t.Utilisation
	if target == 0 {
		target = targetDefault
	}
	n = sum.Busy * scale / target
	if sum.Busy/float64(known) >= saturated {
		return max(n, 2*float64(len(ready))), true
	}
	return n, false
}

// resize sets the size that is wanted.
func (f *Fleet) resize() {
	s := &f.size
	least, most := f.record.Spec.Bounds(f.now)
	if s.want < least {
		f.grow(least, fleet.ReasonGrow, fmt.Sprintf("there are %d members at least", least), nil)
	}
	if s.want > most {
		f.shrink(most, fmt.Sprintf("there are %d members at most", most), nil)
	}
	n, full := f.demand()
	if n > 0 {
		s.active = f.now
	}
	low := 1 // while the fleet is used
	if least > 0 {
		low = least
	}
	enough := min(max(ceil(n/shrinkTo), low), most)
	s.looks = append(s.looks, look{f.now, enough})
	for f.now.Sub(s.looks[0].at) > calmFor {
		s.looks = s.looks[1:]
	}
	f.settle()
	f.judgeStep(full)
	numbers := map[string]float64{"demand": round(n), "ready": float64(len(f.ready(0)))}
	f.growByLoad(min(ceil(n), most), numbers)
	f.shrinkByLoad(least, numbers)
}

// settle notes since when as many serve as are wanted, and from when on their requests are counted.
func (f *Fleet) settle() {
	s := &f.size
	switch {
	case len(f.ready(0)) < s.want:
		s.settled = time.Time{}
	case s.settled.IsZero():
		s.settled, s.marked = f.now, false
	case !s.marked && f.now.Sub(s.settled) >= settleFor:
		s.marked = true
		for _, m := range f.sorted() {
			m.markAt, m.markServed = m.reported, m.Load.Served
		}
	}
}

// judgeable reports whether enough was seen of the size that there is now.
func (s *size) judgeable(now time.Time) bool {
	return !s.settled.IsZero() && s.marked && now.Sub(s.settled) >= judgeFor
}

func (f *Fleet) growByLoad(to int, numbers map[string]float64) {
	s := &f.size
	if s.ceiling > 0 && f.now.Before(s.ceilingUntil) {
		to = min(to, max(s.ceiling, s.want))
	}
	if to <= s.want {
		s.high = time.Time{}
		return
	}
	if s.high.IsZero() {
		s.high = f.now
	}
	if f.now.Sub(s.high) < holdFor || !s.judgeable(f.now) || s.step != nil || s.search != nil {
		return
	}
	s.step = &step{from: s.want, before: s.from, rate: f.rate()}
	s.from = s.want
	f.grow(to, fleet.ReasonGrow, fmt.Sprintf("the load is enough for %.1f members", numbers["demand"]), numbers)
}

func (f *Fleet) shrinkByLoad(least int, numbers map[string]float64) {
	s := &f.size
	seen := len(s.looks) > 0 && f.now.Sub(s.looks[0].at) >= calmFor-Every
	if !seen || s.search != nil || s.settled.IsZero() && s.want > 0 {
		return
	}
	if least == 0 && s.want > 0 && f.now.Sub(s.active) > f.record.Spec.Idle.Or(idleDefault) {
		f.shrink(0, fmt.Sprintf("nobody used it for %v", f.now.Sub(s.active).Round(time.Second)), numbers)
		return
	}
	enough := 0
	for _, l := range s.looks {
		enough = max(enough, l.enough)
	}
	if enough < s.want {
		f.shrink(enough, fmt.Sprintf("%d were enough for the last %v", enough, calmFor), numbers)
	}
}

// judgeStep takes a growth back that brought nothing.
func (f *Fleet) judgeStep(full bool) {
	s := &f.size
	if !s.judgeable(f.now) {
		return
	}
	rate := f.rate()
	if s.search != nil {
		f.lookFor(rate, full)
		return
	}
	if s.step == nil {
		return
	}
	p := *s.step
	s.step = nil
	if !full || rate >= p.rate*gainMin || p.from == 0 || p.rate == 0 {
		s.ceilingFor = 0
		return
	}
	s.ceilingFor = min(max(2*s.ceilingFor, ceilingMin), ceilingMax)
	s.ceiling, s.ceilingUntil = p.from, f.now.Add(s.ceilingFor)
	f.note(fleet.ReasonBack, fmt.Sprintf("%d members serve no more than %d did", s.want, p.from),
		map[string]float64{"rate": round(rate), "rate_before": round(p.rate), "ceiling_s": s.ceilingFor.Seconds()})
	s.search = &search{low: p.before, high: p.from, rate: p.rate}
	f.try(p.from)
}

// lookFor goes on with the search for the smallest size that serves as much.
func (f *Fleet) lookFor(rate float64, full bool) {
	s := &f.size
	q := s.search
	switch {
	case !full: // there is less to do now, which the load tells well enough
		s.search = nil
	case q.trying && rate < q.rate/gainMin:
		q.low, q.trying = s.want, false
		f.try(q.high)
	case q.trying || q.high-q.low > 1:
		if q.trying {
			q.high = s.want
		}
		if q.trying = q.high-q.low > 1; q.trying {
			f.try((q.low + q.high) / 2)
		}
	default:
		s.ceiling, s.search = q.high, nil
		f.note(fleet.ReasonBack, fmt.Sprintf("%d members serve as much as more of them would", q.high),
			map[string]float64{"rate": round(rate)})
	}
}

// try sets a size to see what it serves.
func (f *Fleet) try(n int) {
	f.size.want, f.size.settled, f.size.looks = n, time.Time{}, nil
}

func (f *Fleet) grow(to int, reason, why string, numbers map[string]float64) {
	_, most := f.record.Spec.Bounds(f.now)
	s := &f.size
	if to = min(to, most); to <= s.want {
		return
	}
	f.note(reason, fmt.Sprintf("from %d to %d members: %s", s.want, to, why), numbers)
	s.want, s.settled = to, time.Time{}
}

func (f *Fleet) shrink(to int, why string, numbers map[string]float64) {
	s := &f.size
	f.note(fleet.ReasonShrink, fmt.Sprintf("from %d to %d members: %s", s.want, to, why), numbers)
	s.want, s.step, s.search, s.settled, s.from = to, nil, nil, time.Time{}, 0
	s.looks = []look{{f.now, to}}
}

// rate is how many requests a second all members served since they were marked.
func (f *Fleet) rate() (sum float64) {
	for _, m := range f.ready(0) {
		if span := m.reported.Sub(m.markAt).Seconds(); !m.markAt.IsZero() && span > 0 && m.Load.Served >= m.markServed {
			sum += float64(m.Load.Served-m.markServed) / span
		}
	}
	return sum
}

func ceil(x float64) int { return int(math.Ceil(x - 1e-9)) }

func round(x float64) float64 { return math.Round(x*100) / 100 }
