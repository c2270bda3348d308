package named

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
)

// fill makes n files in a directory, with many callers as a real load has.
func fill(t testing.TB, dir *file, n int) {
	var group sync.WaitGroup
	const callers = 200
	for w := range callers {
		group.Go(func() {
			for i := w; i < n; i += callers {
				if _, _, err := dir.Put(context.Background(), []string{fmt.Sprintf("file-%06d", i)}, []byte("x"),
					sigma.PutOptions{}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// A directory of 100,000 entries: it is listed in pages with each name once while others come and
// go, it is renamed in one small transaction, and it is loaded again.
func TestBigDirectory(t *testing.T) {
	const n = 100_000
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	if err := root.Mkdir(t.Context(), "big", 0o755); err != nil {
		t.Fatal(err)
	}
	big := walk(t, root, "big")
	fill(t, big, n)
	var keys int
	store.setFail(func(b Batch) failure { keys = len(b.Puts) + len(b.Deletes); return succeeds })
	if err := root.Rename(t.Context(), "big", root, "renamed"); err != nil {
		t.Fatal(err)
	}
	store.setFail(nil)
	if keys > 4 {
		t.Errorf("renaming wrote %d keys", keys)
	}
	stop()
	s, _ = serve(t, Config{Store: store})
	big = walk(t, attach(t, s), "renamed")
	var group sync.WaitGroup
	group.Go(func() {
		for i := range 2000 {
			name := fmt.Sprint("comes and goes ", i%10)
			put(t, big, name, "")
			if err := big.Remove(t.Context(), name); err != nil {
				t.Error(err)
			}
		}
	})
	for range 3 {
		seen := map[string]int{}
		for _, name := range list(t, big, 1000) {
			seen[name]++
			if seen[name] > 1 {
				t.Fatalf("%q is listed twice", name)
			}
		}
		for i := range n {
			if name := fmt.Sprintf("file-%06d", i); seen[name] != 1 {
				t.Fatalf("%q is not listed", name)
			}
		}
	}
	group.Wait()
}

func BenchmarkGet(b *testing.B) {
	for _, size := range []int{100, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			s, _ := serve(b, Config{Store: newMemStore()})
			root := attach(b, s)
			if err := root.Mkdir(context.Background(), "d", 0o755); err != nil {
				b.Fatal(err)
			}
			put(b, walk(b, root, "d"), "f", string(make([]byte, size)))
			names := []string{"d", "f"}
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := root.Get(context.Background(), names, 0, size); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Listing pages of a directory, by how big it is.
func BenchmarkReadDir(b *testing.B) {
	for _, size := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("entries=%d", size), func(b *testing.B) {
			s, _ := serve(b, Config{Store: newMemStore()})
			root := attach(b, s)
			fill(b, root, size)
			d := opened(b, walk(b, root), sigma.OpenRead)
			b.ReportAllocs()
			cookie, more := uint64(0), true
			for b.Loop() {
				var err error
				if _, cookie, more, err = d.ReadDir(context.Background(), cookie, 100); err != nil {
					b.Fatal(err)
				}
				if !more {
					cookie = 0
				}
			}
		})
	}
}
