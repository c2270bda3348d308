//go:build system

package cluster

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// recallBound is by how much what a machine remembers of names may be behind
// (docs/reference/names.md).
const recallBound = time.Second

// Goal: a program on one machine reads a file that another changes all the time. What it reads
// never goes back and was true a second ago at most, also while its machine is cut off, when reads
// end after that second, and while named is killed; then it reads on. Method: the writer notes when
// it knew each version; the reader compares.
func TestRecallIsBounded(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2, Control: 1, Realms: []sigma.RealmID{"tenant"}})
	writer, err := c.Machine(0).Client(ctx, "tenant")
	must(t, err)
	defer writer.Close()
	var mu sync.Mutex
	known := map[sigma.Version]time.Time{}
	newestBefore := func(at time.Time) (v sigma.Version) {
		mu.Lock()
		defer mu.Unlock()
		for w, when := range known {
			if when.Before(at) {
				v = max(v, w)
			}
		}
		return v
	}
	loadCtx, end := context.WithCancel(ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer end()
	load.Go(func() {
		for i := 0; loadCtx.Err() == nil; i++ {
			id, err := writer.Put(loadCtx, "/n", []byte(strconv.Itoa(i)), sigma.PutOptions{})
			if err == nil {
				mu.Lock()
				known[id.Version] = time.Now()
				mu.Unlock()
			}
			select {
			case <-loadCtx.Done():
			case <-time.After(3 * time.Millisecond):
			}
		}
	})
	reader, err := c.Machine(1).Client(ctx, "tenant")
	must(t, err)
	defer reader.Close()
	last, worst := sigma.Version(0), time.Duration(0)
	patience := testMax // while nothing is done to the machine
	read := func() error {
		soon, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		asked := time.Now()
		_, id, err := reader.Get(soon, "/n")
		if err != nil {
			return err
		}
		if old := newestBefore(asked.Add(-recallBound)); id.Version < old {
			t.Fatalf("read version %d, though %d was there more than %v before", id.Version, old, recallBound)
		}
		if id.Version < last {
			t.Fatalf("read version %d after %d", id.Version, last)
		}
		last = id.Version
		mu.Lock()
		for v, when := range known {
			if v > last && when.Before(asked) {
				worst = max(worst, asked.Sub(when))
			}
		}
		mu.Unlock()
		return nil
	}
	current := func() {
		t.Helper()
		now := newestBefore(time.Now())
		testenv.Eventually(t, "what is new is read", func() error {
			if err := read(); err != nil {
				return err
			}
			if last <= now {
				return sigma.Errorf("test", sigma.KindUnavailable, "version %d is not newer than %d", last, now)
			}
			return nil
		})
	}
	current()
	for range 300 {
		must(t, read())
	}
	t.Logf("connected, what was read was %v behind at most", worst)
	patience = 300 * time.Millisecond
	c.Partition(c.Machine(1))
	answered, refused := 0, 0
	for cut := time.Now(); time.Since(cut) < 1300*time.Millisecond; { // a longer cut ends the machine's life
		if read() == nil {
			answered++
		} else {
			refused++
		}
	}
	c.Heal()
	t.Logf("cut off, %d reads were answered and %d refused; the oldest was %v behind", answered, refused, worst)
	current()
	must(t, c.Machine(0).KillDaemon("named"))
	current()
}
