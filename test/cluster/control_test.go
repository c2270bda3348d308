//go:build system

package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// namer makes names, each exclusively, through any machine that answers.
type namer struct {
	id    int
	c     *testenv.Cluster
	next  int // the machine to try
	conn  *sdk.Client
	acked atomic.Int64 // names below it are acknowledged
	mu    sync.Mutex
	won   map[string]bool // mu; contested names that it was told are its
}

// attempt is how long a namer waits for one answer. sigmad itself goes on looking for names for 15
// s.
const attempt = 20 * time.Second

// do repeats f with a client of some machine until it answers for certain.
func (n *namer) do(ctx context.Context, f func(ctx context.Context, c *sdk.Client) error) error {
	for {
		tctx, cancel := context.WithTimeout(ctx, attempt)
		var err error
		if n.conn == nil {
			n.conn, err = n.c.Machine(n.next%n.c.Size()).Client(tctx, "tenant")
		}
		asked := err == nil
		if asked {
			err = f(tctx, n.conn)
		}
		cancel()
		if err == nil || ctx.Err() != nil || asked && (sigma.KindOf(err) == sigma.KindExists ||
			sigma.KindOf(err) == sigma.KindNotFound) {
			return err
		}
		if n.conn != nil {
			n.conn.Close()
			n.conn = nil
		}
		n.next++
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// name makes one; mine says whether it is this namer's, which is found out by looking where the
// answer was lost.
func (n *namer) name(ctx context.Context, path string) (mine bool, err error) {
	text := fmt.Sprintf("%s of %d", path, n.id)
	err = n.do(ctx, func(ctx context.Context, c *sdk.Client) error {
		_, err := c.Put(ctx, path, []byte(text), sigma.PutOptions{MustMake: true})
		return err
	})
	if err == nil {
		return true, nil
	}
	if sigma.KindOf(err) != sigma.KindExists {
		return false, err
	}
	err = n.do(ctx, func(ctx context.Context, c *sdk.Client) error {
		got, _, err := c.Get(ctx, path)
		mine = string(got) == text
		return err
	})
	return mine, err
}

func (n *namer) run(ctx context.Context, t *testing.T) {
	defer func() {
		if n.conn != nil {
			n.conn.Close()
		}
	}()
	for i := 0; ctx.Err() == nil; i++ {
		mine, err := n.name(ctx, fmt.Sprintf("/own-%d-%d", n.id, i))
		if ctx.Err() != nil {
			return
		}
		if err != nil || !mine {
			t.Errorf("namer %d: %v, mine %v", n.id, err, mine)
			return
		}
		n.acked.Store(int64(i) + 1)
		contested := fmt.Sprintf("/shared-%d", i)
		if mine, err := n.name(ctx, contested); err == nil && mine {
			n.mu.Lock()
			n.won[contested] = true
			n.mu.Unlock()
		}
	}
}

// Goal: three control machines, of which each is killed in turn under a write load, lose no name
// that was acknowledged and make none twice, and a snapshot that is saved meanwhile and restored
// has all that was acknowledged before. Method: clients of all machines make names exclusively,
// their own and contested ones; after each loss all of them must go on. The time until then is
// printed.
func TestControlMachinesSurvive(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute*testenv.Slow())
	defer cancel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3, Realms: []sigma.RealmID{"tenant"}})
	loading, end := context.WithCancel(ctx)
	var load sync.WaitGroup
	t.Cleanup(func() { end(); load.Wait() })
	namers := make([]*namer, 3)
	for i := range namers {
		namers[i] = &namer{id: i, c: c, next: i, won: map[string]bool{}}
		load.Go(func() { namers[i].run(loading, t) })
	}
	progress := func() {
		t.Helper()
		for _, n := range namers {
			for want := n.acked.Load() + 2; n.acked.Load() < want; {
				select {
				case <-ctx.Done():
					t.Fatalf("namer %d stands still after %d names", n.id, n.acked.Load())
				case <-time.After(time.Millisecond):
				}
			}
		}
	}
	progress()
	awaitMembers(ctx, t, c, 3)
	var before []int64
	snapshot := filepath.Join(t.TempDir(), "names")
	for i, m := range c.Machines() {
		at := time.Now()
		must(t, m.Kill())
		progress()
		t.Logf("%s killed: names are made again by all after %v", m.Name, time.Since(at).Round(time.Millisecond))
		if i == 1 { // with a member missing
			for _, n := range namers {
				before = append(before, n.acked.Load())
			}
			c.Machine(2).Must(t, "snapshot", "save", snapshot)
		}
		must(t, m.Restart())
		awaitMembers(ctx, t, c, 3)
		progress()
	}
	end()
	load.Wait()
	client, err := c.Machine(0).Client(ctx, "tenant")
	must(t, err)
	defer client.Close()
	checkNamed(ctx, t, client, namers)
	restored := testenv.New(t, testenv.Options{})
	restored.Must(t, "snapshot", "restore", snapshot)
	restored.Up(t)
	old := restored.Connect(ctx, t, "tenant")
	for id, n := range before {
		for i := range n {
			path := fmt.Sprintf("/own-%d-%d", id, i)
			if got, _, err := old.Get(ctx, path); err != nil || string(got) != fmt.Sprintf("%s of %d", path, id) {
				t.Errorf("restored: %s has %q, %v", path, got, err)
			}
		}
	}
	t.Logf("the snapshot has the names %v that were acknowledged before it", before)
}

// awaitMembers waits until all machines see each other.
func awaitMembers(ctx context.Context, t *testing.T, c *testenv.Cluster, want int) {
	t.Helper()
	for _, m := range c.Machines() {
		for {
			out, _, code := m.CLI(t, "machine", "ls")
			if code == 0 && strings.Count(out, " alive ") >= want {
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("%s does not see %d machines: %s", m.Name, want, out)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
}

func checkNamed(ctx context.Context, t *testing.T, client *sdk.Client, namers []*namer) {
	t.Helper()
	owner, total := map[string]int{}, int64(0)
	for _, n := range namers {
		for i := range n.acked.Load() {
			path := fmt.Sprintf("/own-%d-%d", n.id, i)
			if got, _, err := client.Get(ctx, path); err != nil || string(got) != fmt.Sprintf("%s of %d", path, n.id) {
				t.Errorf("%s, acknowledged, has %q, %v", path, got, err)
			}
			total++
		}
		for path := range n.won {
			if other, twice := owner[path]; twice {
				t.Errorf("%s was made by %d and by %d", path, other, n.id)
			}
			owner[path] = n.id
			if got, _, err := client.Get(ctx, path); err != nil || string(got) != fmt.Sprintf("%s of %d", path, n.id) {
				t.Errorf("%s, won by %d, has %q, %v", path, n.id, got, err)
			}
		}
	}
	t.Logf("%d names of one client and %d contested ones are there, each once", total, len(owner))
}
