package tree

import (
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

func TestModes(t *testing.T) {
	for _, c := range []struct {
		mode     string
		dir      bool
		from, to uint32
	}{{"640", false, 0o777, 0o640}, {"u+x", false, 0o644, 0o744}, {"go-rwx", false, 0o755, 0o700},
		{"a=r", false, 0o777, 0o444}, {"+w", false, 0o444, 0o666},
		{"u=rw,o+X", false, 0o755, 0o655}, {"a+X", true, 0o600, 0o711}, {"a+X", false, 0o600, 0o600},
		{"g=", false, 0o777, 0o707}} {
		change, err := parseMode(c.mode)
		if err != nil || change(c.from, c.dir) != c.to {
			t.Errorf("%s of %o: %v", c.mode, c.from, err)
		}
	}
	for _, bad := range []string{"", "8", "1777", "u", "u+q", "x+u", "u+r,", "-1", "99999999999999999999"} {
		if _, err := parseMode(bad); err == nil && bad != "-1" {
			t.Errorf("%q is taken for a mode", bad)
		}
	}
}

// What happened is told from two listings, however much it was.
func TestDiffer(t *testing.T) {
	dir := func(es ...sigma.DirEntry) map[string]sigma.DirEntry {
		m := map[string]sigma.DirEntry{}
		for _, e := range es {
			m[e.Name] = e
		}
		return m
	}
	entry := func(name string, id, version uint64) sigma.DirEntry {
		return sigma.DirEntry{Name: name, ID: sigma.FileID{Path: id, Version: sigma.Version(version)}}
	}
	before := dir(entry("a", 1, 1), entry("b", 2, 1), entry("c", 3, 1), entry("same", 4, 1), entry("p", 5, 1),
		entry("q", 6, 1))
	now := dir(entry("a", 1, 2), entry("b2", 2, 1), entry("c", 9, 1), entry("same", 4, 1), entry("p", 6, 1),
		entry("q", 5, 1), entry("new", 10, 1))
	var got []string
	for _, e := range differ("/d", before, now) {
		got = append(got, strings.TrimSpace(e.Event+" "+e.Path+" "+e.From))
	}
	want := []string{"changed /d/a", "renamed /d/b2 /d/b", "changed /d/c", "created /d/new", "renamed /d/p /d/q",
		"renamed /d/q /d/p"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
