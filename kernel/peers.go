package kernel

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/talk"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/view"
)

// Calls of sigmads among themselves about procs (docs/internals/machines-protocol.md). Who calls,
// in which life, is known from the link.
//
//	take      incarnation of the home, ProcID, boot -> given; ProcInfo, Descriptor, view, kin    of who was granted a job, to its home
//	decline   ProcID -> -                                    the same, when there is no room after all
//	report    incarnation of the home, boot, []Report -> -    of who runs procs, to their home
//	resync    boot -> -                                      I have reported all; report to me what you run for me
//	tell      realm, ProcID, act, grace -> -
//	wait      realm, ProcID, exit -> ProcInfo
//	list      realm, all, after, ProcID whose kin alone is meant, if any -> []ProcInfo, []number, more, after
//	usage     realm, []ProcID -> [](known, Usage)
//	have      realm, ProcID -> has, home, where it runs, []ProcID of its ancestors with views
//	end-realm realm -> -
//	count     []realm -> []u64
//	caps      realm, ProcID -> Caps
//	load      - -> lines of /sys/load
//	ledger    usage or usage-procs, realm or "", after -> lines, last, more
//	told      ledger, since, version, []realm that are gone, lines of /sys/usage that are new since -> version that is held    to a control machine, see copies.go
//	copies    after -> lines with what ledgers it was told of, last, more
//	copied    ledger, machine, realm or "", after, time -> lines, last, more
const (
	peerTake     = "take"
	peerDecline  = "decline"
	peerReport   = "report"
	peerResync   = "resync"
	peerTell     = "tell"
	peerWait     = "wait"
	peerList     = "list"
	peerUsage    = "usage"
	peerHave     = "have"
	peerEndRealm = "end-realm"
	peerCount    = "count"
	peerCaps     = "caps"
	peerLedger   = "ledger"
	peerLoad     = "load"
	peerTold     = "told"
	peerCopies   = "copies"
	peerCopied   = "copied"
)

// act is what can be done to a proc from afar.
type act uint8

