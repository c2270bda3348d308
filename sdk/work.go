package sdk

import (
	"context"
	"slices"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/treekit"
)

// workEvery is how often a service tells sigmad for whom it worked; what it had not told when it is killed is lost. What sigmad does not confirm is told again.
const workEvery = 5 * time.Second

// tellWork tells sigmad what a service did for realms, until ctx ends, and hears of their shares.
func (c *Client) tellWork(ctx context.Context, turns *treekit.Turns) {
	every := time.NewTicker(workEvery)
	defer every.Stop()
	shares := map[sigma.RealmID]uint32{}
	var left []sigma.Work // what could not be told
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		left = tellParts(addWork(left, turns.Work()), func(part []sigma.Work) error {
			var of []sigmap.RealmShares
			err := c.do(ctx, sigmap.FileSelf, sigmap.CallWorked, func(e *sigmap.Coder) { e.Works(&part) }, func(d *sigmap.Coder) { d.RealmsShares(&of) })
			if err != nil { // sigmad is being started again
				return err
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
			return nil
		})
	}
}

// tellParts tells works in parts of what one report has at most, and gives what could not be told.
func tellParts(works []sigma.Work, tell func([]sigma.Work) error) (left []sigma.Work) {
	for part := range slices.Chunk(works, sigmap.WorksMax) {
		if tell(part) != nil {
			left = append(left, part...)
		}
	}
	return left
}

// addWork adds what is new to what was left: one line for each realm.
func addWork(left, works []sigma.Work) []sigma.Work {
	at := make(map[sigma.RealmID]int, len(left))
	for i, w := range left {
		at[w.Realm] = i
	}
	for _, w := range works {
		i, is := at[w.Realm]
		if !is {
			left = append(left, w)
			continue
		}
		l := &left[i]
		l.Requests, l.In, l.Out, l.CPU = l.Requests+w.Requests, l.In+w.In, l.Out+w.Out, l.CPU+w.CPU
	}
	return left
}

// sharesKept bounds what is kept of realms that had nothing done lately.
const sharesKept = 10000
