package memfs

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// TestWaitInOrder: who waits for a name gets it in the order of coming; who gave up is passed over,
// also the one whose turn it was; the end of a lease is an end like any other.
func TestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree := New(Config{})
		defer tree.Close()
		root, err := tree.Attach(t.Context(), sigma.Principal{}, "")
		if err != nil {
			t.Fatal(err)
		}
		lease, err := root.(sigma.Leaser).Lease(t.Context(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		put := func(ctx context.Context, o sigma.PutOptions) error {
			o.MustMake = true
			_, _, err := root.(sigma.Putter).Put(ctx, []string{"leader"}, nil, o)
			return err
		}
		if err := put(t.Context(), sigma.PutOptions{Lease: lease}); err != nil {
			t.Fatal(err)
		}
		elected := make(chan string, 10)
		gives := map[string]context.CancelFunc{}
		for _, who := range []string{"a", "gone", "b", "c"} {
			ctx, cancel := context.WithCancel(t.Context())
			gives[who] = cancel
			defer cancel()
			go func() {
				if err := put(ctx, sigma.PutOptions{Wait: true}); err != nil {
					who += ": " + sigma.KindOf(err).String()
				}
				elected <- who
			}()
			synctest.Wait()
		}
		want := func(who string) {
			t.Helper()
			synctest.Wait()
			select {
			case got := <-elected:
				if got != who {
					t.Errorf("got %q, want %q", got, who)
				}
			default:
				if who != "" {
					t.Errorf("nobody came, want %q", who)
				}
			}
		}
		gives["gone"]()
		want("gone: canceled")
		want("")
		<-time.After(2 * time.Minute)
		want("a")
		want("")
		tree.mu.Lock() // so that b gives up after its turn has come
		go gives["b"]()
		go root.Remove(t.Context(), "leader")
		tree.mu.Unlock()
		synctest.Wait()
		switch who := <-elected; who {
		case "b":
			if err := root.Remove(t.Context(), "leader"); err != nil {
				t.Error(err)
			}
			want("c")
		case "b: canceled":
			want("c")
		default:
			t.Errorf("got %q", who)
		}
		want("")
		if len(tree.waits) != 0 {
			t.Errorf("%d names are waited for by nobody", len(tree.waits))
		}
	})
}