const (
	actKill act = iota
	actEvict
	actFreeze
	actThaw
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

// peers is what this machine has to do with procs of others. Its mu is a leaf.
type peers struct {
	mu      sync.Mutex
	owed    map[sigma.Life]*debt  // mu
	synced  map[sigma.Life]bool   // mu; lives that have been told what this sigmad runs
	waits   map[sigma.RealmID]int // mu; at other machines
	waiting int                   // mu; sum of waits
	finds   chan struct{}         // of findsMost

	comeBack time.Duration // comeBackMax; tests do not wait so long
}

// debt is what a home is still to be told. A goroutine pays it while it is there.
type debt struct {
	ids []sigma.ProcID // in order of the first change
	in  map[sigma.ProcID]bool
}

func newPeers() *peers {
	return &peers{owed: map[sigma.Life]*debt{}, synced: map[sigma.Life]bool{}, waits: map[sigma.RealmID]int{},
		finds: make(chan struct{}, findsMost), comeBack: comeBackMax}
}

// wait counts a wait at another machine until done is called.
func (x *peers) wait(realm sigma.RealmID) (done func(), err error) {
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
func (k *Kernel) bootNumber() uint64 { return uint64(k.startMono) }

// registerPeerCalls adds the methods about procs to what other machines may call.
func (k *Kernel) registerPeerCalls() {
	maps.Copy(k.reach.Calls, map[string]reach.Call{peerTake: k.peerTake, peerDecline: k.peerDecline,
		peerReport: k.peerReport, peerResync: k.peerResync, peerTell: k.peerTell, peerWait: k.peerWait,
		peerList: k.peerList, peerUsage: k.peerUsage, peerHave: k.peerHave, peerEndRealm: k.peerEndRealm,
		peerCount: k.peerCount, peerCaps: k.peerCaps, peerLedger: k.peerLedger, peerLoad: k.peerLoad,
		peerTold: k.peerTold, peerCopies: k.peerCopies, peerCopied: k.peerCopied, peerInit: k.peerInit,
		peerEvents: k.peerEvents, peerDecisions: k.peerDecisions, peerCredentials: k.peerCredentials,
		connect.PeerRevoke: k.connect.RevokeCall, connect.PeerBegun: k.connect.PeerBegun,
		cluster.PeerLeave: k.cluster.PeerLeave, talk.PeerTraffic: k.talk.PeerTraffic,
		talk.PeerDistances: k.talk.PeerDistances, talk.PeerTouch: talk.Touch})
}

// followRoster tells the part of procs of each change of the roster.
func (k *Kernel) followRoster(ctx context.Context) {
	select {
	case <-k.cluster.Enrolled():
	case <-ctx.Done():
		return
	}
	for ctx.Err() == nil {
		changed := k.cluster.Identity().Roster().Changed() // before the look
		k.procsOfMembers(k.cluster.Members())
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// procsOfMembers tells schedd which lives are over, and machines that are new to this sigmad what
// it runs.
func (k *Kernel) procsOfMembers(after []identity.Member) {
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
	k.procs.Step(schedd.Members{Least: least})
	x := k.peers
	x.mu.Lock()
	var fresh []sigma.Life
	for _, m := range after {
		if l := (sigma.Life{Machine: m.Machine, Incarnation: m.Incarnation}); !m.Lost && m.Machine != k.cfg.Machine &&
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
		k.sessions.Go(func() {
			ctx, cancel := k.cluster.Presently()
			defer cancel()
			k.resync(ctx, l)
		})
	}
	k.cluster.Moved()
}

// resync tells another machine of all guests from there, and then that these are all; which also
// asks it for the same.
func (k *Kernel) resync(ctx context.Context, l sigma.Life) {
	select {
	case <-k.known: // what runs since before this sigmad
	case <-ctx.Done():
		return
	}
	var ids []sigma.ProcID
	k.procs.With(func(v procs.View) { ids = v.Guests(l) })
	for page := range slices.Chunk(ids, reportProcs) {
		if k.reportTo(ctx, l, page) != nil {
			return
		}
	}
	boot := k.bootNumber()
	if err := k.reach.Insist(ctx, l, peerResync, func(c *sigmap.Coder) {
		c.U64(&boot)
	}, nil); err != nil && ctx.Err() == nil {
		k.cfg.Log.Debug("a machine was not told what runs here", "machine", l.Machine, "err", err)
	}
}

func (k *Kernel) peerResync(_ context.Context, from identity.Subject, payload []byte) ([]byte, error) {
	var boot uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&boot) }); err != nil {
		return nil, err
	}
	life := from.Life()
	k.procs.Step(schedd.Resynced{From: life, Boot: boot})
	var ids []sigma.ProcID
	k.procs.With(func(v procs.View) { ids = v.Guests(life) })
	for _, id := range ids {
		k.owe(id, life)
	}
	return nil, nil
}

// take asks the home for a proc that besched gave to this machine.
func (k *Kernel) take(id sigma.ProcID, home sigma.Life) {
	given, boot := false, k.bootNumber()
	e := schedd.Arrived{Home: home}
	ctx, cancel := k.cluster.Presently()
	defer cancel()
	life := k.cluster.Life()
	err := k.reach.Insist(ctx, home, peerTake,
		func(c *sigmap.Coder) { c.U64((*uint64)(&home.Incarnation)); c.ProcID(&id); c.U64(&boot) },
		func(c *sigmap.Coder) {
			if c.Bool(&given); given {
				c.ProcInfo(&e.Info)
				c.Descriptor(&e.Descriptor)
				view.Code(c, &e.View)
				c.ProcIDs(&e.Kin)
			}
		})
	if err == nil && given {
		if err = checkArrived(id, &e); err != nil {
			k.cfg.Log.Warn("another machine gave a proc that cannot be run", "proc", id, "machine", home.Machine, "err",
				err)
		}
	}
	if given = given && err == nil; given {
		k.holders.Hint(e.Info.Realm, e.Descriptor.Program, home.Machine)
		k.doubtNames(e.Info.Realm) // it shall see what was written before it was spawned
	}
	k.procs.Change(func(procs.View) schedd.Event {
		switch {
		case life.Incarnation != 0 && k.cluster.Life() != life:
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

func (k *Kernel) peerTake(_ context.Context, from identity.Subject, payload []byte) ([]byte, error) {
	var id sigma.ProcID
	var boot uint64
	var home sigma.Incarnation
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.U64((*uint64)(&home))
		c.ProcID(&id)
		c.U64(&boot)
	}); err != nil {
		return nil, err
	}
	given := home == k.cluster.Life().Incarnation
	var info sigma.ProcInfo
	var d sigma.Descriptor
	var v *view.Table
	var kin []sigma.ProcID
	var err error
	if given {
		k.procs.With(func(all procs.View) {
			if info, d, err = all.Give(time.Now(), id, from.Life(), boot); err == nil {
				p := all.Proc(info.Realm, id)
				v, kin = p.View, p.Kin
			}
		})
		given = err == nil
	}
	if !given {
		k.cfg.Log.Debug("a proc was not given", "proc", id, "machine", from.Machine, "err", err)
	}
	return sigmap.Payload(func(c *sigmap.Coder) {
		if c.Bool(&given); given {
			c.ProcInfo(&info)
			c.Descriptor(&d)
			view.Code(c, &v)
			c.ProcIDs(&kin)
		}
	})
}

// decline tells the home that it has to find another machine. If that is not heard, the home does
// so by itself a little later.
func (k *Kernel) decline(id sigma.ProcID, home sigma.Life) {
	ctx, cancel := context.WithTimeout(k.ctx, reach.CallMax)
	defer cancel()
	if err := k.reach.Ask(ctx, home.Machine, peerDecline, func(c *sigmap.Coder) { c.ProcID(&id) }, nil); err != nil {
		k.cfg.Log.Debug("a proc was not declined", "proc", id, "machine", home.Machine, "err", err)
	}
}

func (k *Kernel) peerDecline(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var id sigma.ProcID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.ProcID(&id) }); err != nil {
		return nil, err
	}
	k.procs.Step(schedd.Declined{ID: id})
	return nil, nil
}

// owe has the home told of a guest, soon. Kernel.mu may be held.
func (k *Kernel) owe(id sigma.ProcID, home sigma.Life) {
	x := k.peers
	x.mu.Lock()
	defer x.mu.Unlock()
	d := x.owed[home]
	if d == nil {
		d = &debt{in: map[sigma.ProcID]bool{}}
		x.owed[home] = d
		k.sessions.Go(func() { k.pay(home, d) })
	}
	if !d.in[id] {
		d.in[id] = true
		d.ids = append(d.ids, id)
	}
}

// pay reports to a home until nothing is owed to it.
func (k *Kernel) pay(home sigma.Life, d *debt) {
	ctx, cancel := k.cluster.Presently()
	defer cancel()
	x := k.peers
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
		if err := k.reportTo(ctx, home, ids); err != nil { // its life is over, or ours
			k.cfg.Log.Debug("a home was not told of its procs", "machine", home.Machine, "err", err)
		}
	}
}

