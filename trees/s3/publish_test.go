package s3

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// bucket attaches and makes a bucket.
func bucket(t *testing.T) sigma.File {
	t.Helper()
	root, err := newTree(t, t.TempDir()).Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := root.Mkdir(t.Context(), "b", 0); err != nil {
		t.Fatal(err)
	}
	b, _, err := root.Walk(t.Context(), []string{"b"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func get(t *testing.T, dir sigma.File, name string) string {
	t.Helper()
	r, _, err := dir.(sigma.Getter).Get(t.Context(), []string{name}, 0, 1<<20)
	if sigma.KindOf(err) == sigma.KindNotFound {
		return "(none)"
	} else if err != nil {
		t.Fatal(err)
	}
	return string(r.Data)
}

// TestPublish goes through the ways in which written bytes become visible, or do not.
func TestPublish(t *testing.T) {
	type action func(f sigma.File) error
	ctx := t.Context()
	closing := func(f sigma.File) error { f.Close(); return nil }
	syncing := func(f sigma.File) error { return f.Sync(ctx) }
	publishing := func(f sigma.File) error { return f.(sigma.Publisher).Publish(ctx) }
	for _, c := range []struct {
		name, old string
		do        []action
		want      string
	}{
		{"new, closed", "", []action{closing}, "(none)"},
		{"new, synced", "", []action{syncing}, "new"},
		{"new, published", "", []action{publishing}, "new"},
		{"new, published twice and closed", "", []action{publishing, syncing, closing}, "new"},
		{"old, not closed", "old", nil, "old"},
		{"old, closed", "old", []action{closing}, "old"},
		{"old, synced", "old", []action{syncing}, "new"},
		{"old, published and closed", "old", []action{publishing, closing}, "new"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := bucket(t)
			var reader sigma.File
			if c.old != "" {
				if _, _, err := b.(sigma.Putter).Put(ctx, []string{"f"}, []byte(c.old),
					sigma.PutOptions{}); err != nil {
					t.Fatal(err)
				}
				reader, _, _ = b.Walk(ctx, []string{"f"})
				if err := reader.Open(ctx, sigma.OpenRead); err != nil {
					t.Fatal(err)
				}
			}
			f, err := b.Create(ctx, "f", sigma.OpenWrite|sigma.OpenTruncate, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			// Not in order: locally an unpublished object takes any offset.
			for _, w := range []struct {
				at   uint64
				data string
			}{{1, "ew"}, {0, "n"}} {
				if _, err := f.WriteAt(ctx, []byte(w.data), w.at); err != nil {
					t.Fatal(err)
				}
			}
			for _, do := range c.do {
				if err := do(f); err != nil {
					t.Fatal(err)
				}
			}
			if got := get(t, b, "f"); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if reader == nil {
				return
			}
			buf := make([]byte, 10)
			if n, err := reader.ReadAt(ctx, buf, 0); string(buf[:n]) != "old" || err != nil {
				t.Errorf("who had the old object open reads %q, %v", buf[:n], err)
			}
		})
	}
}

// TestPublishedIsImmutable checks that a handle cannot write on after its object was published.
func TestPublishedIsImmutable(t *testing.T) {
	ctx, b := t.Context(), bucket(t)
	f, err := b.Create(ctx, "f", sigma.OpenReadWrite, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.WriteAt(ctx, []byte("abc"), 0)
	if err := f.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(ctx, []byte("x"), 0); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("write after Sync: got %v, want not supported", err)
	}
	if got := get(t, b, "f"); got != "abc" {
		t.Errorf("got %q", got)
	}
}

// TestPublishGoesWhereTheFileIs checks that a new content follows its object through a rename, and
// ends with its removal.
func TestPublishGoesWhereTheFileIs(t *testing.T) {
	ctx, b := t.Context(), bucket(t)
	for _, remove := range []bool{false, true} {
		b.(sigma.Putter).Put(ctx, []string{"f"}, []byte("old"), sigma.PutOptions{})
		f, _, err := b.Walk(ctx, []string{"f"})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Open(ctx, sigma.OpenWrite|sigma.OpenTruncate); err != nil {
			t.Fatal(err)
		}
		f.WriteAt(ctx, []byte("new"), 0)
		b.Rename(ctx, "f", b, "g")
		if remove {
			b.Remove(ctx, "g")
			if err := f.Sync(ctx); sigma.KindOf(err) != sigma.KindNotFound {
				t.Errorf("publishing to a removed object: got %v, want not found", err)
			}
		} else if err := f.Sync(ctx); err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "new", true: "(none)"}[remove]
		if f, g := get(t, b, "f"), get(t, b, "g"); f != "(none)" || g != want {
			t.Errorf("got f %q and g %q, want none and %q", f, g, want)
		}
	}
}

func TestBuckets(t *testing.T) {
	ctx := t.Context()
	root, err := newTree(t, t.TempDir()).Attach(ctx, sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "bin", "my-data", "2024", strings.Repeat("a", 63)} {
		if err := root.Mkdir(ctx, name, 0); err != nil {
			t.Errorf("bucket %q: %v", name, err)
		}
	}
	for _, name := range []string{"A", "a_b", "-a", "a-", "a.b", "ä", strings.Repeat("a", 64)} {
		if err := root.Mkdir(ctx, name, 0); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("bucket %q: got %v, want invalid", name, err)
		}
		if err := root.Rename(ctx, "a", root, name); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("renaming a bucket to %q: got %v, want invalid", name, err)
		}
	}
	b, _, _ := root.Walk(ctx, []string{"bin"})
	if _, _, err := root.(sigma.Putter).Put(ctx, []string{"bin", "f"}, nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	_, _, putErr := root.(sigma.Putter).Put(ctx, []string{"f"}, nil, sigma.PutOptions{})
	_, createErr := root.Create(ctx, "f", sigma.OpenWrite, 0)
	for what, err := range map[string]error{"put": putErr, "create": createErr, "rename": b.Rename(ctx, "f", root,
		"f")} {
		if sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("%s of an object in the root: got %v, want permission denied", what, err)
		}
	}
}
