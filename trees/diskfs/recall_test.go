package diskfs

import (
	"os"
	"slices"
	"testing"

	"sigmaos.dev/sigma"
)

// TestRecall wants what Get returns, and nothing of what is not in memory or no object any more.
func TestRecall(t *testing.T) {
	x := newFixture(t, Config{Policy: Policy{Objects: true}})
	root := x.attach("r")
	recall := func(names ...string) (sigma.GetResult, bool) {
		t.Helper()
		r, stop, known, err := root.(sigma.Recaller).Recall(names, 1, 3)
		if stop != nil || err != nil {
			t.Errorf("%q: %v, %v", names, stop, err)
		}
		return r, known
	}
	unknown := func(why string, names ...string) {
		t.Helper()
		if r, known := recall(names...); known {
			t.Errorf("%s: %q gave %q", why, names, r.Data)
		}
	}
	x.ok(root.Mkdir(t.Context(), "d", 0o700))
	d := x.walk(root, "d")
	x.ok(d.Mkdir(t.Context(), "e", 0o700))
	d.Close()
	for _, data := range []string{"abcdef", "ghi"} {
		_, err := x.put(root, data, "d", "e", "f")
		x.ok(err)
		got, _, err := root.(sigma.Getter).Get(t.Context(), []string{"d", "e", "f"}, 1, 3)
		x.ok(err)
		if r, known := recall("d", "e", "f"); !known || r.ID != got.ID || r.Size != got.Size ||
			!slices.Equal(r.Data, got.Data) {
			t.Errorf("got %+v, %v, want %+v", r, known, got)
		}
	}
	unknown("no object", "d", "e")
	unknown("missing", "d", "e", "g")
	unknown("no name", "d", "e", "../e/f")
	unknown("of the root", "d", "..", "d", "e", "f")
	x.ok(os.Symlink("f", x.path("r", "d/e/link")))
	unknown("a link that somebody planted", "d", "e", "link")
	x.ok(root.Rename(t.Context(), "d", root, "other"))
	unknown("moved", "d", "e", "f")
	unknown("not walked through since", "other", "e", "f")
	_, err := x.get(root, "other", "e", "f")
	x.ok(err)
	if r, known := recall("other", "e", "f"); !known || string(r.Data) != "hi" {
		t.Errorf("got %q, %v", r.Data, known)
	}
	root.Close()
	unknown("closed", "other", "e", "f")

	y := newFixture(t, Config{Policy: inPlace})
	root = y.attach("r")
	_, err = y.put(root, "abcdef", "f")
	y.ok(err)
	unknown("a file that may change", "f")
}
