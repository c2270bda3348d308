package member

import (
	"context"
	"encoding/json"
	"net"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/lib/shard"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// Members may divide the keys of a service among themselves as ranges (Options.Ranges). Who owns
// which range is decided by lib/shard: a member gains a range when the one before has lost it, with
// a fence. The state of a range stays with the member that lost it until the next owner asks for it
// by takeMethod. The file .ranges/holders/N names the member that has the state of range N. The
// next owner writes the file, with the range's fence, when it has the state, and then tells the
// member before by takenMethod that it can forget. So the member that the file names has the state
// at each moment, and a state is lost only with that member.

const (
	// takeMax bounds one question for a state; the next owner asks again as long as the holder is
	// a member.
	takeMax = 5 * time.Second
	// takeAgain is the pause before it asks again.
	takeAgain = 20 * time.Millisecond
	// handOverMax bounds how long a member that is asked to go waits for other members to take its
	// ranges. It is less than a fleet's default grace of 10 s.
	handOverMax = 8 * time.Second
	// handOverLook is the time between looks whether there still is another member.
	handOverLook = 100 * time.Millisecond
)

var (
	takeMethod  = &call.Method{Name: "sigma.fleet.Member/Take", Idempotent: true}  // rangeArg, the state
	takenMethod = &call.Method{Name: "sigma.fleet.Member/Taken", Idempotent: true} // rangeArg, nothing
)

// stateIsHere stands before a state; an answer without it is one of a member that has none.
const stateIsHere = 1

// rangeArg is what the next owner of a range says to the one before.
type rangeArg struct {
	Range int         `json:"range"`
	Epoch sigma.Epoch `json:"epoch"` // of the next owner's fence
	To    string      `json:"to"`    // its name
}

// Range is a part of the keys of a service, which one member owns.
type Range struct {
	Number int
	// Fence is advanced with each change of the owner. What is stored with it (sigma.WithFence) is
	// refused from a member that owned the range before and does not know yet that it lost it.
	Fence sigma.Fence
}

// realmTree is what ranges need of sigmaOS; sdk.Client is one.
type realmTree interface {
	shard.Client
	Dial(ctx context.Context, e sigma.Endpoint) (net.Conn, error)
}

// ranges are those of one member.
type ranges struct {
	tree realmTree
	cfg  shard.Config
	dir  string // of the members
	opts *Options
	self sigma.Endpoint // set before there is any request or callback

	mu      sync.Mutex
	owners  []string      // mu; by range, as assigned last; nil = not known yet
	spans   []span        // mu
	changed chan struct{} // mu; closed when something of the above has changed
	leaving bool          // mu
}

// span is a range as this member has it.
type span struct {
	moving sync.Mutex // held while the program's state comes or goes; taken before ranges.mu
	done   func()     // ends a use

	// Of ranges.mu:
	of    Range  // as it was gained last
	held  bool   // requests may use it
	uses  int    // that have not ended
	has   bool   // the program has its state
	given []byte // what Handoff gave, until the next owner has it; nil = nothing
}

func newRanges(tree realmTree, dir string, opts *Options) (*ranges, error) {
	g := &ranges{tree: tree, dir: dir, opts: opts, cfg: shard.Config{Dir: dir + "/.ranges", Shards: opts.Ranges},
		changed: make(chan struct{})}
	if opts.Ranges < 0 || opts.Ranges > shard.ShardsMax || opts.Gain == nil || opts.Handoff == nil {
		return nil, &sigma.Error{Op: "member.Open", Kind: sigma.KindInvalid, Msg: "the options of ranges cannot be",
			Hint: "there are up to " + strconv.Itoa(shard.ShardsMax) + " ranges, and they need Gain and Handoff"}
	}
	g.spans = make([]span, opts.Ranges)
	for i := range g.spans {
		g.spans[i].done = func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.spans[i].uses--; g.spans[i].uses == 0 && !g.spans[i].held {
				g.tellLocked()
			}
		}
	}
	return g, nil
}

