package kernel

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"

	"sigmaos.dev/dialproxy"
	"sigmaos.dev/identity"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// keepLedger looks at procs that run long, and writes the file, until ctx ends; and once then.
func (k *Kernel) keepLedger(ctx context.Context) {
	every := time.NewTicker(meter.LookEvery)
	defer every.Stop()
	for ctx.Err() == nil {
		select {
		case <-every.C:
		case <-ctx.Done():
		}
		now := time.Now()
		for id, realm := range k.ledger.Some(now) {
			if ctx.Err() != nil {
				break
			}
			p, known := k.procs.Proc(realm, id)
			gone := !known || p.Ended() || p.Away() // of a former sigmad, and its end was not seen
			u, err := k.runner.Usage(ctx, realm, id)
			if err == nil {
				k.ledger.Uses(now, id, u.UserTime+u.SystemTime, gone)
			}
		}
		k.countServed(now)
		k.sampleTraffic(ctx)
		if err := errors.Join(k.ledger.Save(), k.copies.Save(now)); err != nil {
			k.cfg.Log.Warn("cannot keep the usage of realms", "err", err)
		}
	}
}

// sampleTraffic looks at all meters, and at the TCP connections that are open.
func (k *Kernel) sampleTraffic(ctx context.Context) {
	if k.cluster.Registered() {
		k.connect.SweepPools()
	}
	x, now := k.traffic, time.Now()
	for _, id := range x.Procs() {
		p, known := k.procs.Find(id)
		if x.Look(now, id); !known || p.Ended() { // what came when its end was being seen
			x.End(now, id)
		}
	}
	some := x.Some(now)
	if len(some) == 0 {
		return
	}
	ends := make([]dialproxy.Open, 0, len(some))
	for _, o := range some {
		ends = append(ends, o)
	}
	found := k.connect.Found(ctx, ends, false)
	for cookie, o := range some {
		if s, is := found[o.Inode]; is {
			x.FlowNow(now, cookie, s.Sent, s.Received, false)
		} else {
			x.Lost(now, cookie)
		}
	}
}

// meterCall is the call meter.
func (r *root) meterCall(_ context.Context, payload []byte) ([]byte, []*os.File, error) {
	if err := sigmap.Parse(payload, func(*sigmap.Coder) {}); err != nil {
		return nil, nil, err
	}
	who := r.tree.principal
	who.Realm = r.realm
	f, err := r.tree.k.traffic.GiveMeter(who, time.Now())
	if err != nil {
		return nil, nil, err
	}
	return nil, []*os.File{f}, nil
}

// carriedLate is traffic.late: the status of a proc that has ended tells it too, as long as it is
// remembered.
func (k *Kernel) carriedLate(id sigma.ProcID, more sigma.Traffic) {
	k.procs.Step(schedd.Carried{ID: id, Traffic: more})
}

// countWork counts what a service did, of what it has used since that was counted last: in the
// realms' usage, and in their turns at besched.
func (k *Kernel) countWork(now time.Time, service string, used time.Duration, works []sigma.Work) {
	k.worked.Count(now, service, used, works, func(before time.Time, done sigma.Work) {
		k.countDone(now, before, service, done)
	})
}

// countDone counts what a service did between two times in the realm's usage, and in its turns at
// besched.
func (k *Kernel) countDone(now, before time.Time, service string, done sigma.Work) {
	k.ledger.Served(now, service, done)
	k.placing.Served(before, now, done)
}

// countServed counts what sigmad has done for realms since it was counted last.
func (k *Kernel) countServed(now time.Time) {
	own := ownUsage()
	k.countWork(now, services.Sigmad, k.worked.Fresh(services.Sigmad, meter.Spent{CPU: own.UserTime + own.SystemTime}),
		k.turns.Work())
}

