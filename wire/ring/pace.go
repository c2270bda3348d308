package ring

import "time"

const (
	// A connection asks for memory when paceMessages were written, or read, within paceMost: then
	// the 100 µs that it costs are soon won back.
	paceMessages = 3
	paceGiven    = 1 // if it is at hand, since those before wanted it, and costs 10 µs
	paceMost     = 2 * time.Millisecond
)

// pace says when a connection that is a socket is busy enough to ask for memory.
type pace struct {
	began time.Time
	count int
	over  bool // it has said so
}

// warrants notes a message of a half that is a socket, and says whether memory is wanted for it
// now. Who forces the socket wants none, so that the peer has no ring to write to either.
func (c *Conn) warrants(p *pace) bool {
	return !p.over && Transport(c.wanted.Load()) != Socket && p.warrants(time.Now(), c.enough)
}

// warrants notes a message, and says whether there were enough now.
func (p *pace) warrants(now time.Time, enough int) bool {
	if now.Sub(p.began) > paceMost {
		p.began, p.count = now, 0
	}
	p.count++
	p.over = p.count >= enough
	return p.over
}
