package ring

import "time"

const (
	// A connection asks for memory when paceMessages were written, or read, within paceMost: then the 100 µs that it costs are soon won back.
	paceMessages = 3
	paceMost     = 2 * time.Millisecond
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
