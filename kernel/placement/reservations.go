package placement

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// reservations is the machine's connection to the lcsched that leads: it sends the latency-critical
// procs that were spawned here, takes what is granted, and tells what is over.
type reservations struct {
	all *Placement
	led atomic.Bool // an lcsched that leads is known

	mu       sync.Mutex
	queue    []lcsched.Job  // mu; not sent yet, as are the following
	cancels  []sigma.ProcID // mu
	released []sigma.ProcID // mu
	declined []sigma.ProcID // mu
	work     chan struct{}  // something to send
}

// lentEvery is how often lcsched is told what best-effort procs hold, if that is much more or less
// than it knows.
const lentEvery = time.Second

// standingEvery is how often it is looked whether lcsched knows the machine as it is: its life, its
// labels, and whether it takes anything new.
const standingEvery = 10 * time.Second

func newReservations(p *Placement) *reservations {
	return &reservations{all: p, work: make(chan struct{}, 1)}
}

// note adds something to be sent.
func (r *reservations) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	poke(r.work)
}

func (r *reservations) enqueue(p *schedd.Proc) {
	j := lcsched.Job{ID: p.ID, Realm: p.Realm, Name: p.Name, CPU: p.CPU, Memory: p.Memory, Where: p.Descriptor.Where,
		Spread: p.Descriptor.Spread, Near: p.Near}
	r.note(func() { r.queue = append(r.queue, j) })
	if !r.led.Load() {
		r.all.cfg.Unscheduled(p)
	}
}

func (r *reservations) cancel(id sigma.ProcID) { r.note(func() { r.cancels = append(r.cancels, id) }) }
func (r *reservations) release(id sigma.ProcID) {
	r.note(func() { r.released = append(r.released, id) })
}
func (r *reservations) decline(id sigma.ProcID) {
	r.note(func() { r.declined = append(r.declined, id) })
}

// run keeps a session to the lcsched that leads until ctx ends.
func (r *reservations) run(ctx context.Context) {
	select {
	case <-r.all.cfg.Known: // what runs here holds reservations
	case <-ctx.Done():
		return
	}
	r.all.cfg.Procs.Step(schedd.Cores{CPU: r.all.cfg.CPU})
	for ctx.Err() == nil {
		if !r.all.cfg.Cluster.AwaitLife(ctx) {
			return
		}
		c, err := r.all.cfg.Reach(ctx, Lcsched, func(ctx context.Context, c *session.Client) error {
			b, err := cluster.Callee(ctx, c, Lcsched)
			if err == nil {
				err = lcsched.CallLeads.Tell(ctx, b, sigmap.None{})
			}
			return err
		})
		if err == nil {
			r.led.Store(true)
			r.session(ctx, c, r.all.cfg.Cluster.Life())
			r.led.Store(false)
			c.Close()
		}
		retry.Pause(ctx, retryMin)
	}
}

// session works with one lcsched until it is lost, leads no more, or this machine is not what it
// was told.
func (r *reservations) session(ctx context.Context, c *session.Client, life sigma.Life) {
	b, err := cluster.Callee(ctx, c, Lcsched)
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	as := r.attendance(life)
	var all sync.WaitGroup
	for _, work := range []func(){
		func() {
			if r.tellHeld(ctx, b, as.Held) == nil {
				tell(ctx, r.all, b, 0, lcsched.CallAttend, *as)
			}
		},
		func() { r.send(ctx, b) },
		func() { r.take(ctx, b) },
		func() { r.watch(ctx, b, life, as) },
	} {
		all.Go(func() { work(); cancel() })
	}
	r.all.cfg.Procs.Step(schedd.LCSchedulerLost{}) // what is queued is sent to this one
	select {
	case <-c.Done():
		cancel()
	case <-ctx.Done():
	}
	all.Wait()
}

// attendance is what lcsched is told of the machine. What was to be sent to a former one is in it,
// or of no interest any more.
func (r *reservations) attendance(life sigma.Life) *lcsched.Attendance {
	p := r.all
	a := &lcsched.Attendance{Incarnation: life.Incarnation, CPU: p.cfg.CPU, Memory: p.cfg.Memory,
		Labels: p.cfg.Labels(),
		Closed: p.cfg.Cluster.Cordoned()}
	p.cfg.Procs.With(func(v procs.View) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue, r.cancels, r.released, r.declined = nil, nil, nil, nil
		a.Lent = v.Lent()
		for _, id := range v.Reservations() {
			h := lcsched.Held{ID: id}
			h.Realm, h.CPU, h.Memory = v.Reservation(id)
			if p := v.Find(id); p != nil {
				h.Name = p.Name
			}
			a.Held = append(a.Held, h)
		}
	})
	return a
}

// tellHeld tells lcsched what is reserved here, before the machine attends.
func (r *reservations) tellHeld(ctx context.Context, b sigma.Caller, held []lcsched.Held) error {
	for len(held) > 0 {
		n := sigmap.Fit(held[:min(len(held), enqueueMax)], lcsched.CodeHeld)
		if err := tell(ctx, r.all, b, callMax, lcsched.CallHeld, held[:n]); err != nil {
			return err
		}
		held = held[n:]
	}
	return nil
}

