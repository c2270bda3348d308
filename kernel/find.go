package kernel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// place is where a proc is.
type place struct {
	home sigma.MachineID // keeps its status
	runs sigma.MachineID // runs it, or ran it; "" before one does
	kin  []sigma.ProcID  // its ancestors with views
}

// placeHere looks a proc up here.
func (k *Kernel) placeHere(realm sigma.RealmID, id sigma.ProcID) (place, bool) {
	p, ok := k.procs.Proc(realm, id)
	if !ok {
		return place{}, false
	}
	at := place{k.cfg.Machine, p.Machine, p.Kin}
	if p.Guest() {
		at.home = p.Home.Machine
	}
	return at, true
}

// find looks for a proc here and then at all other machines at once. Each of them answers, or is
// known to be lost, in a few seconds.
func (k *Kernel) find(ctx context.Context, realm sigma.RealmID, id sigma.ProcID) (place, bool) {
	if at, ok := k.placeHere(realm, id); ok {
		return at, true
	}
	others := k.cluster.Others()
	if len(others) == 0 || len(id) > 64 {
		return place{}, false
	}
	select {
	case k.peers.finds <- struct{}{}:
		defer func() { <-k.peers.finds }()
	case <-ctx.Done():
		return place{}, false
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	found := make(chan *place, len(others))
	for _, m := range others {
		go func() {
			var has bool
			var at place
			err := k.reach.Ask(ctx, m, peerHave, func(c *sigmap.Coder) { c.RealmID(&realm); c.ProcID(&id) },
				func(c *sigmap.Coder) { c.Bool(&has); codePlace(c, &at) })
			if err != nil || !has {
				found <- nil
				return
			}
			found <- &at
		}()
	}
	for range others {
		if at := <-found; at != nil {
			return *at, true
		}
	}
	return place{}, false
}

func (k *Kernel) peerHave(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	realm, id, err := parseProc(payload, nil)
	if err != nil {
		return nil, err
	}
	at, has := k.placeHere(realm, id)
	return sigmap.Payload(func(c *sigmap.Coder) { c.Bool(&has); codePlace(c, &at) })
}

func codePlace(c *sigmap.Coder, at *place) {
	c.Str((*string)(&at.home))
	c.Str((*string)(&at.runs))
	c.ProcIDs(&at.kin)
}

// parseProc reads a request about one proc; more reads what follows.
func parseProc(payload []byte, more func(*sigmap.Coder)) (realm sigma.RealmID, id sigma.ProcID, err error) {
	err = sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.ProcID(&id)
		if more != nil {
			more(c)
		}
	})
	return realm, id, err
}

// await waits for a proc of a realm at its home, so that whoever was answered sees it listed as it
// was told. KindNotFound: no machine that is alive knows it. If the machine that knew it is lost,
// and with it what was known, the answer is that the proc is lost.
func (k *Kernel) await(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, u procs.Until) (info sigma.ProcInfo,
	err error) {
	defer func() {
		if err == nil &&
			info.Machine != k.cfg.Machine { // what it has written shall be seen by who knows that it has ended
			k.doubtNames(realm)
		}
	}()
	if at, ok := k.placeHere(realm, id); ok && at.home == k.cfg.Machine || !ok && len(k.cluster.Others()) == 0 {
		return k.procs.Wait(ctx, realm, id, u)
	}
	var last sigma.MachineID // that knew it
	var since time.Time      // when it was asked in vain for the first time
	for wait := reach.RetryMin; ; wait = min(2*wait, reach.RetryMax) {
		at, ok := k.find(ctx, realm, id)
		switch {
		case ok && at.home == k.cfg.Machine: // it came home meanwhile
			return k.procs.Wait(ctx, realm, id, u)
		case ok:
			last = at.home
			info, err := k.waitAt(ctx, at.home, realm, id, u)
			switch {
			case err == nil || ctx.Err() != nil || sigma.KindOf(err) == sigma.KindBusy:
				return info, err
			case sigma.KindOf(err) != sigma.KindNotFound:
				since = time.Time{}
			case since.IsZero(): // its home was restarted just now, or has forgotten it, which who ran it has not
				since = time.Now()
			case time.Since(since) > k.peers.comeBack:
				return info, procs.Unknown(id)
			}
		case last == "":
			return sigma.ProcInfo{}, procs.Unknown(id)
		case since.IsZero():
			since = time.Now()
		case !slices.Contains(k.cluster.Others(), last), time.Since(since) > k.peers.comeBack:
			info := sigma.ProcInfo{ID: id, Realm: realm, State: sigma.ProcEnded, Machine: last,
				Times: sigma.Times{Ended: time.Now()}}
			info.Status = sigma.Status{Code: sigma.StatusLost, ExitCode: 125, Kind: sigma.KindLost,
				Msg: fmt.Sprintf("machine %s was lost, and with it what was known of the proc", last)}
			return info, nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return sigma.ProcInfo{}, sigma.Wrap("kernel.await", "", ctx.Err())
		}
	}
}

// comeBackMax is how long a sigmad that was restarted may take to know its procs again.
const comeBackMax = 5 * time.Second

// waitAt waits at another machine.
func (k *Kernel) waitAt(ctx context.Context, m sigma.MachineID, realm sigma.RealmID, id sigma.ProcID,
	u procs.Until) (info sigma.ProcInfo, err error) {
	done, err := k.peers.wait(realm)
	if err != nil {
		return info, err
	}
	defer done()
	exit := bool(u)
	err = k.reach.Ask(ctx, m, peerWait, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.ProcID(&id)
		c.Bool(&exit)
	}, func(c *sigmap.Coder) { c.ProcInfo(&info) })
	return info, err
}

