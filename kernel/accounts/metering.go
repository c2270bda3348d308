// Package accounts keeps the accounts of what realms use of a machine, and tells those of all
// machines: it looks at procs that run long, counts the work of services, tells the control
// machines what is new in the machine's ledger (kernel/meter), and makes /sys/usage,
// /sys/usage-procs and /sys/load. It has no lock. Users: kernel.
package accounts

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/launchers"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/placement"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/shares"
	"sigmaos.dev/trees/treeserver"

	"sigmaos.dev/kernel/dialproxy"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Config is what Accounts need of their user.
type Config struct {
	Machine  sigma.MachineID
	CPU      sigma.MilliCPU // what the machine offers
	Start    time.Time      // of sigmad
	Log      *slog.Logger
	Procs    *procs.Table
	Launcher *launchers.Launchers
	Services *services.Set
	Cluster  *cluster.Cluster
	Reach    *reach.Reach
	Runner   *runner.Runner
	Connect  *connect.Connect
	Placing  *placement.Placement
	Shares   *shares.Groups
	Ledger   *meter.Ledger
	Copies   *meter.Copies
	Traffic  *meter.Traffic
	Worked   *meter.Works
	Turns    *treeserver.Turns // work that sigmad did for realms
	Memo     *memo.Memo
	// Machines are all members, whether they are there or not, in order.
	Machines func() []sigma.MachineID
}

// Accounts tell what the realms use of all machines. Safe for concurrent use.
type Accounts struct {
	cfg Config
}

// New makes the accounts of a machine, and answers others.
func New(cfg Config) *Accounts {
	x := &Accounts{cfg: cfg}
	cfg.Reach.Answer(reach.On(peerLedger, x.ledgerHere), reach.On(peerLoad, x.loadHere), reach.From(peerTold, x.hear),
		reach.On(peerCopies, x.copiesHere), reach.On(peerCopied, x.copyHere))
	cfg.Traffic.Late = x.carriedLate
	cfg.Traffic.Full = func() {
		cfg.Log.Warn("more TCP connections of procs than are counted; what others carry to other machines is not",
			"counted", meter.FlowsMost)
	}
	return x
}

// Forget drops what is kept of a realm that is gone.
func (x *Accounts) Forget(realm sigma.RealmID) {
	x.cfg.Ledger.Drop(realm)
	x.cfg.Copies.Drop(realm)
	x.cfg.Traffic.Drop(realm)
	x.cfg.Worked.Drop(realm, services.DatabaseService(realm))
}

// Keep looks at procs that run long, and writes the file, until ctx ends; and once then.
func (x *Accounts) Keep(ctx context.Context) {
	every := time.NewTicker(meter.LookEvery)
	defer every.Stop()
	for ctx.Err() == nil {
		select {
		case <-every.C:
		case <-ctx.Done():
		}
		now := time.Now()
		for id, realm := range x.cfg.Ledger.Some(now) {
			if ctx.Err() != nil {
				break
			}
			p, known := x.cfg.Procs.Proc(realm, id)
			gone := !known || p.Ended() || p.Away() // of a former sigmad, and its end was not seen
			u, err := x.cfg.Runner.Usage(ctx, realm, id)
			if err == nil {
				x.cfg.Ledger.Uses(now, id, u.UserTime+u.SystemTime, gone)
			}
		}
		x.CountServed(now)
		x.sampleTraffic(ctx)
		if err := errors.Join(x.cfg.Ledger.Save(), x.cfg.Copies.Save(now)); err != nil {
			x.cfg.Log.Warn("cannot keep the usage of realms", "err", err)
		}
	}
}

// sampleTraffic looks at all meters, and at the TCP connections that are open.
func (x *Accounts) sampleTraffic(ctx context.Context) {
	if x.cfg.Cluster.Registered() {
		x.cfg.Connect.SweepPools()
	}
	t, now := x.cfg.Traffic, time.Now()
	for _, id := range t.Procs() {
		p, known := x.cfg.Procs.Find(id)
		if t.Look(now, id); !known || p.Ended() { // what came when its end was being seen
			t.End(now, id)
		}
	}
	some := t.Some(now)
	if len(some) == 0 {
		return
	}
	ends := make([]dialproxy.Open, 0, len(some))
	for _, o := range some {
		ends = append(ends, o)
	}
	found := x.cfg.Connect.Found(ctx, ends, false)
	for cookie, o := range some {
		if s, is := found[o.Inode]; is {
			t.FlowNow(now, cookie, s.Sent, s.Received, false)
		} else {
			t.Lost(now, cookie)
		}
	}
}

// carriedLate is Traffic.Late: the status of a proc that has ended tells it too, as long as it is
// remembered.
func (x *Accounts) carriedLate(id sigma.ProcID, more sigma.Traffic) {
	x.cfg.Procs.Step(schedd.Carried{ID: id, Traffic: more})
}

// CountWork counts what a service did, of what it has used since that was counted last: in the
// realms' usage, and in their turns at besched.
func (x *Accounts) CountWork(now time.Time, service string, used time.Duration, works []sigma.Work) {
	x.cfg.Worked.Count(now, service, used, works, func(before time.Time, done sigma.Work) {
		x.CountDone(now, before, service, done)
	})
}

