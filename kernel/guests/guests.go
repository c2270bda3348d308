// Package guests receives programs outside that have a credential of a realm. They come by a socket
// that every user of the host may connect to, say what they have (sigmap.Greeting), and then have a
// session that is bound to the realm and to their role, until the credential is not good any more.
// It also makes and revokes credentials, which are named's to keep and to judge. What a session
// shows is the user's (Config.Serve). Users: kernel.
//
// Locks: Guests.mu, a leaf.
package guests

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// AcceptAgain is the pause after an accept that failed.
const AcceptAgain = 100 * time.Millisecond

const (
	greetingTime = 5 * time.Second // for a greeting to come, and its answer to go
	greetingsMax = 256             // that are under way; then the oldest that has said nothing is cut off
	greetingsOf  = 16              // of one user
	refusalsMax  = 64              // that are told why at a time; others are cut off
	refusalsOf   = 8               // of one user
	refusalTime  = time.Second     // for that
	guestsMax    = 2048            // sessions at this machine
	guestsOf     = 128             // of one realm: other realms' owners are not kept out
	guestsShort  = 96              // of one realm, but its owners': these can come, and revoke
	guestsOfOne  = 16              // of one credential
	// RequestsMax are in flight in one session of a guest's: all guests of a realm have half of
	// what the realm may, so that they do not keep its procs out.
	RequestsMax = 128
	// wrong credentials of one user within guessesTime; then all of that user's are refused until
	// it is over
	guessesMax  = 10
	guessesTime = 10 * time.Second
	guessersMax = 1024 // users that are counted at a time
)

// Granted is what a guest's session was begun with.
type Granted struct {
	Role      sigma.Role
	Presented sigmap.Presented
	View      *view.Table        // what the role shows of the realm
	end       context.CancelFunc // ends the session
}

// Holder says for the log who acts; g may be nil.
func (g *Granted) Holder() string {
	if g == nil {
		return "provider"
	}
	return "credential " + g.Presented.Name
}

// Config is what Guests need of their user.
type Config struct {
	Log     *slog.Logger
	Reach   *reach.Reach
	Cluster *cluster.Cluster
	Go      func(func()) // begins what is waited for before the program ends
	MayLog  func() bool  // says whether one more refusal is logged now
	// Serve answers a guest's session until it ends.
	Serve func(ctx context.Context, conn session.Conn, g *Granted)
}

// Guests are those of this machine. Safe for concurrent use.
type Guests struct {
	cfg     Config
	ctx     context.Context // set by Begin
	poke    chan struct{}   // something was revoked
	revoked atomic.Uint64   // how often; counted before poke
	Stale   time.Duration   // verdictStale; tests do not wait so long

	mu        sync.Mutex
	sessions  map[*Granted]bool        // mu
	of        map[sigma.RealmID]int    // mu; sessions
	short     map[sigma.RealmID]int    // mu; sessions, but owners'
	ofOne     map[sigmap.Presented]int // mu; sessions
	greeting  map[uint32]int           // mu; greetings under way of each user
	greetings []*greeting              // mu; all of them, the oldest first
	refusing  map[uint32]int           // mu; programs of each user that are being told why they are not heard
	refusals  int                      // mu; all of them
	guesses   guesses                  // mu
}

// New makes the guests of a machine that has none, and answers other machines.
func New(cfg Config) *Guests {
	g := newGuests(cfg)
	cfg.Reach.Answer(reach.On(peerCredentials, func(context.Context, sigmap.None) (none sigmap.None, err error) {
		g.Tell()
		return none, nil
	}))
	return g
}

func newGuests(cfg Config) *Guests {
	return &Guests{cfg: cfg, poke: make(chan struct{}, 1), Stale: verdictStale, refusing: map[uint32]int{},
		sessions: map[*Granted]bool{}, of: map[sigma.RealmID]int{}, short: map[sigma.RealmID]int{},
		ofOne: map[sigmap.Presented]int{}, greeting: map[uint32]int{}, guesses: guesses{}}
}

// Begin sets the context of all that is asked. It is called before the rest.
func (g *Guests) Begin(ctx context.Context) { g.ctx = ctx }

// guesses counts wrong credentials of users.
type guesses map[uint32]*guessing

type guessing struct {
	since time.Time
	wrong int
}

// wait is how long a user has to wait before another credential is looked at.
func (g guesses) wait(now time.Time, uid uint32) time.Duration {
	a := g[uid]
	if a == nil || a.wrong < guessesMax {
		return 0
	}
	return max(0, guessesTime-now.Sub(a.since))
}

