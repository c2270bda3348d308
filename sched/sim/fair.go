package sim

import (
	"cmp"
	"slices"
	"time"

	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sigma"
)

// realm is what one realm has had. Memory is that of best-effort procs.
type realm struct {
	id       sigma.RealmID
	shares   float64
	waiting  int           // procs
	progress time.Duration // when a proc of it was placed last, or began to wait with none before it
	wants    sigma.Bytes   // that those that wait ask for
	has      sigma.Bytes   // that those that run hold
	most     float64       // GiB that its maxima leave it at all machines; 0 = all there is

	asked,
	reserved lcsched.Amount // by latency-critical procs that have not been answered, and by those of them that run

	had, ideal float64       // GiB seconds while it waited, and those that it should have had
	short      float64       // GiB seconds that it has had too few of since it began to wait
	since      time.Duration // when it began to wait
}

// window compares once a second what realms have with an ideal: all that is in use divided by
// shares, and what somebody does not want among the others. How far one that waits is behind must
// be bounded: those before it are owed for what they could not have, which is bounded too
// (besched's spanMax), and what runs is not stopped.
func (s *Sim) window() {
	var total, shares float64
	waiters := 0
	for _, r := range s.order {
		total += gib(r.has)
		shares += r.shares
		if r.wants > 0 {
			waiters++
		} else {
			r.short, r.since = 0, s.now
		}
	}
	if waiters < 2 {
		s.contended = s.now
		return
	}
	byDemand := slices.SortedStableFunc(slices.Values(s.order), func(a, b *realm) int {
		return cmp.Compare(a.demand(), b.demand())
	})
	bound := gib(s.memory) * (10*time.Second + 10*s.cfg.Run).Seconds()
	settled := s.now-s.contended >= time.Second+3*s.cfg.Run // realms begin with what chance gave them
	for _, r := range byDemand {
		part := min(r.demand()*r.shares, total*r.shares/shares)
		total -= part
		shares -= r.shares
		if r.wants == 0 {
			continue
		}
		if settled && s.now-r.since >= time.Second+3*s.cfg.Run {
			r.had += gib(r.has)
			r.ideal += part
		}
		if r.short = max(0, r.short+part-gib(r.has)); r.short > bound && !s.cfg.Faults && r.most == 0 {
			s.fail("realm %s has waited for %v, and had %.1f GiB s less than its part", r.id, s.now-r.since, r.short)
		}
	}
}

// demand is the GiB that a realm wants or has for each of its shares.
func (r *realm) demand() float64 {
	d := gib(r.wants + r.has)
	if r.most > 0 {
		d = min(d, r.most)
	}
	return d / r.shares
}

// fairness is Jain's index of what realms that waited had of their ideal parts, and the least of
// these.
func (s *Sim) fairness() (index, worst float64) {
	var of []float64
	for _, r := range s.order {
		if r.ideal > 0 {
			of = append(of, r.had/r.ideal)
		}
	}
	if len(of) < 2 {
		return 0, 0
	}
	return jain(of), slices.Min(of)
}

// jain is 1 if all are the same, and 1/n if one has all.
func jain(of []float64) float64 {
	var sum, squares float64
	for _, x := range of {
		sum += x
		squares += x * x
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(of)) * squares)
}