func (k *Kernel) peerWait(ctx context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var exit bool
	realm, id, err := parseProc(payload, func(c *sigmap.Coder) { c.Bool(&exit) })
	if err != nil {
		return nil, err
	}
	info, err := k.procs.Wait(ctx, realm, id, procs.Until(exit))
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.ProcInfo(&info) })
}

// tell does something to a proc wherever it is. While its machine cannot be reached it tries again,
// until ctx ends or the proc has.
func (k *Kernel) tell(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, a act, grace time.Duration) error {
	for wait := reach.RetryMin; ; wait = min(2*wait, reach.RetryMax) {
		if p, known := k.procs.Proc(realm, id); known && (!p.Away() || p.Ended()) {
			return k.tellHere(ctx, realm, id, a, grace)
		}
		at, ok := k.find(ctx, realm, id)
		if !ok {
			return procs.Unknown(id)
		}
		to := at.runs // which acts at once
		if to == "" || to == k.cfg.Machine {
			to = at.home
		}
		err := k.reach.Ask(ctx, to, peerTell, func(c *sigmap.Coder) {
			c.RealmID(&realm)
			c.ProcID(&id)
			c.U8((*uint8)(&a))
			c.Duration(&grace)
		}, nil)
		switch kind := sigma.KindOf(err); { // not found: it was given to that machine, and has not come there
		case err == nil:
			return nil
		case kind != sigma.KindNotFound && kind != sigma.KindUnavailable && kind != sigma.KindLost &&
			kind != sigma.KindStale, ctx.Err() != nil:
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return sigma.Wrap("kernel.tell", "", ctx.Err())
		}
	}
}

// tellHere does it to a proc that is here.
func (k *Kernel) tellHere(ctx context.Context, realm sigma.RealmID, id sigma.ProcID, a act, grace time.Duration) error {
	switch _, known := k.procs.Proc(realm, id); {
	case !known:
		return procs.Unknown(id)
	case a == actKill:
		k.procs.Step(schedd.Killed{ID: id})
	case a == actEvict:
		k.procs.Step(schedd.Evicted{ID: id, Grace: grace})
	case a == actFreeze, a == actThaw:
		return k.runner.Freeze(ctx, realm, id, a == actFreeze)
	default:
		return sigma.Errorf("kernel.tell", sigma.KindUnsupported, "nothing known can be done to a proc by %d", a)
	}
	return nil
}

func (k *Kernel) peerTell(ctx context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var a act
	var grace time.Duration
	realm, id, err := parseProc(payload, func(c *sigmap.Coder) { c.U8((*uint8)(&a)); c.Duration(&grace) })
	if err != nil {
		return nil, err
	}
	if p, known := k.procs.Proc(realm, id); !known || p.Away() && !p.Ended() { // who asks looks again where it is
		return nil, procs.Unknown(id)
	}
	return nil, k.tellHere(ctx, realm, id, a, grace)
}

// usagesOf tells what procs use, wherever they run. It is zero for a proc that nobody knows: who
// asks about many cannot help that.
func (k *Kernel) usagesOf(ctx context.Context, realm sigma.RealmID, ids []sigma.ProcID) ([]sigma.Usage, error) {
	out := make([]sigma.Usage, len(ids))
	far := map[sigma.MachineID][]int{} // "" = wherever
	for i, id := range ids {
		p, known := k.procs.Proc(realm, id)
		if !known {
			p.Machine = ""
		}
		if !known || p.Away() && !p.Ended() {
			far[p.Machine] = append(far[p.Machine], i)
			continue
		}
		u, err := k.runner.Usage(ctx, realm, id)
		if err != nil {
			return nil, err
		}
		out[i] = u
	}
	if len(far) == 0 {
		return out, nil
	}
	select {
	case k.peers.finds <- struct{}{}:
		defer func() { <-k.peers.finds }()
	case <-ctx.Done():
		return nil, sigma.Wrap("kernel.usage", "", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range k.cluster.Others() {
		at := append(slices.Clone(far[m]), far[""]...)
		if len(at) == 0 {
			continue
		}
		all.Go(func() {
			us, known := k.usagesAt(ctx, m, realm, ids, at)
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
func (k *Kernel) usagesAt(ctx context.Context, m sigma.MachineID, realm sigma.RealmID, ids []sigma.ProcID,
	at []int) (us []sigma.Usage, known []bool) {
	some := make([]sigma.ProcID, len(at))
	for n, i := range at {
		some[n] = ids[i]
	}
	err := k.reach.Ask(ctx, m, peerUsage, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.ProcIDs(&some)
	}, func(c *sigmap.Coder) { codeKnownUsages(c, &us, &known) })
	if err != nil {
		return nil, nil
	}
	return us, known
}

func codeKnownUsages(c *sigmap.Coder, us *[]sigma.Usage, known *[]bool) {
	c.Usages(us)
	if c.Decoding() {
		*known = make([]bool, len(*us))
	}
	for i := range *known {
		c.Bool(&(*known)[i])
	}
}

func (k *Kernel) peerUsage(ctx context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var realm sigma.RealmID
	var ids []sigma.ProcID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm); c.ProcIDs(&ids) }); err != nil {
		return nil, err
	}
	if len(ids) > usageMax {
		return nil, sigma.Errorf("kernel.usage", sigma.KindTooBig, "%d procs in one call; %d are allowed", len(ids),
			usageMax)
	}
	us, known := make([]sigma.Usage, len(ids)), make([]bool, len(ids))
	for i, id := range ids {
		p, is := k.procs.Proc(realm, id)
		if known[i] = is && (!p.Away() || p.Ended()); known[i] {
			us[i], _ = k.runner.Usage(ctx, realm, id)
		}
	}
	return sigmap.Payload(func(c *sigmap.Coder) { codeKnownUsages(c, &us, &known) })
}
