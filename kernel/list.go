package kernel

import (
	"context"
	"os"
	"slices"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// list answers a page of the realm's procs: those at home at one machine after the other, by name,
// and of each in order of Spawn. Where a page ends is told as the machine and the number of its
// last proc there, so that no proc that is there all the time is left out or told twice, whatever
// begins and ends meanwhile. One whose home is lost between two pages may be; a machine that does
// not answer, though it is not known to be lost, is left out.
func (r sys) list(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
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
		if page, _, more, after, err = k.remote.ListOf(ctx, m, r.realm, all, after, r.ownKin()); err != nil {
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
