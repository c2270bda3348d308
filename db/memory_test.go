package db

import (
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: a realm whose statements take memory without end takes no more than a realm may have, fails itself, and keeps none: another realm's statements are all answered meanwhile, its own when it has let go.
func TestMemoryOfRealms(t *testing.T) {
	const most = 12 * sigma.MiB
	tree := newTree(t, Limits{Heap: 64 * sigma.MiB, RealmHeap: most})
	of := map[sigma.RealmID]sigma.File{}
	for _, realm := range []sigma.RealmID{"hog", "other"} {
		of[realm] = rootOf(t, tree, realm)
		if err := of[realm].Mkdir(t.Context(), "d", 0o777); err != nil {
			t.Fatal(err)
		}
	}
	const hungry = "with recursive c(x) as (select 1 union all select x+1 from c where x < 1000000) select count(*) from (select zeroblob(500) || x as b from c order by b)"
	tree.mu.Lock()
	memory := tree.realms["hog"].memory
	tree.mu.Unlock()
	var hogs sync.WaitGroup
	for range 4 {
		s := sessionWith(t, of["hog"], "d")
		hogs.Go(func() {
			for range 3 {
				if _, _, err := s.try(t.Context(), hungry); sigma.KindOf(err) != sigma.KindBusy || err == nil || sigma.HintOf(err) == "" {
					t.Errorf("a statement that takes all memory: %v", err)
				}
				if n := memory.Used(); n > int64(most) {
					t.Errorf("the realm has %d bytes of %d", n, most)
				}
			}
			s.f.Close()
		})
	}
	done := make(chan struct{})
	go func() { hogs.Wait(); close(done) }()
	other := sessionWith(t, of["other"], "d")
	other.do("create table t (n integer)")
	for asked := 0; ; asked++ {
		other.do("insert into t values (1)")
		other.do("select count(*) from (select n from t order by n desc)")
		select {
		case <-done:
		default:
			continue
		}
		t.Logf("another realm asked %d times", asked)
		break
	}
	again := sessionWith(t, of["hog"], "d")
	again.do("create table t (n integer)")
	tree.Close()
	if n := memory.Used(); n != 0 {
		t.Errorf("with no session open the realm has %d bytes", n)
	}
}
