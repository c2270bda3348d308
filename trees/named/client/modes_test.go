package client

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func (w *world) chmod(f *File, perm uint32, names ...string) {
	w.Helper()
	file, _, err := f.Walk(w.Context(), names)
	w.must(err)
	defer file.Close()
	w.must(file.SetStat(w.Context(), sigma.StatChange{Perm: &perm}))
}

// What is remembered is kept from the realm's programs as its modes say: a change of a mode made
// here counts at once, one made elsewhere when the feed has told it. The provider passes.
func TestModesRemembered(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	r, system := w.machine(time.Hour)
	_, other := w.machine(time.Hour)
	root, err := r.Owner(ctx)
	w.must(err)
	w.must(root.Mkdir(ctx, "d", 0o755))
	w.put(root, "x", "d", "f")
	tries := map[string]func() error{
		"get": func() error { _, _, err := root.Get(ctx, []string{"d", "f"}, 0, 10); return err },
		"recall": func() error { // what is not remembered is asked for
			_, _, known, err := root.Recall([]string{"d", "f"}, 0, 10)
			if !known {
				_, _, err = root.Get(ctx, []string{"d", "f"}, 0, 10)
			}
			return err
		},
		"none": func() error { _, _, err := root.Get(ctx, []string{"d", "none"}, 0, 10); return err },
		"walk": func() error { _, _, err := root.Walk(ctx, []string{"d", "f"}); return err },
		"list": func() error {
			d, _, err := root.Walk(ctx, []string{"d"})
			w.must(err)
			defer d.Close()
			return d.Open(ctx, sigma.OpenRead)
		},
		"watch": func() error {
			d, _, err := root.Walk(ctx, []string{"d"})
			w.must(err)
			defer d.Close()
			_, err = d.(*File).Watch(ctx, 0)
			return err
		},
	}
	shut := func(err error) bool { return err != nil && sigma.KindOf(err) == sigma.KindPermission }
	for i := range 20 {
		for what, try := range tries {
			perm := uint32(0o277) // neither r nor x
			if what == "none" || what == "walk" {
				perm = 0o677
			}
			w.recalled(r, func() { w.get(system, "d", "f"); tries["get"]() })
			by := root
			if i%4 == 3 {
				by = other
			}
			w.chmod(by, perm, "d")
			err := try()
			for by == other && !shut(err) { // until the feed has told it
				w.must(ctx.Err())
				err = try()
			}
			if !shut(err) {
				t.Fatalf("%s with mode %o: %v", what, perm, err)
			}
			w.recalled(r, func() {
				if err := try(); !shut(err) {
					t.Fatalf("%s with mode %o, remembered: %v", what, perm, err)
				}
			})
			if _, _, known, err := root.Recall([]string{"d", "f"}, 0, 10); known && !shut(err) {
				t.Fatalf("with mode %o it is recalled: %v", perm, err)
			}
			if got := w.get(system, "d", "f"); got != "x" {
				t.Fatalf("the provider reads %q", got)
			}
			w.chmod(root, 0o755, "d")
			if err := try(); shut(err) {
				t.Fatalf("%s when the mode was changed here: %v", what, err)
			}
		}
	}
	w.chmod(root, 0o200, "d", "f")
	if err := tries["get"](); !shut(err) {
		t.Errorf("a file without r: %v", err)
	}
}

// A file that is open, for more than its mode allows, goes on over a restart of named; a
// directory's handle becomes nobody's way past its mode.
func TestOpenOverRestart(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	r, _ := w.realm()
	root, err := r.Owner(ctx)
	w.must(err)
	f, err := root.Create(ctx, "ro", sigma.OpenReadWrite, 0o400)
	w.must(err)
	defer f.Close()
	w.must(root.Mkdir(ctx, "d", 0o700))
	w.put(root, "x", "d", "f")
	d, _, err := root.Walk(ctx, []string{"d"})
	w.must(err)
	defer d.Close()
	w.must(d.Open(sigma.WithSync(ctx), sigma.OpenRead))
	w.chmod(root, 0, "d")
	w.restart()
	if _, err := f.WriteAt(ctx, []byte("on"), 0); err != nil {
		t.Errorf("a file that is open: %v", err)
	}
	w.chmod(root, 0, "ro")
	w.restart()
	buf := make([]byte, 9)
	if n, err := f.ReadAt(sigma.WithSync(ctx), buf, 0); err != nil || string(buf[:n]) != "on" {
		t.Errorf("a file that is open: %q, %v", buf[:n], err)
	}
	for _, do := range []func() error{
		func() error { _, _, err := d.Walk(sigma.WithSync(ctx), []string{"f"}); return err },
		func() error { _, _, err := d.Walk(ctx, []string{"f"}); return err },
		func() error { return d.Mkdir(ctx, "new", 0o700) },
	} {
		if err := do(); sigma.KindOf(err) != sigma.KindPermission || err == nil {
			t.Errorf("a directory that was open: %v", err)
		}
	}
}
