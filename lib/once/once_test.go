package once

import (
	"context"
	"errors"
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

// Goal: one does the task at a time and all get its result; after a failure the next tries; an
// owner whose lease ended is told, and what it publishes and writes with its fence is refused.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		n := client(t, tree)
		if _, err := Result(ctx, n, "/t"); sigma.KindOf(err) != sigma.KindNotFound {
			t.Error(err)
		}
		began, goOn := make(chan sigma.Fence, 1), make(chan bool)
		results := make(chan string, 10)
		report := func(who string, data []byte, err error) { results <- fmt.Sprint(who, " ", string(data), " ", err) }
		go func() {
			data, err := Do(ctx, n, "/t", func(own context.Context, f sigma.Fence) ([]byte, error) {
				began <- f
				<-goOn
				if own.Err() == nil {
					t.Error("a former owner is not told")
				}
				if _, err := n.Put(sigma.WithFence(ctx, f), "/t/other", nil, sigma.PutOptions{}); sigma.KindOf(err) !=
					sigma.KindStale {
					t.Errorf("a former owner wrote: %v", err)
				}
				return []byte("late"), nil
			})
			report("first", data, err)
		}()
		first := <-began
		go func() {
			data, err := Do(ctx, client(t, tree), "/t", func(context.Context, sigma.Fence) ([]byte, error) {
				return nil, errors.New("cannot")
			})
			report("second", data, err)
		}()
		synctest.Wait()
		go func() {
			data, err := Do(ctx, client(t, tree), "/t", func(_ context.Context, f sigma.Fence) ([]byte, error) {
				if f.Epoch != first.Epoch+2 {
					t.Errorf("the third attempt has epoch %d", f.Epoch)
				}
				return []byte("good"), nil
			})
			report("third", data, err)
		}()
		synctest.Wait()
		<-time.After(time.Hour) // the owner renews its lease
		if len(results) > 0 {
			t.Fatal(<-results)
		}
		if err := n.Remove(ctx, "/t/owner"); err != nil { // as when its lease ends
			t.Fatal(err)
		}
		got := map[string]bool{<-results: true, <-results: true}
		if !got["third good <nil>"] || !got["second  /t: error: cannot"] {
			t.Errorf("got %v", got)
		}
		synctest.Wait() // the former owner's watch has heard of it
		close(goOn)
		if got := <-results; got != "first good <nil>" {
			t.Errorf("the former owner got %q", got)
		}
		data, err := Do(ctx, n, "/t", func(context.Context, sigma.Fence) ([]byte, error) { panic("it is done") })
		if string(data) != "good" || err != nil {
			t.Errorf("%q %v", data, err)
		}
	})
}

// Goal: a result that is too large is refused and said so, and leaves the task to others.
func TestTooLarge(t *testing.T) {
	ctx, tree := t.Context(), memfs.New(memfs.Config{})
	defer tree.Close()
	n := client(t, tree)
	large := func(context.Context, sigma.Fence) ([]byte, error) { return make([]byte, ResultMax+1), nil }
	if _, err := Do(ctx, n, "/t", large); sigma.KindOf(err) != sigma.KindTooBig || sigma.HintOf(err) == "" {
		t.Error(err)
	}
	small := func(context.Context, sigma.Fence) ([]byte, error) { return nil, nil }
	if data, err := Do(ctx, n, "/t", small); err != nil || len(data) != 0 {
		t.Error(data, err)
	}
}
