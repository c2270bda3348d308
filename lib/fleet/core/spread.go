package core

import "time"

// spread says when clients that keep their connections are to make them anew, so that new members
// get their part of the requests. Clients learn within 20 ms as a rule that there is a new member;
// the second time is for those that learned it later, as on a busy machine.
type spread struct {
	came  time.Time // when a member became ready last; zero = connections were made anew since
	times int       // that they were, since then
	count uint64    // that they were, in all
}

// spreadAfter is how long after a member became ready connections are made anew.
var spreadAfter = [...]time.Duration{Every, 10 * Every}

func (s *spread) begin(now time.Time) { s.came, s.times = now, 0 }

func (s *spread) tick(now time.Time) {
	if s.came.IsZero() || now.Sub(s.came) < spreadAfter[s.times] {
		return
	}
	s.count++
	if s.times++; s.times == len(spreadAfter) {
		s.came = time.Time{}
	}
}

// spreadOut is for each tick. During a roll members come one after another: it waits for the end.
func (f *Fleet) spreadOut() {
	if !f.rolling() && len(f.ready(0)) > 1 {
		f.spread.tick(f.now)
	}
}

// Spread counts how often the connections of clients were to be made anew. A member that sees it
// rise has that done.
func (f *Fleet) Spread() uint64 { return f.spread.count }
