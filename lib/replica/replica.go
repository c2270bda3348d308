package replica

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"time"

	"sigmaos.dev/sigma"
)

// Machine is the state that a group keeps. A replica calls its methods one at a time, under the
// replica's lock: they must not call the replica, nor wait for anything.
type Machine interface {
	// Apply changes the state by a command. It must be deterministic: the result and the new state
	// depend on the old state, index and command only. command is the machine's own to keep; nobody
	// changes it. The result must not change afterwards. index is the command's number among those
	// that were ever applied: 1 for the first, and one more with each call.
	Apply(index uint64, command []byte) (result []byte)
	// Snapshot gives a function that writes the state as it is now. The function is called any
	// number of times, on other goroutines, also at the same time, while commands are applied.
	Snapshot() (write func(io.Writer) error, err error)
	// Restore takes the place of all state by what a function of Snapshot wrote. After an error the
	// replica ends.
	Restore(r io.Reader) error
}

// Session makes a command one that is applied at most once. The zero Session is none: such a
// command is applied as often as it is proposed.
//
// A client makes one request at a time. A program that makes several at a time is several clients.
// The table of sessions is part of the replicated state. It keeps the 100,000 clients, and at most
// 64 MiB of results, that were used last. A first request, of Seq 1, that is repeated after its
// client was forgotten is applied again; a later one is KindStale. Results have at most 16 MiB.
type Session struct {
	Client uint64 // a random number that the client chose
	Seq    uint64 // of the request: 1, 2, 3 and so on; the same when a request is made again
}

// Peer is a member as the others know it.
type Peer struct {
	ID   uint64
	Name string // by which clients and members find it; 1 to 255 bytes
}

// Transport carries messages to other members. Its methods may be called concurrently.
type Transport interface {
	// Send sends a message if it can: it never blocks, and may drop, delay, repeat and reorder
	// messages. The receiver calls Replica.Step. The message is the transport's own to keep.
	Send(to Peer, message []byte)
	// SendSnapshot sends a message and what write writes after it, and returns when the receiver's
	// Replica.StepSnapshot has returned, with its error. It may take long.
	SendSnapshot(ctx context.Context, to Peer, message []byte, write func(io.Writer) error) error
}

// Config describes a member. Fields with a default may be left at 0. All but ID and Dir should be
// the same at all members.
type Config struct {
	// ID is this member's, not 0, and never used twice in a group.
	ID uint64
	// Dir holds log and snapshots; it is made. It is a path below /ux, where files are as durable
	// as the machine's disk, and belongs to this member alone: the caller makes sure that nobody
	// else has the directory open. "" = in memory.
	Dir string
	// Files is where Dir is: an sdk.Client. nil in memory.
	Files sigma.Namespace
	// Peers are the members of a group that begins: the same at all of them, this one included.
	// nil = go on from Dir or, if that is empty, wait to be added by another member's Change. A Dir
	// that has a log wins over Peers.
	Peers map[uint64]string
	// Machine is the state, empty when the group begins.
	Machine Machine
	// Transport may be nil for a group of one.
	Transport Transport
	// Tick is the unit of time of the group. 0 = 50 ms
	Tick time.Duration
	// ElectionTicks is how many ticks a member waits for its leader before it stands for election;
	// up to twice as many by chance. Fewer mean fewer seconds without a leader and more elections
	// on a busy machine. 0 = 10
	ElectionTicks int
	// Lease answers reads without a round to the other members, for three fourths of
	// ElectionTicks - 2 ticks since the last round: a member waits for its leader longer than these
	// ticks, the first and last of which may be short. It needs clocks whose rates differ by less
	// than a fourth.
	Lease bool
	// SnapshotEvery is how many bytes of log a durable member writes between two snapshots, or as
	// many as the last snapshot had. 0 = 64 MiB
	SnapshotEvery int64
	// LogKeep is how many bytes of applied commands are kept in memory for members that are behind;
	// those that are further behind get a snapshot. 0 = 8 MiB
	LogKeep int64
	// CommandMax bounds a command in bytes. 0 = 1 MiB; at most 8 MiB
	CommandMax int
	// PendingMax bounds the bytes of commands that wait, with 100 for each; Propose is KindBusy
	// beyond. 0 = 64 MiB
	PendingMax int64
	// SnapshotMax bounds the snapshots that this member takes from others, in bytes. 0 = 16 GiB;
	// without Dir a snapshot is in memory until the machine has read it.
	SnapshotMax int64
	// Changed, unless nil, is called by Run after the leader, the term or the members have changed.
	// Calls do not overlap; the group waits meanwhile.
	Changed func(Status)
	Logger  *slog.Logger // nil = none
}

