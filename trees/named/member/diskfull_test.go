package member

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
)

// While the disk is low whoever writes is told so at once, and all goes on that makes room or is
// the system's own: reads, removals, leases, elections, ends of realms.
func TestDiskLow(t *testing.T) {
	var free atomic.Uint64
	free.Store(uint64(sigma.GiB))
	m, stop := aloneWith(t, Config{Dir: t.TempDir(), disk: func(string) (sigma.Space, error) {
		return sigma.Space{Total: 10 * sigma.GiB, Free: sigma.Bytes(free.Load())}, nil
	}})
	defer stop()
	root, ctx := memberRoot(t, m), t.Context()
	put(t, root, "one", "1")
	put(t, root, "two", "2")
	lease, err := root.Lease(ctx, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.Put(ctx, []string{"ephemeral"}, nil, sigma.PutOptions{Lease: lease}); err != nil {
		t.Fatal(err)
	}
	if err := m.leadership.server.Create(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	if err := m.leadership.server.Create(ctx, sigma.SystemRealm); err != nil && sigma.KindOf(err) != sigma.KindExists {
		t.Fatal(err)
	}

	free.Store(uint64(100 * sigma.MiB))
	m.store.mu.Lock()
	m.store.written += 40 << 20 // which was too little to have old values removed, and is too much now
	m.store.mu.Unlock()
	perm := uint32(0o600)
	for what, err := range map[string]error{
		"a put":        putError(root.Put(ctx, []string{"three"}, nil, sigma.PutOptions{})),
		"another size": putError(root.Put(ctx, []string{"one"}, []byte("11"), sigma.PutOptions{})),
		"the same":     putError(root.Put(ctx, []string{"one"}, []byte("2"), sigma.PutOptions{})),
		"a directory":  root.Mkdir(ctx, "d", 0o755),
		"a symlink":    root.Symlink(ctx, "l", "one"),
		"a rename":     root.Rename(ctx, "one", root, "uno"),
		"a mode":       root.SetStat(ctx, sigma.StatChange{Perm: &perm}),
		"a realm":      m.leadership.server.Create(ctx, "third"),
	} {
		if sigma.KindOf(err) != sigma.KindNoSpace || !strings.Contains(sigma.HintOf(err),
			"machine m1's data directory") {
			t.Errorf("%s on a disk that is low: %v (%s)", what, err, sigma.HintOf(err))
		}
	}
	if got := get(t, root, "one"); got != "1" {
		t.Errorf("a read: %q", got)
	}
	if err := root.Remove(ctx, "two"); err != nil {
		t.Errorf("a removal: %v", err)
	}
	if err := root.Revoke(ctx, lease); err != nil {
		t.Errorf("the end of a lease: %v", err)
	}
	if lease, err = root.Lease(ctx, time.Hour); err != nil {
		t.Errorf("a lease: %v", err)
	} else if err := root.Renew(ctx, lease); err != nil {
		t.Errorf("its renewal: %v", err)
	}
	system, err := m.Attach(ctx, provider, string(sigma.SystemRealm))
	if err != nil {
		t.Fatal(err)
	}
	if err := system.Mkdir(ctx, "election", 0o755); err != nil {
		t.Errorf("a record of the system's own: %v", err)
	}
	if err := m.leadership.server.Remove(ctx, "other"); err != nil {
		t.Errorf("the end of a realm: %v", err)
	}
	if due := m.opened().compactDue(); due != compactNarrow {
		t.Errorf("old values are compacted after %d bytes", due)
	}

	free.Store(uint64(sigma.GiB))
	put(t, root, "three", "3")
	if due := m.opened().compactDue(); due <= compactNarrow {
		t.Errorf("with room, old values are compacted after %d bytes", due)
	}
}

// Goal: etcd writes its database into disk space that it has, so that others who fill the disk do
// not end it. Method: what the database has used has no holes, and some of the disk beyond is its
// own: when the store is open, when it has grown, and when it was copied.
func TestDiskSetAside(t *testing.T) {
	m, stop := aloneWith(t, Config{Dir: t.TempDir()})
	defer stop()
	root := memberRoot(t, m)
	s := m.opened()
	size := func(when string) int64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(s.file, &st); err != nil {
			t.Fatal(err)
		}
		used := s.etcd.Server.Backend().Size()
		if has := st.Blocks * 512; has < used+asideMore/2 {
			t.Errorf("%s %d bytes of the disk are the database's, which has used %d", when, has, used)
		}
		return used
	}
	put(t, root, "one", "1")
	before := size("when it is open")
	big := make([]byte, named.FileMax)
	for i := range 3 * asideMore / len(big) {
		if _, _, err := root.Put(t.Context(), []string{fmt.Sprint("big", i)}, big, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.etcd.Server.Backend().ForceCommit()
	put(t, root, "one", "2") // sees what has grown
	if after := size("when it has grown"); after <= before {
		t.Fatalf("it was %d bytes long, and is %d", before, after)
	}
	if err := s.defragment(); err != nil {
		t.Fatal(err)
	}
	size("when it was copied")
}

func putError[A, B any](_ A, _ B, err error) error { return err }
