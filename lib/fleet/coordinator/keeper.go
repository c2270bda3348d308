package coordinator

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/fleet/core"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// keeper keeps one fleet. All but run may be called by any goroutine.
type keeper struct {
	c      *Coordinator
	name   string
	life   context.Context // of the coordinator's leadership
	todo   chan func()     // for the goroutine of run
	ended  chan struct{}
	last   atomic.Pointer[fleet.Status] // with members
	papers papers

	// of run
	core    *core.Fleet
	record  fleet.Record // as it is stored
	members map[sigma.ProcID]*body
	forget  bool

	all sync.WaitGroup
}

// body is what the keeper does for one member.
type body struct {
	ctx      context.Context // until it is gone
	cancel   context.CancelFunc
	endpoint sigma.Endpoint
	admitted chan struct{} // closed when clients may be sent to it, or it is not wanted
	refused  bool          // it is not wanted; before admitted is closed
}

func (c *Coordinator) newKeeper(r fleet.Record) *keeper {
	k := &keeper{c: c, name: r.Spec.Name, life: c.ctx, todo: make(chan func(), 64),
		ended: make(chan struct{}), record: r, members: map[sigma.ProcID]*body{}}
	k.papers.init(c, k.name)
	return k
}

// run keeps the fleet until ctx ends or the fleet was removed.
func (k *keeper) run(ctx context.Context, procs []sigma.ProcInfo) {
	ctx, cancel := context.WithCancel(ctx)
	defer k.all.Wait()
	defer cancel()
	defer close(k.ended)
	k.life = ctx
	k.core = core.New(time.Now(), k.record, k.papers.seq())
	k.all.Go(func() { k.papers.write(ctx, k.c.cfg.Log) })
	if len(procs) > 0 || k.papers.seq() > 0 {
		k.papers.note(fleet.Decision{Seq: k.papers.seq() + 1, Time: time.Now(), Fleet: k.name,
			Reason: fleet.ReasonTakeOver, Why: fmt.Sprintf("%s coordinates now, and found %d procs", k.self(),
				len(procs))}, k.self())
		k.core = core.New(time.Now(), k.record, k.papers.seq())
	} else {
		k.step(core.Changed{Record: k.record, Why: "the fleet was made"})
	}
	k.found(procs)
	k.all.Go(func() { k.follow(ctx) })
	tick := time.NewTicker(core.Every)
	defer tick.Stop()
	for !k.forget {
		select {
		case f := <-k.todo:
			f()
		case <-tick.C:
			k.step(core.Tick{})
			s := k.core.Status(true)
			k.last.Store(&s)
			k.papers.show(s)
		case <-ctx.Done():
			return
		}
	}
	k.bury(ctx)
}

// found tells the core of procs that run as members. Called by run.
func (k *keeper) found(procs []sigma.ProcInfo) {
	for _, p := range procs {
		if _, revision, ok := fleet.ParseMemberName(p.Name); ok && k.members[p.ID] == nil {
			k.body(p.ID)
			k.step(core.Found{Proc: p.ID, Revision: revision, Machine: p.Machine})
		}
	}
}

// find is found for others.
func (k *keeper) find(procs []sigma.ProcInfo) {
	select {
	case k.todo <- func() { k.found(procs) }:
	case <-k.ended:
	}
}

func (k *keeper) self() string { return string(k.c.c.Info().Principal.Proc) }

// bury removes what there is of the fleet, which has no members any more.
func (k *keeper) bury(ctx context.Context) {
	k.papers.close()
	k.again(ctx, "a fleet that was removed is still there", func(ctx context.Context) error {
		err := k.c.c.RemoveAll(ctx, fleet.Dir(k.name))
		if sigma.KindOf(err) == sigma.KindNotFound {
			return nil
		}
		return err
	})
}

