//go:build system

package kv

import (
	"context"
	"encoding/json"
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
	"sigmaos.dev/apps/kv/layout"
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
	// initd waits longer each time, so a store has six rounds at most.
	for i := 0; n > 0; i++ {
		t.Run(fmt.Sprint("store=", i), func(t *testing.T) {
			killRounds(ctx, t, s, c, fmt.Sprint("killed-", i), min(n, 6))
		})
		n -= 6
	}
}

// killRounds kills members of a store of its own in n rounds.
func killRounds(ctx context.Context, t *testing.T, s *testenv.System, c *sdk.Client, name string, n int) {
	k := store(t, s, c, name, "--durable", "--replicas", "3", "--shards", "4")
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
			if ids, err = members(ctx, c, name); err == nil && (len(ids) != 3 || l.acks.Load() < before+20) {
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

// Goal: a member whose log was removed is replaced by one with another ID, and nothing is lost.
func TestDurableLogGone(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "gone", "--durable", "--replicas", "3", "--shards", "4")
	l := write(ctx, k, 2)
	slots := func() (text string) {
		for i := range 3 {
			b, _, err := c.Get(ctx, layout.Slot("gone", 1, i))
			if err != nil {
				t.Fatal(err)
			}
			text += string(b)
		}
		return text
	}
	before := slots()
	logs, err := c.ReadDir(ctx, layout.Logs("~local", "gone")+"/1")
	if err != nil || len(logs) != 3 {
		t.Fatal(logs, err)
	}
	n, err := strconv.ParseUint(logs[0].Name, 16, 64)
	if err != nil || !strings.Contains(before, fmt.Sprintf(`"id":%d,`, n)) {
		t.Fatalf("%q is in no slot: %s", logs[0].Name, before)
	}
	if err := c.RemoveAll(ctx, layout.Logs("~local", "gone")+"/1/"+logs[0].Name); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the member has a new ID", func() error {
		ids, err := members(ctx, c, "gone")
		if err != nil || strings.Contains(slots(), fmt.Sprintf(`"id":%d,`, n)) {
			for _, id := range ids {
				for i := range 3 {
					var s struct {
						ID   uint64
						Proc sigma.ProcID
					}
					b, _, _ := c.Get(ctx, layout.Slot("gone", 1, i))
					if json.Unmarshal(b, &s) == nil && s.ID == n && s.Proc == id {
						c.Kill(ctx, id)
					}
				}
			}
			return fmt.Errorf("%v %s", err, slots())
		}
		st, err := k.Group(ctx, 1)
		if err == nil && len(st.Members) != 3 {
			err = fmt.Errorf("%v", st.Members)
		}
		return err
	})
	l.stop()
	l.all.Wait()
	if lost, err := l.lost(ctx, k); err != nil || len(lost) > 0 {
		t.Errorf("%v, lost: %s", err, strings.Join(lost, "; "))
	}
}

// Goal: when the realm's scratch storage is used up, writes of a durable store are refused with a
// reason, reads go on, and so do writes when there is room.
func TestDurableFull(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	realm := sigma.RealmID("full")
	s.Must(t, "realm", "create", string(realm))
	t.Cleanup(func() { s.Must(t, "realm", "rm", "--force", string(realm)) })
	s.Must(t, "realm", "set", "--limit-scratch", "32M", string(realm))
	s.Must(t, "kv", "create", "--realm", string(realm), "--durable", "--replicas", "3", "--shards", "4", "full")
	k, err := kv.Open(s.Connect(ctx, t, realm), "full")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	value, last := make([]byte, 500<<10), 0
	for last = range 200 {
		within, cancel := context.WithTimeout(ctx, 20*time.Second)
		_, err = k.Put(within, fmt.Sprint("key-", last), value, kv.Options{})
		cancel()
		if err != nil {
			break
		}
	}
	if sigma.KindOf(err) != sigma.KindNoSpace || last == 0 {
		t.Fatalf("write %d: %v", last, err)
	}
	for i := range last {
		if got, _, err := k.Get(ctx, fmt.Sprint("key-", i)); err != nil || len(got) != len(value) {
			t.Fatalf("key %d: %d bytes, %v", i, len(got), err)
		}
	}
	s.Must(t, "realm", "set", "--limit-scratch", "1G", string(realm))
	testenv.Eventually(t, "writes go on", func() error { return put(ctx, k, "more", value) })
	t.Logf("%d writes were taken, then: %v", last, err)
}

