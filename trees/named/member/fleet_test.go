package member

import (
	"context"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/wire/sigmap"
)

// A leader that is stopped as it stands is replaced, and changes nothing when it goes on; when all
// members are killed at once and started again, every name that was acknowledged is there, and an
// ephemeral file whose holder is gone goes too, though nobody but the watcher asks for its realm.
func TestFleet(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs three processes and kills them")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	r := newTrial(ctx, t)
	m := r.leader()
	r.lose(m, "is stopped as it stands", func() { r.pause(m) }, func() { r.proceed(m) })
	err := r.x.do(ctx, func(ctx context.Context) error {
		lease, err := r.x.root.(sigma.Leaser).Lease(ctx, named.LeaseLeast)
		if err == nil {
			_, _, err = r.x.root.(sigma.Putter).Put(ctx, []string{"ephemeral"}, nil, sigma.PutOptions{Lease: lease})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	r.x.close()
	all := []sigma.MachineID{"m1", "m2", "m3"}
	for _, m := range all {
		r.kill(m)
	}
	at := time.Now()
	for _, m := range all {
		r.start(m)
	}
	r.progress()
	t.Logf("after all were killed at once writes go on %v after their start", time.Since(at).Round(time.Millisecond))
	for gone := false; !gone; {
		err := r.x.do(ctx, func(ctx context.Context) error {
			_, _, err := r.x.root.(sigma.Getter).Get(ctx, []string{"ephemeral"}, 0, 1)
			return err
		})
		if gone = sigma.KindOf(err) == sigma.KindNotFound && err != nil; !gone && ctx.Err() != nil {
			t.Fatal("the ephemeral file is there still")
		}
	}
	t.Logf("the ephemeral file is gone after %v", time.Since(at).Round(time.Millisecond))
	r.endLoad()
	r.load.Wait()
	checkNames(ctx, t, r.x, r.writers)
}

// A third member is taken in also if a message to the second failed while that one started: etcd
// then holds the second for unconnected, though both talk.
func TestGrowsAfterLatePost(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs three processes")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := newTestCluster(t)
	c.late["m2"] = true
	c.start("m1")
	x := &testClient{c: c}
	defer x.close()
	c.add(ctx, x, "m2")
	x.until(ctx, t, "two full members", func(ms []sigmap.NamesMember) bool { return voters(ms) == 2 })
	began := time.Now()
	c.add(ctx, x, "m3")
	x.until(ctx, t, "three full members", func(ms []sigmap.NamesMember) bool { return voters(ms) == 3 })
	t.Logf("grown from 2 to 3 in %v", time.Since(began).Round(time.Millisecond))
}