// do has f called by run, and waits for it. KindUnavailable: the keeper has ended.
func (k *keeper) do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case k.todo <- func() { f(); close(done) }:
	case <-k.ended:
		return sigma.Errorf("fleet", sigma.KindUnavailable, "this coordinator does not lead any more")
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-k.ended:
		return sigma.Errorf("fleet", sigma.KindUnavailable, "this coordinator does not lead any more")
	}
}

// tell has the core hear an event.
func (k *keeper) tell(e core.Event) {
	select {
	case k.todo <- func() { k.step(e) }:
	case <-k.ended:
	}
}

// body finds or makes the member's, whose end is waited for.
func (k *keeper) body(id sigma.ProcID) *body {
	b := k.members[id]
	if b == nil {
		b = &body{admitted: make(chan struct{})}
		b.ctx, b.cancel = context.WithCancel(k.life)
		k.members[id] = b
		k.all.Go(func() { k.waitFor(b.ctx, id) })
	}
	return b
}

// waitFor tells the core when a proc has ended, and how.
func (k *keeper) waitFor(ctx context.Context, id sigma.ProcID) {
	e := core.Ended{Proc: id}
	k.again(ctx, "a member is not waited for", func(ctx context.Context) error {
		s, err := k.c.c.WaitExit(ctx, id)
		switch kind := sigma.KindOf(err); {
		case err == nil:
			e.Why, e.Lost = ending(s), s.Code == sigma.StatusLost || s.Kind == sigma.KindUnavailable
		case kind == sigma.KindNotFound || kind == sigma.KindLost: // nobody knows what became of it
			e.Why, e.Lost = "its machine does not know it any more", true
		default:
			return err
		}
		return nil
	})
	if ctx.Err() == nil {
		k.tell(e)
	}
}

// ending says how a proc ended.
func ending(s sigma.Status) string {
	text := s.Code.String()
	if s.Code == sigma.StatusError && s.ExitCode != 0 {
		text = fmt.Sprintf("exit code %d", s.ExitCode)
	}
	if s.Msg != "" {
		text += ": " + s.Msg
	}
	return text
}

// againAfter and againMost bound the pauses between attempts at what has to be done.
const (
	againAfter = 50 * time.Millisecond
	againMost  = 2 * time.Second
)

