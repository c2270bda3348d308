package sigma

import "time"

// Phase is one part of a proc's start. The phases follow one another without gaps, so that their
// sum is the time from Spawn to Started.
type Phase uint8

// The phases, in order. What a start did not reach is 0.
const (
	PhaseQueue     Phase = iota // from Spawn until a machine has room for it and its turn has come
	PhasePlacement              // until its program is there and the launcher is asked
	PhaseHandOver               // until the launcher has given it to a child, one that is ready or a new one
	PhaseRestrict               // until that has put on what depends on the program
	PhaseExec                   // until the program is executed
	// until the first sign of it: its first message, or of programs that need not send one the
	// launcher's word
	PhaseFirst
	PhaseStarted // until it has called Started; 0 if it need not
	PhaseCount
)

func (p Phase) String() string {
	return [...]string{"queue", "placement", "hand-over", "restrict", "exec", "first", "started",
		"unknown"}[min(p, PhaseCount)]
}

// Timing is how long each phase of a start took, on the clock of the proc's machine.
type Timing [PhaseCount]time.Duration

// Total is the time from Spawn to Started, as far as it came.
func (t Timing) Total() (sum time.Duration) {
	for _, d := range t {
		sum += d
	}
	return sum
}
