package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/inprocess"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

// Goal: shards are divided evenly, and no more move than must: those of members that are gone, and
// what others have beyond their part.
func TestAssign(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		owners := make([]string, 1+rnd.IntN(40))
		members := []string{"a", "b", "c", "d", "e", "f"}[:1+rnd.IntN(6)]
		for range 5 {
			now := Assign(owners, members)
			have, kept, had := map[string]int{}, 0, map[string]int{}
			for i, o := range now {
				have[o]++
				had[owners[i]]++
				if o == owners[i] {
					kept++
				}
			}
			least, more := len(owners)/len(members), len(owners)%len(members)
			best, extra := 0, 0
			for _, m := range members {
				if have[m] != least && (more == 0 || have[m] != least+1) {
					t.Fatalf("%v among %v: %v", owners, members, have)
				}
				best += min(had[m], least)
				if had[m] > least && extra < more {
					best, extra = best+1, extra+1
				}
			}
			if kept != best {
				t.Fatalf("%v among %v became %v: %d stayed, %d could", owners, members, now, kept, best)
			}
			owners, members = now, slices.Clone(members)
			rnd.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			members = members[:1+rnd.IntN(len(members))]
		}
		if now := Assign(owners, nil); len(slices.Compact(now)) != 1 || now[0] != "" {
			t.Fatal(now)
		}
	}
}

// Goal: keys that differ little are spread evenly.
func TestOf(t *testing.T) {
	var keys [16]int
	for i := range 16000 {
		keys[Of(fmt.Sprint("user", i), 16)]++
	}
	for i, n := range keys {
		if n < 800 || n > 1200 {
			t.Errorf("%d keys of 16,000 in shard %d of 16", n, i)
		}
	}
}

// table is who has each shard, as members were told.
type table struct {
	t      *testing.T
	mu     sync.Mutex
	owners []string
	epochs []sigma.Epoch
}

func (x *table) callbacks(name string) Callbacks {
	return Callbacks{Gain: func(_ context.Context, shard int, f sigma.Fence) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.owners[shard] != "" || f.Epoch <= x.epochs[shard] {
			x.t.Errorf("%s gained %d of %q at epoch %d after %d", name, shard, x.owners[shard], f.Epoch,
				x.epochs[shard])
		}
		x.owners[shard], x.epochs[shard] = name, f.Epoch
	}, Lose: func(shard int) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.owners[shard] != name {
			x.t.Errorf("%s lost %d of %q", name, shard, x.owners[shard])
		}
		x.owners[shard] = ""
	}}
}

// settled waits until all members have their even part and all shards have owners.
func (x *table) settled(members ...string) {
	x.t.Helper()
	for range 1000 {
		x.mu.Lock()
		now := slices.Clone(x.owners)
		x.mu.Unlock()
		if !slices.Contains(now, "") && slices.Equal(now, Assign(now, members)) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	x.t.Fatalf("the owners are %q, the members %q", x.owners, members)
}

// Goal: while members and balancers come and go no shard has two owners, each gain has a later
// epoch, and in the end all is divided evenly; clerks see epochs grow.
func TestMembers(t *testing.T) {
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	realm := inprocess.Serve(t, tree)
	cfg := Config{Dir: "/d", Shards: 10, TTL: 2 * time.Second}
	x := &table{t: t, owners: make([]string, 10), epochs: make([]sigma.Epoch, 10)}
	var all sync.WaitGroup
	run := func(do func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan bool)
		all.Go(func() {
			defer close(ended)
			if err := do(ctx); ctx.Err() == nil {
				t.Errorf("ended: %v", err)
			}
		})
		return func() { cancel(); <-ended }
	}
	balance := func() (stop func()) {
		c := realm.Connect(t)
		return run(func(ctx context.Context) error { return Balance(ctx, c, cfg) })
	}
	member := func(name string) (stop func()) {
		c := realm.Connect(t)
		return run(func(ctx context.Context) error { return Own(ctx, c, cfg, name, x.callbacks(name)) })
	}
	first, second := balance(), balance()
	a, b := member("a"), member("b")
	clerk := realm.Connect(t)
	last := uint64(0)
	follow := run(func(ctx context.Context) error {
		for as, err := range Follow(ctx, clerk, "/d") {
			if err != nil {
				return err
			}
			if as.Epoch <= last {
				t.Errorf("epoch %d after %d", as.Epoch, last)
			}
			last = as.Epoch
		}
		return nil
	})
	x.settled("a", "b")
	c := member("c")
	x.settled("a", "b", "c")
	a()
	x.settled("b", "c")
	first()
	a = member("a")
	x.settled("a", "b", "c")
	// as when the member's lease ends: it takes its shards for lost, and comes again
	if err := clerk.Remove(t.Context(), "/d/members/b"); err != nil {
		t.Error(err)
	}
	x.settled("a", "b", "c")
	for _, stop := range []func(){a, b, c, second, follow} {
		stop()
	}
	all.Wait()
	for i, o := range x.owners {
		if o != "" {
			t.Errorf("%d is still of %s", i, o)
		}
	}
}

// FuzzDecode: no file is a panic, and what is accepted is an assignment.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"epoch":3,"owners":["a","b"]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a, err := Decode(b); err == nil && (a.Epoch == 0 || len(a.Owners) == 0) {
			t.Error(fmt.Sprint(a))
		}
	})
}
