package reach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/link"
	"sigmaos.dev/kernel/progtree"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
)

// Where services are. A machine uses its own if it is in its boot set and answers; otherwise it
// asks the control machines that the roster calls alive, in the order of their names, the one that
// answered last before the others. A machine that does not run the service, or whose named does not
// lead, says so and the next is asked. Of besched every machine uses all that there are (sched.go).

// How long a search takes its time.
const (
	dialMost = 3 * time.Second // for one machine to take a link, while there are others to ask
	// before the next machine is asked as well: a round trip across the world, and half of what it
	// takes to suspect one
	slowMost  = 150 * time.Millisecond
	pauseMost = time.Second // between rounds; it is cut short when somebody else has found the service
)

// DialAt opens a session to a service of machine m, which may be this one. It does not wait:
// KindNotFound if m does not run it, KindUnavailable if m cannot be reached, or the service is
// being started.
func (x *Reach) DialAt(ctx context.Context, m sigma.MachineID, name string) (*session.Client, error) {
	if m == x.cfg.Machine {
		s := x.cfg.Services.Local(name)
		if s == nil {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindNotFound, "machine %s runs no %s", m, name)
		}
		s.Ask()
		e, running := s.Listens(false)
		if err := s.WhyHeld(); sigma.KindOf(err) == sigma.KindNoSpace {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindUnavailable, "%s of machine %s is not started: %v",
				name, m, err)
		}
		if !running {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindUnavailable, "%s of machine %s is being started", name,
				m)
		}
		return s.Connect(ctx, e)
	}
	node, err := x.cfg.Cluster.AwaitNode(ctx)
	if err != nil {
		return nil, err
	}
	l, err := node.Dial(ctx, m, link.Target{Kind: link.ToService, Name: name}, x.cfg.Cluster.Provider())
	if err != nil {
		return nil, err
	}
	return session.Dial(ctx, l.Session())
}

// Find opens a session to a service for use, which is asked of one machine after another. If use
// says KindUnavailable or KindLost, that machine is passed over for now; its other errors are the
// answer. The session is the caller's; it ends when its machine is lost.
func (x *Reach) Find(ctx context.Context, name string,
	use func(context.Context, *session.Client) error) (*session.Client, error) {
	r := search[struct{}]{x: x, name: name, use: use}
	found, err := r.run(ctx)
	return found.client, err
}

// Dial opens a session to a service, wherever it is, waiting a while for one that is being
// restarted.
func (x *Reach) Dial(ctx context.Context, name string) (*session.Client, error) {
	return x.Find(ctx, name, nil)
}

// FindRoot is reach that attaches to a realm, of several machines at once if need be.
func (x *Reach) FindRoot(ctx context.Context, name string, realm sigma.RealmID) (*session.Client,
	*progtree.Followed, error) {
	return Open(ctx, x, name, func(ctx context.Context, s *session.Client) (*progtree.Followed, error) {
		return progtree.Attach(ctx, s, realm)
	})
}

// Open is dial for what is opened over the session, at several machines at once if need be.
func Open[T any](ctx context.Context, x *Reach, name string,
	open func(context.Context, *session.Client) (T, error)) (*session.Client, T, error) {
	r := search[T]{x: x, name: name, open: open}
	found, err := r.run(ctx)
	return found.client, found.value, err
}

// search looks for the machine whose service answers.
type search[T any] struct {
	x    *Reach
	name string
	open func(context.Context, *session.Client) (T, error) // nil = nothing; may run for several machines at once
	use  func(context.Context, *session.Client) error      // nil = nothing; one at a time

	said    map[sigma.MachineID]error // what they said last
	asked   map[sigma.MachineID]bool  // who has not answered yet
	answers chan found[T]
}

// found is what one machine answers.
type found[T any] struct {
	machine sigma.MachineID
	client  *session.Client
	value   T
	err     error
	final   bool // the error is the answer
}

// run asks until somebody answers, for reconnectMax at most: each machine when the one before has
// said no, or nothing for a while; all that said no again after a pause.
func (r *search[T]) run(ctx context.Context) (found[T], error) {
	ctx, cancel := context.WithTimeout(ctx, services.ReconnectMax)
	r.said, r.asked, r.answers = map[sigma.MachineID]error{}, map[sigma.MachineID]bool{}, make(chan found[T])
	defer func() { r.leave(cancel) }()
	for pause := services.RestartMin; ; pause = min(2*pause, pauseMost) {
		if err := r.x.cfg.Cluster.ShutOut(); err != nil && r.x.cfg.Services.Local(r.name) == nil {
			return found[T]{}, err
		}
		comes := r.x.noteComes() // before the look
		if !r.x.cfg.Cluster.Registered() {
			comes = r.x.cfg.Cluster.Enrolled()
		}
		ms := r.x.Candidates(r.name)
		for _, m := range ms {
			if r.asked[m] {
				continue
			}
			r.asked[m] = true
			r.x.cfg.Go(func() { r.answers <- r.ask(ctx, m, len(ms) > 1) })
			if f, over := r.await(ctx, slowMost, nil); over {
				return f, f.err
			}
		}
		if f, over := r.await(ctx, pause, comes); over {
			return f, f.err
		}
		if ctx.Err() != nil {
			return found[T]{}, r.x.nobodyAnswers(r.name, ms, r.said)
		}
	}
}

// await waits for an answer (over), for a time, or until comes is closed; if comes is nil, until
// anybody who was asked says no.
func (r *search[T]) await(ctx context.Context, d time.Duration, comes <-chan struct{}) (f found[T], over bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case f = <-r.answers:
			delete(r.asked, f.machine)
			if f, over = r.judge(ctx, f); over || comes == nil {
				return f, over
			}
		case <-comes:
			return f, false
		case <-timer.C:
			return f, false
		case <-ctx.Done():
			return f, false
		}
	}
}