// count notes a wrong one. Users beyond guessersMax are not counted: a secret of 256 bits needs no
// lock-out, and theirs would be everybody's.
func (g guesses) count(now time.Time, uid uint32) {
	if g[uid] == nil && len(g) >= guessersMax {
		for id, a := range g {
			if now.Sub(a.since) >= guessesTime {
				delete(g, id)
			}
		}
		if len(g) >= guessersMax {
			return
		}
	}
	a := g[uid]
	if a == nil || now.Sub(a.since) >= guessesTime {
		a = &guessing{since: now}
		g[uid] = a
	}
	a.wrong++
}

// greeting is one that is under way.
type greeting struct {
	uid   uint32
	cut   func() // ends it; it must not block
	heard bool   // guests.mu; it has come: it is not cut off
}

// greet makes room for a user's greeting, until bye is called for it, or cut.
func (g *Guests) greet(uid uint32, now time.Time, cut func()) (*greeting, error) {
	const op = "kernel.guests"
	g.mu.Lock()
	defer g.mu.Unlock()
	if wait := g.guesses.wait(now, uid); wait > 0 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindBusy,
			Msg:  "too many credentials that are not good came from user " + strconv.FormatUint(uint64(uid), 10),
			Hint: "wait " + (wait.Truncate(time.Second) + time.Second).String() + ", then try one that is"}
	}
	oldest := -1
	if len(g.greetings) >= greetingsMax {
		oldest = slices.IndexFunc(g.greetings, func(x *greeting) bool { return !x.heard })
	}
	if g.greeting[uid] >= greetingsOf || len(g.greetings) >= greetingsMax && oldest < 0 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindBusy, Msg: "too many programs begin to connect at once",
			Hint: "try again in a moment"}
	}
	if oldest >= 0 {
		x := g.greetings[oldest]
		g.dropLocked(oldest)
		x.cut()
	}
	x := &greeting{uid: uid, cut: cut}
	g.greetings = append(g.greetings, x)
	g.greeting[uid]++
	return x, nil
}

// hear notes that a greeting has come, and says whether it was in time.
func (g *Guests) hear(x *greeting) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.heard = true
	return slices.Contains(g.greetings, x)
}

// bye ends a greeting; again it does nothing.
func (g *Guests) bye(x *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.greetings, x); i >= 0 {
		g.dropLocked(i)
	}
}

func (g *Guests) dropLocked(i int) {
	drop(g.greeting, g.greetings[i].uid)
	g.greetings = slices.Delete(g.greetings, i, i+1)
}

// refuse answers a program that is not heard. Its greeting is taken before the socket is closed,
// since the kernel would drop the answer otherwise.
func (g *Guests) refuse(c *net.UnixConn, uid uint32, err error) {
	if !g.beginRefusal(uid) {
		c.Close()
		return
	}
	g.cfg.Go(func() {
		defer g.endRefusal(uid)
		defer c.Close()
		c.SetDeadline(time.Now().Add(refusalTime))
		if _, rerr := c.Read(make([]byte, sigmap.GreetingMax)); rerr == nil {
			c.Write(sigmap.Welcome(err))
		}
	})
}

// beginRefusal says whether one more program of a user may be told why. endRefusal follows if so.
func (g *Guests) beginRefusal(uid uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refusals >= refusalsMax || g.refusing[uid] >= refusalsOf {
		return false
	}
	g.refusals++
	g.refusing[uid]++
	return true
}

func (g *Guests) endRefusal(uid uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusals--
	drop(g.refusing, uid)
}

// enter counts a session, until leave is called for it.
func (g *Guests) enter(x *Granted) error {
	const op = "kernel.guests"
	g.mu.Lock()
	defer g.mu.Unlock()
	realm, one, owner := x.Presented.Realm, x.Presented, x.Role >= sigma.RoleOwner
	if g.ofOne[one] >= guestsOfOne {
		return &sigma.Error{Op: op, Kind: sigma.KindBusy,
			Msg: "the credential " + one.Name + " holds as many sessions at this machine as one may: " +
				strconv.Itoa(guestsOfOne), Hint: "end some, or have another credential made for some of the programs"}
	}
	if len(g.sessions) >= guestsMax || g.of[realm] >= guestsOf || !owner && g.short[realm] >= guestsShort {
		return &sigma.Error{Op: op, Kind: sigma.KindBusy,
			Msg: "this machine has as many sessions with credentials as it takes: " + strconv.Itoa(guestsOf) +
				" of a realm, " + strconv.Itoa(guestsShort) + " of them not its owners'",
			Hint: "end some, or use another machine"}
	}
	g.sessions[x] = true
	g.of[realm]++
	g.ofOne[one]++
	if !owner {
		g.short[realm]++
	}
	return nil
}

func (g *Guests) leave(x *Granted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, x)
	drop(g.of, x.Presented.Realm)
	drop(g.ofOne, x.Presented)
	if x.Role < sigma.RoleOwner {
		drop(g.short, x.Presented.Realm)
	}
}

// drop counts one less.
func drop[K comparable](n map[K]int, k K) {
	if n[k]--; n[k] == 0 {
		delete(n, k)
	}
}

