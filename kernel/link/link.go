// Package link connects the machines of a system: sigmad to sigmad, TCP with TLS 1.3, both sides
// certified (package identity), one TCP port per machine. After the handshake the machine that
// dials says whom it wants to reach and on whose behalf; if the other side agrees, the rest of the
// connection is a session or bytes for that target.
//
// It promises that whatever is handed to Config.Serve comes from a member that is admitted now,
// speaking for itself or a proc that it runs and for no other machine's; that a connection ends as
// soon as the roster no longer holds its peer; that strangers cost a bounded number of sockets for
// a bounded time, however they behave, and cannot take a place that a member of another address
// needs (handshakes); and that a machine that does not answer is not dialled without end. A refusal
// travels in words.
//
// Besides, it makes direct connections (direct.go): TCP sockets of their own for what two machines'
// programs say to each other, in the clear, with the same promises about who has one at the time it
// is made.
//
// It assumes that a member's sigmad tells the truth about which of its procs asks: it runs them.
// What else a member may do is for Config.Serve to judge. Users: kernel, machined, sigma join.
//
// Locks: Node.mu; nothing is called under it. handshakes.mu; the roster is asked under it.
package link

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// Limits.
const (
	// from the first byte to the end of the hello: some round trips across the world and a busy
	// processor
	handshakeMax = 5 * time.Second
	connectMax   = 2 * time.Second // for TCP's part of dialling, two retransmissions of a SYN among it
	// that a handshake waits until this machine has heard of a peer that was certified a moment ago
	hearMax        = time.Second
	enrolMax       = 30 * time.Second // an enrolment is decided by another machine, and committed
	handshakesMax  = 256              // of strangers that are under way at once; each costs a socket and about 50 KiB
	handshakesFrom = 32               // from one address; more by what members are there (handshakes)
	enrolmentsMax  = 16               // that are under way at once
	// to one machine, that are under way at once: more than handshakesFrom would be turned away
	// there
	dialsMost = handshakesFrom / 2
	// with one peer, so that one machine's mistake does not use up another's file descriptors
	linksMax     = 4096
	backoffLeast = 50 * time.Millisecond
	// so that a machine that is back is found within the time its absence took to be noticed
	backoffMost = 2 * time.Second
)

// keepAlive ends connections whose peer vanished without a word; loss of a machine is noticed
// earlier, by heartbeats.
const (
	keepIdle     = 5 * time.Second
	keepInterval = 2 * time.Second
	keepCount    = 3
	unackedMax   = 10 * time.Second // TCP_USER_TIMEOUT (RFC 5482)
)

// Enroller decides about machines that want to be registered. Safe for concurrent use.
type Enroller interface {
	// Challenge makes a number that the request must answer.
	Challenge(ctx context.Context) (identity.Challenge, error)
	// Enrol decides. It checks all proofs; nothing in e was verified.
	Enrol(ctx context.Context, e *identity.Enrolment) (*identity.Grant, error)
}

// Config says what a Node is made of.
type Config struct {
	Identity *identity.Identity
	// Serve gets each link that another machine made, and owns it. It says no by closing; Authorise
	// can say why.
	Serve func(ctx context.Context, l *Link)
	// Authorise says whether a link may be made; nil = yes. Its error's kind, message and hint are
	// told to the peer. It must not block for long. What it opens for the link it puts in
	// Link.Held.
	Authorise func(l *Link) error
	// Reserve says whether a direct connection may be made, and holds a place for it; nil = this
	// machine makes none, and its own links carry what is said. Its error is told to the peer, as
	// Authorise's. It must not block for long.
	Reserve func(d Direct) (Place, error)
	Enrol   Enroller // nil = this machine takes none in
	// Batch takes the connections of a batch, the hello's first, which stay the caller's; nil =
	// this machine takes none. Its error is told to the peer. It must not block for long.
	Batch func(d Direct, b Batch, conns []*net.TCPConn) error
	// Connect makes the TCP connection; nil = a net.Dialer's. For tests.
	Connect func(ctx context.Context, address string) (net.Conn, error)
	// ConnectAll makes several at once, BatchMost at most, as files that do not block; nil =
	// Connect makes one after another.
	ConnectAll func(ctx context.Context, address string, n int) ([]*os.File, error)
	Events     Events
	Log        *slog.Logger
}

// Events are called, where set, as things happen; none may block.
type Events struct {
	Refused func(remote net.Addr, err error) // a connection was not accepted
	Closed  func(l *Link, why error)         // a link was closed because its peer is no longer admitted
}

// Link is one connection with another machine, after both sides agreed. As a net.Conn it carries
// bytes.
type Link struct {
	net.Conn
	Peer    identity.Subject
	From    sigma.Principal // who dialled; Machine is the peer's or, if this machine dialled, its own
	Target  Target
	Version uint16
	// Held is what Authorise opened, so that what cannot be opened is refused in words. It is
	// Serve's; a link that does not come about after all has it closed.
	Held io.Closer

	node *Node
	once sync.Once
	key  *directKey // of target ToDirect that the peer dialled
}

// Session carries sigmaP over the link. No file descriptors travel.
func (l *Link) Session() session.Conn { return session.NewStreamConn(l) }

// Close ends the connection.
func (l *Link) Close() error {
	err := l.Conn.Close()
	l.once.Do(func() { l.node.forget(l) })
	return err
}

// CloseWrite says that nothing more will be sent.
func (l *Link) CloseWrite() error { return l.Conn.(*tls.Conn).CloseWrite() }

