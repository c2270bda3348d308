package semaphore

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

func client(t *testing.T, tree *memfs.Tree) *resolve.Tree {
	t.Helper()
	root, err := tree.Attach(t.Context(), sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	return resolve.New(resolve.Config{Root: root})
}

// Goal: no more than Size hold a permit; who waits gets one in order of arrival, after a release
// and after a holder's lease has ended, of which the holder is told; who gives up is passed over.
func TestSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		got := make(chan int, 10)
		permits := map[int]*Permit{}
		acquire := func(ctx context.Context, i int) {
			s, err := New(ctx, client(t, tree), Config{Dir: "/s", Size: 2, TTL: 3 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				p, err := s.Acquire(ctx)
				if err != nil {
					got <- -i
					return
				}
				permits[i] = p
				got <- i
			}()
			synctest.Wait()
		}
		expect := func(want ...int) {
			t.Helper()
			synctest.Wait()
			var all []int
			for len(got) > 0 {
				all = append(all, <-got)
			}
			if fmt.Sprint(all) != fmt.Sprint(want) {
				t.Fatalf("got %v, want %v", all, want)
			}
		}
		impatient, giveUp := context.WithCancel(ctx)
		acquire(ctx, 1)
		acquire(ctx, 2)
		acquire(impatient, 3)
		acquire(ctx, 4)
		acquire(ctx, 5)
		expect(1, 2)
		giveUp()
		expect(-3)
		<-time.After(time.Hour)
		expect()
		if err := permits[2].Release(ctx); err != nil {
			t.Error(err)
		}
		expect(4)
		// the names of the first holder's permit are gone, as when its lease ends
		if err := client(t, tree).Remove(ctx, "/s/held/0"); err != nil {
			t.Error(err)
		}
		expect(5)
		select {
		case <-permits[1].Lost():
		default:
			t.Error("a holder that lost its permit is not told")
		}
		for _, i := range []int{1, 4, 5} {
			if err := permits[i].Release(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// Goal: what cannot be meant is refused and said so.
func TestRefused(t *testing.T) {
	ctx, tree := t.Context(), memfs.New(memfs.Config{})
	defer tree.Close()
	n := client(t, tree)
	if _, err := New(ctx, n, Config{Dir: "/s", Size: 2}); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, -1, 3, SizeMax + 1} {
		if _, err := New(ctx, n, Config{Dir: "/s", Size: size}); sigma.KindOf(err) != sigma.KindInvalid ||
			sigma.HintOf(err) == "" {
			t.Errorf("size %d: %v", size, err)
		}
	}
}
