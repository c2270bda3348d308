package resolve_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// leader is another program in the same world.
func (w *world) leader() *resolve.Tree {
	return resolve.New(resolve.Config{Root: w.root, Machine: here, Dial: w.dial})
}

// TestAdvanceEpoch: every epoch is somebody's once, whatever links lead to the file; files that
// hold no epoch are left alone.
func TestAdvanceEpoch(t *testing.T) {
	w, ctx := newWorld(t, nil), t.Context()
	w.mkdir("/svc")
	w.link("/svc", "/alias")
	const leaders, each = 4, 10
	var mu sync.Mutex
	had := map[sigma.Fence]bool{}
	var wg sync.WaitGroup
	for i := range leaders {
		path := []string{"/svc/epoch", "/alias/epoch"}[i%2]
		wg.Go(func() {
			n := w.leader()
			for range each {
				f, err := n.AdvanceEpoch(ctx, path)
				mu.Lock()
				if err != nil || had[f] || f.Name != "/svc/epoch" {
					t.Errorf("AdvanceEpoch: %+v, %v, had %v", f, err, had[f])
				}
				had[f] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for e := range sigma.Epoch(leaders * each) {
		if !had[sigma.Fence{Name: "/svc/epoch", Epoch: e + 1}] {
			t.Errorf("nobody had epoch %d", e+1)
		}
	}
	for content, kind := range map[string]sigma.Kind{"-1": sigma.KindInvalid, "x": sigma.KindInvalid,
		"1 a b": sigma.KindInvalid, " ": sigma.KindInvalid, fmt.Sprint(uint64(1<<64 - 1)): sigma.KindInvalid,
		fmt.Sprintf("%01000d", 1): sigma.KindInvalid} {
		w.put("/svc/bad", content)
		_, err := w.AdvanceEpoch(ctx, "/svc/bad")
		w.fails("AdvanceEpoch of "+content[:1], err, kind, "/svc/bad")
		w.holds("/svc/bad", content)
	}
	for content, want := range map[string]sigma.Epoch{"": 1, "41\n": 42, "7 word": 8} {
		w.put("/svc/by-hand", content)
		if f, err := w.AdvanceEpoch(ctx, "/svc/by-hand"); err != nil || f.Epoch != want {
			t.Errorf("after %q: %+v, %v", content, f, err)
		}
	}
	_, err := w.AdvanceEpoch(ctx, "/missing/epoch")
	w.fails("AdvanceEpoch in a directory that is missing", err, sigma.KindNotFound, "/missing/epoch")
}

// forgetful is a tree that makes the change of a Put and then says it does not know.
type forgetful struct {
	sigma.Tree
	mu   sync.Mutex
	left int // how often
}

type forgetfulFile struct {
	sigma.File
	f *forgetful
}

func (f *forgetful) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	file, err := f.Tree.Attach(ctx, p, name)
	return &forgetfulFile{file, f}, err
}

func (x *forgetfulFile) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult,
	*sigma.Stopped, error) {
	return x.File.(sigma.Getter).Get(ctx, names, offset, count)
}

func (x *forgetfulFile) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	id, stop, err := x.File.(sigma.Putter).Put(ctx, names, data, o)
	x.f.mu.Lock()
	defer x.f.mu.Unlock()
	if x.f.left--; err == nil && x.f.left >= 0 {
		err = sigma.Errorf("forgetful", sigma.KindLost, "who knows")
	}
	return id, stop, err
}

// TestAdvanceEpochLost: an advance whose reply was lost is not made twice.
func TestAdvanceEpochLost(t *testing.T) {
	w, ctx := newWorld(t, &forgetful{Tree: memfs.New(memfs.Config{}), left: 2}), t.Context()
	for want := range sigma.Epoch(4) {
		if f, err := w.AdvanceEpoch(ctx, "/epoch"); err != nil || f.Epoch != want+1 {
			t.Errorf("got %+v, %v, want epoch %d", f, err, want+1)
		}
	}
}

// TestFenceAtEpoch: a deposed leader is refused under its directory whatever it asks, also through
// links, and through endpoints by servers that learned of the epoch by a request only; elsewhere it
// is not.
func TestFenceAtEpoch(t *testing.T) {
	w, ctx := newWorld(t, nil), t.Context()
	w.mkdir("/svc/sub", "/free")
	w.put("/svc/f", "first")
	w.link("/svc", "/alias")
	tree := memfs.New(memfs.Config{})
	w.serve("/svc/kv", here, tree)
	w.link("/svc/kv", "/kv")
	old, leader := w.leader(), w.leader()
	for _, n := range []*resolve.Tree{old, leader} {
		f, err := n.AdvanceEpoch(ctx, "/svc/epoch")
		w.ok("AdvanceEpoch", err)
		w.ok("FenceAtEpoch", n.FenceAtEpoch(ctx, f, "/svc"))
		if n == old {
			for _, path := range []string{"/svc/g", "/kv/f"} {
				_, err := old.Put(ctx, path, []byte("by the old leader"), sigma.PutOptions{})
				w.ok("Put while it leads", err)
			}
		}
	}
	open, err := old.Open(ctx, "/svc/f", sigma.OpenReadWrite)
	w.ok("Open while nobody knows better", err)
	defer open.Close()
	raw, err := old.Handle(ctx, "/svc/sub")
	w.ok("Handle", err)
	defer raw.Close()
	for _, path := range []string{"/svc", "/svc/kv"} { // one request at each server
		_, err = leader.Stat(ctx, path)
		w.ok("Stat of the new leader", err)
	}
	refused := map[string]error{
		"Mkdir of a handle": raw.Mkdir(ctx, "d", 0o777),
		"Remove":            old.Remove(ctx, "/svc/g"),
		"Remove by a link":  old.Remove(ctx, "/alias/g"),
		"Remove of the dir": old.RemoveAll(ctx, "/svc"),
		"Rename out":        old.Rename(ctx, "/svc/g", "/free/g"),
		"Rename in":         old.Rename(ctx, "/free", "/svc/free"),
		"Rename of the dir": old.Rename(ctx, "/svc", "/elsewhere"),
		"Mkdir":             old.Mkdir(ctx, "/svc/d", 0o777),
		"MkdirAll":          old.MkdirAll(ctx, "/svc/d/e", 0o777),
		"Symlink":           old.Symlink(ctx, "/x", "/svc/x"),
		"SetStat":           old.SetStat(ctx, "/svc/g", sigma.StatChange{Size: new(uint64)}),
		"Remove elsewhere":  old.Remove(ctx, "/kv/f"),
	}
	for what, path := range map[string]string{"": "/svc/f", " by a link": "/alias/f", " elsewhere": "/kv/f",
		" that is large": "/svc/large"} {
		data := make([]byte, 10)
		if path == "/svc/large" {
			data = make([]byte, 200_000)
		}
		_, refused["Put"+what] = old.Put(ctx, path, data, sigma.PutOptions{})
		_, _, refused["Get"+what] = old.Get(ctx, path)
		_, refused["Create"+what] = old.Create(ctx, path, sigma.OpenWrite|sigma.OpenTruncate, 0o666)
	}
	_, refused["WriteAt of an open file"] = open.WriteAt([]byte("late"), 0)
	_, refused["ReadAt of an open file"] = open.ReadAt(make([]byte, 1), 0)
	_, refused["ReadDir"] = old.ReadDir(ctx, "/svc")
	_, refused["Watch"] = old.Watch(ctx, "/svc", 0)
	for what, err := range refused {
		if sigma.KindOf(err) != sigma.KindStale || err == nil {
			t.Errorf("%s: got %v (%v), want it to be stale", what, err, sigma.KindOf(err))
		}
	}
	w.holds("/svc/f", "first")
	w.holds("/svc/g", "by the old leader")
	w.holds("/kv/f", "by the old leader")
	for _, n := range []*resolve.Tree{leader, w.Tree} {
		_, err := n.Put(ctx, "/kv/f", []byte("x"), sigma.PutOptions{})
		w.ok("Put of who leads or has no fence", err)
	}
	_, err = old.Put(ctx, "/free/f", nil, sigma.PutOptions{})
	w.ok("Put where there is no fence", err)

	// The old leader stands for election again.
	f, err := old.AdvanceEpoch(ctx, "/svc/epoch")
	w.ok("AdvanceEpoch of the old leader", err)
	if f.Epoch != 3 {
		t.Errorf("got epoch %d, want 3", f.Epoch)
	}
	w.ok("FenceAtEpoch", old.FenceAtEpoch(ctx, f, "/svc"))
	w.ok("Remove", old.Remove(ctx, "/svc/g"))
	w.fails("FenceAtEpoch of an older epoch", old.FenceAtEpoch(ctx, sigma.Fence{Name: f.Name, Epoch: 2}, "/svc"),
		sigma.KindStale, "/svc")
	w.fails("Put of who led in between", func() error {
		_, err := leader.Put(ctx, "/svc/f", nil, sigma.PutOptions{})
		return err
	}(), sigma.KindStale, "/svc/f")
	w.ok("FenceAtEpoch without a fence", leader.FenceAtEpoch(ctx, sigma.Fence{}, "/svc"))
	_, err = leader.Put(ctx, "/svc/f", nil, sigma.PutOptions{})
	w.ok("Put without a fence", err)
	for _, bad := range []sigma.Fence{{Name: "x"}, {Epoch: 1}} {
		w.fails("a bad fence", leader.FenceAtEpoch(ctx, bad, "/svc"), sigma.KindInvalid, "/svc")
	}
}
