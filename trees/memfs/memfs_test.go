package memfs

import (
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

func TestConformance(t *testing.T) {
	treetest.Run(t, treetest.Config{
		New: func(t *testing.T) sigma.Tree {
			tree := New(Config{})
			t.Cleanup(tree.Close)
			return tree
		},
		Principal:   sigma.Principal{Realm: "r"},
		Lacks:       []treetest.Capability{treetest.Hidden, treetest.PassFiles},
		ListEntries: 100_000,
	})
}

// TestSizeMax fills a tree, and checks that what is removed is no longer charged, open files only
// after their last close.
func TestSizeMax(t *testing.T) {
	ctx := t.Context()
	tree := New(Config{SizeMax: 10 << 10})
	root, err := tree.Attach(ctx, sigma.Principal{}, "")
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, size int) error {
		_, _, err := root.(sigma.Putter).Put(ctx, []string{name}, make([]byte, size), sigma.PutOptions{})
		return err
	}
	if err := put("a", 9<<10); err != nil {
		t.Fatal(err)
	}
	if err := put("b", 1<<10); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("put into a full tree: got %v, want no space", err)
	}
	if _, _, err := root.Walk(ctx, []string{"b"}); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a refused put left a file: %v", err)
	}
	f, _, err := root.Walk(ctx, []string{"a"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Open(ctx, sigma.OpenReadWrite); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, []byte("x"), 1<<40); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("write at 1 TiB: got %v, want no space", err)
	}
	if err := root.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if err := put("b", 1<<10); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("put while the removed file is open: got %v, want no space", err)
	}
	f.Close()
	if err := put("b", 9<<10); err != nil {
		t.Errorf("put after its close: %v", err)
	}
	if err := root.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if tree.used != 0 {
		t.Errorf("an empty tree is charged %d bytes", tree.used)
	}
}

// TestLeaseExpires checks, on a clock of its own, that files go with a lease that nobody renews,
// and stay while somebody does.
func TestLeaseExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		tree := New(Config{})
		defer tree.Close()
		root, _ := tree.Attach(ctx, sigma.Principal{}, "")
		l := root.(sigma.Leaser)
		id, err := l.Lease(ctx, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := root.(sigma.Putter).Put(ctx, []string{"f"}, nil, sigma.PutOptions{Lease: id}); err != nil {
			t.Fatal(err)
		}
		exists := func() bool {
			_, _, err := root.Walk(ctx, []string{"f"})
			return err == nil
		}
		wait := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		for range 3 {
			wait(9 * time.Second)
			if err := l.Renew(ctx, id); err != nil || !exists() {
				t.Fatalf("renewing in time: %v, file there: %t", err, exists())
			}
		}
		wait(11 * time.Second)
		if exists() {
			t.Error("the file outlives its lease")
		}
		if err := l.Renew(ctx, id); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("renewing an expired lease: got %v, want not found", err)
		}
	})
}
