package kernel

import (
	"context"
	"os"
	"slices"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// A page of a listing has at most so many bytes, that the reply fits a message whatever the procs'
// arguments are, and so many procs, that it does not hold up others for long.
const (
	listMax   = sigmap.DataMax - 8<<10
	listProcs = 256
)

// list answers a page of the realm's procs: those at home at one machine after the other, by name,
// and of each in order of Spawn. Where a page ends is told as the machine and the number of its
// last proc there, so that no proc that is there all the time is left out or told twice, whatever
// begins and ends meanwhile. One whose home is lost between two pages may be; a machine that does
// not answer, though it is not known to be lost, is left out.
func (r *root) list(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var all bool
	var at sigma.MachineID
	var after uint64
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.Bool(&all)
		c.Str((*string)(&at))
		c.U64(&after)
	}); err != nil {
		return nil, nil, err
	}
	k := r.tree.k
	machines := append(k.cluster.Others(), k.cfg.Machine)
	slices.Sort(machines)
	var page []sigma.ProcInfo
	more := false
	for i, m := range machines {
		if m < at {
			continue
		}
		if m > at {
			at, after = m, 0
		}
		var err error
		if page, _, more, after, err = k.listOf(ctx, m, r.realm, all, after, r.ownKin()); err != nil {
			k.cfg.Log.Warn("a machine does not tell what procs it has", "machine", m, "err", err)
			page, more = nil, false
		}
		if more = more || i < len(machines)-1; len(page) > 0 {
			break
		}
	}
	more = more && len(page) > 0 // else there was no machine left to ask
	reply, err := sigmap.Payload(func(c *sigmap.Coder) {
		c.ProcInfos(&page)
		c.Bool(&more)
		c.Str((*string)(&at))
		c.U64(&after)
	})
	return reply, nil, err
}

// listOf gives a page of what is at home at one machine.
func (k *Kernel) listOf(ctx context.Context, m sigma.MachineID, realm sigma.RealmID, all bool, after uint64,
	of sigma.ProcID) (page []sigma.ProcInfo, seqs []uint64, more bool, last uint64, err error) {
	if m == k.cfg.Machine {
		return k.listHere(realm, all, after, of)
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	err = k.reach.Ask(ctx, m, peerList, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.Bool(&all)
		c.U64(&after)
		c.ProcID(&of)
	},
		func(c *sigmap.Coder) { c.ProcInfos(&page); codeCounts(c, &seqs); c.Bool(&more); c.U64(&last) })
	if err == nil && len(seqs) != len(page) {
		err = sigma.Errorf("kernel.list", sigma.KindInvalid, "%d numbers of %d procs", len(seqs), len(page))
	}
	return page, seqs, more, last, err
}

// listHere gives a page of what is at home here; of, if not "", is the proc whose kin alone is
// meant.
func (k *Kernel) listHere(realm sigma.RealmID, all bool, after uint64, of sigma.ProcID) (page []sigma.ProcInfo,
	numbers []uint64, more bool, last uint64, err error) {
	var infos []sigma.ProcInfo
	var seqs []uint64
	k.procs.With(func(v procs.View) {
		for seq, p := range v.After(realm, after) {
			if !all && p.Ended() || of != "" && !p.IsKin(of) {
				continue
			}
			if more = len(infos) == listProcs; more {
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

func (k *Kernel) peerList(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var realm sigma.RealmID
	var all bool
	var after uint64
	var of sigma.ProcID
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.RealmID(&realm)
		c.Bool(&all)
		c.U64(&after)
		c.ProcID(&of)
	}); err != nil {
		return nil, err
	}
	page, seqs, more, last, err := k.listHere(realm, all, after, of)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) {
		c.ProcInfos(&page)
		codeCounts(c, &seqs)
		c.Bool(&more)
		c.U64(&last)
	})
}