// Goal: who lost a group in memory is told so, and what to do.
func TestMajorityGone(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "memory", "--replicas", "3")
	if err := put(ctx, k, "key", nil); err != nil {
		t.Fatal(err)
	}
	ids, err := members(ctx, c, "memory")
	if err != nil || len(ids) != 3 {
		t.Fatal(ids, err)
	}
	for _, id := range ids {
		if err := c.Kill(ctx, id); err != nil {
			t.Fatal(err)
		}
	}
	if said := s.Must(t, "kv", "status", "memory"); !strings.Contains(said, "its keys are lost") {
		t.Errorf("status prints %q", said)
	}
	var next []sigma.ProcID
	testenv.Eventually(t, "a new proc says why it ends", func() (err error) {
		if next == nil {
			next, err = members(ctx, c, "memory")
		}
		for _, id := range next {
			if out, _, _ := c.Get(ctx, "/proc/"+string(id)+"/stderr"); strings.Contains(string(out), "make it again") {
				return nil
			}
		}
		return fmt.Errorf("%v, %v", next, err)
	})
}

// Goal: a store is saved while it is written to, and restored as it was; a file that is damaged, or
// none of a store, makes no store.
func TestSnapshot(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	k := store(t, s, c, "saved", "--groups", "2", "--shards", "8")
	want := map[string]string{}
	for i := range 600 {
		key, value := fmt.Sprint("key-", i), strings.Repeat("v", i*7)
		if _, err := k.Put(ctx, key, []byte(value), kv.Options{}); err != nil {
			t.Fatal(err)
		}
		want[key] = value
	}
	l := write(ctx, k, 2)
	if err := c.MkdirAll(ctx, "/s3/kvtest", 0o755); err != nil {
		t.Fatal(err)
	}
	const path = "/s3/kvtest/saved"
	t.Log(s.Must(t, "kv", "snapshot", "saved", path))
	l.stop()
	l.all.Wait()
	if _, said, code := s.CLI(t, "kv", "snapshot", "saved", path); code == 0 || !strings.Contains(said, "already") {
		t.Errorf("a second file of the name: %d %q", code, said)
	}
	t.Log(s.Must(t, "kv", "restore", "again", path))
	t.Cleanup(func() { s.Must(t, "kv", "rm", "again") })
	again, err := kv.Open(c, "again")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	all, err := again.Scan(ctx, "key-", 1000)
	if err != nil || len(all) != len(want) {
		t.Fatal(len(all), err)
	}
	for _, i := range all {
		if string(i.Value) != want[i.Key] {
			t.Errorf("%s has %d bytes", i.Key, len(i.Value))
		}
	}
	content, _, err := c.Get(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	for name, content := range map[string][]byte{"damaged": content, "short": content[:1000],
		"foreign": []byte("hello")} {
		if _, err := c.Put(ctx, "/s3/kvtest/"+name, content, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		_, said, code := s.CLI(t, "kv", "restore", name, "/s3/kvtest/"+name)
		if code == 0 || !strings.Contains(said, "the file cannot be read") {
			t.Errorf("%s: %d %q", name, code, said)
		}
		if _, err := c.Stat(ctx, layout.Dir(name)); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("%s: a store was made: %v", name, err)
		}
	}
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
		testenv.Eventually(t, "sigmad answers", func() error {
			if _, said, code := s.CLI(t, "ls", "/"); code != 0 {
				return errors.New(said)
			}
			return nil
		})
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
