package sigmap

import "sigmaos.dev/sigma"

// FileNames is /sys/names, for the provider and machined: calls that go to the root of the leading
// named, which answers them to System principals who attach without a name.
//
//	members         - -> []NamesMember
//	member-add      machine -> text      the text is an argument of the joining named: named --initial TEXT; asked again, the same. Returns while the new member is a learner;
//	                                     the leader promotes it when it has caught up
//	member-remove   machine -> -         its named ends; also one that is dead. The last one cannot be removed
//	expel           machine -> -         ends its sessions and leases, and refuses it until admit, also under a later leader
//	admit           machine -> -
//	snapshot-open   - -> number (u64), keys (u64)
//	snapshot-read   number (u64), offset (u64) -> data; empty at the end. Only the last piece can be read again
//	snapshot-close  number (u64) -> -
const FileNames = "names"

// Methods of FileNames.
const (
	CallMembers       = "members"
	CallMemberAdd     = "member-add"
	CallMemberRemove  = "member-remove"
	CallExpel         = "expel"
	CallAdmit         = "admit"
	CallSnapshotOpen  = "snapshot-open"
	CallSnapshotRead  = "snapshot-read"
	CallSnapshotClose = "snapshot-close"
)

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