// Node is this machine's end of all its links. Safe for concurrent use.
type Node struct {
	cfg        Config
	handshakes *handshakes
	enrolments chan struct{}

	mu      sync.Mutex
	links   map[sigma.MachineID]map[*Link]bool // mu
	dials   map[sigma.MachineID]*dialling      // mu; machines that did not answer last time
	turns   map[sigma.MachineID]chan struct{}  // mu; dialsMost places for each machine that was dialled
	keys    map[[keyName]byte]*directKey       // mu; of machines that may make direct connections here
	warm    map[sigma.MachineID]*warmth        // mu; machines that direct connections are made to
	batches map[sigma.MachineID]bool           // mu; machines that a batch is being made for
	life    context.Context                    // mu; while Watch runs
	tasks   sync.WaitGroup                     // Watch waits for them; begun under mu while life lasts
}

// New checks the configuration. Nothing runs yet.
func New(cfg Config) (*Node, error) {
	if cfg.Identity == nil {
		return nil, sigma.Errorf("link.New", sigma.KindInvalid, "the configuration lacks an identity")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Connect == nil {
		cfg.Connect = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: connectMax}).DialContext(ctx, "tcp", address)
		}
	}
	n := &Node{cfg: cfg, handshakes: newHandshakes(cfg.Identity.Roster()), enrolments: make(chan struct{},
		enrolmentsMax), links: map[sigma.MachineID]map[*Link]bool{}, dials: map[sigma.MachineID]*dialling{},
		turns: map[sigma.MachineID]chan struct{}{}, keys: map[[keyName]byte]*directKey{},
		warm: map[sigma.MachineID]*warmth{}, batches: map[sigma.MachineID]bool{}}
	if cfg.ConnectAll == nil {
		n.cfg.ConnectAll = n.connectAll
	}
	return n, nil
}

// Watch closes the links of peers as soon as the roster no longer holds them, until ctx ends. It
// must run as long as the Node is used.
func (n *Node) Watch(ctx context.Context) {
	roster := n.cfg.Identity.Roster()
	defer n.tasks.Wait()
	n.mu.Lock()
	n.life = ctx
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.life = nil
		n.mu.Unlock()
	}()
	for {
		changed := roster.Changed()
		for _, l := range n.all() {
			if err := n.standing(l.Peer, l.Target); err != nil && sigma.KindOf(err) != sigma.KindUnavailable {
				n.drop(l, err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Drop closes all links with a machine, so that whoever waits for an answer of it has one
// (KindLost).
func (n *Node) Drop(m sigma.MachineID) {
	for _, l := range n.all() {
		if l.Peer.Machine == m {
			n.drop(l, nil)
		}
	}
}

func (n *Node) drop(l *Link, why error) {
	abort(l.Conn)
	l.Close()
	if why != nil && n.cfg.Events.Closed != nil {
		n.cfg.Events.Closed(l, why)
	}
}

// Count is how many links there are with each machine, for the gauge sigma_link_open.
func (n *Node) Count() map[sigma.MachineID]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[sigma.MachineID]int, len(n.links))
	for m, ls := range n.links {
		out[m] = len(ls)
	}
	return out
}

func (n *Node) all() (out []*Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ls := range n.links {
		for l := range ls {
			out = append(out, l)
		}
	}
	return out
}

// enter counts a link that has been agreed upon, and looks at the roster once more: a change that
// Watch saw before the link was counted must not be missed.
func (n *Node) enter(l *Link) error {
	n.mu.Lock()
	ls := n.links[l.Peer.Machine]
	if ls == nil {
		ls = map[*Link]bool{}
		n.links[l.Peer.Machine] = ls
	}
	full := len(ls) >= linksMax
	if !full {
		ls[l] = true
	}
	n.mu.Unlock()
	if full {
		return sigma.Errorf("link.Node", sigma.KindBusy, "there are %d links with machine %s", linksMax, l.Peer.Machine)
	}
	if err := n.standing(l.Peer, l.Target); err != nil {
		n.forget(l)
		return err
	}
	n.handshakes.prove(l.Peer.Machine, l.Conn)
	return nil
}

// admit says who is at the other end of a connection and whether it is a member
// (identity.Identity.Admit). A peer whose certificate is younger than what this machine has heard
// of members is one that was certified a moment ago: it need not be turned away, only waited for,
// hearMax at most.
func (n *Node) admit(ctx context.Context, conn *tls.Conn) (identity.Subject, error) {
	ctx, cancel := context.WithTimeout(ctx, hearMax)
	defer cancel()
	for {
		changed := n.cfg.Identity.Roster().Changed() // before the look, so that none is missed
		peer, err := n.cfg.Identity.Admit(conn.ConnectionState())
		if err == nil || sigma.KindOf(err) != sigma.KindUnavailable {
			return peer, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return peer, err
		}
	}
}

// standing says whether a peer may have a link to such a target by the roster.
func (n *Node) standing(peer identity.Subject, to Target) error {
	if to.Kind == ToStream {
		return n.cfg.Identity.Roster().CheckControl(peer)
	}
	return n.cfg.Identity.Roster().Check(peer)
}

func (n *Node) forget(l *Link) {
	n.mu.Lock()
	ls := n.links[l.Peer.Machine]
	delete(ls, l)
	if len(ls) == 0 {
		delete(n.links, l.Peer.Machine)
	}
	n.mu.Unlock()
	if l.key != nil {
		n.forgetKey(l.key)
	}
}
