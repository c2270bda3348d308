// Package remote is what a machine has to do with procs of other machines: it finds procs wherever
// they are, waits for them and acts on them, runs those that are at home elsewhere and reports to
// their homes. Each machine answers the same calls of the others. Users: kernel.
//
// Locks: Remote.mu, a leaf; procs.Table's may be held when it is taken.
package remote

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Act is what can be done to a proc from afar.
type Act uint8

const (
	Kill Act = iota
	Evict
	Freeze
	Thaw
)

const (
	reportBytes = 40 << 10 // of one report, besides its last proc
	reportProcs = 64       // in one report
	// waits at other machines that are under way; a session bears twice as many requests
	farWaits   = 2048
	farOfRealm = farWaits / 2 // of them, those of one realm
	// searches for a proc at all machines that are under way; others wait their turn
	findsMost = 64
)

// Config is what a Remote needs of its user.
type Config struct {
	Machine   sigma.MachineID
	StartMono time.Duration // when sigmad started, on the clock of the host
	Log       *slog.Logger
	Procs     *procs.Table
	Cluster   *cluster.Cluster
	Reach     *reach.Reach
	Runner    *runner.Runner
	Holders   *runner.Holders
	Known     <-chan struct{} // closed when it is known what ran before this sigmad
	Go        func(func())    // begins what is waited for before the program ends
	// Doubt has what is remembered of a realm's names asked for anew: its programs are about to
	// learn of something that was done on another machine.
	Doubt func(realm sigma.RealmID)
	// Caps tells what a proc that is here may reach.
	Caps func(realm sigma.RealmID, id sigma.ProcID) (sigmap.Caps, error)
}

// Remote is what a machine has to do with procs of others. Safe for concurrent use.
type Remote struct {
	cfg      Config
	ctx      context.Context // set by Begin
	ComeBack time.Duration   // comeBackMax; tests do not wait so long
	finds    chan struct{}   // of findsMost

	mu      sync.Mutex
	owed    map[sigma.Life]*debt  // mu
	synced  map[sigma.Life]bool   // mu; lives that have been told what this sigmad runs
	waits   map[sigma.RealmID]int // mu; at other machines
	waiting int                   // mu; sum of waits
}

// debt is what a home is still to be told. A goroutine pays it while it is there.
type debt struct {
	ids []sigma.ProcID // in order of the first change
	in  map[sigma.ProcID]bool
}

// New makes a Remote that owes no message to any machine, and registers the calls that it answers.
func New(cfg Config) *Remote {
	x := &Remote{cfg: cfg, owed: map[sigma.Life]*debt{}, synced: map[sigma.Life]bool{},
		waits: map[sigma.RealmID]int{}, finds: make(chan struct{}, findsMost), ComeBack: comeBackMax}
	cfg.Reach.Answer(reach.From(peerTake, x.give), reach.On(peerDecline, x.declined), reach.From(peerReport, x.hear),
		reach.From(peerResync, x.resynced), reach.On(peerTell, x.tellGuest), reach.On(peerWait, x.waitHere),
		reach.On(peerList, x.listAsked), reach.On(peerUsage, x.usageHere), reach.On(peerHave, x.have),
		reach.On(peerCount, x.countHere), reach.On(peerCaps, x.capsHere))
	return x
}

// Begin sets the context of what is told to other machines. It is called before the rest.
func (x *Remote) Begin(ctx context.Context) { x.ctx = ctx }

// wait counts a wait at another machine until done is called.
func (x *Remote) wait(realm sigma.RealmID) (done func(), err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.waiting >= farWaits || x.waits[realm] >= farOfRealm {
		return nil, sigma.Errorf("kernel.await", sigma.KindBusy,
			"%d waits for procs of other machines are under way here, %d of them of realm %s", x.waiting,
			x.waits[realm], realm)
	}
	x.waiting++
	x.waits[realm]++
	return func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.waiting--
		if x.waits[realm]--; x.waits[realm] == 0 {
			delete(x.waits, realm)
		}
	}, nil
}

// bootNumber is higher with each sigmad of this machine in one life: a life ends with the host.
func (x *Remote) bootNumber() uint64 { return uint64(x.cfg.StartMono) }

