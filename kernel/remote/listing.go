package remote

import (
	"context"
	"math"
	"sync"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A page of a listing has at most so many bytes, that the reply fits a message whatever the procs'
// arguments are, and so many procs, that it does not hold up others for long.
const (
	listMax   = sigmap.DataMax - 8<<10
	ListProcs = 256
)

// ListOf gives a page of what is at home at one machine.
func (x *Remote) ListOf(ctx context.Context, m sigma.MachineID, realm sigma.RealmID, all bool, after uint64,
	of sigma.ProcID) (page []sigma.ProcInfo, seqs []uint64, more bool, last uint64, err error) {
	if m == x.cfg.Machine {
		return x.listHere(realm, all, after, of)
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	l, err := peerList.Ask(ctx, x.cfg.Reach.At(m), listing{realm, all, after, of})
	if err == nil && len(l.numbers) != len(l.page) {
		err = sigma.Errorf("kernel.list", sigma.KindInvalid, "%d numbers of %d procs", len(l.numbers), len(l.page))
	}
	return l.page, l.numbers, l.more, l.last, err
}

// listHere gives a page of what is at home here; of, if not "", is the proc whose kin alone is
// meant.
func (x *Remote) listHere(realm sigma.RealmID, all bool, after uint64, of sigma.ProcID) (page []sigma.ProcInfo,
	numbers []uint64, more bool, last uint64, err error) {
	var infos []sigma.ProcInfo
	var seqs []uint64
	x.cfg.Procs.With(func(v procs.View) {
		for seq, p := range v.After(realm, after) {
			if !all && p.Ended() || of != "" && !p.IsKin(of) {
				continue
			}
			if more = len(infos) == ListProcs; more {
				break
			}
			info := p.ProcInfo
			if !p.Away() {
				info.Usage.Output = v.Output(p.ID)
			}
			info.Status.Data = nil // a listing does not carry results
			infos, seqs = append(infos, info), append(seqs, seq)
		}
	})
	size := 0
	for i := range infos {
		one, err := sigmap.Payload(func(c *sigmap.Coder) { c.ProcInfo(&infos[i]) })
		if err != nil {
			return nil, nil, false, 0, err
		}
		if size += len(one); size > listMax {
			return infos[:i], seqs[:i], true, after, nil
		}
		after = seqs[i]
	}
	return infos, seqs, more, after, nil
}

// listAsked answers peerList.
func (x *Remote) listAsked(_ context.Context, a listing) (l listed, err error) {
	l.page, l.numbers, l.more, l.last, err = x.listHere(a.realm, a.all, a.after, a.of)
	return l, err
}

// EndRealm kills a realm's procs and waits for their end. No more may be spawned meanwhile.
func (x *Remote) EndRealm(ctx context.Context, realm sigma.RealmID) error {
	var all []sigma.ProcInfo
	x.cfg.Procs.With(func(v procs.View) { all = v.List(realm, false, 0, math.MaxInt) })
	for _, p := range all {
		x.cfg.Procs.Step(schedd.Killed{ID: p.ID})
	}
	for _, p := range all {
		if p.Machine != x.cfg.Machine {
			if err := x.Tell(ctx, realm, p.ID, Kill, 0); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
				return err
			}
		}
		_, err := x.cfg.Procs.Wait(ctx, realm, p.ID, procs.Ended)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return nil
}

// Count says how many procs each realm has on all machines. Those of a machine that does not
// answer are not counted.
func (x *Remote) Count(ctx context.Context, realms []sigma.RealmInfo) {
	ids := make([]string, len(realms))
	for i := range realms {
		ids[i] = string(realms[i].ID)
		realms[i].Procs = x.cfg.Procs.Live(realms[i].ID)
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for _, m := range x.cfg.Cluster.Others() {
		all.Go(func() {
			counts, err := peerCount.Ask(ctx, x.cfg.Reach.At(m), ids)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i := range counts[:min(len(counts), len(realms))] {
				realms[i].Procs += int(min(counts[i], schedd.QueuedMax))
			}
		})
	}
	all.Wait()
}

// countHere answers peerCount.
func (x *Remote) countHere(_ context.Context, realms []string) ([]uint64, error) {
	counts := make([]uint64, len(realms))
	for i, id := range realms {
		counts[i] = uint64(x.cfg.Procs.Live(sigma.RealmID(id)))
	}
	return counts, nil
}
