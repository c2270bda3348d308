package machines

import (
	"time"

	"sigmaos.dev/sigma"
)

// Heir is a control machine that is not the judge. It gets the same reports from the observers as
// the judge, and judges by them one machine only: the judge's. The judge itself may be late to see
// its own end; but it can save nothing once an heir has taken over (FileStore), so no lease has to
// run out first. Not safe for concurrent use.
type Heir struct {
	core  *Core
	judge sigma.MachineID
}

// NewHeir begins with the state that was saved last. It is made anew with each change of it, with
// what was heard until then (Ear.Heard).
func NewHeir(now time.Time, cfg Config, judge sigma.MachineID) (*Heir, error) {
	cfg.Remote = true
	core, err := New(now, cfg)
	return &Heir{core, judge}, err
}

// Report notes what an observer heard.
func (h *Heir) Report(now time.Time, r Report) { h.core.report(now, r) }

// Tick lets time pass, every Timing.Tick, and says whether the judge's machine is lost: it is time
// to take over (TakeOver with it as former), and as the judge to declare it.
func (h *Heir) Tick(now time.Time) bool {
	h.core.pass(now)
	m := h.core.members[h.judge]
	return m != nil && h.judge != h.core.self && !h.core.majority.IsZero() &&
		now.Sub(h.core.majority) >= h.core.timing.Suspect && now.Sub(m.heard) >= h.core.timing.Lost
}

// unheard says whether this heir itself, by what was reported to it, has not heard the judge's
// machine for as long as a loss takes. It need not be lost: the heir may lack observers.
func (h *Heir) unheard(now time.Time) bool {
	m := h.core.members[h.judge]
	return m != nil && h.judge != h.core.self && now.Sub(m.heard) >= h.core.timing.Lost
}
