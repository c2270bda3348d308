package member

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
)

// What was acknowledged is there after a restart, and after a copy of the files was taken in the
// middle, as a kill leaves them.
func TestEtcdRestart(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	s, stop := serve(t, Config{Dir: dir})
	root := attach(t, s)
	t.Logf("started in %v", time.Since(began))
	if _, err := openAlone(t.Context(), Config{Dir: dir}); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("a second server on the directory: %v", err)
	}
	if err := root.Mkdir(t.Context(), "d", 0o700); err != nil {
		t.Fatal(err)
	}
	d := walk(t, root, "d")
	var group sync.WaitGroup
	for w := range 8 {
		group.Go(func() {
			for i := range 25 {
				put(t, d, fmt.Sprintf("%d-%d", w, i), fmt.Sprint(i))
			}
		})
	}
	group.Wait()
	big := bytes.Repeat([]byte("sigma"), named.FileMax/5)
	put(t, root, "big", string(big))
	lease, err := root.Lease(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.Put(t.Context(), []string{"ephemeral"}, []byte("e"),
		sigma.PutOptions{Lease: lease}); err != nil {
		t.Fatal(err)
	}
	if err := root.Rename(t.Context(), "d", root, "moved"); err != nil {
		t.Fatal(err)
	}
	stat, err := d.Stat(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	stop()
	for _, dir := range []string{dir, copied} {
		s, stop := serve(t, Config{Dir: dir})
		root := attach(t, s)
		moved := walk(t, root, "moved")
		if names := list(t, moved, 7); len(names) != 200 {
			t.Errorf("%d names", len(names))
		}
		if got, err := moved.Stat(t.Context()); err != nil || got.ID != stat.ID || !got.Modified.Equal(stat.Modified) ||
			got.Perm != stat.Perm {
			t.Errorf("got %+v, %v, want %+v", got, err, stat)
		}
		if got := get(t, moved, "3-24"); got != "24" {
			t.Errorf("got %q", got)
		}
		if got := get(t, root, "big"); got != string(big) {
			t.Errorf("big file has %d bytes", len(got))
		}
		if err := root.Revoke(t.Context(), lease); err != nil {
			t.Error(err)
		}
		if names := list(t, root, 10); len(names) != 2 {
			t.Errorf("root has %q", names)
		}
		stop()
	}
}

// A tenant that rewrites big files cannot fill the database: the store compacts.
func TestEtcdCompacts(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 200 MB")
	}
	dir := t.TempDir()
	s, _ := serve(t, Config{Dir: dir, StoreMax: 160 * sigma.MiB})
	root := attach(t, s)
	big := make([]byte, named.FileMax)
	for i := range 200 {
		big[0] = byte(i)
		put(t, root, fmt.Sprint("big", i%4), string(big))
	}
	if got := get(t, root, "big3"); got[0] != 199 {
		t.Errorf("got %d", got[0])
	}
}

// etcd takes the end of the biggest lease there can be: all files have the longest names, and each
// is in a directory of its own.
func TestEtcdBiggestLease(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 8,000 files")
	}
	s, _ := serve(t, Config{Dir: t.TempDir()})
	root := attach(t, s)
	lease, err := root.Lease(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	const callers = 64
	for w := range callers {
		group.Go(func() {
			for i := w; i < named.LeaseFilesMax; i += callers {
				name := fmt.Sprintf("%0*d", sigma.NameMax, i)
				if err := root.Mkdir(t.Context(), name, 0o755); err != nil {
					t.Error(err)
				}
				if _, _, err := root.Put(t.Context(), []string{name, name}, nil,
					sigma.PutOptions{Lease: lease}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if err := root.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := root.Remove(t.Context(), fmt.Sprintf("%0*d", sigma.NameMax, 7)); err != nil {
		t.Errorf("a directory is not empty: %v", err)
	}
	if err := s.Remove(t.Context(), testRealm); err != nil {
		t.Error(err)
	}
}

func BenchmarkEtcdPut(b *testing.B) {
	for i := range 6 {
		callers, numbered := []int{1, 16, 256}[i/2], i%2 == 1
		b.Run(fmt.Sprintf("callers=%d/numbered=%t", callers, numbered), func(b *testing.B) {
			s, stop := serve(b, Config{Dir: b.TempDir()})
			defer stop()
			root := attach(b, s)
			data := make([]byte, 100)
			b.ReportAllocs()
			b.SetParallelism(callers)
			b.ResetTimer()
			var n sync.Map
			var clients atomic.Uint64
			b.RunParallel(func(pb *testing.PB) {
				name := []string{fmt.Sprintf("%p", pb)}
				n.Store(name[0], true)
				once := sigma.Once{Client: clients.Add(1)}
				for pb.Next() {
					ctx := context.Background()
					if numbered {
						once.Seq, once.Done = once.Seq+1, once.Seq
						ctx = sigma.WithOnce(ctx, once)
					}
					if _, _, err := root.Put(ctx, name, data, sigma.PutOptions{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
