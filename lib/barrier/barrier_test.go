package barrier

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

func join(t *testing.T, tree *memfs.Tree, n int, name string) *Party {
	t.Helper()
	root, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Join(t.Context(), resolve.New(resolve.Config{Root: root}), Config{Dir: "/b", N: n}, name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Goal: each round begins for all when the last has come, a hundred times.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parties, rounds = 5, 100
		tree := memfs.New(memfs.Config{})
		defer tree.Close()
		var mu sync.Mutex
		come := map[uint64]int{}
		var all sync.WaitGroup
		for i := range parties {
			p := join(t, tree, parties, fmt.Sprint(i))
			all.Go(func() {
				for r := uint64(1); r <= rounds; r++ {
					mu.Lock()
					come[r]++
					mu.Unlock()
					round, err := p.Await(t.Context())
					mu.Lock()
					if round != r || err != nil || come[r] != parties {
						t.Errorf("round %d began as %d with %d parties: %v", r, round, come[r], err)
					}
					mu.Unlock()
				}
				if err := p.Leave(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
}

// Goal: the death of a party that waits is told to the others by its name; one of its name takes
// its place; who gives up has not come.
func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		a, b, c := join(t, tree, 3, "a"), join(t, tree, 3, "b"), join(t, tree, 3, "c")
		results := make(chan string, 10)
		await := func(ctx context.Context, p *Party) {
			go func() {
				round, err := p.Await(ctx)
				results <- fmt.Sprint(p.name, round, " ", err)
			}()
			synctest.Wait()
		}
		none := func() {
			t.Helper()
			if len(results) > 0 {
				t.Fatal(<-results)
			}
		}
		impatient, giveUp := context.WithTimeout(ctx, time.Second)
		defer giveUp()
		await(impatient, c)
		await(ctx, a)
		none()
		<-time.After(2 * time.Second)
		if got := <-results; !strings.HasPrefix(got, "c1 /b: timeout") {
			t.Errorf("got %q", got)
		}
		await(ctx, b)
		none()
		if err := b.Leave(ctx); err != nil { // as when its proc dies
			t.Error(err)
		}
		for range 2 {
			if got := <-results; !strings.Contains(got, `"b" has died`) {
				t.Errorf("got %q", got)
			}
		}
		if _, err := b.Await(ctx); sigma.KindOf(err) != sigma.KindStale || sigma.HintOf(err) == "" {
			t.Errorf("a party that left: %v", err)
		}
		b = join(t, tree, 3, "b")
		await(ctx, a)
		await(ctx, b)
		await(ctx, c)
		for range 3 {
			if got := <-results; !strings.HasSuffix(got, "1 <nil>") {
				t.Errorf("got %q", got)
			}
		}
		for _, p := range []*Party{a, b, c} {
			if err := p.Leave(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// Goal: a party of a name that lives, and another N, are refused and said so.
func TestRefused(t *testing.T) {
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	p := join(t, tree, 2, "a")
	for kind, err := range map[sigma.Kind]error{
		sigma.KindExists:  second(Join(t.Context(), p.names, Config{Dir: "/b", N: 2}, "a")),
		sigma.KindInvalid: second(Join(t.Context(), p.names, Config{Dir: "/b", N: 0}, "b")),
	} {
		if sigma.KindOf(err) != kind {
			t.Errorf("want %v: %v", kind, err)
		}
	}
	if err := p.Leave(t.Context()); err != nil {
		t.Error(err)
	}
}

func second(_ *Party, err error) error { return err }

// FuzzDecode: no file is a panic, and what is accepted is for as many parties as asked for.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"round":3,"n":2,"here":["a"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := decode(b, 2); err == nil && (s.N != 2 || len(s.Here) > 1) {
			t.Error(s)
		}
	})
}