// CountDone counts what a service did between two times in the realm's usage, and in its turns at
// besched.
func (x *Accounts) CountDone(now, before time.Time, service string, done sigma.Work) {
	x.cfg.Ledger.Served(now, service, done)
	x.cfg.Placing.Served(before, now, done)
}

// CountServed counts what sigmad has done for realms since it was counted last.
func (x *Accounts) CountServed(now time.Time) {
	own := ownUsage()
	used := x.cfg.Worked.Fresh(services.Sigmad, meter.Spent{CPU: own.UserTime + own.SystemTime})
	x.CountWork(now, services.Sigmad, used, x.cfg.Turns.Work())
}

// Worked is the call worked. What is told of realms that there are not is dropped.
func (x *Accounts) Worked(ctx context.Context, s *services.Service, told sigmap.Worked) ([]sigmap.RealmShares,
	error) {
	const op = "kernel.worked"
	if s == nil {
		return nil, sigma.Errorf(op, sigma.KindPermission, "only services may tell this")
	}
	works := told.Works
	if len(works) > sigmap.WorksMax {
		return nil, sigma.Errorf(op, sigma.KindTooBig, "work for %d realms in one call; %d are allowed",
			len(works), sigmap.WorksMax)
	}
	known, _ := x.cfg.Shares.Known()
	works = slices.DeleteFunc(works, func(w sigma.Work) bool {
		_, is := known[w.Realm]
		return !is && w.Realm != sigma.SystemRealm
	})
	id := s.Launch()
	if x.cfg.Worked.News(s.Name, meter.Report{Launch: id, Number: told.Number}) {
		var total time.Duration
		if l := x.cfg.Launcher.Now(); l != nil {
			if m, err := x.cfg.Launcher.Meter(ctx, l, id); err == nil { // else its time is counted the next time
				total = m.User + m.Sys
			}
		}
		if s.Realm != "" {
			x.cfg.Services.ChargeDatabases(time.Now(), s, id, total, works)
		} else {
			x.CountWork(time.Now(), s.Name, x.cfg.Worked.Fresh(s.Name, meter.Spent{Launch: id, CPU: total}), works)
		}
	}
	shares := make([]sigmap.RealmShares, 0, len(works))
	for _, w := range works {
		shares = append(shares, sigmap.RealmShares{Realm: w.Realm, Shares: known[w.Realm].Shares})
	}
	return shares, nil
}

// HeardRealms tells the ledger and the copies which realms there are.
func (x *Accounts) HeardRealms(now time.Time, all []sigma.RealmInfo) {
	there := make(map[sigma.RealmID]meter.Made, len(all))
	for i := range all {
		there[all[i].ID] = meter.MadeAt(all[i].Created)
	}
	x.cfg.Ledger.Heard(now, there)
	x.cfg.Copies.Heard(now, there)
}

// hear answers peerTold: it notes what another machine tells of its ledger.
func (x *Accounts) hear(_ context.Context, who identity.Subject, t meter.Telling) (uint64, error) {
	held, odd, err := x.cfg.Copies.Take(time.Now(), who.Machine, &t)
	if err == nil && odd {
		x.cfg.Log.Warn("a machine tells of usage in an hour that cannot be, which is left out; was its clock wrong?",
			"machine", who.Machine)
	}
	return held, err
}

// Tell tells the control machines what is new in this machine's ledger, until ctx ends.
func (x *Accounts) Tell(ctx context.Context) {
	select {
	case <-x.cfg.Cluster.Enrolled():
	case <-ctx.Done():
		return
	}
	known := map[sigma.MachineID]*toldKeeper{}
	every := time.NewTicker(meter.CopyEvery)
	defer every.Stop()
	for ctx.Err() == nil {
		to := x.cfg.Cluster.Controls()
		for m := range known {
			if !slices.Contains(to, m) {
				delete(known, m)
			}
		}
		for _, m := range to {
			if known[m] == nil {
				known[m] = &toldKeeper{}
			}
		}
		services.EachOf(len(to)+1, to, func(m sigma.MachineID) {
			if err := x.tellKeeper(ctx, m, known[m]); err != nil {
				x.cfg.Log.Debug("a control machine does not hear what realms use", "machine", m, "err", err)
			}
		})
		select {
		case <-every.C:
		case <-ctx.Done():
		}
	}
}

// toldKeeper is what a control machine was told.
type toldKeeper struct {
	version uint64
	at      time.Time
}

// tellKeeper tells one control machine.
func (x *Accounts) tellKeeper(ctx context.Context, m sigma.MachineID, to *toldKeeper) error {
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	for more := true; more; {
		t := meter.Telling{Ledger: x.cfg.Ledger.ID, Since: to.version}
		var err error
		if t.Text, t.Gone, t.Version, more, err = x.cfg.Ledger.Since(to.version); err != nil {
			return err
		}
		if t.Version == to.version && time.Since(to.at) < meter.CopyLeast {
			return nil
		}
		held, err := peerTold.Ask(ctx, x.cfg.Reach.At(m), t)
		if err != nil {
			return err
		}
		to.at = time.Now()
		switch {
		case held == t.Version:
			to.version = held
		case t.Since == 0:
			return sigma.Errorf("kernel.tellKeeper", sigma.KindInvalid, "all was told, and it holds another version")
		case held < t.Version: // it does not hold what was told before
			to.version, more = held, true
		default: // of a sigmad whose clock was ahead
			to.version, more = 0, true
		}
	}
	return nil
}
