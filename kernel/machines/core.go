// Package machines decides who is a machine of the system and which machines are alive: tokens,
// joins, lives (incarnations), heartbeats, suspicion, loss, return, cordon, drain, labels, removal.
// Core is the pure state machine; machined carries out its effects.
//
// It promises that a token is used at most as often as it was made for; that a name and a key
// belong to one machine; that incarnations and fence epochs, drawn from one counter, only grow;
// that a life that was ended never counts again; that a machine whose beats arrive with less than
// Timing.Slack of delay is never declared lost; and that one that stays silent is, within
// Timing.Detect, as long as the judge has a majority of observers.
//
// How silence is judged: every machine sends a beat to every control machine (the observers), and
// one of these, the judge, hears from the others what they heard. A machine is silent only if no
// observer heard it. Before it is given up, some other machines are asked to try it (they vouch for
// it or not), because what is cut between it and the observers need not be cut everywhere. A judge
// that was itself late (it was stopped, or starved of processor time) or that lacks a majority of
// observers knows that its own silence, not theirs, may be what it heard, and waits.
//
// Users: machined; kernel for beats. Not safe for concurrent use: one goroutine owns a Core.
package machines

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Timing says how patient the judge is. With DefaultTiming loss is noticed 1.5 to 1.75 s after the
// last beat.
type Timing struct {
	Interval time.Duration // between beats and between reports of observers
	Suspect  time.Duration // of silence, after which others are asked
	Lost     time.Duration // of silence, after which the machine is given up; longer is later, shorter is rash
	// of silence to all observers, after which it does not help that other machines hear it: it can
	// be told nothing
	Vouched time.Duration
	// from a registration to the first beat, which needs a few round trips; who dies within it is
	// noticed later
	Join   time.Duration
	Report time.Duration // without a report, after which an observer does not count
	Tick   time.Duration // between two Ticks; a larger gap was the judge's own fault
}

// DefaultTiming fits machines of one site.
func DefaultTiming() Timing {
	return Timing{Interval: 250 * time.Millisecond, Suspect: 750 * time.Millisecond, Lost: 1500 * time.Millisecond,
		Vouched: 10 * time.Second, Join: 10 * time.Second, Report: time.Second, Tick: 100 * time.Millisecond}
}

// Slack is by how much a beat, with the report that carries it, may be late without an alarm.
func (t Timing) Slack() time.Duration { return t.Lost - t.Interval }

// Detect is the longest time from a machine's last beat to Lost.
func (t Timing) Detect() time.Duration { return t.Lost + 2*t.Tick }

// gapMax is the time between two Ticks that is not put down to the judge.
func (t Timing) gapMax() time.Duration { return 3 * t.Tick }

// Limits.
const (
	TokensMax    = 1000
	TokenUsesMax = 10000
	TokenAgeMax  = 30 * 24 * time.Hour
	tokenKept    = 24 * time.Hour // after its end, so that who comes late is told why
	helpersMax   = 3              // that are asked about a suspect
	LabelsMax    = 16
	ControlMax   = 5 // more members make etcd slower, not safer
)

// Member is what is kept of a machine.
type Member struct {
	ID      sigma.MachineID
	Key     identity.Fingerprint
	Address string
	Version string
	Labels  map[string]string
	// labels that the machine itself named when it was registered last
	Given       map[string]string `json:",omitempty"`
	CPU         sigma.MilliCPU
	Memory      sigma.Bytes
	Incarnation sigma.Incarnation
	Fence       sigma.Epoch // of its last loss
	Lost        bool
	Cordoned    bool
	Draining    bool
	Control     bool
	Joined      time.Time
	Token       identity.TokenID // it joined with; "" = it founded the system
}

// Token is what is kept of a token.
type Token struct {
	ID      identity.TokenID
	Key     identity.TokenKey
	Uses    int // left
	Made    time.Time
	Expires time.Time
	Revoked bool
	Over    time.Time // when it was used up or revoked; zero before
}

// State is what must survive the judge: all of it is in Save effects.
type State struct {
	Epoch   uint64
	Members []Member
	Tokens  []Token
}

