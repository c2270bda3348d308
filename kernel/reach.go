package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/link"
	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
)

// Where services are. A machine uses its own if it is in its boot set and answers; otherwise it asks the control machines that the roster calls alive, in the order of their names, the one that
// answered last before the others. A machine that does not run the service, or whose named does not lead, says so and the next is asked. besched is chosen otherwise: everybody uses that of the first live control
// machine, since what one besched knows another does not.

// dialMost is how long one machine may take to answer while there are others to ask.
const dialMost = 3 * time.Second

// local is a service of this machine's boot set; nil if others run it.
func (k *Kernel) local(name string) *service {
	if s := k.services[name]; s != nil && s.program.File != nil {
		return s
	}
	return nil
}

// dialAt opens a session to a service of machine m, which may be this one. It does not wait: KindNotFound if m does not run it, KindUnavailable if m cannot be reached, or the service is being started.
func (k *Kernel) dialAt(ctx context.Context, m sigma.MachineID, name string) (*session.Client, error) {
	if m == k.cfg.Machine {
		s := k.local(name)
		if s == nil {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindNotFound, "machine %s runs no %s", m, name)
		}
		e, running := s.listens(false)
		if !running {
			return nil, sigma.Errorf("kernel.dialAt", sigma.KindUnavailable, "%s of machine %s is being started", name, m)
		}
		return s.connect(ctx, e)
	}
	node, err := k.awaitNode(ctx)
	if err != nil {
		return nil, err
	}
	l, err := node.Dial(ctx, m, link.Target{Kind: link.ToService, Name: name}, k.provider())
	if err != nil {
		return nil, err
	}
	return session.Dial(ctx, l.Session())
}

// dial opens a session to a service, wherever it is, waiting a while for one that is being restarted.
func (k *Kernel) dial(ctx context.Context, name string) (*session.Client, error) {
	c, _, err := k.reach(ctx, name, func(context.Context, *session.Client) error { return nil })
	return c, err
}

// reach opens a session to a service for use. If use says KindUnavailable or KindLost, that machine's is passed over for now; its other errors are the answer. The session is the caller's; it ends when its machine is lost.
func (k *Kernel) reach(ctx context.Context, name string, use func(context.Context, *session.Client) error) (*session.Client, sigma.MachineID, error) {
	ctx, cancel := context.WithTimeout(ctx, reconnectMax)
	defer cancel()
	var said map[sigma.MachineID]error
	for round := 0; ; round++ {
		ms := k.candidates(name)
		for _, m := range ms {
			c, err := k.reachAt(ctx, m, name, len(ms) > 1)
			if err == nil {
				using, stop := ctx, context.CancelFunc(func() {})
				if round == 0 && len(ms) > 1 { // one that waits for something may be cut off from the others, who have it
					using, stop = context.WithTimeout(ctx, dialMost)
				}
				err = use(using, c)
				late := using.Err() != nil && ctx.Err() == nil
				stop()
				if err == nil {
					k.links.note(name, m)
					return c, m, nil
				}
				c.Close()
				if kind := sigma.KindOf(err); kind != sigma.KindUnavailable && kind != sigma.KindLost && !late {
					return nil, m, err
				}
			}
			if ctx.Err() == nil || said[m] == nil {
				if said == nil {
					said = map[sigma.MachineID]error{}
				}
				said[m] = err
			}
		}
		if err := k.pause(ctx); err != nil {
			return nil, "", k.nobodyAnswers(name, ms, said)
		}
	}
}

// reachAt is dialAt, which waits for this machine's own service if it is the only one.
func (k *Kernel) reachAt(ctx context.Context, m sigma.MachineID, name string, others bool) (*session.Client, error) {
	if s := k.local(name); m == k.cfg.Machine && s != nil && !others {
		return s.dial(ctx)
	}
	if others {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, dialMost)
		defer cancel()
	}
	return k.dialAt(ctx, m, name)
}

