package identity

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"

	"sigmaos.dev/sigma"
)

// MembersMax bounds a system.
const MembersMax = 10000

// Member is one machine of a roster.
type Member struct {
	Machine     sigma.MachineID
	Key         Fingerprint
	Address     string            // host:port of its machine port
	Incarnation sigma.Incarnation // of its last registration
	Lost        bool              // that life was ended
	Control     bool              // it answers for the control plane
	Cordoned    bool              // it gets no new procs
	Draining    bool              // its procs are to go; then it is cordoned too
}

// Roster is who is a member, as far as this machine has heard: the list that revokes, since a
// machine that is not on it is refused whatever certificate it shows. It is replaced as a whole, by
// a later epoch only, so that news that come late do no harm. Safe for concurrent use.
type Roster struct {
	mu      sync.Mutex
	epoch   uint64                     // mu
	members map[sigma.MachineID]Member // mu
	changed chan struct{}              // mu; closed and replaced at each change
}

// NewRoster makes an empty one, by which nobody is admitted.
func NewRoster() *Roster { return &Roster{changed: make(chan struct{})} }

// Set replaces the list. It reports whether it did: an epoch that is not later, or a list longer
// than MembersMax, is ignored.
func (r *Roster) Set(epoch uint64, members []Member) bool {
	byName := make(map[sigma.MachineID]Member, len(members))
	for _, m := range members {
		byName[m.Machine] = m
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch <= r.epoch || len(members) > MembersMax {
		return false
	}
	r.epoch, r.members = epoch, byName
	close(r.changed)
	r.changed = make(chan struct{})
	return true
}

// Changed is closed at the next change.
func (r *Roster) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// Epoch is that of the list; 0 before the first.
func (r *Roster) Epoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// Complete says whether the list is one of all members, and not that of a Grant, which names the
// control machines only.
func (r *Roster) Complete() bool { return r.Epoch() > partialEpoch }

// Members lists them by name.
func (r *Roster) Members() []Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.members), func(a, b Member) int { return cmp.Compare(a.Machine, b.Machine) })
}

// Member gives one of them.
func (r *Roster) Member(m sigma.MachineID) (Member, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	got, ok := r.members[m]
	return got, ok
}

// Check says whether s is a member in a life that goes on. KindStale: that life was ended, by loss,
// a new registration or removal. KindUnavailable: its certificate is younger than this list, which
// will know it soon.
func (r *Roster) Check(s Subject) error {
	const op = "identity.Roster"
	r.mu.Lock()
	epoch := r.epoch
	m, ok := r.members[s.Machine]
	r.mu.Unlock()
	switch {
	case ok && m.Key == s.Key && (s.Incarnation < m.Incarnation || m.Lost && s.Incarnation == m.Incarnation):
		return &sigma.Error{Op: op, Kind: sigma.KindStale, Msg: fmt.Sprintf("the life %d of machine %s was ended",
			s.Incarnation, s.Machine), Hint: "its sigmad must register again before it takes part"}
	case ok && m.Key == s.Key:
		return nil // a later life than we know of was certified after our list was made
	case epoch == 0 || s.Epoch > epoch:
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("this machine has not yet heard of machine %s", s.Machine), Hint: "try again in a moment"}
	case ok:
		return sigma.Errorf(op, sigma.KindStale, "machine %s has another key now: the one shown was removed", s.Machine)
	}
	return &sigma.Error{Op: op, Kind: sigma.KindStale, Msg: fmt.Sprintf("machine %s was removed from the system",
		s.Machine), Hint: "to take it in again, make a token (sigma token create) and join"}
}

// CheckControl is Check for what the control machines keep together, the store of names: there a
// control machine counts by its key, whatever became of its life. To begin another it needs the
// store, and the store may need it for a majority.
func (r *Roster) CheckControl(s Subject) error {
	err := r.Check(s)
	if sigma.KindOf(err) != sigma.KindStale {
		return err
	}
	if m, ok := r.Member(s.Machine); ok && m.Control && m.Key == s.Key {
		return nil
	}
	return err
}
