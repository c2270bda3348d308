package replica

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"sigmaos.dev/sigma"
)

// rounds is how often a test is to be repeated, by SIGMA_REPLICA_ROUNDS; each round has its own
// seed, the first SIGMA_REPLICA_SEED.
func rounds(t *testing.T, short int) (n int, seed uint64) {
	n, seed = short, 1
	if v, err := strconv.Atoi(os.Getenv("SIGMA_REPLICA_ROUNDS")); err == nil && v > 0 {
		n = v
	}
	if v, err := strconv.ParseUint(os.Getenv("SIGMA_REPLICA_SEED"), 10, 64); err == nil {
		seed = v
	}
	t.Logf("%d rounds from seed %d", n, seed)
	return n, seed
}

// swap is an operation: it writes a value, or reads if that is "".
type swap struct{ key, value string }

// saw is its outcome: the value before, or that it is unknown.
type saw struct {
	value   string
	unknown bool
}

var registers = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			by[o.Input.(swap).key] = append(by[o.Input.(swap).key], o)
		}
		var all [][]porcupine.Operation
		for _, ops := range by {
			all = append(all, ops)
		}
		return all
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(swap), output.(saw)
		ok := out.unknown || out.value == state.(string)
		if in.value == "" {
			return ok, state
		}
		return ok, in.value
	},
}

// Clients write and read while members are cut off, stopped and opened again, messages are lost and
// repeated, and leaders hand over. Every read and every answer to a write fits one order.
func TestLinearizable(t *testing.T) {
	n, seed := rounds(t, 2)
	for i := range n {
		t.Run(fmt.Sprint("seed=", seed+uint64(i)), func(t *testing.T) { linearRound(t, seed+uint64(i)) })
	}
}

func linearRound(t *testing.T, seed uint64) {
	const keys, clients, operations = 3, 6, 120
	dir := t.TempDir()
	net := newNetwork(t, seed)
	lease := seed%2 == 0
	all := net.group(t, 3, dir, func(c *Config) { c.Lease, c.SnapshotEvery, c.LogKeep = lease, 20_000, 10_000 })
	leader(t, all)
	net.mu.Lock()
	net.loss, net.twice = 0.02, 0.02
	net.mu.Unlock()
	var mu sync.Mutex // guards all and history
	var history []porcupine.Operation
	began := time.Now()
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(c)))
			session := Session{Client: uint64(c + 1)}
			for i := range operations {
				in := swap{key: fmt.Sprint("k", rng.IntN(keys))}
				if rng.IntN(2) == 0 {
					in.value = fmt.Sprintf("%d.%d", c, i)
					session.Seq++
				}
				o := porcupine.Operation{ClientId: c, Input: in, Call: int64(time.Since(began))}
				var out saw
				if out, session = clientOp(t, &mu, all, rng, in, session); out.unknown {
					if o.Return = math.MaxInt64; in.value == "" {
						continue
					}
				} else {
					o.Return = int64(time.Since(began))
				}
				o.Output = out
				mu.Lock()
				history = append(history, o)
				mu.Unlock()
			}
		})
	}
	over := make(chan struct{})
	go func() {
		wg.Wait()
		close(over)
	}()
	disturb(t, net, &mu, all, rand.New(rand.NewPCG(seed, 99)), over)
	if res := porcupine.CheckOperationsTimeout(registers, history, time.Minute); res == porcupine.Illegal {
		t.Fatalf("%d operations have no order; SIGMA_REPLICA_SEED=%d", len(history), seed)
	} else {
		t.Logf("%d operations: %s", len(history), res)
	}
}

// clientOp makes one operation, again and again for a while. After one whose outcome is unknown the
// client goes on with a new session.
func clientOp(t *testing.T, mu *sync.Mutex, all map[uint64]*site, rng *rand.Rand, in swap, s Session) (saw, Session) {
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		mu.Lock()
		m := all[uint64(rng.IntN(len(all)))+1]
		mu.Unlock()
		ctx := within(t, 500*time.Millisecond)
		if in.value == "" {
			if err := m.Read(ctx); err == nil {
				return saw{value: m.machine.get(in.key)}, s
			}
		} else if old, err := m.Propose(ctx, s, []byte(in.key+"="+in.value)); err == nil {
			return saw{value: string(old)}, s
		}
		<-time.After(time.Duration(rng.IntN(10)) * time.Millisecond)
	}
	return saw{unknown: true}, Session{Client: rng.Uint64()}
}