// again tries until it succeeds, cannot be, or ctx ends.
func (k *keeper) again(ctx context.Context, failure string, try func(context.Context) error) {
	for pause := againAfter; ; pause = min(2*pause, againMost) {
		err := try(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if kind := sigma.KindOf(err); !kind.Retryable() && kind != sigma.KindLost && kind != sigma.KindTimeout {
			k.c.cfg.Log.Error(failure, "fleet", k.name, "err", err)
			return
		}
		if !retry.Pause(ctx, pause) {
			return
		}
	}
}

// step tells the core, and carries out what it says.
func (k *keeper) step(e core.Event) {
	if ended, is := e.(core.Ended); is {
		if b := k.members[ended.Proc]; b != nil {
			b.cancel()
			delete(k.members, ended.Proc)
		}
	}
	for _, f := range k.core.Step(time.Now(), e) {
		k.carryOut(f)
	}
}

func (k *keeper) carryOut(f core.Effect) {
	switch f := f.(type) {
	case core.Spawn:
		k.spawn(f)
	case core.Evict:
		k.refuse(k.body(f.Proc))
		k.all.Go(func() {
			k.again(k.life, "a member was not asked to go", func(ctx context.Context) error {
				return ignore(k.c.c.Evict(ctx, f.Proc, f.Grace), sigma.KindNotFound)
			})
		})
	case core.Admit:
		if b := k.body(f.Proc); !closed(b.admitted) {
			close(b.admitted)
		}
	case core.Probe:
		b, h := k.body(f.Proc), k.core.Record().Spec.Health
		endpoint := b.endpoint
		k.all.Go(func() { k.probe(b.ctx, f.Proc, endpoint, h) })
	case core.SetPolicy:
		k.papers.policy(f.Policy)
	case core.Save:
		if err := k.store(k.life, f.Record); err != nil {
			k.c.cfg.Log.Warn("the record of a fleet is not stored", "fleet", k.name, "err", err)
		}
	case core.Note:
		k.papers.note(f.Decision, k.self())
	case core.Forget:
		k.forget = true
	}
}

func (k *keeper) refuse(b *body) {
	if !closed(b.admitted) {
		b.refused = true
		close(b.admitted)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func ignore(err error, kind sigma.Kind) error {
	if sigma.KindOf(err) == kind {
		return nil
	}
	return err
}

// spawn starts members. It is not tried again here: the core knows how often that may be.
func (k *keeper) spawn(f core.Spawn) {
	spec := k.core.Record().Spec
	if s := k.core.Record().Stable; s != nil && f.Revision == s.Revision {
		spec = s.Spec
	}
	k.all.Go(func() {
		e := core.Spawned{Revision: f.Revision, N: f.N, Near: f.Near}
		d, err := spec.Descriptor(f.Revision)
		if f.Near != "" {
			d.Near = f.Near
		}
		if err == nil {
			ds := make([]sigma.Descriptor, f.N)
			for i := range ds {
				ds[i] = d
			}
			e.Procs, err = k.c.c.Spawn(k.life, ds...)
		}
		e.Err = err
		select {
		case k.todo <- func() {
			k.step(e)
			for _, id := range e.Procs {
				k.body(id)
			}
		}:
		case <-k.ended:
		}
	})
}

// store writes the record; what is stored is in force.
func (k *keeper) store(ctx context.Context, r fleet.Record) error {
	if err := k.papers.record(ctx, r); err != nil {
		return err
	}
	k.record = r
	return nil
}

// enter is a member's question whether clients may be sent to it.
func (k *keeper) enter(ctx context.Context, a fleet.EnterArg) (none struct{}, err error) {
	p, err := member(ctx)
	if err != nil {
		return none, err
	}
	endpoint, err := sigma.ParseEndpoint(a.Endpoint)
	if err != nil || endpoint.Proc != p.Proc || endpoint.Form != sigma.FormStream {
		return none, sigma.Errorf("fleet.Enter", sigma.KindInvalid, "a member names its own endpoint, of form stream")
	}
	var b *body
	err = k.do(ctx, func() {
		b = k.body(p.Proc)
		b.endpoint = endpoint
		k.step(core.Entered{Proc: p.Proc, Revision: a.Revision, Machine: endpoint.Machine})
	})
	if err != nil {
		return none, err
	}
	select {
	case <-b.admitted:
		if b.refused {
			return none, sigma.Errorf("fleet.Enter", sigma.KindPermission, "this member is not wanted")
		}
		return none, nil
	case <-b.ctx.Done():
		return none, sigma.Errorf("fleet.Enter", sigma.KindUnavailable, "this coordinator does not lead any more")
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// member is the proc that calls.
func member(ctx context.Context) (sigma.Principal, error) {
	p, ok := call.Caller(ctx)
	if !ok || p.Proc == "" {
		return p, sigma.Errorf("fleet", sigma.KindPermission, "only a proc can be a member")
	}
	return p, nil
}

func (k *keeper) report(ctx context.Context, a fleet.ReportArg) (r fleet.ReportReply, err error) {
	p, err := member(ctx)
	if err != nil {
		return r, err
	}
	err = k.do(ctx, func() {
		k.body(p.Proc)
		k.step(core.Reported{Proc: p.Proc, Revision: a.Revision, Machine: p.Machine, Load: a.Load})
		r.Next, r.Spread = fleet.Duration(k.core.Due(a.Load.Busy)), k.core.Spread()
	})
	return r, err
}

func (k *keeper) leaving(ctx context.Context, _ fleet.MemberArg) (none struct{}, err error) {
	p, err := member(ctx)
	if err == nil {
		k.tell(core.Leaving{Proc: p.Proc})
	}
	return none, err
}
