package machines

import (
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Membership is what a machine knows of its own place in the system.
type Membership struct {
	System      sigma.SystemID    `json:"system"` // "" = it has not registered
	Incarnation sigma.Incarnation `json:"incarnation"`
	Address     string            `json:"address,omitempty"` // where others reach it; "" = they cannot
	Epoch       uint64            `json:"-"`                 // of the roster it has
	Machines    uint32            `json:"machines"`          // of that roster
	Alive       uint32            `json:"alive"`             // of these
	Controls    uint32            `json:"control"`           // control machines
	Voting      uint32            `json:"control_alive"`     // of these, those that are alive
	// control machines that are not declared lost and do not answer this machine
	Silent   uint32            `json:"silent"`
	Expiries []identity.Expiry `json:"expiries"`
}

// Quorum says whether a majority of the control machines is alive, as far as the machine knows.
func (m *Membership) Quorum() bool { return 2*m.Voting > m.Controls }

// Describe fills in what is known of a machine's place from its identity. silent says of a control
// machine that it does not answer this one now.
func Describe(id *identity.Identity, address string, silent func(sigma.MachineID) bool) Membership {
	self, roster := id.Self(), id.Roster()
	m := Membership{System: self.System, Incarnation: self.Incarnation, Address: address, Epoch: roster.Epoch(),
		Expiries: id.Expiries()}
	m.tally(roster.Members(), silent)
	return m
}

// tally counts members. One that is silent is not counted as alive: without a majority nobody
// declares it lost.
func (m *Membership) tally(members []identity.Member, silent func(sigma.MachineID) bool) {
	for _, x := range members {
		m.Machines++
		quiet := !x.Lost && x.Control && silent(x.Machine)
		if quiet {
			m.Silent++
		} else if !x.Lost {
			m.Alive++
		}
		if x.Control {
			m.Controls++
			if !x.Lost && !quiet {
				m.Voting++
			}
		}
	}
}