// disturb does harm until the clients are done.
func disturb(t *testing.T, net *network, mu *sync.Mutex, all map[uint64]*site, rng *rand.Rand, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(50+rng.IntN(150)) * time.Millisecond):
		}
		id := uint64(rng.IntN(len(all))) + 1
		mu.Lock()
		s := all[id]
		mu.Unlock()
		switch rng.IntN(4) {
		case 0:
			net.isolate(id, true)
		case 1:
			for id := range uint64(len(all)) {
				net.isolate(id+1, false)
			}
		case 2:
			s.stop()
			if mu.Lock(); rng.IntN(2) == 0 {
				endedAt(all, id)
			}
			mu.Unlock()
			next := net.open(t, s.cfg)
			mu.Lock()
			all[id] = next
			mu.Unlock()
		case 3:
			s.Transfer(within(t, 100*time.Millisecond), id%3+1)
		}
	}
}

// endedAt tells the others that a member has ended, if they take it for the leader.
func endedAt(all map[uint64]*site, id uint64) {
	for other, s := range all {
		if st := s.Status(); other != id && st.Leader == id {
			s.Ended(id, st.Term)
		}
	}
}

// What was acknowledged is there after kill -9 of all members, each time.
func TestCrash(t *testing.T) {
	n, seed := rounds(t, 3)
	rng := rand.New(rand.NewPCG(seed, 7))
	dir := t.TempDir()
	acknowledged := map[string]bool{}
	for round := range n {
		crashRound(t, dir, round, time.Duration(100+rng.IntN(400))*time.Millisecond, acknowledged)
		t.Run(fmt.Sprint("round=", round), func(t *testing.T) {
			l := leader(t, newNetwork(t, seed).group(t, 3, dir, nil))
			for k := range acknowledged {
				if l.machine.Count[k] != 1 {
					t.Fatalf("%s was acknowledged, and is there %d times", k, l.machine.Count[k])
				}
			}
		})
	}
	if len(acknowledged) == 0 {
		t.Error("nothing was acknowledged")
	}
	t.Logf("%d commands were acknowledged in %d rounds", len(acknowledged), n)
}

// TestCrashChild is the process that TestCrash kills: it tells of each command that was
// acknowledged.
func TestCrashChild(t *testing.T) {
	dir, round := os.Getenv("SIGMA_REPLICA_CRASH_DIR"), os.Getenv("SIGMA_REPLICA_CRASH_ROUND")
	if dir == "" {
		t.Skip("run by TestCrash")
	}
	net := newNetwork(t, 1)
	all := net.group(t, 3, dir, func(c *Config) { c.SnapshotEvery, c.LogKeep = 10_000, 10_000 })
	var mu sync.Mutex
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				k := fmt.Sprintf("%s.%d.%d=x", round, w, i)
				r, _ := strconv.ParseUint(round, 10, 64)
				propose(t, all, Session{r*10 + uint64(w) + 1, uint64(i + 1)}, k)
				mu.Lock()
				fmt.Println("ack", k)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// Snapshots that the log does not name, or that are unfinished, do no harm; a damaged one that it
// names is told.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	net := newNetwork(t, 1)
	all := net.group(t, 1, dir, func(c *Config) { c.SnapshotEvery = 1000 })
	for i := range 100 {
		propose(t, all, Session{}, fmt.Sprint("k=", i))
	}
	all[1].stop()
	for _, name := range []string{"own.tmp", "0.log", "ffffffffffffffff-ffffffffffffffff"} {
		if _, err := net.files.Put(t.Context(), "/m1/"+name, []byte("x"), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	open := func() (*Replica, *ledger, error) {
		m := newLedger()
		r, err := Open(t.Context(), Config{ID: 1, Files: net.files, Dir: "/m1", Machine: m})
		return r, m, err
	}
	r, m, err := open()
	if err != nil || m.Last == 0 {
		t.Fatal(m.Last, err)
	}
	base := r.disk.state(r.disk.from)
	r.Close()
	whole, _, err := net.files.Get(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{whole[:20], nil, append(bytes.Clone(whole[:30]), whole[31:]...)} {
		if _, err := net.files.Put(t.Context(), base, content, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := open(); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("a damaged snapshot was taken: %v", err)
		}
	}
}