// Tell has credentials looked at that hold sessions, and those that are being judged again: one was
// revoked.
func (g *Guests) Tell() {
	g.revoked.Add(1)
	select {
	case g.poke <- struct{}{}:
	default: // they are looked at soon anyway
	}
}

// Told says whether sessions are still to be looked at since Tell.
func (g *Guests) Told() bool { return len(g.poke) > 0 }

// list gives the sessions that can be ended.
func (g *Guests) list() (all []*Granted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.sessions {
		all = append(all, t)
	}
	return all
}

// Count counts the sessions that guests have, and the programs that are greeting.
func (g *Guests) Count() (sessions, greeting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(len(g.sessions), len(g.of)), max(len(g.greetings), len(g.greeting))
}

// Accept serves the realm socket until ctx ends.
func (g *Guests) Accept(ctx context.Context, l *net.UnixListener) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			g.cfg.Log.Error("realm socket failed", "err", err)
			retry.Pause(ctx, AcceptAgain)
			continue
		}
		uid, err := PeerUID(c)
		if err != nil {
			c.Close()
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		x, err := g.greet(uid, time.Now(), cancel)
		if err != nil {
			cancel()
			g.refuse(c, uid, err)
			continue
		}
		g.cfg.Go(func() {
			defer cancel()
			g.receive(ctx, c, x)
		})
	}
}

// receive hears a guest's greeting, and serves it if the credential is good. ctx ends when it is
// cut off, too.
func (g *Guests) receive(ctx context.Context, c *net.UnixConn, x *greeting) {
	defer g.bye(x)
	uid := x.uid
	c.SetDeadline(time.Now().Add(greetingTime))
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })
	defer stop()
	first, err := peek(c)
	if err != nil {
		c.Close()
		return
	}
	if !sigmap.IsGreeting(first) {
		sendAway(ctx, c)
		return
	}
	buf := make([]byte, sigmap.GreetingMax+1)
	n, err := c.Read(buf)
	if err != nil || !g.hear(x) {
		c.Close()
		return
	}
	judging, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	text, err := sigmap.ParseGreeting(buf[:n])
	var good *Granted
	revoked := g.revoked.Load()
	if err == nil {
		good, err = g.admit(judging, text)
	}
	if kind := sigma.KindOf(err); err != nil && (kind == sigma.KindPermission || kind == sigma.KindInvalid) {
		g.mu.Lock()
		g.guesses.count(time.Now(), uid)
		g.mu.Unlock()
	}
	serving, end := context.WithCancel(ctx)
	defer end()
	if err == nil {
		good.end = end
		err = g.enter(good)
	}
	if err == nil && g.revoked.Load() != revoked { // it may have been this one, after named had judged it
		if _, err = g.admit(judging, text); err != nil {
			g.leave(good)
		}
	}
	cancel()
	if err != nil {
		if g.cfg.MayLog() {
			g.cfg.Log.Warn("a credential was refused", "uid", uid, "err", err)
		}
		c.Write(sigmap.Welcome(err))
		c.Close()
		return
	}
	defer g.leave(good)
	if _, err := c.Write(sigmap.Welcome(nil)); err != nil {
		c.Close()
		return
	}
	g.bye(x)
	if !stop() {
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	g.cfg.Log.Debug("a session begins with a credential", "uid", uid, "realm", good.Presented.Realm, "name",
		good.Presented.Name, "role", good.Role.String())
	g.cfg.Serve(serving, session.NewPacketConn(c, false), good)
}

// peek waits for the first record and gives the beginning of it; it stays to be read.
func peek(c *net.UnixConn) (b []byte, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	b = make([]byte, 64)
	n := 0
	var rerr error
	err = raw.Read(func(fd uintptr) bool {
		n, _, rerr = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return rerr != unix.EAGAIN && rerr != unix.EINTR
	})
	if err == nil {
		err = rerr
	}
	return b[:max(n, 0)], err
}

// noTree is what a program without a credential sees.
type noTree struct{}

// Attach implements sigma.Tree.
func (noTree) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return nil, &sigma.Error{Op: "kernel.guests", Kind: sigma.KindPermission,
		Msg:  "this socket is for programs that have a credential of a realm",
		Hint: "name it with: sigma --credential FILE; the provider uses the admin socket, as root"}
}

// sendAway tells a program that speaks sigmaP at once, without a credential, what it lacks.
func sendAway(ctx context.Context, c *net.UnixConn) {
	ctx, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	c.SetDeadline(time.Now().Add(greetingTime))
	treeserver.Serve(ctx, session.NewPacketConn(c, false), treeserver.Config{Tree: noTree{}})
}

// PeerUID is the user at the other end of a connection.
func PeerUID(c *net.UnixConn) (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	return cred.Uid, nil
}