// Config is what a Core is made of.
type Config struct {
	Self   sigma.MachineID // the judge's own machine, which it does not judge
	Timing Timing          // zero = DefaultTiming
	State  State
	// Remote: beats reach this judge only by Reports, also those that its own machine heard; so its
	// own machine counts as an observer only while these come.
	Remote bool
	// Heard is when this judge, as an observer before it became the judge, last heard machines.
	// Those not in it count as heard now.
	Heard map[sigma.MachineID]time.Time
	// Heir is what this judge was before it took over; nil = none. What it knows of the observers
	// need not be learnt again.
	Heir *Heir
}

// Core is the state. Not safe for concurrent use.
type Core struct {
	self   sigma.MachineID
	remote bool
	timing Timing

	epoch   uint64
	members map[sigma.MachineID]*member
	tokens  map[identity.TokenID]*Token

	ticked   time.Time                     // the last Tick
	reported map[sigma.MachineID]time.Time // by other observers
	majority time.Time                     // since when the judge has one; zero = it has none
}

type member struct {
	Member
	heard   time.Time // by an observer
	vouched time.Time // by another machine
	probed  time.Time // when others were asked last
	grace   time.Time // until when it need not beat, for it has just registered; zero once it has
	suspect bool
	asked   int // how often, so that it is not always the same helpers
}

// New takes up a state.
func New(now time.Time, cfg Config) (*Core, error) {
	if cfg.Timing == (Timing{}) {
		cfg.Timing = DefaultTiming()
	}
	t := cfg.Timing
	if t.Tick <= 0 || t.Interval < t.Tick || t.Suspect < 2*t.Interval || t.Lost < t.Suspect+2*t.Interval ||
		t.Vouched < t.Lost || t.Join < 0 || t.Report < 2*t.Interval || t.Report > t.Lost {
		return nil, sigma.Errorf("machines.New", sigma.KindInvalid, "the timing %+v makes no sense", t)
	}
	c := &Core{self: cfg.Self, remote: cfg.Remote, timing: t, epoch: max(cfg.State.Epoch, 1),
		members: map[sigma.MachineID]*member{}, tokens: map[identity.TokenID]*Token{}, ticked: now,
		reported: map[sigma.MachineID]time.Time{}}
	for _, m := range cfg.State.Members {
		heard, ok := cfg.Heard[m.ID]
		if !ok || heard.After(now) {
			heard = now
		}
		c.members[m.ID] = &member{Member: m, heard: heard}
		c.epoch = max(c.epoch, uint64(m.Incarnation),
			uint64(m.Fence)) // the counter is saved first, but a store restored by hand may lack it
	}
	for _, t := range cfg.State.Tokens {
		c.tokens[t.ID] = &t
	}
	if h := cfg.Heir; h != nil {
		c.reported, c.majority = maps.Clone(h.core.reported), h.core.majority
	}
	return c, nil
}

// Effect is something for the shell to do, in order. What is to be saved must be durable before a
// later effect is carried out and before anybody is answered.
type Effect interface{ effect() }

// The effects.
type (
	// SaveEpoch keeps the counter.
	SaveEpoch struct{ Epoch uint64 }
	// SaveMember keeps a member; it replaces an earlier record of the name.
	SaveMember struct{ Member Member }
	// DropMember forgets one.
	DropMember struct{ ID sigma.MachineID }
	// SaveToken keeps a token.
	SaveToken struct{ Token Token }
	// DropToken forgets one.
	DropToken struct{ ID identity.TokenID }
	// Publish gives the roster to all members.
	Publish struct {
		Epoch   uint64
		Members []identity.Member
	}
	// Certify makes the certificate of a registration and answers the machine with it.
	Certify struct {
		Member Member
		Epoch  uint64
	}
	// Suspect: a machine is silent; it still counts as alive.
	Suspect struct{ ID sigma.MachineID }
	// Trust: it is heard again.
	Trust struct{ ID sigma.MachineID }
	// Probe asks other machines to try it, and to vouch for it if it answers.
	Probe struct {
		ID      sigma.MachineID
		Helpers []sigma.MachineID
	}
	// Lost: a life is over. Waiters of its procs are answered, its names go, its reservations are
	// free, its queued grants are void, and requests under an older fence are refused.
	Lost struct {
		ID          sigma.MachineID
		Incarnation sigma.Incarnation
		Fence       sigma.Epoch
		Why         string
	}
	// Tell: a machine that was given up is heard. It must end its procs and register again; until
	// then it serves nothing.
	Tell struct {
		ID          sigma.MachineID
		Incarnation sigma.Incarnation
	}
	// Drain asks the procs of a machine to go.
	Drain struct{ ID sigma.MachineID }
)

