package besched

import "sigmaos.dev/sigma"

const (
	// recentMachines that ran a program last are remembered; with more of them there is nothing to
	// prefer.
	recentMachines = 4
	// recentMax programs are remembered in each of two generations, of which the older is dropped
	// when the younger is full.
	recentMax = 4096
)

// recent is where programs ran last: there they start without being fetched.
type recent struct {
	newer, old map[uint64]*[recentMachines]sigma.MachineID
}

// ran notes that a machine runs a program.
func (r *recent) ran(program uint64, machine sigma.MachineID) {
	if program == 0 {
		return
	}
	where := r.on(program)
	if where != nil && where[0] == machine && r.newer[program] == where {
		return
	}
	next := [recentMachines]sigma.MachineID{machine}
	n := 1
	if where != nil {
		for _, m := range where {
			if m != machine && n < len(next) {
				next[n] = m
				n++
			}
		}
	}
	if r.newer == nil || len(r.newer) >= recentMax {
		r.old, r.newer = r.newer, map[uint64]*[recentMachines]sigma.MachineID{}
	}
	r.newer[program] = &next
}

// on tells where a program ran, the last machine first; nil if that is not known.
func (r *recent) on(program uint64) *[recentMachines]sigma.MachineID {
	if where := r.newer[program]; where != nil {
		return where
	}
	return r.old[program]
}

// bestFor is the credit for a job: that of the machine that it should be near, else that of a
// machine that ran its program recently, if it has a core that is free, else that of the least
// load. nil if there is none with room.
func (c *Core) bestFor(j *Job) *credit {
	if cr := c.near(j); cr != nil {
		return cr
	}
	best := c.credits.best(j.Memory)
	if best == nil || j.Program == 0 {
		return best
	}
	where := c.recent.on(j.Program)
	if where == nil || where[0] == best.machine.life.Machine {
		return best
	}
	for _, id := range where {
		m := c.machines[id]
		if m == nil || m.kept != nil {
			continue
		}
		if cr := m.roomAt(j.Memory); cr != nil && (uint64(cr.Load)+1)*1000 <= m.cpu {
			return cr
		}
	}
	return best
}
