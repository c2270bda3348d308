package treetest

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"sigmaos.dev/sigma"
)

var raceTests = []subtest{
	{name: "rename-or-remove", run: testRenameOrRemove},
	{name: "rename-full-race", needs: []Capability{RenameDirs}, run: testRenameFullRace},
	{name: "remove-or-make", run: testRemoveOrMake},
	{name: "rename-no-cycle", needs: []Capability{RenameDirs}, run: testRenameNoCycle},
}

// both runs two things at the same time.
func both(a, b func()) {
	var wg sync.WaitGroup
	wg.Go(a)
	wg.Go(b)
	wg.Wait()
}

// Of a rename and a removal of one name exactly one finds it.
func testRenameOrRemove(e *env) {
	to := e.mkdir(e.dir, "to")
	for round := range 30 {
		e.write(e.dir, "f", "x")
		name := fmt.Sprint(round)
		var renamed, removed error
		both(func() { renamed = e.dir.Rename(e.ctx, "f", to, name) }, func() { removed = e.dir.Remove(e.ctx, "f") })
		switch {
		case (renamed == nil) == (removed == nil):
			e.Errorf("round %d: rename %v, remove %v, want one winner", round, renamed, removed)
		case renamed == nil:
			e.fails("the loser", removed, sigma.KindNotFound)
			e.wantData("content", e.read(to, name), "x")
		default:
			e.fails("the loser", renamed, sigma.KindNotFound)
			e.missing(to, name)
		}
		e.missing(e.dir, "f")
	}
}

// Of directories with entries that are renamed to one name exactly one gets it, and the others stay
// whole.
func testRenameFullRace(e *env) {
	const n = 6
	for round := range 5 {
		top := e.mkdir(e.dir, fmt.Sprint(round))
		for i := range n {
			e.write(e.mkdir(top, fmt.Sprint(i)), "f", fmt.Sprint(i))
		}
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { errs[i] = top.Rename(e.ctx, fmt.Sprint(i), top, "won") })
		}
		wg.Wait()
		winners := 0
		for i, err := range errs {
			where := fmt.Sprint(i)
			if err == nil {
				winners++
				where = "won"
			} else {
				e.fails("a loser", err, sigma.KindNotEmpty)
			}
			e.wantData("content", e.read(top, where, "f"), fmt.Sprint(i))
		}
		if winners != 1 {
			e.Errorf("round %d: %d directories got one name, want 1", round, winners)
		}
	}
}

// A directory is not removed with what somebody makes in it at the same time.
func testRemoveOrMake(e *env) {
	for round := range 30 {
		name := fmt.Sprint(round)
		d := e.mkdir(e.dir, name)
		var created, removed error
		both(func() { created = e.tryWrite(d, "f", "x", sigma.OpenWrite) },
			func() { removed = e.dir.Remove(e.ctx, name) })
		switch {
		case (created == nil) == (removed == nil):
			e.Errorf("round %d: make %v, remove %v, want one winner", round, created, removed)
		case created == nil:
			e.fails("the loser", removed, sigma.KindNotEmpty)
			e.wantData("content", e.read(e.dir, name, "f"), "x")
		default:
			// A server where a file appears when its writer is done may notice only then.
			e.fails("the loser", created, sigma.KindNotFound, sigma.KindStale)
			e.missing(e.dir, name)
		}
	}
}

// Whatever directories are moved into each other at the same time, all of them stay within reach:
// none ends below itself.
func testRenameNoCycle(e *env) {
	const dirs, workers, each = 8, 6, 60
	handles, names := []sigma.File{e.dir}, map[string]bool{}
	for i := range dirs {
		name := fmt.Sprintf("d%d", i)
		names[name] = true
		handles = append(handles, e.mkdir(handles[i/2], name))
	}
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(uint64(w), 7))
		wg.Go(func() {
			for range each {
				name, to := fmt.Sprintf("d%d", rng.IntN(dirs)), handles[rng.IntN(len(handles))]
				for _, from := range handles {
					err := from.Rename(e.ctx, name, to, name)
					if err == nil {
						break
					}
					switch sigma.KindOf(err) {
					case sigma.KindNotFound, sigma.KindInvalid,
						sigma.KindNotEmpty: // it is elsewhere; below itself; it is there
					default:
						e.Errorf("Rename: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	e.countDown(e.dir, names, 0)
	for name := range names {
		e.Errorf("%s cannot be reached any more", name)
	}
}

// countDown takes what is below dir out of names.
func (e *env) countDown(dir sigma.File, names map[string]bool, depth int) {
	e.Helper()
	if depth > 20 {
		e.Fatal("a directory is below itself")
	}
	for _, d := range e.list(dir, 100) {
		if !names[d.Name] {
			e.Errorf("%s is at two places", d.Name)
		}
		delete(names, d.Name)
		sub := e.walk(dir, d.Name)
		e.countDown(sub, names, depth+1)
		sub.Close()
	}
}
