//go:build system

package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// rounds is how often a test kills, by SIGMA_KV_ROUNDS.
func rounds(short int) int {
	if n, err := strconv.Atoi(os.Getenv("SIGMA_KV_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return short
}

// ledger notes what was acknowledged of writers, of which each writes ever greater numbers to keys
// of its own.
type ledger struct {
	all  sync.WaitGroup
	stop context.CancelFunc
	acks atomic.Int64

	mu    sync.Mutex
	least map[string]int // mu; by key, the last number that was acknowledged
}

func write(ctx context.Context, k *kv.Clerk, writers int) *ledger {
	running, stop := context.WithCancel(ctx)
	l := &ledger{stop: stop, least: map[string]int{}}
	for w := range writers {
		l.all.Go(func() {
			for n := 1; running.Err() == nil; n++ {
				key := fmt.Sprintf("writer-%d-%d", w, n%8)
				if _, err := k.Put(running, key, []byte(strconv.Itoa(n)), kv.Options{}); err != nil {
					continue // it may have taken effect, and the next number is greater
				}
				l.acks.Add(1)
				l.mu.Lock()
				l.least[key] = n
				l.mu.Unlock()
			}
		})
	}
	return l
}

// lost lists acknowledged writes that are not there.
func (l *ledger) lost(ctx context.Context, k *kv.Clerk) (lost []string, err error) {
	l.mu.Lock()
	least := map[string]int{}
	for key, n := range l.least {
		least[key] = n
	}
	l.mu.Unlock()
	for key, want := range least {
		value, _, err := k.Get(ctx, key)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return nil, err
		}
		if got, _ := strconv.Atoi(string(value)); got < want {
			lost = append(lost, fmt.Sprintf("%s: %q, and %d was acknowledged", key, value, want))
		}
	}
	return lost, nil
}

// members lists the procs of a store's first group that run.
func members(ctx context.Context, c *sdk.Client, name string) (ids []sigma.ProcID, err error) {
	procs, err := c.List(ctx, false)
	for _, p := range procs {
		if p.Name == "kv-"+name+"-g1" && p.State == sigma.ProcRunning {
			ids = append(ids, p.ID)
		}
	}
	return ids, err
}

// Goal: no acknowledged write of a durable group is lost, whichever of its members are killed at a
// time: a majority in two rounds of three, all in the third. SIGMA_KV_ROUNDS says how many rounds.
func TestDurableKilled(t *testing.T) {
	s := shared.Get(t)
	n := rounds(3)
	ctx, cancel := context.WithTimeout(t.Context(), (time.Minute+time.Duration(n)*20*time.Second)*testenv.Slow())
	defer cancel()
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "killed", "--durable", "--replicas", "3", "--shards", "4")
	if st, err := k.Group(ctx, 1); err != nil || !st.Durable || len(st.Members) != 3 {
		t.Fatalf("%+v, %v", st, err)
	}
	l := write(ctx, k, 4)
	defer l.all.Wait()
	defer l.stop()
	longest := time.Duration(0)
	for round := range n {
		before := l.acks.Load()
		var ids []sigma.ProcID
		testenv.Eventually(t, "all members run, and writes are acknowledged", func() (err error) {
			if ids, err = members(ctx, c, "killed"); err == nil && (len(ids) != 3 || l.acks.Load() < before+20) {
				err = fmt.Errorf("%d run, %d writes", len(ids), l.acks.Load()-before)
			}
			return err
		})
		rand.Shuffle(3, func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		if round%3 != 2 {
			ids = ids[:2]
		}
		began := time.Now()
		var all sync.WaitGroup
		for _, id := range ids {
			all.Go(func() {
				if err := c.Kill(ctx, id); err != nil {
					t.Errorf("kill: %v", err)
				}
			})
		}
		all.Wait()
		lost, err := l.lost(ctx, k)
		longest = max(longest, time.Since(began))
		if err != nil || len(lost) > 0 {
			t.Fatalf("round %d: %v, lost: %s", round, err, strings.Join(lost, "; "))
		}
	}
	t.Logf("%d rounds, %d writes acknowledged, none lost; served again after %v at most", n, l.acks.Load(),
		longest.Round(time.Millisecond))
}

// Goal: a durable store is there again with all that was acknowledged after kill -9 of sigmad, and
// after sigmaOS went down and up.
func TestDurableRestart(t *testing.T) {
	s := testenv.New(t, testenv.Options{})
	s.Up(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute*testenv.Slow())
	defer cancel()
	s.Must(t, "kv", "create", "--durable", "--replicas", "3", "--shards", "4", "kept")
	for what, fault := range map[string]func(){"sigmad is killed": func() { s.Kill9(t, "sigmad") },
		"down and up": func() { s.Down(t); s.Up(t) }} {
		c := s.Connect(ctx, t, sigma.DefaultRealm)
		k, err := kv.Open(c, "kept")
		if err != nil {
			t.Fatal(err)
		}
		l := write(ctx, k, 4)
		testenv.Eventually(t, "writes are acknowledged", func() error {
			if l.acks.Load() < 100 {
				return errors.New("too few")
			}
			return nil
		})
		began := time.Now()
		fault()
		l.stop()
		l.all.Wait()
		k.Close()
		if k, err = kv.Open(s.Connect(ctx, t, sigma.DefaultRealm), "kept"); err != nil {
			t.Fatal(err)
		}
		lost, err := l.lost(ctx, k)
		if err != nil || len(lost) > 0 {
			t.Errorf("%s: %v, lost: %s", what, err, strings.Join(lost, "; "))
		}
		t.Logf("%s: served again after %v, %d writes acknowledged", what, time.Since(began).Round(time.Millisecond),
			l.acks.Load())
		k.Close()
	}
	s.Must(t, "kv", "rm", "kept")
	if got := s.Must(t, "ls", "/ux/~local/kv"); got != "" {
		t.Errorf("left: %q", got)
	}
}
