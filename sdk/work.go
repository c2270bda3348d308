package sdk

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
)

// workEvery is how often a service tells sigmad for whom it worked; what it had not told when it is killed is lost.
const workEvery = 5 * time.Second

// tellWork tells sigmad what a service did for realms, until ctx ends, and hears of their shares.
func (c *Client) tellWork(ctx context.Context, turns *treekit.Turns) {
	every := time.NewTicker(workEvery)
	defer every.Stop()
	shares := map[sigma.RealmID]uint32{}
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		for works := turns.Work(); len(works) > 0; {
			part := works[:min(len(works), sigmap.WorksMax)]
			works = works[len(part):]
			var of []sigmap.RealmShares
			err := c.do(ctx, sigmap.FileSelf, sigmap.CallWorked, func(e *sigmap.Coder) { e.Works(&part) }, func(d *sigmap.Coder) { d.RealmsShares(&of) })
			if err != nil { // sigmad is being started again
				continue
			}
			known := make(map[sigma.RealmID]uint32, len(shares)+len(of))
			for _, r := range of {
				known[r.Realm] = r.Shares
			}
			for realm, n := range shares {
				if _, told := known[realm]; !told && len(known) < sharesKept {
					known[realm] = n
				}
			}
			shares = known
			turns.SetShares(shares)
		}
	}
}

// sharesKept bounds what is kept of realms that had nothing done lately.
const sharesKept = 10000