// commandMax bounds Config.CommandMax: a message has to take a command and what goes with it.
const commandMax = 8 << 20

// fill puts defaults in and refuses what makes no sense.
func (c *Config) fill() error {
	const op = "replica.Open"
	c.Tick, c.ElectionTicks = cmp.Or(c.Tick, 50*time.Millisecond), cmp.Or(c.ElectionTicks, 10)
	c.SnapshotEvery, c.LogKeep = cmp.Or(c.SnapshotEvery, 64<<20), cmp.Or(c.LogKeep, 8<<20)
	c.CommandMax, c.PendingMax = cmp.Or(c.CommandMax, 1<<20), cmp.Or(c.PendingMax, 64<<20)
	c.SnapshotMax = cmp.Or(c.SnapshotMax, 16<<30)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.ID == 0 || c.ID >= 1<<63:
		return sigma.Errorf(op, sigma.KindInvalid, "a member's id is %d; ids are 1 to 2^63-1", c.ID)
	case c.Dir != "" && c.Files == nil:
		return sigma.Errorf(op, sigma.KindInvalid, "a member with a directory needs files")
	case c.Machine == nil:
		return sigma.Errorf(op, sigma.KindInvalid, "a member needs a machine")
	case c.Tick < time.Millisecond || c.ElectionTicks < 3 || c.ElectionTicks > 1000:
		return sigma.Errorf(op, sigma.KindInvalid, "a tick has 1 ms or more, and an election 3 to 1,000 ticks")
	case c.CommandMax < 1 || c.CommandMax > commandMax:
		return sigma.Errorf(op, sigma.KindInvalid, "commands have at most %d bytes, not %d", commandMax, c.CommandMax)
	case c.SnapshotEvery < 0 || c.LogKeep < 0 || c.PendingMax < 0 || c.SnapshotMax < 0:
		return sigma.Errorf(op, sigma.KindInvalid, "a bound is negative")
	case c.Peers == nil:
		return nil
	case c.Transport == nil && len(c.Peers) > 1:
		return sigma.Errorf(op, sigma.KindInvalid, "a group of %d needs a transport", len(c.Peers))
	case c.Peers[c.ID] == "":
		return sigma.Errorf(op, sigma.KindInvalid, "the member itself, %d, is not among its peers", c.ID)
	}
	return checkMembers(op, c.Peers)
}

// election is how long a member waits for its leader at least.
func (c *Config) election() time.Duration { return time.Duration(c.ElectionTicks) * c.Tick }

// lease is how long reads need no round after one.
func (c *Config) lease() time.Duration { return time.Duration(c.ElectionTicks-2) * c.Tick * 3 / 4 }

// Status is what a member knows of its group.
type Status struct {
	ID         uint64            `json:"id"`
	Leads      bool              `json:"leads"`
	Leader     uint64            `json:"leader"` // 0 = none is known
	LeaderName string            `json:"leader_name"`
	Term       uint64            `json:"term"`
	Committed  uint64            `json:"committed"`
	Applied    uint64            `json:"applied"`
	Members    map[uint64]string `json:"members"`            // that vote, before or after a change
	Learners   map[uint64]string `json:"learners,omitempty"` // that are catching up before they vote
	LogBytes   int64             `json:"log_bytes"`          // in memory
	Sessions   int               `json:"sessions"`
	// Acknowledged is, at the leader, up to which index each other member has the log.
	Acknowledged map[uint64]uint64 `json:"acknowledged,omitempty"`
}