func (SaveEpoch) effect()  {}
func (SaveMember) effect() {}
func (DropMember) effect() {}
func (SaveToken) effect()  {}
func (DropToken) effect()  {}
func (Publish) effect()    {}
func (Certify) effect()    {}
func (Suspect) effect()    {}
func (Trust) effect()      {}
func (Probe) effect()      {}
func (Lost) effect()       {}
func (Tell) effect()       {}
func (Drain) effect()      {}

// Event is something that happened.
type Event interface{ event() }

// The events.
type (
	// MakeToken adds a token that was made elsewhere; the core sees only what it is checked with.
	MakeToken struct {
		ID   identity.TokenID
		Key  identity.TokenKey
		Uses int           // 0 = 1
		TTL  time.Duration // 0 = an hour
	}
	// RevokeToken ends one.
	RevokeToken struct{ ID identity.TokenID }
	// Found makes the first machine of a new system. It comes from the machine itself, never over a
	// network.
	Found struct{ Request }
	// Enrol is a machine that wants to be registered, for the first time or again. Its proofs were
	// checked; ProvenToken says whether it knows the secret of its token. A machine enrols only
	// when nothing of its former life runs.
	Enrol struct {
		Request
		Token       identity.TokenID
		ProvenToken bool
	}
	// Heard: this judge has heard a beat.
	Heard struct {
		ID          sigma.MachineID
		Incarnation sigma.Incarnation
	}
	// Report: another observer tells what it heard. It is one event, so that an observer does not
	// count before what it says does.
	Report struct {
		By   sigma.MachineID
		Beat []Evidence
	}
	// Vouch: a machine that was asked about another has reached it.
	Vouch struct {
		ID          sigma.MachineID
		Incarnation sigma.Incarnation
		By          sigma.MachineID
	}
	// Tick: time passes. It comes every Timing.Tick.
	Tick struct{}
	// Cordon keeps new procs away, or lets them come again.
	Cordon struct {
		ID sigma.MachineID
		On bool
	}
	// DrainStart cordons a machine and asks its procs to go.
	DrainStart struct{ ID sigma.MachineID }
	// Label sets labels; an empty value takes one away.
	Label struct {
		ID     sigma.MachineID
		Labels map[string]string
	}
	// Control makes a machine hold a part of the control plane, or no longer; the parts themselves
	// are the shell's to move first.
	Control struct {
		ID sigma.MachineID
		On bool
	}
	// GiveUp ends the life of a machine that is to be removed, so that the store of names keeps it
	// out before it is forgotten.
	GiveUp struct {
		ID    sigma.MachineID
		Force bool
	}
	// Remove ends a machine's membership. Force does so while it may still run procs.
	Remove struct {
		ID    sigma.MachineID
		Force bool
	}
)

// Request is what a machine says of itself.
type Request struct {
	ID      sigma.MachineID
	Key     identity.Fingerprint
	Address string
	Version string
	Labels  map[string]string
	CPU     sigma.MilliCPU
	Memory  sigma.Bytes
}

// Evidence is how long ago an observer heard a beat, measured on its own clock.
type Evidence struct {
	ID          sigma.MachineID
	Incarnation sigma.Incarnation
	Age         time.Duration
}

func (MakeToken) event()   {}
func (RevokeToken) event() {}
func (Found) event()       {}
func (Enrol) event()       {}
func (Heard) event()       {}
func (Report) event()      {}
func (Vouch) event()       {}
func (Tick) event()        {}
func (Cordon) event()      {}
func (DrainStart) event()  {}
func (Label) event()       {}
func (Control) event()     {}
func (GiveUp) event()      {}
func (Remove) event()      {}

