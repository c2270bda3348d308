package ring

import "time"

const (
	// A connection asks for memory when paceMessages were written, or read, within paceMost: then the 100 µs that it costs are soon won back.
	paceMessages = 3
	paceMost     = 2 * time.Millisecond
	// judgeWindow writes in the ring are judged together: if the reader had to be woken for more than all but wakeless of them, it was no better than the socket, which is then used for holdLeast writes, and each next time twice as
	// many, up to holdMost. Not sooner, and not for longer: asleep, the ring costs what the socket does, and on a busy host a while without a processor says little of the next.
	judgeWindow = 64
	wakeless    = 4
	holdLeast   = 128
	holdMost    = 2048
)

// pace says when a connection that is a socket is busy enough to ask for memory.
type pace struct {
	began time.Time
	count int
	over  bool // it has said so
}

func (p *pace) warrants(now time.Time) bool {
	if now.Sub(p.began) > paceMost {
		p.began, p.count = now, 0
	}
	p.count++
	p.over = p.count >= paceMessages
	return p.over
}

// judge decides for one direction, as who writes it sees it, whether the ring is worth while.
type judge struct {
	writes, woken int // in this window
	hold          int // writes to come that are for the socket
	next          int // value of hold after the next bad window
}

// wants reports whether the next write is one for the ring.
func (j *judge) wants() bool {
	if j.hold > 0 {
		j.hold--
		return false
	}
	return true
}

// wrote notes a write in the ring and reports whether to leave it.
func (j *judge) wrote(woken bool) bool {
	j.writes++
	if woken {
		j.woken++
	}
	if j.writes < judgeWindow {
		return false
	}
	leave := j.woken > judgeWindow-wakeless
	j.writes, j.woken = 0, 0
	if !leave {
		j.next = holdLeast
		return false
	}
	j.hold = max(j.next, holdLeast)
	j.next = min(2*j.hold, holdMost)
	return true
}
