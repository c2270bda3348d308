package core

import (
	"cmp"
	"fmt"
	"time"

	"sigmaos.dev/lib/fleet"
)

// A new revision takes the place of the old one member by member: as many new ones are started as
// Surge lets there be more than wanted, and old ones are asked to go as long as enough serve.
// With Canary the first of the new revision serve their share of the requests beside all the old
// ones, until they have done so for Hold. A new revision is taken back when its members end or are
// not ready in time, fail their checks, or fail more requests than the old ones.
const (
	holdDefault   = 5 * time.Second
	withinDefault = 30 * time.Second
	errorsDefault = 0.05
	startsMax     = 3  // members of a new revision that may end before they are ready
	crashesMax    = 2  // of those that were ready
	sampleMin     = 20 // requests from which on the share of failed ones counts
)

// roll is what was seen of the revision in force since it came.
type roll struct {
	since   time.Time // the revision is in force
	missing time.Time // since when a member of it is on its way
	canary  time.Time // since when the canaries serve
	starts  int       // members that ended before they were ready
	crashes int       // members that ended or failed when they were ready
	why     string    // of the last of both
	before  tally     // of the old members when it began
}

// tally is how many requests were served, and failed.
type tally struct{ served, failed uint64 }

func (t tally) share() float64 { return float64(t.failed) / float64(max(1, t.served)) }

// rolling reports whether an old revision is being replaced.
func (f *Fleet) rolling() bool {
	return f.record.Stable != nil && f.record.Stable.Revision != f.record.Revision
}

func (f *Fleet) phase() string {
	switch {
	case f.record.Removed:
		return "removing"
	case f.rolling() && !f.passed():
		return "canary"
	case f.rolling():
		return "rolling"
	}
	return "steady"
}

// passed reports whether there are no canaries, or they have served long enough.
func (f *Fleet) passed() bool { return f.record.Spec.Update.Canary == 0 || f.record.Passed }

// mark remembers what the old members had done before.
func (r *roll) mark(f *Fleet) {
	if f.rolling() {
		r.before = f.tally(f.record.Stable.Revision)
		f.note(fleet.ReasonRoll, fmt.Sprintf("revision %d takes the place of %d", f.record.Revision,
			f.record.Stable.Revision), nil)
	}
}

func (f *Fleet) tally(revision uint64) (t tally) {
	for _, m := range f.sorted() {
		if m.Revision == revision {
			t.served += m.Load.Served
			t.failed += m.Load.Failed
		}
	}
	return t
}

// failed notes that a member failed, or could not be started.
func (r *roll) failed(f *Fleet, revision uint64, why string, ready bool) {
	if revision != f.record.Revision {
		return
	}
	r.why = why
	if ready {
		r.crashes++
	} else {
		r.starts++
	}
}

// wanted is how many members there shall be of the revision in force, and of the old one.
func (f *Fleet) wanted() (next, old int) {
	want := f.size.want
	if !f.rolling() {
		return want, 0
	}
	u, surge := f.record.Spec.Update, f.surge()
	news, olds := f.count(f.record.Revision), f.count(f.record.Stable.Revision)
	if !f.passed() {
		return f.canaries(), want
	}
	if want == 0 {
		return 0, 0
	}
	// so many old ones can go that enough serve
	ready := len(f.ready(f.record.Revision)) + len(f.ready(f.record.Stable.Revision))
	idle := olds - len(f.ready(f.record.Stable.Revision)) // old ones that do not serve can go anyway
	old = max(0, olds-idle-max(0, ready-max(0, want-u.Unavailable)))
	// and so many new ones be there that there are not too many
	next = min(want, max(news, want+surge-old))
	return next, old
}

// surge is how many members there may be beyond the size during a roll.
func (f *Fleet) surge() int {
	if u := f.record.Spec.Update; u.Surge > 0 || u.Unavailable > 0 {
		return u.Surge
	}
	return 1
}

