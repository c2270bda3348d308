package sdk

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// Goal: what sigmad did not hear is told with what comes later, each realm's once; what it heard is not told again.
func TestWorkLeft(t *testing.T) {
	const realms = 2*sigmap.WorksMax + 1
	var works []sigma.Work
	for i := range realms {
		works = append(works, sigma.Work{Realm: sigma.RealmID(fmt.Sprint("r", i)), Requests: 1, In: 2, Out: 3, CPU: time.Second})
	}
	told, calls := map[sigma.RealmID]sigma.Work{}, 0
	fail := 2 // of calls
	tell := func(part []sigma.Work) error {
		if calls++; calls == fail {
			return errors.New("away")
		}
		for _, w := range part {
			told[w.Realm] = addWork([]sigma.Work{told[w.Realm]}, []sigma.Work{{Realm: told[w.Realm].Realm, Requests: w.Requests, In: w.In, Out: w.Out, CPU: w.CPU}})[0]
		}
		return nil
	}
	left := tellParts(addWork(nil, slices.Clone(works)), tell)
	if len(left) != sigmap.WorksMax || calls != 3 || len(told) != sigmap.WorksMax+1 {
		t.Fatalf("%d realms are left after %d calls, %d were told", len(left), calls, len(told))
	}
	if left = tellParts(addWork(left, slices.Clone(works)), tell); len(left) != 0 || len(told) != realms {
		t.Fatalf("%d realms are left, %d were told", len(left), len(told))
	}
	for realm, w := range told {
		if w.Requests != 2 || w.In != 4 || w.Out != 6 || w.CPU != 2*time.Second {
			t.Errorf("of %s was told %+v", realm, w)
		}
	}
}
