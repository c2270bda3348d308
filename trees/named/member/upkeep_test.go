package member

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
)

// A store that is full goes on answering reads, and takes removals, leases and a leader's beats;
// room that removals make is used without a restart, and etcd's own alarm is never raised. What was
// free is given back.
func TestStoreFull(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100 MB")
	}
	m, stop := aloneWith(t, Config{Dir: t.TempDir(), StoreMax: 64 * sigma.MiB})
	defer stop()
	root := memberRoot(t, m)
	big := make([]byte, named.FileMax)
	full := error(nil)
	n := 0
	for ; full == nil && n < 60; n++ {
		_, _, full = root.Put(t.Context(), []string{fmt.Sprint("big", n)}, big, sigma.PutOptions{})
	}
	wantKind(t, full, sigma.KindNoSpace)
	if sigma.HintOf(full) == "" || n < 10 {
		t.Errorf("full after %d files: %v", n, full)
	}
	s := m.opened()
	if got := get(t, root, "big0"); len(got) != len(big) {
		t.Errorf("a read from a full store has %d bytes", len(got))
	}
	if ok, full, err := s.beat(t.Context(), m.leadership.store.term); err != nil || !ok || full {
		t.Errorf("a beat in a full store: %v, %v, %v", ok, full, err)
	}
	lease, err := root.Lease(t.Context(), time.Hour)
	if err != nil {
		t.Errorf("a lease in a full store: %v", err)
	}
	if err := root.Revoke(t.Context(), lease); err != nil {
		t.Error(err)
	}
	// A removal is made though it waits in the company of puts, which are refused.
	done := make(chan error, 8)
	for i := range cap(done) {
		go func() {
			_, _, err := root.Put(context.Background(), []string{fmt.Sprint("more", i)}, big, sigma.PutOptions{})
			done <- err
		}()
	}
	for i := range n - 1 {
		if err := root.Remove(t.Context(), fmt.Sprint("big", i)); err != nil {
			t.Fatalf("removal %d: %v", i, err)
		}
	}
	for range cap(done) {
		if err := <-done; err != nil {
			wantKind(t, err, sigma.KindNoSpace)
		}
	}
	eventually(t, "there is room after all was removed", func() bool { // compaction is tried once a second
		_, _, err := root.Put(t.Context(), []string{"again"}, big, sigma.PutOptions{})
		if err != nil {
			wantKind(t, err, sigma.KindNoSpace)
		}
		return err == nil
	})
	if a := s.etcd.Server.Alarms(); len(a) > 0 {
		t.Errorf("etcd has the alarms %v", a)
	}
	before := s.etcd.Server.Backend().Size()
	began := time.Now()
	if err := s.defragment(); err != nil {
		t.Fatal(err)
	}
	t.Logf("defragmented %d to %d bytes in %v", before, s.etcd.Server.Backend().Size(), time.Since(began))
	if after := s.etcd.Server.Backend().Size(); after > 8<<20 { // it may have been copied before, to make room
		t.Errorf("defragmentation left %d of %d bytes", after, before)
	}
	if got := get(t, root, "again"); len(got) != len(big) {
		t.Errorf("after defragmentation a file has %d bytes", len(got))
	}
	put(t, root, "last", "1")

	// Should etcd raise its alarm all the same, it is lifted while named runs.
	srv := s.etcd.Server
	if _, err := srv.Alarm(t.Context(), &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE,
		MemberID: uint64(srv.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE}); err != nil {
		t.Fatal(err)
	}
	if err := s.tendOnce(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	put(t, root, "later", "1")
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick, late := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("not so: %s", what)
		}
	}
}

// When a database is copied: much is free, and the copy is small.
func TestWantsDefrag(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		size, used int64
		want       bool
	}{{300 * mb, 100 * mb, true}, {300 * mb, 160 * mb, false}, {60 * mb, 1 * mb, false}, {4000 * mb, 500 * mb, false},
		{70 * mb, 4 * mb, true}} {
		if got := wantsDefrag(c.size, c.used); got != c.want {
			t.Errorf("%d of %d bytes in use: %v", c.used, c.size, got)
		}
	}
}