// leave gives up those who have not answered yet.
func (r *search[T]) leave(cancel context.CancelFunc) {
	cancel()
	n := len(r.asked)
	if n == 0 {
		return
	}
	r.x.cfg.Go(func() {
		for range n {
			if f := <-r.answers; f.client != nil {
				f.client.Close()
			}
		}
	})
}

// ask opens a session to the service of m.
func (r *search[T]) ask(ctx context.Context, m sigma.MachineID, others bool) found[T] {
	f := found[T]{machine: m}
	if f.client, f.err = r.x.reachAt(ctx, m, r.name, others); f.err != nil || r.open == nil {
		f.final = f.err != nil && sigma.KindOf(f.err) == sigma.KindNoSpace // the only machine's disk is full
		return f
	}
	if f.value, f.err = r.open(ctx, f.client); f.err != nil {
		f.client.Close()
		f.client, f.final = nil, ctx.Err() == nil && isAnswer(f.err) &&
			sigma.KindOf(f.err) != sigma.KindCanceled // not by us: the service ends just now
	}
	return f
}

// judge uses what m answered, if it did.
func (r *search[T]) judge(ctx context.Context, f found[T]) (answer found[T], over bool) {
	if f.err == nil && r.use != nil {
		if f.err = r.use(ctx, f.client); f.err != nil {
			f.client.Close()
			f.client, f.final = nil, isAnswer(f.err)
		}
	}
	if f.err != nil && (ctx.Err() == nil || r.said[f.machine] == nil) {
		r.said[f.machine] = f.err
	}
	if f.err == nil {
		r.x.note(r.name, f.machine)
	}
	return f, f.err == nil || f.final
}

// isAnswer says that a service's error is no word about itself.
func isAnswer(err error) bool {
	kind := sigma.KindOf(err)
	return kind != sigma.KindUnavailable && kind != sigma.KindLost
}

// reachAt is dialAt, which waits for this machine's own service if it is the only one.
func (x *Reach) reachAt(ctx context.Context, m sigma.MachineID, name string, others bool) (*session.Client, error) {
	if s := x.cfg.Services.Local(name); m == x.cfg.Machine && s != nil && !others {
		return s.Dial(ctx)
	}
	if others {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialMost)
		defer cancel()
	}
	return x.DialAt(ctx, m, name)
}

// pause waits a little, or until something comes.
func (x *Reach) pause(ctx context.Context, comes <-chan struct{}) error {
	timer := time.NewTimer(services.RestartMin)
	defer timer.Stop()
	select {
	case <-comes:
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// Candidates lists the machines to ask for a service, in order.
func (x *Reach) Candidates(name string) []sigma.MachineID {
	own := x.cfg.Services.Local(name) != nil
	if !x.cfg.Cluster.Registered() {
		if own {
			return []sigma.MachineID{x.cfg.Machine}
		}
		return nil
	}
	var out []sigma.MachineID
	for _, m := range alive(x.cfg.Cluster.Identity().Roster().Members()) {
		if m.Control && (m.Machine != x.cfg.Machine || own) {
			out = append(out, m.Machine)
		}
	}
	if own && !slices.Contains(out, x.cfg.Machine) { // the roster may not know yet
		out = append(out, x.cfg.Machine)
	}
	last := x.noted(name)
	rank := func(m sigma.MachineID) int {
		if x.cfg.Cluster.IsSilent(m) {
			return 3
		}
		switch m {
		case last:
			return 0
		case x.cfg.Machine:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(out, func(a, b sigma.MachineID) int { return cmp.Compare(rank(a), rank(b)) })
	return out
}

// alive gives the machines of a roster whose lives go on.
func alive(members []identity.Member) []identity.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m identity.Member) bool { return m.Lost })
}

// note says where a service was found.
func (x *Reach) note(name string, m sigma.MachineID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.last[name] != m {
		x.last[name] = m
		close(x.notes)
		x.notes = make(chan struct{})
	}
}

// noteComes is closed when a service is found elsewhere than before.
func (x *Reach) noteComes() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.notes
}

func (x *Reach) noted(name string) sigma.MachineID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.last[name]
}

// nobodyAnswers is the error when no machine that was asked has an answer.
func (x *Reach) nobodyAnswers(name string, asked []sigma.MachineID, said map[sigma.MachineID]error) error {
	const op = "kernel.reach"
	switch {
	case len(asked) == 0 && !x.cfg.Cluster.Registered():
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
			Msg:  "this machine is not registered with its system yet, so it has no " + name,
			Hint: "sigma doctor says why"}
	case len(asked) == 1 && asked[0] == x.cfg.Machine:
		if e := (*sigma.Error)(nil); errors.As(said[asked[0]], &e) && e.Kind != sigma.KindTimeout {
			return e
		}
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: name + " is not available",
			Hint: "sigma status shows how it is; what runs goes on"}
	}
	var why []string
	for _, m := range asked {
		if err := said[m]; err != nil {
			why = append(why, fmt.Sprintf("%s: %.200s", m, err.Error()))
		}
	}
	msg := fmt.Sprintf("no control machine answers for %s", name)
	if len(why) > 0 {
		msg += " (" + strings.Join(why, "; ") + ")"
	}
	return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: msg,
		Hint: "what runs goes on; whatever needs " + name +
			" waits until a control machine is back: sigma machine ls shows them"}
}