// tellLocked wakes all who wait for a change.
func (g *ranges) tellLocked() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// await waits until is says so, which is called with mu held.
func (g *ranges) await(ctx context.Context, is func() bool) error {
	for {
		g.mu.Lock()
		ok, changed := is(), g.changed
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Use begins the use of a range by a request, and gives what is called when it ends. While the
// range is on its way to this member it waits. If another member owns the range, the error is a
// call.Redirect to it, which a handler returns, or answers by call.Router.Forward. Uses are short:
// a range does not move while it is in use.
func (m *Member) Use(ctx context.Context, number int) (done func(), err error) {
	g := m.ranges
	if g == nil || number < 0 || number >= len(g.spans) {
		return nil, sigma.Errorf("member.Use", sigma.KindInvalid, "there is no range %d", number)
	}
	owner, left := "", false
	is := func() bool {
		s := &g.spans[number]
		if s.held {
			s.uses++
			done = s.done
			return true
		}
		owner, left = "", g.leaving
		if g.owners != nil && g.owners[number] != string(g.self.Proc) {
			owner = g.owners[number]
		}
		return owner != "" || left
	}
	if err = g.await(ctx, is); err == nil && done == nil && owner == "" && left { // another one will take it
		within, cancel := context.WithTimeout(ctx, leaveMax)
		defer cancel()
		err = g.await(within, func() bool { return is() && owner != "" || done != nil })
	}
	switch {
	case done != nil:
		return done, nil
	case err == nil:
		return nil, call.Redirect(owner)
	}
	return nil, &sigma.Error{Op: "member.Use", Kind: sigma.KindUnavailable, Err: err,
		Msg: "the range " + strconv.Itoa(number) + " has no owner yet", Hint: "call again"}
}

// register adds the methods by which states move.
func (g *ranges) register(s *call.Server) error {
	err := s.Handle(takeMethod, func(ctx context.Context, arg, reply []byte) ([]byte, error) {
		a, err := g.parse(arg)
		if err != nil {
			return reply, err
		}
		state, err := g.give(ctx, a)
		if err != nil || state == nil {
			return reply, err
		}
		return append(append(reply, stateIsHere), state...), nil
	})
	if err != nil {
		return err
	}
	return s.Handle(takenMethod, func(_ context.Context, arg, reply []byte) ([]byte, error) {
		a, err := g.parse(arg)
		if err == nil {
			g.forget(a)
		}
		return reply, err
	})
}

func (g *ranges) parse(arg []byte) (a rangeArg, err error) {
	if err := json.Unmarshal(arg, &a); err != nil || a.Range < 0 || a.Range >= len(g.spans) {
		return a, sigma.Errorf("member.Take", sigma.KindInvalid, "there is no range %d", a.Range)
	}
	return a, nil
}

// give gives the state of a range to its next owner, nil if it is not here. Requests do not use the
// range from then on, also if this member did not know yet that it lost it.
func (g *ranges) give(ctx context.Context, a rangeArg) ([]byte, error) {
	s := &g.spans[a.Range]
	s.moving.Lock()
	defer s.moving.Unlock()
	g.mu.Lock()
	if a.Epoch <= s.of.Fence.Epoch {
		g.mu.Unlock()
		return nil, sigma.Errorf("member.Take", sigma.KindStale, "the range %d has a later owner", a.Range)
	}
	s.held = false
	g.tellLocked()
	g.mu.Unlock()
	if err := g.await(ctx, func() bool { return s.uses == 0 }); err != nil {
		return nil, err
	}
	g.mu.Lock()
	given, has, of := s.given, s.has, s.of
	g.mu.Unlock()
	if given != nil || !has {
		return given, nil
	}
	state, err := g.opts.Handoff(ctx, of, a.To)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.has, s.given = false, append([]byte{}, state...) // not nil
	return s.given, nil
}

// forget drops the state of a range that its next owner has.
func (g *ranges) forget(a rangeArg) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := &g.spans[a.Range]; a.Epoch > s.of.Fence.Epoch {
		s.given = nil
		g.tellLocked()
	}
}

// gain is shard.Callbacks.Gain.
func (g *ranges) gain(ctx context.Context, number int, f sigma.Fence) {
	for g.tryGain(ctx, Range{number, f}) != nil && retry.Pause(ctx, takeAgain) {
	}
}

// tryGain has a range move to this member.
func (g *ranges) tryGain(ctx context.Context, r Range) error {
	s := &g.spans[r.Number]
	arg := rangeArg{Range: r.Number, Epoch: r.Fence.Epoch, To: string(g.self.Proc)}
	holder, err := g.holder(ctx, r.Number)
	if err != nil {
		return err
	}
	g.mu.Lock()
	has := s.has && s.of == r // an attempt before this one came so far
	g.mu.Unlock()
	if !has {
		var state []byte
		switch {
		case holder == sigma.Endpoint{}:
		case holder == g.self:
			state, err = g.give(ctx, arg)
		default:
			state, err = g.take(ctx, holder, arg)
		}
		if err != nil {
			return err
		}
		s.moving.Lock()
		if err = g.opts.Gain(ctx, r, state); err == nil {
			g.mu.Lock()
			s.of, s.has, s.given = r, true, nil
			g.mu.Unlock()
		}
		s.moving.Unlock()
		if err != nil {
			return err
		}
	}
	if _, err := g.tree.Put(sigma.WithFence(ctx, r.Fence), g.holderPath(r.Number), []byte(g.self.String()),
		sigma.PutOptions{}); err != nil {
		return err
	}
	g.mu.Lock()
	s.held = true
	g.tellLocked()
	g.mu.Unlock()
	if holder != g.self && holder != (sigma.Endpoint{}) {
		g.tell(ctx, holder, takenMethod, arg) // if it is not told, it keeps what nobody needs
	}
	return nil
}

func (g *ranges) holderPath(number int) string { return g.cfg.Dir + "/holders/" + strconv.Itoa(number) }

// holder gives the member that has the state of a range; the zero value = there is none.
func (g *ranges) holder(ctx context.Context, number int) (e sigma.Endpoint, err error) {
	text, _, err := g.tree.Get(sigma.WithSync(ctx), g.holderPath(number))
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return e, nil
	}
	if err != nil {
		return e, err
	}
	return sigma.ParseEndpoint(string(text))
}