// pause waits a little, or until this machine is registered.
func (k *Kernel) pause(ctx context.Context) error {
	var comes <-chan struct{}
	if !k.registered() {
		comes = k.enrolled
	}
	select {
	case <-comes:
	case <-time.After(restartMin):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// candidates lists the machines to ask for a service, in order.
func (k *Kernel) candidates(name string) []sigma.MachineID {
	own := k.local(name) != nil
	if !k.registered() {
		if own {
			return []sigma.MachineID{k.cfg.Machine}
		}
		return nil
	}
	var out []sigma.MachineID
	for _, m := range alive(k.id.Roster().Members()) {
		if m.Control && (m.Machine != k.cfg.Machine || own) {
			out = append(out, m.Machine)
		}
	}
	if own && !slices.Contains(out, k.cfg.Machine) { // the roster may not know yet
		out = append(out, k.cfg.Machine)
	}
	last := k.links.noted(name)
	rank := func(m sigma.MachineID) int {
		if k.isSilent(m) {
			return 3
		}
		switch m {
		case last:
			return 0
		case k.cfg.Machine:
			return 1
		}
		return 2
	}
	if name != serviceBesched {
		slices.SortStableFunc(out, func(a, b sigma.MachineID) int { return cmp.Compare(rank(a), rank(b)) })
	}
	return out
}

// alive gives the machines of a roster whose lives go on.
func alive(members []identity.Member) []identity.Member {
	return slices.DeleteFunc(slices.Clone(members), func(m identity.Member) bool { return m.Lost })
}

func (x *links) note(name string, m sigma.MachineID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.last[name] = m
}

func (x *links) noted(name string) sigma.MachineID {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.last[name]
}

// nobodyAnswers is the error when no machine that was asked has an answer.
func (k *Kernel) nobodyAnswers(name string, asked []sigma.MachineID, said map[sigma.MachineID]error) error {
	const op = "kernel.reach"
	switch {
	case len(asked) == 0 && !k.registered():
		return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "this machine is not registered with its system yet, so it has no " + name, Hint: "sigma doctor says why"}
	case len(asked) == 1 && asked[0] == k.cfg.Machine:
		if e := (*sigma.Error)(nil); errors.As(said[asked[0]], &e) && e.Kind != sigma.KindTimeout {
			return e
		}
		return sigma.Errorf(op, sigma.KindUnavailable, "%s is not available", name)
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
	return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: msg, Hint: "what runs goes on; whatever needs " + name + " waits until a control machine is back: sigma machine ls shows them"}
}

// dialScheduler opens the session to the besched that this machine uses, that of the first live control machine. It ends when that changes. Another is used only when the first could not be reached for long, so that a cut between two machines
// alone does not keep one of them from starting anything.
func (k *Kernel) dialScheduler(ctx context.Context) (*session.Client, error) {
	wait, cancel := context.WithTimeout(ctx, reconnectMax)
	defer cancel()
	for {
		first, changed := k.firstBesched()
		if first != "" {
			c, err := k.reachAt(wait, first, serviceBesched, first != k.cfg.Machine)
			if err == nil {
				k.follow(c, first, changed)
				return c, nil
			}
		}
		if k.pause(wait) != nil {
			break
		}
	}
	first, changed := k.firstBesched()
	c, _, err := k.reach(ctx, serviceBesched, func(context.Context, *session.Client) error { return nil })
	if err != nil {
		return nil, err
	}
	k.follow(c, first, changed)
	return c, nil
}

// firstBesched is the machine whose besched is to be used; "" if none is known. changed is closed when it may be another.
func (k *Kernel) firstBesched() (first sigma.MachineID, changed <-chan struct{}) {
	changed = k.enrolled
	if k.registered() {
		changed = k.id.Roster().Changed() // before the look
	}
	if ms := k.candidates(serviceBesched); len(ms) > 0 {
		first = ms[0]
	}
	return first, changed
}

// follow ends c when the machine whose besched is to be used is not first any more.
func (k *Kernel) follow(c *session.Client, first sigma.MachineID, changed <-chan struct{}) {
	k.sessions.Go(func() {
		for {
			select {
			case <-c.Done():
				return
			case <-k.ctx.Done():
				return
			case <-changed:
			}
			var now sigma.MachineID
			if now, changed = k.firstBesched(); now != first && now != "" {
				c.Close()
				return
			}
		}
	})
}
