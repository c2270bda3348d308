package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// Report is what a run was like.
type Report struct {
	Procs, Unplaced, Lost, Faults int
	Restarts,
	Leaders int // of registered procs: how often they were started, and how many leaders of initd were elected
	Wished,
	Near int // procs that should be near a machine and were started, and those of them that were there
	Virtual     time.Duration // how long it took
	Utilisation float64       // part of all memory-time until the last proc ended
	Placement   Waits         // from spawn to the decision which machine runs the proc
	Start       Waits         // from spawn to the program's first instruction
	Jain        float64       // of what realms that waited had of their ideal parts; 0 if there were never two of them
	Worst       float64       // the least of the former: what the realm that was served worst had of its ideal part
	Recorded,
	// for a place, of the procs of a trace whose wait is known, and of the same in the simulation,
	// each with Least
	Predicted Waits
	// what procs of a trace that found room at once waited longer there than in the simulation:
	// daemons' work, and waits for a processor
	Least time.Duration

	busy  float64       // GiB seconds
	ended time.Duration // when a proc did last

	placement, start, recorded, predicted sample
	prompt                                int // of predicted: those that found room at once
}

// Waits says how long procs waited. Quantiles are of a sample, if there were more than 100,000.
type Waits struct{ Mean, P50, P90, P99, Most time.Duration }

// sampled waits are kept, chosen at random, for the quantiles.
const sampled = 100_000

// sample is of waits, all equally likely to be in it.
type sample struct {
	kept  []time.Duration
	seen  int
	total time.Duration
	most  time.Duration
	pick  *rand.Rand
}

func (s *sample) add(wait time.Duration) {
	if s.pick == nil {
		s.pick = rand.New(rand.NewPCG(1, 1))
	}
	s.seen++
	s.total += wait
	s.most = max(s.most, wait)
	if len(s.kept) < sampled {
		s.kept = append(s.kept, wait)
	} else if i := s.pick.IntN(s.seen); i < sampled {
		s.kept[i] = wait
	}
}

func (s *sample) waits() Waits {
	if s.seen == 0 {
		return Waits{}
	}
	slices.Sort(s.kept)
	return Waits{s.total / time.Duration(s.seen), s.at(0.5), s.at(0.9), s.at(0.99), s.most}
}

// at is a quantile, once waits was called.
func (s *sample) at(q float64) time.Duration { return s.kept[int(q*float64(len(s.kept)-1))] }

// least is Report.Least: as many of the shortest recorded waits as procs found room at once are
// compared with the waits of these, by their medians. Which procs found room first may differ.
func (r *Report) least() time.Duration {
	if r.prompt == 0 {
		return 0
	}
	middle := float64(r.prompt) / float64(r.predicted.seen) / 2
	return max(r.recorded.at(middle)-r.predicted.at(middle), 0)
}

// plus is of waits that are each longer by d.
func (w Waits) plus(d time.Duration) Waits {
	return Waits{w.Mean + d, w.P50 + d, w.P90 + d, w.P99 + d, w.Most + d}
}

// started notes the waits of a proc.
func (r *Report) started(now time.Duration, p *proc) {
	r.start.add(now - p.spawned)
	r.placement.add(p.placed - p.spawned)
	if p.Waited >= 0 {
		r.recorded.add(p.Waited)
		r.predicted.add(p.placed - p.spawned)
		if p.placed-p.spawned <= promptMost {
			r.prompt++
		}
	}
}

// promptMost is what a proc that finds room at once waits at most in the simulation, for a few
// messages.
const promptMost = 5 * time.Millisecond

// finish computes what is reported.
func (s *Sim) finish() {
	r := &s.report
	r.Virtual = s.now
	r.Placement, r.Start, r.Recorded, r.Predicted = r.placement.waits(), r.start.waits(), r.recorded.waits(),
		r.predicted.waits()
	if all := gib(s.memory) * max(s.last, r.ended).Seconds(); all > 0 {
		r.Utilisation = r.busy / all
	}
	r.Least = r.least()
	r.Predicted = r.Predicted.plus(r.Least)
	r.Jain, r.Worst = s.fairness()
}

func gib(b sigma.Bytes) float64 { return float64(b) / float64(sigma.GiB) }