// Run tells the part of procs of each change of the roster.
func (x *Remote) Run(ctx context.Context) {
	select {
	case <-x.cfg.Cluster.Enrolled():
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		changed := x.cfg.Cluster.Identity().Roster().Changed() // before the look
		x.procsOfMembers(x.cfg.Cluster.Members())
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// procsOfMembers tells schedd which lives are over, and machines that are new to this sigmad what
// it runs.
func (x *Remote) procsOfMembers(after []identity.Member) {
	least := map[sigma.MachineID]sigma.Incarnation{}
	for _, m := range after {
		least[m.Machine] = m.Incarnation
		if m.Lost {
			least[m.Machine]++
		}
	}
	if len(after) == 0 { // nothing has been heard yet
		return
	}
	x.cfg.Procs.Step(schedd.Members{Least: least})
	x.mu.Lock()
	var fresh []sigma.Life
	for _, m := range after {
		if l := (sigma.Life{Machine: m.Machine, Incarnation: m.Incarnation}); !m.Lost && m.Machine != x.cfg.Machine &&
			!x.synced[l] {
			x.synced[l] = true
			fresh = append(fresh, l)
		}
	}
	for l := range x.synced {
		if l.Incarnation < least[l.Machine] || least[l.Machine] == 0 {
			delete(x.synced, l)
		}
	}
	x.mu.Unlock()
	for _, l := range fresh {
		x.cfg.Go(func() {
			ctx, cancel := x.cfg.Cluster.Presently()
			defer cancel()
			x.resync(ctx, l)
		})
	}
	x.cfg.Cluster.Moved()
}

// resync tells another machine of all guests from there, and then that these are all; which also
// asks it for the same.
func (x *Remote) resync(ctx context.Context, l sigma.Life) {
	select {
	case <-x.cfg.Known: // what runs since before this sigmad
	case <-ctx.Done():
		return
	}
	var ids []sigma.ProcID
	x.cfg.Procs.With(func(v procs.View) { ids = v.Guests(l) })
	for page := range slices.Chunk(ids, reportProcs) {
		if x.reportTo(ctx, l, page) != nil {
			return
		}
	}
	if err := peerResync.Tell(ctx, x.cfg.Reach.Insist(l), x.bootNumber()); err != nil && ctx.Err() == nil {
		x.cfg.Log.Debug("a machine was not told what runs here", "machine", l.Machine, "err", err)
	}
}

// resynced answers peerResync.
func (x *Remote) resynced(_ context.Context, from identity.Subject, boot uint64) (none sigmap.None, err error) {
	life := from.Life()
	x.cfg.Procs.Step(schedd.Resynced{From: life, Boot: boot})
	var ids []sigma.ProcID
	x.cfg.Procs.With(func(v procs.View) { ids = v.Guests(life) })
	for _, id := range ids {
		x.Owe(id, life)
	}
	return none, nil
}

// Take asks the home for a proc that besched gave to this machine.
func (x *Remote) Take(id sigma.ProcID, home sigma.Life) {
	ctx, cancel := x.cfg.Cluster.Presently()
	defer cancel()
	life := x.cfg.Cluster.Life()
	got, err := peerTake.Ask(ctx, x.cfg.Reach.Insist(home), taking{home.Incarnation, id, x.bootNumber()})
	given, e := got.is, schedd.Arrived{Home: home, Info: got.info, Descriptor: got.descriptor, View: got.view,
		Kin: got.kin}
	if err == nil && given {
		if err = checkArrived(id, &e); err != nil {
			x.cfg.Log.Warn("another machine gave a proc that cannot be run", "proc", id, "machine", home.Machine, "err",
				err)
		}
	}
	if given = given && err == nil; given {
		x.cfg.Holders.Hint(e.Info.Realm, e.Descriptor.Program, home.Machine)
		x.cfg.Doubt(e.Info.Realm) // it shall see what was written before it was spawned
	}
	x.cfg.Procs.Change(func(procs.View) schedd.Event {
		switch {
		case life.Incarnation != 0 && x.cfg.Cluster.Life() != life:
			return nil // Reborn gives back what was kept for it; it may be on offer in the next life already
		case given:
			return e
		}
		return schedd.NotTaken{ID: id}
	})
}

// checkArrived looks at what another machine gave as at what a program of this one asks for.
func checkArrived(id sigma.ProcID, e *schedd.Arrived) error {
	if e.Info.ID != id {
		return sigma.Errorf("kernel.take", sigma.KindInvalid, "it is another proc, %.64q", string(e.Info.ID))
	}
	if err := e.Info.Realm.Check(); err != nil {
		return err
	}
	if len(e.Kin) > schedd.KinMax {
		return sigma.Errorf("kernel.take", sigma.KindInvalid, "it has %d ancestors with views", len(e.Kin))
	}
	return e.Descriptor.Check()
}

// give answers peerTake.
func (x *Remote) give(_ context.Context, from identity.Subject, t taking) (g given, err error) {
	if g.is = t.home == x.cfg.Cluster.Life().Incarnation; g.is {
		x.cfg.Procs.With(func(all procs.View) {
			if g.info, g.descriptor, err = all.Give(time.Now(), t.id, from.Life(), t.boot); err == nil {
				p := all.Proc(g.info.Realm, t.id)
				g.view, g.kin = p.View, p.Kin
			}
		})
		g.is = err == nil
	}
	if !g.is {
		x.cfg.Log.Debug("a proc was not given", "proc", t.id, "machine", from.Machine, "err", err)
	}
	return g, nil
}

// Decline tells the home that it has to find another machine. If that is not heard, the home does
// so by itself a little later.
func (x *Remote) Decline(id sigma.ProcID, home sigma.Life) {
	ctx, cancel := context.WithTimeout(x.ctx, reach.CallMax)
	defer cancel()
	err := peerDecline.Tell(ctx, x.cfg.Reach.At(home.Machine), id)
	if err != nil {
		x.cfg.Log.Debug("a proc was not declined", "proc", id, "machine", home.Machine, "err", err)
	}
}

// declined answers peerDecline.
func (x *Remote) declined(_ context.Context, id sigma.ProcID) (none sigmap.None, err error) {
	x.cfg.Procs.Step(schedd.Declined{ID: id})
	return none, nil
}

// Owe has the home told of a guest, soon. procs.Table.mu may be held.
func (x *Remote) Owe(id sigma.ProcID, home sigma.Life) {
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.owed[home]
	if d == nil {
		d = &debt{in: map[sigma.ProcID]bool{}}
		x.owed[home] = d
		x.cfg.Go(func() { x.pay(home, d) })
	}
	if !d.in[id] {
		d.in[id] = true
		d.ids = append(d.ids, id)
	}
}

// pay reports to a home until nothing is owed to it.
func (x *Remote) pay(home sigma.Life, d *debt) {
	ctx, cancel := x.cfg.Cluster.Presently()
	defer cancel()
	for {
		x.mu.Lock()
		n := min(len(d.ids), reportProcs)
		ids := d.ids[:n:n]
		d.ids = d.ids[n:]
		for _, id := range ids {
			delete(d.in, id) // a change from now on is owed anew
		}
		if n == 0 {
			delete(x.owed, home)
			x.mu.Unlock()
			return
		}
		x.mu.Unlock()
		if err := x.reportTo(ctx, home, ids); err != nil { // its life is over, or ours
			x.cfg.Log.Debug("a home was not told of its procs", "machine", home.Machine, "err", err)
		}
	}
}

// reportTo tells a home of some guests, in messages of bounded size, and insists on each. What
// there is to tell is looked up only then.
func (x *Remote) reportTo(ctx context.Context, home sigma.Life, ids []sigma.ProcID) error {
	for len(ids) > 0 {
		var rs []schedd.Report
		size := 0
		x.cfg.Procs.With(func(v procs.View) {
			for len(ids) > 0 && size < reportBytes {
				id := ids[0]
				r, to, ok := v.Report(id)
				if ok && to == home {
					one := 2048 + len(r.Info.Status.Data) + len(r.Info.Status.Msg) + len(r.Info.Program)
					for _, a := range r.Info.Args {
						one += len(a) + 2
					}
					if size+one > sigmap.DataMax-1024 && len(rs) > 0 {
						break
					}
					size += one
					if v.Logs(id) != nil {
						r.Info.Usage.Output = v.Output(id)
					}
					rs = append(rs, r)
				}
				ids = ids[1:]
			}
		})
		if len(rs) == 0 {
			continue
		}
		if err := peerReport.Tell(ctx, x.cfg.Reach.Insist(home), reports{home.Incarnation, x.bootNumber(),
			rs}); err != nil {
			return err
		}
		for _, r := range rs {
			x.cfg.Procs.Step(schedd.Told{ID: r.Info.ID, Ended: r.Info.State == sigma.ProcEnded})
		}
	}
	return nil
}

// hear answers peerReport.
func (x *Remote) hear(_ context.Context, from identity.Subject, r reports) (none sigmap.None, err error) {
	if r.home != x.cfg.Cluster.Life().Incarnation { // they are at home where they run
		return none, nil
	}
	for i := range r.procs {
		r.procs[i].Info.Status.Data = slices.Clone(r.procs[i].Info.Status.Data)
	}
	x.cfg.Procs.Step(schedd.Reported{From: from.Life(), Boot: r.boot, Procs: r.procs})
	return none, nil
}