func (r *reservations) send(ctx context.Context, b sigma.Caller) {
	told := uint64(0)
	for {
		if of, now := r.all.cfg.Limits(); now != told { // before anything else is asked for
			if r.tellLimits(ctx, b, of) != nil {
				return
			}
			told = now
		}
		select {
		case <-r.work:
		case <-ctx.Done():
			return
		}
		for {
			r.mu.Lock()
			n := sigmap.Fit(r.queue[:min(len(r.queue), enqueueMax)], lcsched.CodeJobs)
			over := sigmap.Fit(r.released, (*sigmap.Coder).ProcIDs)
			jobs := r.queue[:n:n]
			r.queue = r.queue[n:]
			cancels, released, declined := r.cancels, r.released[:over:over], r.declined
			r.released, r.declined = r.released[over:], nil
			if len(r.queue) == 0 {
				r.queue, r.cancels = nil, nil // what was sent, with all its labels, is not kept by the array
			} else {
				cancels = nil // only after what they cancel has been sent
			}
			r.mu.Unlock()
			if n+len(cancels)+len(released)+len(declined) == 0 {
				break
			}
			if len(released) > 0 && tell(ctx, r.all, b, callMax, lcsched.CallReleased, released) != nil {
				return
			}
			for _, id := range declined {
				if tell(ctx, r.all, b, callMax, lcsched.CallDeclined, id) != nil {
					return
				}
			}
			if n > 0 && tell(ctx, r.all, b, callMax, lcsched.CallEnqueue, jobs) != nil {
				return
			}
			for _, id := range cancels {
				if tell(ctx, r.all, b, callMax, lcsched.CallCancel, id) != nil {
					return
				}
			}
		}
	}
}

// limitsPage realms are told of in one call.
const limitsPage = 512

// tellLimits tells lcsched what realms may reserve.
func (r *reservations) tellLimits(ctx context.Context, b sigma.Caller, of map[sigma.RealmID]sigma.RealmInfo) error {
	all := []lcsched.Limits{}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		l := of[id].Limits
		x := lcsched.Limits{Realm: id, Max: lcsched.Amount{CPU: l.MaxCPU, Memory: l.MaxMemory},
			Min: lcsched.Amount{CPU: l.MinCPU, Memory: l.MinMemory}, Reservable: lcsched.Amount{CPU: l.ReserveCPU,
				Memory: l.ReserveMemory}}
		if x != (lcsched.Limits{Realm: id}) {
			all = append(all, x)
		}
	}
	for more := true; more; {
		page := all[:min(len(all), limitsPage)]
		all = all[len(page):]
		more = len(all) > 0
		if err := tell(ctx, r.all, b, callMax, lcsched.CallLimits, lcsched.LimitsPage{More: more,
			Limits: page}); err != nil {
			return err
		}
	}
	return nil
}

// take carries out what lcsched decides for this machine.
func (r *reservations) take(ctx context.Context, b sigma.Caller) {
	p := r.all
	for {
		x, err := lcsched.CallNext.Ask(ctx, b, sigmap.None{})
		if err != nil {
			return
		}
		for _, j := range x.Jobs {
			switch {
			case p.sched.isClosed() && !p.holds(j.ID): // lcsched has not heard it yet
				r.decline(j.ID)
			case j.Home.Machine == p.cfg.Machine:
				p.cfg.Procs.Step(schedd.Assigned{ID: j.ID})
			case procs.IsID(j.ID):
				p.cfg.Procs.Step(schedd.Offered{ID: j.ID, Realm: j.Realm, Class: sigma.LatencyCritical, CPU: j.CPU,
					Memory: j.Memory, Home: j.Home})
			}
		}
		for _, f := range x.Refused {
			p.cfg.Refused(f.ID, f.Why)
			p.cfg.Procs.Step(schedd.Refused{ID: f.ID, Why: f.Why})
		}
	}
}

// holds reports whether a proc has a reservation here.
func (p *Placement) holds(id sigma.ProcID) (is bool) {
	p.cfg.Procs.With(func(v procs.View) { is = v.Reserved(id) })
	return is
}

// watch tells what best-effort procs hold, and returns when the machine is not what lcsched was
// told.
func (r *reservations) watch(ctx context.Context, b sigma.Caller, life sigma.Life, as *lcsched.Attendance) {
	tick := time.NewTicker(lentEvery)
	defer tick.Stop()
	told, looked := as.Lent, time.Now()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		p := r.all
		if p.cfg.Cluster.Life() != life || p.cfg.Cluster.Cordoned() != as.Closed {
			return
		}
		if time.Since(looked) >= standingEvery {
			looked = time.Now()
			if !maps.Equal(p.cfg.Labels(), as.Labels) {
				return
			}
			p.cfg.Procs.Step(schedd.Requeue{Before: looked.Add(-standingEvery)})
		}
		var lent sigma.Bytes
		p.cfg.Procs.With(func(v procs.View) { lent = v.Lent() })
		if max(lent, told)-min(lent, told) < p.cfg.Memory/16 {
			continue
		}
		told = lent
		if tell(ctx, r.all, b, callMax, lcsched.CallLent, lent) != nil {
			return
		}
	}
}
