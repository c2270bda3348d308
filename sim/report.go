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
	Virtual                       time.Duration // how long it took
	Utilisation                   float64       // part of all memory-time until the last proc ended
	WaitMean                      time.Duration // from spawn to the program's first instruction, as the following
	Wait50, Wait90, Wait99, Most  time.Duration
	Jain                          float64       // of what realms got for their shares while all of them waited; 0 if they never did
	Recorded, Predicted           time.Duration // mean wait of the procs of a trace whose wait is known, and of the same in the simulation

	busy     float64       // GiB seconds
	ended    time.Duration // when a proc did last
	waits    []time.Duration
	seen     int
	total    time.Duration
	recorded int
	pick     *rand.Rand
	windows  [][]float64 // what each realm was given in a second in which all waited
}

// sampled waits are kept, chosen at random, for the percentiles.
const sampled = 100_000

// started notes the wait of a proc.
func (r *Report) started(wait time.Duration, p *proc) {
	if r.pick == nil {
		r.pick = rand.New(rand.NewPCG(1, 1))
	}
	r.seen++
	r.total += wait
	r.Most = max(r.Most, wait)
	if len(r.waits) < sampled {
		r.waits = append(r.waits, wait)
	} else if i := r.pick.IntN(r.seen); i < sampled {
		r.waits[i] = wait
	}
	if p.Waited >= 0 {
		r.recorded++
		r.Recorded += p.Waited
		r.Predicted += p.placed - p.spawned
	}
}

// window notes what realms use, if all wait.
func (r *Report) window(s *Sim) {
	if len(s.order) < 2 {
		return
	}
	of := map[sigma.RealmID]float64{}
	for _, realm := range s.order {
		if realm.waiting == 0 {
			return
		}
	}
	for _, m := range s.machines {
		for _, p := range m.running {
			if p.info.Class == sigma.BestEffort {
				of[p.info.Realm] += float64(p.info.Memory)
			}
		}
	}
	w := make([]float64, len(s.order))
	for i, realm := range s.order {
		w[i] = of[realm.id] / realm.shares
	}
	r.windows = append(r.windows, w)
}

// finish computes what is reported.
func (s *Sim) finish() {
	r := &s.report
	r.Virtual = s.now
	if r.seen > 0 {
		r.WaitMean = r.total / time.Duration(r.seen)
		slices.Sort(r.waits)
		at := func(q float64) time.Duration { return r.waits[int(q*float64(len(r.waits)-1))] }
		r.Wait50, r.Wait90, r.Wait99 = at(0.5), at(0.9), at(0.99)
	}
	if all := gib(s.cfg.Memory) * float64(s.cfg.Machines) * max(s.last, r.ended).Seconds(); all > 0 {
		r.Utilisation = r.busy / all
	}
	if r.recorded > 0 {
		r.Recorded /= time.Duration(r.recorded)
		r.Predicted /= time.Duration(r.recorded)
	}
	if n := len(r.windows); n > 0 {
		sum := make([]float64, len(s.order))
		for _, w := range r.windows[n/5:] { // realms begin with what chance gave them
			for i := range w {
				sum[i] += w[i]
			}
		}
		r.Jain = jain(sum)
	}
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

func gib(b sigma.Bytes) float64 { return float64(b) / float64(sigma.GiB) }