// reportTo tells a home of some guests, in messages of bounded size, and insists on each. What
// there is to tell is looked up only then.
func (k *Kernel) reportTo(ctx context.Context, home sigma.Life, ids []sigma.ProcID) error {
	for len(ids) > 0 {
		var rs []schedd.Report
		size := 0
		k.procs.With(func(v procs.View) {
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
		boot := k.bootNumber()
		if err := k.reach.Insist(ctx, home, peerReport, func(c *sigmap.Coder) {
			c.U64((*uint64)(&home.Incarnation))
			c.U64(&boot)
			codeReports(c, &rs)
		}, nil); err != nil {
			return err
		}
		for _, r := range rs {
			k.procs.Step(schedd.Told{ID: r.Info.ID, Ended: r.Info.State == sigma.ProcEnded})
		}
	}
	return nil
}

func codeReports(c *sigmap.Coder, rs *[]schedd.Report) {
	n := len(*rs)
	c.Count(&n, 100)
	if c.Decoding() {
		*rs = make([]schedd.Report, n)
	}
	for i := range *rs {
		c.ProcInfo(&(*rs)[i].Info)
		c.Bool(&(*rs)[i].Started)
		c.ProcIDs(&(*rs)[i].Kin)
	}
}

func (k *Kernel) peerReport(_ context.Context, from identity.Subject, payload []byte) ([]byte, error) {
	var home sigma.Incarnation
	var boot uint64
	var rs []schedd.Report
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.U64((*uint64)(&home))
		c.U64(&boot)
		codeReports(c, &rs)
	}); err != nil {
		return nil, err
	}
	if home != k.cluster.Life().Incarnation { // they are at home where they run
		return nil, nil
	}
	for i := range rs {
		rs[i].Info.Status.Data = slices.Clone(rs[i].Info.Status.Data)
	}
	k.procs.Step(schedd.Reported{From: from.Life(), Boot: boot, Procs: rs})
	return nil, nil
}
