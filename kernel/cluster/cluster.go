// Package cluster is a machine's place among the machines of its system: how it becomes a member,
// its lives, whom it knows of the others, and how it is stopped. It owns the machine's identity and
// its end of links; what goes over links, and which procs run, is its user's (Config). Users:
// kernel.
//
// Locks: membership.following, under which Config.Changed and Config.Admit are called;
// membership.mu and identityKeeper.mu, which are leaves.
package cluster

import (
	"context"
	"log/slog"
	"net"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// Services of control machines that a member needs.
const (
	Machined = "machined" // decides about membership
	Named    = "named"
)

// reconnectMax is how long a request waits for this machine to be a member.
const reconnectMax = 15 * time.Second

// Join says how a machine becomes a member. It stands in the file named join of the kernel's
// directory (as JSON) until the machine is one.
type Join struct {
	Address string `json:"address"` // IP address and port of a machine of the system
	Token   string `json:"token"`
	Control bool   `json:"control"` // it is to be a control machine
}

// Config is what a Cluster needs of its user.
type Config struct {
	Self     identity.Enrolment // what this machine says of itself; Clock is set by Cluster
	Data     string             // directory of the machine's identity
	Join     *Join              // nil = it is a member already, or founds a system
	Listener net.Listener       // where other machines connect; nil = there are no others
	Links    link.Config        // but for Identity and Enrol
	// External says that the names are kept elsewhere, so that each control machine can decide.
	External bool
	Log      *slog.Logger
	// Waits is told what the boot waits for, in one line for people, when that changes, "" when
	// nothing is known any more, and whether it is that too few control machines answer; nil =
	// nobody asks.
	Waits func(what string, missing bool)
	Procs *procs.Table
	Go    func(func()) // begins what is waited for before the program ends
	// Runs says whether this machine runs a service.
	Runs func(service string) bool
	// Dial opens a session to the machined of a machine, and Reach for use to one after another.
	Dial  func(ctx context.Context, m sigma.MachineID) (*session.Client, error)
	Reach func(ctx context.Context, use func(context.Context, *session.Client) error) (*session.Client, error)
	// Enrolled is called when this machine has an identity and an end of links.
	Enrolled func()
	// Changed is called with each change of the roster.
	Changed func(before, after []identity.Member)
	// Admit says whether new procs may not come here, and Vacant waits a while until none can;
	// false if one still can.
	Admit  func(closed bool)
	Vacant func(ctx context.Context) bool
	// Owes says whether somebody here is still to hear of the end of a proc.
	Owes func() bool
	// TellLeave tells another machine that this one is going to be stopped.
	TellLeave func(ctx context.Context, m sigma.MachineID) error
}

// Cluster is this machine among others. Safe for concurrent use.
type Cluster struct {
	cfg Config
	own *membership
	ctx context.Context // set by Begin

	enrolled chan struct{}      // closed when id and node are set, for good
	id       *identity.Identity // see enrolled
	node     *link.Node         // see enrolled
}

// New makes a machine that is no member yet. Nothing is read.
func New(cfg Config) *Cluster {
	return &Cluster{cfg: cfg, own: newMembership(cfg.Data), enrolled: make(chan struct{})}
}

// AwaitVacant changes Config.Vacant. It is called before Begin.
func (x *Cluster) AwaitVacant(f func(ctx context.Context) bool) { x.cfg.Vacant = f }

// Begin sets the context of all that is done for the machine itself. It is called before the rest.
func (x *Cluster) Begin(ctx context.Context) { x.ctx = ctx }

// Enrolled is closed when this machine has an identity. Only whoever has seen that, or Registered,
// may use Identity and Node.
func (x *Cluster) Enrolled() <-chan struct{} { return x.enrolled }

// Identity is this machine's.
func (x *Cluster) Identity() *identity.Identity { return x.id }

// Node is this machine's end of links.
func (x *Cluster) Node() *link.Node { return x.node }

// Enrol gives the machine an identity and an end of links that somebody else has made.
func (x *Cluster) Enrol(id *identity.Identity, node *link.Node) {
	x.id, x.node = id, node
	close(x.enrolled)
}

// Kept is what the machine has written down of itself, and Keep changes it.
func (x *Cluster) Kept() Kept { return x.own.keeper.get() }

// Keep changes what the machine has written down of itself.
func (x *Cluster) Keep(f func(*Kept)) error { return x.own.keeper.change(f) }

// Between says whether a life is over and the next has not begun.
func (x *Cluster) Between() bool { return x.own.between.Load() }

// Starts says whether this machine's part of the control plane is being started, or runs.
func (x *Cluster) Starts(on bool) { x.own.started.Store(on) }

// SetBetween begins or ends the time between two lives.
func (x *Cluster) SetBetween(on bool) { x.own.setBetween(on) }

// Enroller takes other machines in for the machined that decides.
func (x *Cluster) Enroller() link.Enroller { return enroller{x} }

// Hasten has the machine's end not wait for its procs.
func (x *Cluster) Hasten() { x.own.now.Store(true) }

// LivesEnded counts the lives that have ended.
func (x *Cluster) LivesEnded() uint64 { return x.own.lives.Load() }

// Leaves says whether this machine is going to be stopped.
func (x *Cluster) Leaves() bool { return x.own.leaves() }

// LostOrLeft names the event that the life of a member is over.
func (x *Cluster) LostOrLeft(m identity.Member) string { return x.own.lostOrLeft(m) }

// Moved says that the roster changed: maybe this machine is in another life.
func (x *Cluster) Moved() { x.own.move() }

// Moves is closed at the next Moved.
func (x *Cluster) Moves() <-chan struct{} { return x.own.moves() }
