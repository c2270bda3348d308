package fleet

import (
	"time"

	"github.com/robfig/cron/v3"
)

// check says what is wrong with a line.
func (l *Schedule) check(s *Spec) error {
	if _, err := cron.ParseStandard(l.At); err != nil {
		return wrong("%.60q is no time as cron's, such as 0 8 * * 1-5", l.At)
	}
	if most := l.most(s); l.Least < 0 || most > MembersMax || l.Least > most {
		return wrong("least is %d, and most %d", l.Least, most)
	}
	return nil
}

func (l *Schedule) most(s *Spec) int {
	if l.Most == 0 {
		return s.Most
	}
	return l.Most
}

// scheduleBack is how far back the line in force is looked for.
const scheduleBack = 4 * 4 * 4 * 4 * 4 * 4 * 4 * time.Minute // 11 days

// Bounds are the sizes that the fleet may have at a moment, by its schedule: those of the line
// whose time was last.
func (s *Spec) Bounds(now time.Time) (least, most int) {
	least, most = s.Least, s.Most
	var last time.Time
	for _, l := range s.Schedule {
		if at := l.last(now); at.After(last) {
			last, least, most = at, l.Least, l.most(s)
		}
	}
	return least, most
}

// last is the line's latest time until now; zero if it has none within scheduleBack.
func (l *Schedule) last(now time.Time) (at time.Time) {
	times, err := cron.ParseStandard(l.At)
	if err != nil {
		return at
	}
	now = now.UTC()
	for span := time.Minute; span <= scheduleBack; span *= 4 { // so that few times are looked at
		for next := times.Next(now.Add(-span)); !next.IsZero() && !next.After(now); next = times.Next(next) {
			at = next
		}
		if !at.IsZero() {
			break
		}
	}
	return at
}
