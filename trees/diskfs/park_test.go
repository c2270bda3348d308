package diskfs

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// TestManyRealms: realms that nobody uses cost no descriptors beyond a bound, and what they had is
// there when somebody comes, also while many come at once.
func TestManyRealms(t *testing.T) {
	x := newFixture(t, Config{Policy: inPlace, QuotaBytes: 1 << 20})
	const realms = ActiveMax + 200
	name := func(i int) sigma.RealmID { return sigma.RealmID(fmt.Sprintf("r%d", i)) }
	before := openFiles(t)
	kept := x.attach(name(0)) // is in use all the time
	versions := make([]sigma.Version, realms)
	for i := range realms {
		root, err := x.tree.Attach(t.Context(), sigma.Principal{Realm: name(i)}, "")
		x.ok(err)
		id, _, err := root.(sigma.Putter).Put(t.Context(), []string{"f"}, fmt.Append(nil, i), sigma.PutOptions{})
		x.ok(err)
		versions[i] = id.Version
		root.Close()
	}
	if got, most := openFiles(t)-before, 3*(ActiveMax+2); got > most {
		t.Errorf("%d realms that nobody uses hold %d descriptors, want at most %d", realms, got, most)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		rng := rand.New(rand.NewPCG(1, uint64(w)))
		wg.Go(func() {
			for range 400 {
				i := rng.IntN(realms)
				root, err := x.tree.Attach(t.Context(), sigma.Principal{Realm: name(i)}, "")
				if err != nil {
					t.Error(err)
					return
				}
				r, _, err := root.(sigma.Getter).Get(t.Context(), []string{"f"}, 0, 100)
				root.Close()
				if err != nil || string(r.Data) != fmt.Sprint(i) || r.ID.Version != versions[i] {
					t.Errorf("realm %d: got %q at %d, %v", i, r.Data, r.ID.Version, err)
				}
			}
		})
	}
	wg.Wait()
	r, _, err := kept.(sigma.Getter).Get(t.Context(), []string{"f"}, 0, 100)
	if err != nil || string(r.Data) != "0" {
		t.Errorf("a handle that was kept: got %q, %v", r.Data, err)
	}
	// What is charged is known still: realm 1 has the rest of its quota and no more.
	root := x.attach(name(1))
	_, _, err = root.(sigma.Putter).Put(t.Context(), []string{"g"}, make([]byte, 1<<20), sigma.PutOptions{})
	x.want(err, sigma.KindNoSpace)
	x.ok(x.tree.RemoveRealm(t.Context(), name(2)))
	if _, _, err := x.attach(name(2)).Walk(t.Context(), []string{"f"}); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a file of a removed realm: got %v", err)
	}
}