// take asks the holder of a state for it. It gives nil if the holder is gone.
func (g *ranges) take(ctx context.Context, holder sigma.Endpoint, arg rangeArg) ([]byte, error) {
	state, err := g.tell(ctx, holder, takeMethod, arg)
	switch {
	case err == nil && len(state) == 0:
		return nil, nil
	case err == nil:
		return state[1:], nil
	case ctx.Err() != nil, sigma.KindOf(err) == sigma.KindStale:
		return nil, err
	}
	if _, serr := g.tree.Lstat(sigma.WithSync(ctx), g.dir+"/"+string(holder.Proc)); serr != nil &&
		sigma.KindOf(serr) == sigma.KindNotFound {
		return nil, nil
	}
	return nil, err
}

func (g *ranges) tell(ctx context.Context, to sigma.Endpoint, m *call.Method, arg rangeArg) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, takeMax)
	defer cancel()
	c := call.NewClient(func(ctx context.Context) (net.Conn, error) { return g.tree.Dial(ctx, to) },
		call.Config{MessageMax: snapshotMax})
	defer c.Close()
	text, err := json.Marshal(arg)
	if err != nil {
		return nil, err
	}
	return c.Call(ctx, m, text, []byte{})
}

// lose is shard.Callbacks.Lose.
func (g *ranges) lose(number int) {
	s := &g.spans[number]
	g.mu.Lock()
	s.held = false
	g.tellLocked()
	g.mu.Unlock()
	g.await(context.Background(), func() bool { return s.uses == 0 })
}

// run has the member own ranges until owning ends, calls handed when others have them, and has it
// balance ranges and follow their owners until ctx ends. An error is one that does not pass.
func (g *ranges) run(ctx, owning context.Context, handed func()) error {
	defer handed()
	if err := g.tree.MkdirAll(ctx, g.cfg.Dir+"/holders", 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel(nil)
	tasks.Go(func() { cancel(shard.Balance(ctx, g.tree, g.cfg)) })
	tasks.Go(func() {
		for a, err := range shard.Follow(ctx, g.tree, g.cfg.Dir) {
			if err != nil {
				cancel(err)
				return
			}
			g.mu.Lock()
			if len(a.Owners) == len(g.spans) {
				g.owners = a.Owners
			}
			g.tellLocked()
			g.mu.Unlock()
		}
	})
	owning, stop := context.WithCancel(owning)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	err := shard.Own(owning, g.tree, g.cfg, string(g.self.Proc), shard.Callbacks{Gain: g.gain, Lose: g.lose})
	if ctx.Err() == nil && owning.Err() == nil {
		return err
	}
	g.handOver(ctx)
	handed()
	<-ctx.Done()
	return context.Cause(ctx)
}

// handOver waits until other members have what this one has, as long as there are any.
func (g *ranges) handOver(ctx context.Context) {
	g.mu.Lock()
	g.leaving = true
	g.tellLocked()
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, handOverMax)
	defer cancel()
	for left := true; left && ctx.Err() == nil; {
		others, err := g.tree.ReadDir(sigma.WithSync(ctx), g.cfg.Dir+"/members")
		if err == nil && len(others) == 0 {
			return
		}
		within, done := context.WithTimeout(ctx, handOverLook)
		left = g.await(within, func() bool { return len(g.leftLocked(1)) == 0 }) != nil
		done()
		g.dropOthers(ctx)
	}
}

// leftLocked gives ranges whose state is here, a few at most.
func (g *ranges) leftLocked(most int) (left []int) {
	for i := range g.spans {
		if s := &g.spans[i]; (s.has || s.given != nil) && len(left) < most {
			left = append(left, i)
		}
	}
	return left
}

// dropOthers drops states that another member has by now, of which this one was not told.
func (g *ranges) dropOthers(ctx context.Context) {
	g.mu.Lock()
	left := g.leftLocked(16)
	g.mu.Unlock()
	for _, number := range left {
		if holder, err := g.holder(ctx, number); err == nil && holder != g.self {
			g.mu.Lock()
			g.spans[number].has, g.spans[number].given = false, nil
			g.mu.Unlock()
		}
	}
}
