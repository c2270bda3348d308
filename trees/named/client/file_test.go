package client

import (
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
	"time"
)

// TestRestart: what somebody holds of a realm is as good after named was restarted as before:
// directories, open files with their flags, a listing in its middle, a lease, a watch.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, root := w.realm()
	w.must(root.Mkdir(ctx, "d", 0o755))
	d, _, err := root.Walk(ctx, []string{"d"})
	w.must(err)
	defer d.Close()
	f, err := d.Create(ctx, "f", sigma.OpenReadWrite|sigma.OpenAppend|sigma.OpenExclusive, 0o644)
	w.must(err)
	defer f.Close()
	_, err = f.WriteAt(ctx, []byte("one "), 0)
	w.must(err)
	for i := range 20 {
		w.must(d.Mkdir(ctx, fmt.Sprintf("e%02d", i), 0o755))
	}
	list, _, err := root.Walk(ctx, []string{"d"})
	w.must(err)
	defer list.Close()
	w.must(list.Open(ctx, sigma.OpenRead))
	es, cookie, _, err := list.ReadDir(ctx, 0, 10)
	w.must(err)
	lease, err := root.Lease(ctx, time.Minute)
	w.must(err)
	st, err := f.Stat(ctx)
	w.must(err)
	type seen struct {
		v   sigma.Version
		err error
	}
	watched := make(chan seen, 1)
	go func() {
		v, err := f.(*File).Watch(ctx, st.ID.Version)
		watched <- seen{v, err}
	}()

	w.restart()
	if err := root.Renew(ctx, lease); err != nil {
		t.Errorf("the lease: %v", err)
	}
	w.must(root.Rename(ctx, "d", root, "moved"))
	if _, err := f.WriteAt(ctx, []byte("two"), 0); err != nil {
		t.Errorf("the open file: %v", err)
	}
	if s := <-watched; s.err != nil || s.v <= st.ID.Version {
		t.Errorf("the watch: %+v", s)
	}
	b := make([]byte, 100)
	if n, err := f.ReadAt(ctx, b, 0); string(b[:n]) != "one two" {
		t.Errorf("the open file has %q, %v", b[:n], err)
	}
	more, _, _, err := list.ReadDir(ctx, cookie, 100)
	if err != nil || len(es)+len(more) != 21 || more[len(more)-1].Name != "e19" {
		t.Errorf("the listing: %d and %d entries, %v", len(es), len(more), err)
	}
	w.must(d.Remove(ctx, "f"))
	w.restart()
	if _, err := f.ReadAt(ctx, b, 0); sigma.KindOf(err) != sigma.KindStale || err == nil {
		t.Errorf("a file that is gone: %v", err)
	}
	if _, err := f.(*File).Watch(ctx, 0); sigma.KindOf(err) != sigma.KindNotFound || err == nil {
		t.Errorf("a watch of a file that is gone: %v", err)
	}
}
