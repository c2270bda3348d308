//go:build system

package kv

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// procsOf gives the members of all groups of a store.
func procsOf(ctx context.Context, k *kv.Clerk) (all []string, err error) {
	cfg, err := k.Config(ctx)
	if err != nil {
		return nil, err
	}
	for g := range cfg.Groups {
		st, err := k.Group(ctx, g)
		if err != nil {
			return nil, err
		}
		all = append(all, st.Members...)
	}
	return all, nil
}

// Goal: all members of a store are replaced, also those of groups of one, which keep nothing on
// disk; no write is lost or refused, and none waits for longer than a fail-over. A balancer that is
// killed meanwhile is followed by another one.
func TestRoll(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	for _, replicas := range []int{1, 3} {
		name := fmt.Sprint("roll", replicas)
		k := store(t, s, c, name, "--shards", "8", "--groups", "2", "--replicas", strconv.Itoa(replicas))
		before, err := procsOf(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		l := begin(t, ctx, k, 4)
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			killLeader(t, c, name)
		}()
		s.Must(t, "kv", "roll", name)
		l.end(t, fmt.Sprint("a roll of groups of ", replicas))
		<-killed
		testenv.Eventually(t, "all members are others", func() error {
			after, err := procsOf(ctx, k)
			if err == nil && (len(after) != 2*replicas ||
				slices.ContainsFunc(after, func(p string) bool { return slices.Contains(before, p) })) {
				err = fmt.Errorf("there were %v, and are %v", before, after)
			}
			return err
		})
		if l.longest > failoverMost*testenv.Slow() {
			t.Errorf("a write and its read took %v; the most are %v", l.longest, failoverMost)
		}
	}
}
