package sdk

import (
	"context"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// workEvery is how often a service tells sigmad for whom it worked; what it had not told when it is
// killed is lost. What sigmad does not confirm is told again.
const workEvery = 5 * time.Second

// tellWork tells sigmad what a service did for realms, until ctx ends, and hears of their shares.
func (c *Client) tellWork(ctx context.Context, turns *treeserver.Turns) {
	every := time.NewTicker(workEvery)
	defer every.Stop()
	shares := map[sigma.RealmID]uint32{}
	var told reports
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		told.tell(turns.Work(), func(number uint64, part []sigma.Work) error {
			of, err := sigmap.CallWorked.Ask(ctx, file{c, sigmap.FileSelf}, sigmap.Worked{Number: number, Works: part})
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

// reports are what a service tells of its work. Each has a number, and is told again, as it is,
// until it is confirmed: what was counted and whose answer was lost is known by its number, and not
// counted again. What comes meanwhile is in later ones.
type reports struct {
	number uint64       // of the last that was made
	open   []sigma.Work // that may have been counted already; none = all that was made was confirmed
	later  []sigma.Work // for later ones: one line for each realm
}

// tell tells what is left of before, and what is new, in parts of what one report has at most,
// until one is not confirmed.
func (r *reports) tell(works []sigma.Work, tell func(number uint64, part []sigma.Work) error) {
	r.later = addWork(r.later, works)
	for len(r.open)+len(r.later) > 0 {
		if len(r.open) == 0 {
			n := min(len(r.later), sigmap.WorksMax)
			r.number++
			r.open, r.later = r.later[:n:n], r.later[n:]
		}
		if tell(r.number, r.open) != nil {
			return
		}
		r.open = nil
	}
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
