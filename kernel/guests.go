package kernel

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/viewfs"

	"golang.org/x/sys/unix"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
)

// Guests are programs outside that have a credential of a realm. They come by a socket that every
// user of the host may connect to, say what they have (sigmap.Greeting), and then have a session
// that is bound to the realm and to their role. A guest has a ProcID that no proc has, so that it
// counts as one of the realm wherever procs are counted or asked who they are.

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
	// guestRequests are in flight in one session of a guest's: all guests of a realm have half of
	// what the realm may, so that they do not keep its procs out.
	guestRequests = 128
	// wrong credentials of one user within guessesTime; then all of that user's are refused until
	// it is over
	guessesMax  = 10
	guessesTime = 10 * time.Second
	guessersMax = 1024 // users that are counted at a time
)

// granted is what a guest's session was begun with.
type granted struct {
	role      sigma.Role
	presented sigmap.Presented
	ctx       context.Context    // of the session
	end       context.CancelFunc // ends it
}

// guests are those of this machine.
type guests struct {
	poke    chan struct{} // something was revoked
	revoked atomic.Uint64 // how often; counted before poke
	stale   time.Duration // verdictStale

	mu        sync.Mutex
	sessions  map[*tree]bool           // mu
	of        map[sigma.RealmID]int    // mu; sessions
	short     map[sigma.RealmID]int    // mu; sessions, but owners'
	ofOne     map[sigmap.Presented]int // mu; sessions
	greeting  map[uint32]int           // mu; greetings under way of each user
	greetings []*greeting              // mu; all of them, the oldest first
	refusing  map[uint32]int           // mu; programs of each user that are being told why they are not heard
	refusals  int                      // mu; all of them
	guesses   guesses                  // mu
}

func newGuests() *guests {
	return &guests{poke: make(chan struct{}, 1), stale: verdictStale, refusing: map[uint32]int{},
		sessions: map[*tree]bool{}, of: map[sigma.RealmID]int{}, short: map[sigma.RealmID]int{},
		ofOne: map[sigmap.Presented]int{}, greeting: map[uint32]int{}, guesses: guesses{}}
}

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
func (g *guests) greet(uid uint32, now time.Time, cut func()) (*greeting, error) {
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
func (g *guests) hear(x *greeting) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	x.heard = true
	return slices.Contains(g.greetings, x)
}

// bye ends a greeting; again it does nothing.
func (g *guests) bye(x *greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.greetings, x); i >= 0 {
		g.dropLocked(i)
	}
}

func (g *guests) dropLocked(i int) {
	drop(g.greeting, g.greetings[i].uid)
	g.greetings = slices.Delete(g.greetings, i, i+1)
}

// refuse answers a program that is not heard. Its greeting is taken before the socket is closed,
// since the kernel would drop the answer otherwise.
func (g *guests) refuse(k *Kernel, c *net.UnixConn, uid uint32, err error) {
	if !g.beginRefusal(uid) {
		c.Close()
		return
	}
	k.sessions.Go(func() {
		defer g.endRefusal(uid)
		defer c.Close()
		c.SetDeadline(time.Now().Add(refusalTime))
		if _, rerr := c.Read(make([]byte, sigmap.GreetingMax)); rerr == nil {
			c.Write(sigmap.Welcome(err))
		}
	})
}

// beginRefusal says whether one more program of a user may be told why. endRefusal follows if so.
func (g *guests) beginRefusal(uid uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.refusals >= refusalsMax || g.refusing[uid] >= refusalsOf {
		return false
	}
	g.refusals++
	g.refusing[uid]++
	return true
}

func (g *guests) endRefusal(uid uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusals--
	drop(g.refusing, uid)
}

// enter counts a session, until leave is called for it.
func (g *guests) enter(t *tree) error {
	const op = "kernel.guests"
	g.mu.Lock()
	defer g.mu.Unlock()
	realm, one, owner := t.principal.Realm, t.granted.presented, t.granted.role >= sigma.RoleOwner
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
	g.sessions[t] = true
	g.of[realm]++
	g.ofOne[one]++
	if !owner {
		g.short[realm]++
	}
	return nil
}

func (g *guests) leave(t *tree) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, t)
	drop(g.of, t.principal.Realm)
	drop(g.ofOne, t.granted.presented)
	if t.granted.role < sigma.RoleOwner {
		drop(g.short, t.principal.Realm)
	}
}

