package remote

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/wire/sigmap"
)

// Place is where a proc is.
type Place struct {
	Home sigma.MachineID // keeps its status
	Runs sigma.MachineID // runs it, or ran it; "" before one does
	Kin  []sigma.ProcID  // its ancestors with views
}

// toTell is the machine that a request about the proc goes to: the one that runs it, which acts at
// once, or, if home, its home, which knows whether that machine was lost. Self is the machine that
// asks.
func (at Place) toTell(self sigma.MachineID, home bool) sigma.MachineID {
	if home || at.Runs == "" || at.Runs == self {
		return at.Home
	}
	return at.Runs
}

// PlaceHere looks a proc up here.
func (x *Remote) PlaceHere(realm sigma.RealmID, id sigma.ProcID) (Place, bool) {
	p, ok := x.cfg.Procs.Proc(realm, id)
	if !ok {
		return Place{}, false
	}
	at := Place{x.cfg.Machine, p.Machine, p.Kin}
	if p.Guest() {
		at.Home = p.Home.Machine
	}
	return at, true
}

// Find looks for a proc here and then at all other machines at once. Each of them answers, or is
// known to be lost, in a few seconds.
func (x *Remote) Find(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (Place, bool) {
	if at, ok := x.PlaceHere(realm, id); ok {
		return at, true
	}
	others := x.cfg.Cluster.Others()
	if len(others) == 0 || len(id) > 64 {
		return Place{}, false
	}
	select {
	case x.finds <- struct{}{}:
		defer func() { <-x.finds }()
	case <-ctx.Done():
		return Place{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	found := make(chan *Place, len(others))
	for _, m := range others {
		go func() {
			has, err := peerHave.Ask(ctx, x.cfg.Reach.At(m), oneProc{realm, id})
			if err != nil || !has.is {
				found <- nil
				return
			}
			found <- &has.at
		}()
	}
	for range others {
		if at := <-found; at != nil {
			return *at, true
		}
	}
	return Place{}, false
}

// have answers peerHave.
func (x *Remote) have(_ context.Context, p oneProc) (h had, err error) {
	h.at, h.is = x.PlaceHere(p.realm, p.id)
	return h, nil
}

// Await waits for a proc of a realm at its home, so that whoever was answered sees it listed as it
// was told. KindNotFound: no machine that is alive knows it. If the machine that knew it is lost,
// and with it what was known, the answer is that the proc is lost.
func (x *Remote) Await(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, u procs.Until) (info sigma.ProcInfo,
	err error) {
	defer func() {
		if err == nil &&
			info.Machine != x.cfg.Machine { // what it has written shall be seen by who knows that it has ended
			x.cfg.Doubt(realm)
		}
	}()
	if at, ok := x.PlaceHere(realm, id); ok && at.Home == x.cfg.Machine || !ok && len(x.cfg.Cluster.Others()) == 0 {
		return x.cfg.Procs.Wait(ctx, realm, id, u)
	}
	var last sigma.MachineID // that knew it
	var since time.Time      // when it was asked in vain for the first time
	for wait := reach.RetryMin; ; wait = min(2*wait, reach.RetryMax) {
		at, ok := x.Find(ctx, realm, id)
		switch {
		case ok && at.Home == x.cfg.Machine: // it came home meanwhile
			return x.cfg.Procs.Wait(ctx, realm, id, u)
		case ok:
			last = at.Home
			info, err := x.waitAt(ctx, at.Home, realm, id, u)
			switch {
			case err == nil || ctx.Err() != nil || sigma.KindOf(err) == sigma.KindBusy:
				return info, err
			case sigma.KindOf(err) != sigma.KindNotFound:
				since = time.Time{}
			case since.IsZero(): // its home was restarted just now, or has forgotten it, which who ran it has not
				since = time.Now()
			case time.Since(since) > x.ComeBack:
				return info, procs.Unknown(id)
			}
		case last == "":
			return sigma.ProcInfo{}, procs.Unknown(id)
		case since.IsZero():
			since = time.Now()
		case !slices.Contains(x.cfg.Cluster.Others(), last), time.Since(since) > x.ComeBack:
			info := sigma.ProcInfo{ID: id, Realm: realm, State: sigma.ProcEnded, Machine: last,
				Times: sigma.Times{Ended: time.Now()}}
			info.Status = sigma.Status{Code: sigma.StatusLost, ExitCode: 125, Kind: sigma.KindLost,
				Msg: fmt.Sprintf("machine %s was lost, and with it what was known of the proc", last)}
			return info, nil
		}
		if !retry.Pause(ctx, wait) {
			return sigma.ProcInfo{}, sigma.Wrap("kernel.await", "", ctx.Err())
		}
	}
}

// comeBackMax is how long a sigmad that was restarted may take to know its procs again.
const comeBackMax = 5 * time.Second

// waitAt waits at another machine.
func (x *Remote) waitAt(ctx context.Context, m sigma.MachineID, realm sigma.RealmID, id sigma.ProcID,
	u procs.Until) (info sigma.ProcInfo, err error) {
	done, err := x.wait(realm)
	if err != nil {
		return info, err
	}
	defer done()
	return peerWait.Ask(ctx, x.cfg.Reach.At(m), waiting{oneProc{realm, id}, u})
}

// waitHere answers peerWait.
func (x *Remote) waitHere(ctx context.Context, w waiting) (sigma.ProcInfo, error) {
	return x.cfg.Procs.Wait(ctx, w.realm, w.id, w.until)
}

// Tell does something to a proc wherever it is. While its machine cannot be reached it tries again,
// until ctx ends or the proc has.
func (x *Remote) Tell(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, a Act, grace time.Duration) error {
	for wait, home := reach.RetryMin, false; ; wait, home = min(2*wait, reach.RetryMax), !home {
		if p, known := x.cfg.Procs.Proc(realm, id); known && (!p.Away() || p.Ended()) {
			return x.tellHere(ctx, realm, id, a, grace)
		}
		at, ok := x.Find(ctx, realm, id)
		if !ok {
			return procs.Unknown(id)
		}
		err := peerTell.Tell(ctx, x.cfg.Reach.At(at.toTell(x.cfg.Machine, home)), telling{oneProc{realm, id}, a, grace})
		switch kind := sigma.KindOf(err); { // not found: it was given to that machine, and has not come there
		case err == nil:
			return nil
		case kind != sigma.KindNotFound && kind != sigma.KindUnavailable && kind != sigma.KindLost &&
			kind != sigma.KindStale, ctx.Err() != nil:
			return err
		}
		if !retry.Pause(ctx, wait) {
			return sigma.Wrap("kernel.tell", "", ctx.Err())
		}
	}
}

// tellHere does it to a proc that is here.
func (x *Remote) tellHere(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, a Act, grace time.Duration) error {
	switch _, known := x.cfg.Procs.Proc(realm, id); {
	case !known:
		return procs.Unknown(id)
	case a == Kill:
		x.cfg.Procs.Step(schedd.Killed{ID: id})
	case a == Evict:
		x.cfg.Procs.Step(schedd.Evicted{ID: id, Grace: grace})
	case a == Freeze, a == Thaw:
		return x.cfg.Runner.Freeze(ctx, realm, id, a == Freeze)
	default:
		return sigma.Errorf("kernel.tell", sigma.KindUnsupported, "nothing known can be done to a proc by %d", a)
	}
	return nil
}

// tellGuest answers peerTell.
func (x *Remote) tellGuest(ctx context.Context, t telling) (none sigmap.None, err error) {
	p, known := x.cfg.Procs.Proc(t.realm, t.id)
	if !known || p.Away() && !p.Ended() { // who asks looks again where it is
		return none, procs.Unknown(t.id)
	}
	return none, x.tellHere(ctx, t.realm, t.id, t.act, t.grace)
}

// Usages tells what procs use, wherever they run. It is zero for a proc that nobody knows: who
// asks about many cannot help that.
func (x *Remote) Usages(ctx context.Context, realm sigma.RealmID, ids []sigma.ProcID) ([]sigma.Usage, error) {
	out := make([]sigma.Usage, len(ids))
	far := map[sigma.MachineID][]int{} // "" = wherever
	for i, id := range ids {
		p, known := x.cfg.Procs.Proc(realm, id)
		if !known {
			p.Machine = ""
		}
		if !known || p.Away() && !p.Ended() {
			far[p.Machine] = append(far[p.Machine], i)
			continue
		}
		u, err := x.cfg.Runner.Usage(ctx, realm, id)
		if err != nil {
			return nil, err
		}
		out[i] = u
	}
	if len(far) == 0 {
		return out, nil
	}
	select {
	case x.finds <- struct{}{}:
		defer func() { <-x.finds }()
	case <-ctx.Done():
		return nil, sigma.Wrap("kernel.usage", "", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range x.cfg.Cluster.Others() {
		at := append(slices.Clone(far[m]), far[""]...)
		if len(at) == 0 {
			continue
		}
		all.Go(func() {
			us, known := x.usagesAt(ctx, m, realm, ids, at)
			mu.Lock()
			defer mu.Unlock()
			for n, i := range at {
				if n < len(us) && known[n] {
					out[i] = us[n]
				}
			}
		})
	}
	all.Wait()
	return out, nil
}

// usagesAt asks one machine about those of ids that at numbers. It knows nothing if it does not
// answer.
func (x *Remote) usagesAt(ctx context.Context, m sigma.MachineID, realm sigma.RealmID, ids []sigma.ProcID,
	at []int) (us []sigma.Usage, known []bool) {
	some := make([]sigma.ProcID, len(at))
	for n, i := range at {
		some[n] = ids[i]
	}
	u, err := peerUsage.Ask(ctx, x.cfg.Reach.At(m), someProcs{realm, some})
	if err != nil {
		return nil, nil
	}
	return u.usages, u.known
}

// usageHere answers peerUsage.
func (x *Remote) usageHere(ctx context.Context, some someProcs) (u usages, err error) {
	if len(some.ids) > UsageMax {
		return u, sigma.Errorf("kernel.usage", sigma.KindTooBig, "%d procs in one call; %d are allowed", len(some.ids),
			UsageMax)
	}
	u = usages{make([]sigma.Usage, len(some.ids)), make([]bool, len(some.ids))}
	for i, id := range some.ids {
		p, is := x.cfg.Procs.Proc(some.realm, id)
		if u.known[i] = is && (!p.Away() || p.Ended()); u.known[i] {
			u.usages[i], _ = x.cfg.Runner.Usage(ctx, some.realm, id)
		}
	}
	return u, nil
}

// UsageMax procs are asked about in one call.
const UsageMax = 256

// Caps tells what a proc may reach, wherever it runs.
func (x *Remote) Caps(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (sigmap.Caps, error) {
	at, ok := x.Find(ctx, realm, id)
	if !ok {
		return sigmap.Caps{}, procs.Unknown(id)
	}
	m := cmp.Or(at.Runs, at.Home)
	if m == x.cfg.Machine {
		return x.cfg.Caps(realm, id)
	}
	return peerCaps.Ask(ctx, x.cfg.Reach.At(m), oneProc{realm, id})
}

// capsHere answers peerCaps.
func (x *Remote) capsHere(_ context.Context, p oneProc) (sigmap.Caps, error) {
	return x.cfg.Caps(p.realm, p.id)
}
