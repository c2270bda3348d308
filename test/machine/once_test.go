//go:build system

package machine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sigmaos.dev/sigma"
)

// Mutations that are under way when named is killed happen, and once: exclusive creates, appends,
// renames, and advances of an epoch, of many at once, while named is killed again and again. Nobody
// gets an error.
func TestOnce(t *testing.T) {
	const clients, rounds, kills = 16, 40, 3
	r := connect(t, defaultRealm)
	if err := r.MkdirAll(r.ctx, "/once", 0o755); err != nil {
		t.Fatal(err)
	}
	var acks atomic.Int64
	at := make([]chan struct{}, kills) // closed when it is time for the next kill
	for i := range at {
		at[i] = make(chan struct{})
	}
	ack := func() {
		n := acks.Add(1)
		for i := range at {
			if n == int64((i+1)*clients*rounds/(kills+1)) {
				close(at[i])
			}
		}
	}
	epochs := make([][]sigma.Epoch, clients)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			mine := fmt.Sprintf("/once/%d", c)
			put(r.ctx, t, r, mine+"-0", "x", sigma.PutOptions{MustMake: true})
			for i := range rounds {
				switch c % 4 {
				case 0:
					put(r.ctx, t, r, fmt.Sprintf("%s-made-%d", mine, i), "x", sigma.PutOptions{MustMake: true})
				case 1:
					put(r.ctx, t, r, "/once/log", fmt.Sprintf("%d.%d\n", c, i), sigma.PutOptions{Append: true})
				case 2:
					if err := r.Rename(r.ctx, fmt.Sprintf("%s-%d", mine, i),
						fmt.Sprintf("%s-%d", mine, i+1)); err != nil {
						t.Errorf("rename %d of %d: %v", i, c, err)
					}
				case 3:
					f, err := r.AdvanceEpoch(r.ctx, "/once/epoch")
					if err != nil {
						t.Errorf("advance %d of %d: %v", i, c, err)
					}
					epochs[c] = append(epochs[c], f.Epoch)
				}
				ack()
			}
		})
	}
	for i := range at {
		<-at[i]
		r.s.Kill9(t, "named")
	}
	all.Wait()
	log, _, err := r.Get(r.ctx, "/once/log")
	lines := strings.Fields(string(log))
	slices.Sort(lines)
	if n := len(slices.Compact(slices.Clone(lines))); err != nil || n != len(lines) || n != clients/4*rounds {
		t.Errorf("the log has %d lines, %d different ones, %v; want %d", len(lines), n, err, clients/4*rounds)
	}
	got := slices.Concat(epochs...)
	slices.Sort(got)
	if n := len(got); n != clients/4*rounds || got[0] != 1 || got[n-1] != sigma.Epoch(n) ||
		len(slices.Compact(got)) != n {
		t.Errorf("%d epochs, %d to %d", n, got[0], got[n-1])
	}
	if err := r.RemoveAll(r.ctx, "/once"); err != nil {
		t.Error(err)
	}
	r.restarted("named")
}

func put(ctx context.Context, t *testing.T, r *realm, path, data string, o sigma.PutOptions) {
	t.Helper()
	if _, err := r.Put(ctx, path, []byte(data), o); err != nil {
		t.Errorf("put %s: %v", path, err)
	}
}