// drop counts one less.
func drop[K comparable](n map[K]int, k K) {
	if n[k]--; n[k] == 0 {
		delete(n, k)
	}
}

// tell has credentials looked at that hold sessions, and those that are being judged again: one was
// revoked.
func (g *guests) tell() {
	g.revoked.Add(1)
	select {
	case g.poke <- struct{}{}:
	default: // they are looked at soon anyway
	}
}

// list gives the sessions that can be ended.
func (g *guests) list() (all []*tree) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.sessions {
		all = append(all, t)
	}
	return all
}

// acceptGuests serves the realm socket until ctx ends.
func (k *Kernel) acceptGuests(ctx context.Context, l *net.UnixListener) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			k.cfg.Log.Error("realm socket failed", "err", err)
			select {
			case <-time.After(acceptAgain):
			case <-ctx.Done():
			}
			continue
		}
		uid, err := peerUID(c)
		if err != nil {
			c.Close()
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		x, err := k.guests.greet(uid, time.Now(), cancel)
		if err != nil {
			cancel()
			k.guests.refuse(k, c, uid, err)
			continue
		}
		k.sessions.Go(func() {
			defer cancel()
			k.receive(ctx, c, x)
		})
	}
}

// receive hears a guest's greeting, and serves it if the credential is good. ctx ends when it is
// cut off, too.
func (k *Kernel) receive(ctx context.Context, c *net.UnixConn, x *greeting) {
	defer k.guests.bye(x)
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
		k.sendAway(ctx, c)
		return
	}
	buf := make([]byte, sigmap.GreetingMax+1)
	n, err := c.Read(buf)
	if err != nil || !k.guests.hear(x) {
		c.Close()
		return
	}
	judging, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	text, err := sigmap.ParseGreeting(buf[:n])
	var g *granted
	revoked := k.guests.revoked.Load()
	if err == nil {
		g, err = k.admit(judging, text)
	}
	if kind := sigma.KindOf(err); err != nil && (kind == sigma.KindPermission || kind == sigma.KindInvalid) {
		k.guests.mu.Lock()
		k.guests.guesses.count(time.Now(), uid)
		k.guests.mu.Unlock()
	}
	var t *tree
	if err == nil {
		g.ctx, g.end = context.WithCancel(ctx)
		defer g.end()
		t, err = k.guestTree(g)
	}
	if err == nil && k.guests.revoked.Load() != revoked { // it may have been this one, after named had judged it
		if _, err = k.admit(judging, text); err != nil {
			k.guests.leave(t)
		}
	}
	cancel()
	if err != nil {
		if k.mayLog() {
			k.cfg.Log.Warn("a credential was refused", "uid", uid, "err", err)
		}
		c.Write(sigmap.Welcome(err))
		c.Close()
		return
	}
	defer k.guests.leave(t)
	if _, err := c.Write(sigmap.Welcome(nil)); err != nil {
		c.Close()
		return
	}
	k.guests.bye(x)
	if !stop() {
		c.Close()
		return
	}
	c.SetDeadline(time.Time{})
	k.cfg.Log.Debug("a session begins with a credential", "uid", uid, "realm", g.presented.Realm, "name",
		g.presented.Name, "role", g.role.String())
	k.serveAs(g.ctx, session.NewPacketConn(c, false), t, false)
	k.traffic.End(time.Now(), t.principal.Proc)
}

// guestTree makes what a guest's session serves, and counts it.
func (k *Kernel) guestTree(g *granted) (*tree, error) {
	table, err := roles.View(g.role)
	if err != nil {
		return nil, err
	}
	t := &tree{k: k, granted: g, principal: sigma.Principal{Realm: g.presented.Realm, Proc: sigma.NewProcID(),
		Machine: k.cfg.Machine}}
	t.view = t.viewer(viewfs.Config{Table: table, Role: g.role.String()})
	if err := k.guests.enter(t); err != nil {
		return nil, err
	}
	return t, nil
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
func (k *Kernel) sendAway(ctx context.Context, c *net.UnixConn) {
	ctx, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	c.SetDeadline(time.Now().Add(greetingTime))
	treekit.Serve(ctx, session.NewPacketConn(c, false), treekit.Config{Tree: noTree{}})
}
