package sigma

import "time"

// SystemID names one system: all machines that trust one authority. 16 random letters and digits,
// so that two systems never have the same.
type SystemID string

// Check returns a KindInvalid error that says what is wrong with s, or nil.
func (s SystemID) Check() error {
	ok := len(s) == 16
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= 'a' && s[i] <= 'z' || s[i] >= '2' && s[i] <= '7'
	}
	if !ok {
		return Errorf("sigma.Check", KindInvalid, "%.80q is not a system id", string(s))
	}
	return nil
}

// Incarnation numbers one life of a machine, from the moment its sigmad registered until it ended
// or was declared lost. It is drawn from a counter of the whole system that only grows, so a later
// life of any machine has a higher one. What is granted to one incarnation is never carried out by
// another.
type Incarnation uint64

// Life is one machine in one life. The zero Life is none.
type Life struct {
	Machine     MachineID
	Incarnation Incarnation
}

// MachineState is how a machine stands with its system.
type MachineState uint8

// The states.
const (
	MachineLost    MachineState = iota // declared lost, or it has not registered since; it serves nothing
	MachineAlive                       // it is heard
	MachineSuspect                     // it has not been heard for a while; it still counts as alive
)

func (s MachineState) String() string { return [...]string{"lost", "alive", "suspect"}[min(s, 2)] }

// MachineInfo describes a machine to those who list machines.
type MachineInfo struct {
	ID          MachineID
	Address     string // host:port of its machine port
	State       MachineState
	Incarnation Incarnation
	Fence       Epoch             // of its last loss; requests that name an older one are stale. 0 = it was never lost
	Labels      map[string]string // failure domains and the like, as in zone=a
	Control     bool              // it holds a part of the control plane
	Cordoned    bool              // it gets no new procs
	Draining    bool              // its procs are being asked to go
	CPU         MilliCPU          // what it offers
	Memory      Bytes             // what it offers
	Version     string            // of its sigmad
	Joined      time.Time
	Heard       time.Time // last; not kept over a change of the judge
}
