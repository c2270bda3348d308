package sigmap

import "sigmaos.dev/sigma"

// FileNames is /sys/names, for the provider and machined: calls that go to the root of the leading
// named, which answers them to System principals who attach without a name.
const FileNames = "names"

// Methods of FileNames.
var (
	CallMembers = Method[None, []NamesMember]{Name: "members", Reply: (*Coder).NamesMembers}
	// CallMemberAdd is answered with an argument of the joining named (named --initial TEXT), the
	// same each time. It returns while the new member is a learner; the leader promotes it when it
	// has caught up.
	CallMemberAdd = Method[sigma.MachineID, string]{Name: "member-add", Request: (*Coder).MachineID,
		Reply: (*Coder).Str}
	// CallMemberRemove ends the machine's named. It may be dead. The last one cannot be removed.
	CallMemberRemove = Method[sigma.MachineID, None]{Name: "member-remove", Request: (*Coder).MachineID}
	// CallExpel ends the machine's sessions and leases, and refuses it until CallAdmit, under later
	// leaders too.
	CallExpel = Method[sigma.MachineID, None]{Name: "expel", Request: (*Coder).MachineID}
	CallAdmit = Method[sigma.MachineID, None]{Name: "admit", Request: (*Coder).MachineID}
	// CallSnapshotOpen begins a snapshot of a realm's names; "" = of all.
	CallSnapshotOpen = Method[sigma.RealmID, Snapshot]{Name: "snapshot-open", Request: codeSnapshotOf,
		Reply: codeSnapshot}
	// CallSnapshotRead is answered with nothing at the end. Only the last piece can be read again.
	CallSnapshotRead = Method[SnapshotAt, []byte]{Name: "snapshot-read", Request: codeSnapshotAt,
		Reply: (*Coder).Data}
	// CallSnapshotClose takes the snapshot's number.
	CallSnapshotClose = Method[uint64, None]{Name: "snapshot-close", Request: (*Coder).U64}
)

// Snapshot is one that was begun.
type Snapshot struct{ Number, Keys uint64 }

// SnapshotAt is where to read on.
type SnapshotAt struct{ Number, Offset uint64 }

func codeSnapshotOf(c *Coder, realm *sigma.RealmID) {
	there := *realm != ""
	optional(c, &there, func() { c.RealmID(realm) })
}

func codeSnapshot(c *Coder, s *Snapshot) {
	c.U64(&s.Number)
	c.U64(&s.Keys)
}

func codeSnapshotAt(c *Coder, s *SnapshotAt) {
	c.U64(&s.Number)
	c.U64(&s.Offset)
}

// NamesMember is one member of the store of names.
type NamesMember struct {
	Machine sigma.MachineID
	Learner bool // it does not count for the majority yet
	Started bool // it was there once
	Leads   bool // its named is the one that answers
}

// NamesMembers codes a list of members, its length first.
func (c *Coder) NamesMembers(ms *[]NamesMember) {
	List(c, ms, 5, func(m *NamesMember) {
		c.MachineID(&m.Machine)
		c.Bool(&m.Learner)
		c.Bool(&m.Started)
		c.Bool(&m.Leads)
	})
}

// MachineID is a string.
func (c *Coder) MachineID(id *sigma.MachineID) { c.Str((*string)(id)) }
