// Package placement is the machine's part in placing procs: it sends those that were spawned here
// to the schedulers (besched for best-effort procs, lcsched for reservations), offers them what
// this machine has, takes what they grant, and charges realms for what their procs use. It learns
// of procs by the effects of schedd (Carry), and answers with events. Users: kernel.
//
// Locks: scheduler.leasing before procs.Table's, and scheduler.mu, reservations.mu and charges.mu
// after it. None is held across a call to a scheduler.
package placement

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// The schedulers, as services.
const (
	Besched = "besched"
	Lcsched = "lcsched"
)

// Config is what a Placement needs.
type Config struct {
	Machine sigma.MachineID
	Memory  sigma.Bytes    // for procs
	CPU     sigma.MilliCPU // that the machine offers
	Log     *slog.Logger
	Procs   *procs.Table
	Cluster *cluster.Cluster
	Known   <-chan struct{} // closed when it is known what ran before this sigmad
	// Bescheds are the machines that may run a besched. changed is closed when they may be others.
	Bescheds func() (now map[sigma.MachineID]bool, changed <-chan struct{})
	// DialAt opens a session to a service of a machine. It does not wait for a service that is
	// being started.
	DialAt func(ctx context.Context, m sigma.MachineID, service string) (*session.Client, error)
	// Reach opens a session to a service for use, which is asked of one machine after another.
	Reach func(ctx context.Context, service string, use func(context.Context, *session.Client) error) (*session.Client,
		error)
	// Labels are the machine's failure domain and whatever else its owner says of it.
	Labels func() map[string]string
	// Usage is what a proc that runs here uses.
	Usage func(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigma.Usage, error)
	// Realms are all realms, as they were at a time.
	Realms func() (all []sigma.RealmInfo, asked time.Time, err error)
	// Limits are the limits of all realms as they were heard last, and how often they have changed.
	Limits func() (of map[sigma.RealmID]sigma.RealmInfo, told uint64)
	// Unscheduled is told that there is no scheduler for a proc, and Refused that a reservation can
	// never be had. Unscheduled must not block.
	Unscheduled func(p *schedd.Proc)
	Refused     func(id sigma.ProcID, why string)
}

// Placement is the machine's part in placing procs. Safe for concurrent use.
type Placement struct {
	cfg      Config
	sched    *scheduler
	reserved *reservations
}

// New makes the part of a machine without a launcher.
func New(cfg Config) *Placement {
	p := &Placement{cfg: cfg}
	p.sched, p.reserved = newScheduler(p), newReservations(p)
	return p
}

// Run keeps sessions with the schedulers until ctx ends.
func (p *Placement) Run(ctx context.Context) {
	var all sync.WaitGroup
	all.Go(func() { p.sched.run(ctx) })
	all.Go(func() { p.reserved.run(ctx) })
	all.Wait()
}

// Carry carries out an effect of schedd, if it is one about placement. It does not block.
func (p *Placement) Carry(f schedd.Effect) {
	switch f := f.(type) {
	case schedd.Enqueue:
		if f.Proc.Class == sigma.LatencyCritical {
			p.reserved.enqueue(f.Proc)
			break
		}
		p.sched.enqueue(f.Proc)
	case schedd.Dequeue:
		if f.Class == sigma.LatencyCritical {
			p.reserved.cancel(f.ID)
			break
		}
		p.sched.cancel(f.Shard, f.ID)
	case schedd.Unreserved:
		p.reserved.release(f.ID)
	case schedd.Unfit:
		p.reserved.decline(f.ID)
	case schedd.Room:
		p.sched.room()
	}
}

// Close says whether new procs may not come here.
func (p *Placement) Close(closed bool) { p.sched.close(closed) }

// Closed says whether new procs may not come here, as Close was told last.
func (p *Placement) Closed() bool { return p.sched.isClosed() }

// AwaitClosed waits a while until no besched can give this machine a proc, if new procs may not
// come here; false if one still can.
func (p *Placement) AwaitClosed(ctx context.Context) bool { return p.sched.awaitClosed(ctx) }

// Launcher says whether there is a launcher. Without one what is placed here would wait for the
// next.
func (p *Placement) Launcher(on bool) { p.sched.launches(on) }

// Ended takes note of what a proc used that has ended here. It is called under the Table's lock.
func (p *Placement) Ended(proc *schedd.Proc) { p.sched.ended(proc) }

// Served charges for what a service did for a realm between two times.
func (p *Placement) Served(from, now time.Time, done sigma.Work) {
	p.sched.charges.served(from, now, done)
}

// SharesChanged has besched told at once of shares that were changed by this machine.
func (p *Placement) SharesChanged() { p.sched.sharesChanged() }

// LimitsChanged has lcsched told at once of limits that Config.Limits has.
func (p *Placement) LimitsChanged() { poke(p.reserved.work) }

// Waiting asks the lcsched that leads what waits there.
func (p *Placement) Waiting(ctx context.Context) (ws []lcsched.Waits, err error) {
	c, err := p.cfg.Reach(ctx, Lcsched, func(ctx context.Context, c *session.Client) error {
		b, err := cluster.Callee(ctx, c, Besched)
		if err != nil {
			return err
		}
		ws, err = lcsched.CallWaiting.Ask(ctx, b, sigmap.None{})
		return err
	})
	if err == nil {
		c.Close()
	}
	return ws, err
}

// Queues asks all shards of besched what waits there, by realm.
func (p *Placement) Queues(ctx context.Context) ([]besched.Queued, error) {
	shards := p.sched.sessions()
	if len(shards) == 0 {
		return nil, &sigma.Error{Op: "kernel.queues", Kind: sigma.KindUnavailable,
			Msg:  "this machine has no session with a besched",
			Hint: "sigma status shows how the services are; what runs goes on"}
	}
	of := map[sigma.RealmID]besched.Queued{}
	for _, b := range shards {
		qs, err := besched.CallQueues.Ask(ctx, b, sigmap.None{})
		if err != nil {
			return nil, err
		}
		for _, q := range qs {
			sum := of[q.Realm]
			of[q.Realm] = besched.Queued{Realm: q.Realm, Jobs: sum.Jobs + q.Jobs, Memory: sum.Memory + q.Memory,
				Shares: max(sum.Shares, q.Shares)}
		}
	}
	out := make([]besched.Queued, 0, len(of))
	for _, realm := range slices.Sorted(maps.Keys(of)) {
		out = append(out, of[realm])
	}
	return out, nil
}

// Parked is how many credits are parked at bescheds, and at how many shards this machine attends.
func (p *Placement) Parked() (credits, shards int) {
	p.sched.mu.Lock()
	defer p.sched.mu.Unlock()
	return p.sched.offers.Parked(), p.sched.offers.Shards()
}

// poke puts a token into a channel that has room for one.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
