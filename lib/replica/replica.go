package replica

import (
	"context"
	"io"
	"log/slog"
	"time"
)

// Machine is the state that a group keeps. A replica calls its methods one at a time, under the
// replica's lock: they must not call the replica, nor wait for anything.
type Machine interface {
	// Apply changes the state by a command. It must be deterministic: the result and the new state
	// depend on the old state, index and command only. command is the machine's own to keep; nobody
	// changes it. The result must not change afterwards. index grows with each call, by one or more.
	Apply(index uint64, command []byte) (result []byte)
	// Snapshot gives a function that writes the state as it is now. The function is called once or
	// never, on another goroutine, while commands are applied.
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
// 64 MiB of results, that were used last.
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
	// Dir holds log and snapshots, and belongs to this member alone; it is made. "" = in memory only.
	Dir string
	// Peers are the members of a group that begins: the same at all of them, this one included. nil
	// = go on from Dir or, if that is empty, wait to be added by another member's Change. A Dir that
	// has a log wins over Peers.
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
	// Lease answers reads without a round to the other members, for three fourths of the time of
	// an election since the last round. It needs clocks whose rates differ by less than a fourth.
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

// Status is what a member knows of its group.
type Status struct {
	ID         uint64            `json:"id"`
	Leads      bool              `json:"leads"`
	Leader     uint64            `json:"leader"` // 0 = none is known
	LeaderName string            `json:"leader_name"`
	Term       uint64            `json:"term"`
	Committed  uint64            `json:"committed"`
	Applied    uint64            `json:"applied"`
	Members    map[uint64]string `json:"members"`            // that vote
	Learners   map[uint64]string `json:"learners,omitempty"` // that are catching up before they vote
	LogBytes   int64             `json:"log_bytes"`          // in memory
	Sessions   int               `json:"sessions"`
	// Acknowledged is, at the leader, up to which index each other member has the log.
	Acknowledged map[uint64]uint64 `json:"acknowledged,omitempty"`
}

// Replica is a member of a group. Its methods are safe for concurrent use.
type Replica struct{}

// Open makes a member and, with Dir, reads its snapshot and log. It starts nothing but the log's
// preparation of files. Call Run, then Close. KindInvalid: the Config makes no sense, or Dir holds
// what no member wrote; KindBusy: another program has Dir open.
func Open(cfg Config) (*Replica, error) { return nil, nil }

// Run works for the group until ctx ends, whose error it gives, or the log cannot be written. What
// waits then fails with KindLost. A group of one in memory takes commands without it.
func (r *Replica) Run(ctx context.Context) error { return nil }

// Close ends the member: Run returns, and files are closed.
func (r *Replica) Close() error { return nil }

// Propose has a command applied, and gives its result. It keeps command, which must not change
// afterwards. Safe for concurrent use; commands that are proposed concurrently are applied in any
// order.
//
// An error of call.Redirect, whose call.Owner is the leader's name: another member leads, and the
// command was not taken. KindUnavailable: no leader is known; it was not taken. KindBusy: too much
// waits; it was not taken. KindTooBig. KindStale: the session's request was overtaken by a later
// one, or the session was not used for so long that it is forgotten: what became of the request is
// unknown then. KindLost, or the error of ctx: what became of the command is unknown; with a
// Session it can be proposed again.
func (r *Replica) Propose(ctx context.Context, s Session, command []byte) (result []byte, err error) { return nil, nil }

// Read returns when the machine of this member, which leads, has all commands that were
// acknowledged before Read was called. The caller reads the machine then, under the machine's own
// lock. Errors are those of Propose.
func (r *Replica) Read(ctx context.Context) error { return nil }

// Change makes members, their names by ID, those of the group. Only the leader can. New ones are
// added without a vote first, and vote when they have caught up; so they must run, and Change
// waits for them until ctx ends. A Change that failed can be made again, or another one. The
// leader may be left out, and stops leading then. KindBusy: another change is under way. Other
// errors are those of Propose.
func (r *Replica) Change(ctx context.Context, members map[uint64]string) error { return nil }

// Transfer makes another member the leader, and returns when it leads. Only the leader can. Errors
// are those of Propose; KindTimeout: the other one did not take it within an election's time, and
// this one leads on.
func (r *Replica) Transfer(ctx context.Context, to uint64) error { return nil }

// Step takes a message of Transport.Send from another member. The caller has checked that it comes
// from a member's proc. It keeps message. KindInvalid: it is no message for this member.
func (r *Replica) Step(ctx context.Context, message []byte) error { return nil }

// StepSnapshot takes what Transport.SendSnapshot sent: the message, and what was written after it.
// KindBusy: another snapshot is coming in.
func (r *Replica) StepSnapshot(ctx context.Context, message []byte, state io.Reader) error { return nil }

// Leads tells whether this member leads, as far as it knows. It costs next to nothing.
func (r *Replica) Leads() bool { return false }

// Status tells what this member knows of its group.
func (r *Replica) Status() Status { return Status{} }
