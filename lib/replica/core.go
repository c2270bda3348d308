package replica

import (
	"maps"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"
)

// core is the replicated state: the machine and what belongs to it. What it becomes depends only on
// the entries of the log.
type core struct {
	machine  Machine
	sessions *sessions
	commands uint64 // that the machine has applied
	index    uint64 // of the last entry that was applied
	term     uint64 // that entry's
	conf     *pb.ConfState
	names    map[uint64]string // of all members, those that leave or learn included
}

// apply applies a command. All members get the same error.
func (c *core) apply(s Session, command []byte) ([]byte, error) {
	result, done, err := c.sessions.find(s)
	if done || err != nil {
		return result, err
	}
	c.commands++
	result = c.machine.Apply(c.commands, command)
	if s == (Session{}) {
		return result, nil
	}
	k := newKept(s, result)
	c.sessions.add(k)
	return k.answer()
}

// reconfigure takes a new configuration. names, unless nil, are those of its members.
func (c *core) reconfigure(conf *pb.ConfState, names map[uint64]string) {
	c.conf = conf
	if names == nil {
		names = c.names
	}
	c.names = make(map[uint64]string)
	for _, ids := range [][]uint64{conf.Voters, conf.VotersOutgoing, conf.Learners, conf.LearnersNext} {
		for _, id := range ids {
			c.names[id] = names[id]
		}
	}
}

// named gives names of ids.
func (c *core) named(ids []uint64) map[uint64]string {
	m := make(map[uint64]string, len(ids))
	for _, id := range ids {
		m[id] = c.names[id]
	}
	return m
}

// voters are the ids of the members that vote. In a joint configuration a majority of the old
// voters and one of the new is needed, so both count.
func (c *core) voters() []uint64 {
	all := slices.Concat(c.conf.Voters, c.conf.VotersOutgoing)
	slices.Sort(all)
	return slices.Compact(all)
}

// alone tells whether id is the only member, and no change of members is under way.
func (c *core) alone(id uint64) bool {
	return len(c.names) == 1 && slices.Equal(c.conf.Voters, []uint64{id})
}

// snapshot gives a function that writes the state as it is now.
func (c *core) snapshot() (*image, error) {
	write, err := c.machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return &image{Meta: c.meta(), commands: c.commands, names: maps.Clone(c.names), sessions: c.sessions.all(),
		write: write}, nil
}

// meta tells which state this is.
func (c *core) meta() *pb.SnapshotMetadata {
	return &pb.SnapshotMetadata{Index: new(c.index), Term: new(c.term), ConfState: c.conf}
}