// canaries is how many of a new revision are tried first.
func (f *Fleet) canaries() int {
	return min(max(1, int(float64(f.size.want)*f.record.Spec.Update.Canary)), f.size.want)
}

// judgeRoll ends a roll, well or not.
func (f *Fleet) judgeRoll() {
	if !f.rolling() {
		return
	}
	if why := f.fault(); why != "" {
		f.undo(why)
		return
	}
	next, stable := f.record.Revision, f.record.Stable.Revision
	ready := len(f.ready(next))
	if !f.passed() {
		f.judgeCanary(ready)
		return
	}
	if ready >= f.size.want && f.count(stable) == 0 {
		f.save(fmt.Sprintf("revision %d has taken the place of %d", next, stable), func(r *fleet.Record) {
			r.Stable, r.Passed = nil, false
		})
		f.note(fleet.ReasonRolled, fmt.Sprintf("all members are of revision %d", next),
			map[string]float64{"seconds": round(f.now.Sub(f.roll.since).Seconds())})
	}
}

func (f *Fleet) judgeCanary(ready int) {
	r := &f.roll
	next, _ := f.wanted()
	if ready < next {
		r.canary = time.Time{}
		return
	}
	if r.canary.IsZero() {
		r.canary = f.now
		f.note(fleet.ReasonCanary, fmt.Sprintf("%d of revision %d serve %.0f %% of the requests", ready,
			f.record.Revision, 100*f.record.Spec.Update.Canary), nil)
	}
	if f.now.Sub(r.canary) >= f.record.Spec.Update.Hold.Or(holdDefault) {
		f.save(fmt.Sprintf("the canaries of revision %d are good", f.record.Revision),
			func(r *fleet.Record) { r.Passed = true })
	}
}

// fault says why the new revision has to be taken back; "" = there is no reason.
func (f *Fleet) fault() string {
	r, u := &f.roll, f.record.Spec.Update
	switch {
	case r.starts >= startsMax:
		return fmt.Sprintf("%d of its members ended before they were ready; the last: %s", r.starts, r.why)
	case r.crashes >= crashesMax:
		return fmt.Sprintf("%d of its members failed; the last: %s", r.crashes, r.why)
	}
	if why := f.late(u.Within.Or(withinDefault)); why != "" {
		return why
	}
	now := f.tally(f.record.Revision)
	old := f.tally(f.record.Stable.Revision)
	old.served -= min(old.served, r.before.served)
	old.failed -= min(old.failed, r.before.failed)
	if most := old.share() + cmp.Or(u.Errors, errorsDefault); now.served >= sampleMin && now.share() > most {
		return fmt.Sprintf("%.1f %% of its requests failed, of the old revision's %.1f %%", 100*now.share(),
			100*old.share())
	}
	return ""
}

// late says which member of the new revision is not ready in time.
func (f *Fleet) late(within time.Duration) string {
	for _, m := range f.sorted() {
		if m.Revision != f.record.Revision || m.State != fleet.Starting || f.now.Sub(m.Since) <= within {
			continue
		}
		why := "it has not said that it serves"
		if m.entered {
			why = "its check says: " + cmp.Or(m.Why, "nothing")
		}
		return fmt.Sprintf("%s was not ready within %v: %s", m.Proc, within, why)
	}
	return ""
}

// undo goes back to the old revision.
func (f *Fleet) undo(why string) {
	bad := f.record.Revision
	f.save(fmt.Sprintf("revision %d was taken back: %s", bad, why), func(r *fleet.Record) {
		r.Undone, r.Revision, r.Spec = bad, r.Stable.Revision, r.Stable.Spec
		r.Stable, r.Passed = nil, false
	})
	f.roll = roll{since: f.now}
	f.fails, f.next = 0, time.Time{}
	f.note(fleet.ReasonUndone, fmt.Sprintf("revision %d was taken back: %s", bad, why), nil)
}