// workedCall is the call worked: what a service did for realms since it told that last -> the
// realms' shares. What is told of realms that there are not is dropped.
func (r *root) workedCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.worked"
	k := r.tree.k
	s := k.services.Of(r.tree.principal)
	if s == nil {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "only services may tell this")
	}
	var number uint64
	var works []sigma.Work
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&number); c.Works(&works) }); err != nil {
		return nil, nil, err
	}
	if len(works) > sigmap.WorksMax {
		return nil, nil, sigma.Errorf(op, sigma.KindTooBig, "work for %d realms in one call; %d are allowed",
			len(works), sigmap.WorksMax)
	}
	known, _ := k.shares.Known()
	works = slices.DeleteFunc(works, func(w sigma.Work) bool {
		_, is := known[w.Realm]
		return !is && w.Realm != sigma.SystemRealm
	})
	id := s.Launch()
	if k.worked.News(s.Name, meter.Report{Launch: id, Number: number}) {
		var total time.Duration
		if l := k.launcher.Now(); l != nil {
			if m, err := k.launcher.Meter(ctx, l, id); err == nil { // else its time is counted the next time
				total = m.User + m.Sys
			}
		}
		if s.Realm != "" {
			k.services.ChargeDatabases(time.Now(), s, id, total, works)
		} else {
			k.countWork(time.Now(), s.Name, k.worked.Fresh(s.Name, meter.Spent{Launch: id, CPU: total}), works)
		}
	}
	shares := make([]sigmap.RealmShares, 0, len(works))
	for _, w := range works {
		shares = append(shares, sigmap.RealmShares{Realm: w.Realm, Shares: known[w.Realm].Shares})
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.RealmsShares(&shares) })
	return reply, nil, err
}

// heardRealms tells the ledger and the copies which realms there are.
func (k *Kernel) heardRealms(now time.Time, all []sigma.RealmInfo) {
	there := make(map[sigma.RealmID]meter.Made, len(all))
	for i := range all {
		there[all[i].ID] = meter.MadeAt(all[i].Created)
	}
	k.ledger.Heard(now, there)
	k.copies.Heard(now, there)
}

// peerTold notes what another machine tells of its ledger, and answers with the version that is
// held then.
func (k *Kernel) peerTold(_ context.Context, who identity.Subject, payload []byte) ([]byte, error) {
	var t meter.Telling
	if err := sigmap.Parse(payload, t.Code); err != nil {
		return nil, err
	}
	held, odd, err := k.copies.Take(time.Now(), who.Machine, &t)
	if err != nil {
		return nil, err
	}
	if odd {
		k.cfg.Log.Warn("a machine tells of usage in an hour that cannot be, which is left out; was its clock wrong?",
			"machine", who.Machine)
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.U64(&held) })
}

// tellLedger tells the control machines what is new in this machine's ledger, until ctx ends.
func (k *Kernel) tellLedger(ctx context.Context) {
	select {
	case <-k.cluster.Enrolled():
	case <-ctx.Done():
		return
	}
	known := map[sigma.MachineID]*toldKeeper{}
	every := time.NewTicker(meter.CopyEvery)
	defer every.Stop()
	for ctx.Err() == nil {
		to := k.cluster.Controls()
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
			if err := k.tellKeeper(ctx, m, known[m]); err != nil {
				k.cfg.Log.Debug("a control machine does not hear what realms use", "machine", m, "err", err)
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
func (k *Kernel) tellKeeper(ctx context.Context, m sigma.MachineID, to *toldKeeper) error {
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	for more := true; more; {
		t := meter.Telling{Ledger: k.ledger.ID, Since: to.version}
		var err error
		if t.Text, t.Gone, t.Version, more, err = k.ledger.Since(to.version); err != nil {
			return err
		}
		if t.Version == to.version && time.Since(to.at) < meter.CopyLeast {
			return nil
		}
		var held uint64
		if err := k.reach.Ask(ctx, m, peerTold, t.Code, func(c *sigmap.Coder) { c.U64(&held) }); err != nil {
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
