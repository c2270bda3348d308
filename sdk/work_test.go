package sdk

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Goal: what sigmad did not hear is told again, and what it heard, but whose answer was lost, is
// told again by the same number and as it was, so that it counts once; each realm's work counts
// once in all.
func TestWorkLeft(t *testing.T) {
	const realms = 2*sigmap.WorksMax + 1
	var works []sigma.Work
	for i := range realms {
		works = append(works, sigma.Work{Realm: sigma.RealmID(fmt.Sprint("r", i)), Requests: 1, In: 2, Out: 3,
			CPU: time.Second})
	}
	told, calls, last, counted := map[sigma.RealmID]sigma.Work{}, 0, uint64(0), []sigma.Work(nil)
	away, lost := 2, 4 // calls that do not come, and whose answer does not
	tell := func(number uint64, part []sigma.Work) error {
		if calls++; calls == away {
			return errors.New("away")
		}
		if number < last || number == last && !slices.Equal(part, counted) || number > last+1 {
			t.Fatalf("report %d of %d realms after %d of %d", number, len(part), last, len(counted))
		}
		if number == last+1 {
			last, counted = number, slices.Clone(part)
			for _, w := range part {
				told[w.Realm] = addWork([]sigma.Work{told[w.Realm]},
					[]sigma.Work{{Realm: told[w.Realm].Realm, Requests: w.Requests, In: w.In, Out: w.Out,
						CPU: w.CPU}})[0]
			}
		}
		if calls == lost {
			return errors.New("the answer was lost")
		}
		return nil
	}
	var r reports
	r.tell(slices.Clone(works), tell)
	if calls != 2 || last != 1 || len(told) != sigmap.WorksMax {
		t.Fatalf("%d reports in %d calls, %d realms were told", last, calls, len(told))
	}
	for range 2 {
		r.tell(slices.Clone(works), tell)
	}
	if len(told) != realms || len(r.open)+len(r.later) != 0 {
		t.Fatalf("%d realms were told", len(told))
	}
	for realm, w := range told {
		if w.Requests != 3 || w.In != 6 || w.Out != 9 || w.CPU != 3*time.Second {
			t.Errorf("of %s was told %+v", realm, w)
		}
	}
}
