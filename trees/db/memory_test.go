package db

import (
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: statements that take memory without end fail when the process has what it may have, and
// keep none.
func TestMemory(t *testing.T) {
	tree := newTree(t, Limits{Heap: 12 * sigma.MiB})
	root := rootOf(t, tree)
	if err := root.Mkdir(t.Context(), "d", 0o777); err != nil {
		t.Fatal(err)
	}
	const hungry = "with recursive c(x) as (select 1 union all select x+1 from c where x < 1000000) select count(*) from (select zeroblob(500) || x as b from c order by b)"
	var hogs sync.WaitGroup
	for range 4 {
		s := sessionWith(t, root, "d")
		hogs.Go(func() {
			for range 3 {
				if _, _, err := s.try(t.Context(), hungry); sigma.KindOf(err) != sigma.KindBusy || err == nil ||
					sigma.HintOf(err) == "" {
					t.Errorf("a statement that takes all memory: %v", err)
				}
			}
			s.f.Close()
		})
	}
	hogs.Wait()
	sessionWith(t, root, "d").do("create table t (n integer)")
}
