//go:build system

package kv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	// failoverMost is how long a client waits for its next acknowledged write when a leader is
	// killed.
	failoverMost = 1500 * time.Millisecond
	// failoverKills is how many leaders TestFailover kills; SIGMA_KV_KILLS is another number.
	failoverKills   = 5
	failoverClients = 4
)

// Goal: a client's writes go on within failoverMost of the kill of the leader. Method: clients
// write one after another; the time is the longest between two acknowledged writes of one of them.
func TestFailover(t *testing.T) {
	s := shared.Get(t)
	kills := number("SIGMA_KV_KILLS", failoverKills)
	ctx, cancel := context.WithTimeout(t.Context(), (time.Minute+time.Duration(kills)*20*time.Second)*testenv.Slow())
	defer cancel()
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "failover", "--replicas", "3", "--shards", "4")
	var took []time.Duration
	for range kills {
		var st calls.Member
		testenv.Eventually(t, "the group has three members", func() (err error) {
			if st, err = k.Group(ctx, 1); err == nil && (len(st.Members) != 3 || !running(ctx, c, st.Members)) {
				err = fmt.Errorf("%+v", st.Members)
			}
			return err
		})
		took = append(took, failOver(ctx, t, c, k, st))
		testenv.Eventually(t, "another member has the place of the killed one", func() error {
			now, err := k.Group(ctx, 1)
			if err == nil && slices.Contains(now.Members, st.Leader) {
				err = fmt.Errorf("%+v", now.Members)
			}
			return err
		})
	}
	slices.Sort(took)
	t.Logf("writes go on after %v", took)
	if most := took[len(took)-1]; most > failoverMost*testenv.Slow() {
		t.Errorf("a client waited %v for a write; the most are %v", most, failoverMost)
	}
}

// failOver kills the leader of group 1 while clients write, and gives the longest time that one of
// them was without an acknowledged write from then on.
func failOver(ctx context.Context, t *testing.T, c *sdk.Client, k *kv.Clerk, st calls.Member) time.Duration {
	t.Helper()
	begun, over := make(chan struct{}, failoverClients), make(chan struct{})
	gaps := make(chan time.Duration, failoverClients)
	for i := range failoverClients {
		go func() {
			longest, last := time.Duration(0), time.Now()
			for n := 0; ; n++ {
				if _, err := k.Put(ctx, fmt.Sprint("key-", i), []byte(fmt.Sprint(n)), kv.Options{}); err != nil {
					t.Error(err)
				}
				now := time.Now()
				longest, last = max(longest, now.Sub(last)), now
				if n == 0 {
					begun <- struct{}{}
					longest = 0
				}
				select {
				case <-over:
					gaps <- longest
					return
				default:
				}
			}
		}()
	}
	for range failoverClients {
		<-begun
	}
	at := time.Now()
	if err := c.Kill(ctx, sigma.ProcID(st.Leader)); err != nil {
		t.Fatal(err)
	}
	var elected time.Duration
	testenv.Eventually(t, "another member leads", func() error {
		now, err := k.Group(ctx, 1)
		if err == nil && now.Leader == st.Leader {
			err = errors.New("the killed one leads")
		}
		elected = time.Since(at)
		return err
	})
	close(over)
	longest := time.Duration(0)
	for range failoverClients {
		longest = max(longest, <-gaps)
	}
	t.Logf("%s: another leads after %v, writes go on after %v", st.Leader, elected.Round(time.Millisecond),
		longest.Round(time.Millisecond))
	return longest
}
