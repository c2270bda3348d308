package initd

import (
	"time"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// SeenAt is what a machine itself knows of a proc at a time, and whether the proc is at home there.
// Unsure: it is a guest that has ended, which its home is to hear first. Gone: the machine does not
// know it, or others know better.
func SeenAt(c *schedd.Core, q Question, now time.Time) (s Seen, home bool) {
	p := c.Proc(q.Realm, q.Proc)
	switch {
	case p == nil:
		return Seen{Sight: Gone}, false
	case p.Ended() && p.Away() &&
		// as far as is known here: this machine may have been taken for lost, and the proc run on
		// elsewhere
		p.Status.Code == sigma.StatusLost:
		return Seen{Sight: Gone}, false
	case p.Told(): // what its home knows counts
		return Seen{Sight: Gone}, false
	case p.Ended() && p.Guest():
		return Seen{Sight: Unsure}, false
	case p.Ended():
		s = Seen{Sight: Ended, Ran: ran(p, p.Times.Ended), Status: p.Status}
		s.Status.Data = nil
	default:
		s = Seen{Sight: Alive, Ran: ran(p, now)}
	}
	return s, !p.Guest()
}

// ran is for how long a proc has been out of the queue at a time.
func ran(p *schedd.Proc, at time.Time) time.Duration {
	if p.Times.Placed.IsZero() {
		return 0
	}
	return max(0, at.Sub(p.Times.Placed))
}

// Better is what is known of a proc if two machines say a and b: what one knows counts more than
// what the other does not.
func Better(a, b Seen) Seen {
	if b.Sight.rank() > a.Sight.rank() {
		return b
	}
	return a
}

func (s Sight) rank() int {
	switch s {
	case Ended: // only its home says so
		return 3
	case Alive:
		return 2
	case Unsure:
		return 1
	}
	return 0
}