// Step takes one event at a time and says what to do. An error is for the one who asked; then
// nothing has changed and there are no effects.
func (c *Core) Step(now time.Time, e Event) ([]Effect, error) {
	switch e := e.(type) {
	case MakeToken:
		return c.makeToken(now, e)
	case RevokeToken:
		return c.revoke(now, e.ID)
	case Found:
		return c.found(now, e.Request)
	case Enrol:
		return c.enrol(now, e)
	case Heard:
		return c.heardBy(now, Evidence{e.ID, e.Incarnation, 0}), nil
	case Report:
		return c.report(now, e), nil
	case Vouch:
		if m := c.members[e.ID]; m != nil && !m.Lost && m.Incarnation == e.Incarnation && c.alive(e.By) {
			m.vouched = now
		}
		return nil, nil
	case Tick:
		return c.tick(now), nil
	}
	return c.change(e)
}

func (c *Core) alive(id sigma.MachineID) bool {
	m := c.members[id]
	return m != nil && !m.Lost
}

// sorted gives the members in a fixed order, so that the same events give the same effects.
func (c *Core) sorted() []*member {
	ids := slices.Sorted(maps.Keys(c.members))
	out := make([]*member, len(ids))
	for i, id := range ids {
		out[i] = c.members[id]
	}
	return out
}

// next draws from the counter; the effect comes before whatever the number is used for.
func (c *Core) next() (uint64, Effect) {
	c.epoch++
	return c.epoch, SaveEpoch{c.epoch}
}

func (c *Core) publish() Effect {
	p := Publish{Epoch: c.epoch}
	for _, m := range c.sorted() {
		p.Members = append(p.Members, identity.Member{Machine: m.ID, Key: m.Key, Address: m.Address,
			Incarnation: m.Incarnation, Lost: m.Lost, Control: m.Control, Cordoned: m.Cordoned, Draining: m.Draining})
	}
	return p
}

// Roster is what the last Publish said, for those who ask.
func (c *Core) Roster() Publish { return c.publish().(Publish) }

// List describes the machines, by name.
func (c *Core) List() []sigma.MachineInfo {
	var out []sigma.MachineInfo
	for _, m := range c.sorted() {
		state := sigma.MachineAlive
		switch {
		case m.Lost:
			state = sigma.MachineLost
		case m.suspect:
			state = sigma.MachineSuspect
		}
		out = append(out, sigma.MachineInfo{ID: m.ID, Address: m.Address, State: state, Incarnation: m.Incarnation,
			Fence: m.Fence, Labels: maps.Clone(m.Labels), Control: m.Control,
			Cordoned: m.Cordoned, Draining: m.Draining, CPU: m.CPU, Memory: m.Memory, Version: m.Version,
			Joined: m.Joined, Heard: m.heard})
	}
	return out
}

// Tokens lists them by id; what they are checked with is no secret, but nobody needs it.
func (c *Core) Tokens() []Token {
	var out []Token
	for _, id := range slices.Sorted(maps.Keys(c.tokens)) {
		t := *c.tokens[id]
		t.Key = identity.TokenKey{}
		out = append(out, t)
	}
	return out
}

// TokenKey is what a joiner's proof is checked with; for an unknown token one that nothing matches.
func (c *Core) TokenKey(id identity.TokenID) identity.TokenKey {
	if t := c.tokens[id]; t != nil {
		return t.Key
	}
	return identity.TokenKey{}
}

// MayRenew says whether the holder of a certificate may have a fresh one for the same life.
func (c *Core) MayRenew(s identity.Subject) error {
	m := c.members[s.Machine]
	if m == nil || m.Key != s.Key || m.Lost || m.Incarnation != s.Incarnation {
		return &sigma.Error{Op: "machines.MayRenew", Kind: sigma.KindStale,
			Msg: fmt.Sprintf("the life %d of machine %s is over", s.Incarnation, s.Machine), Hint: "register again"}
	}
	return nil
}
