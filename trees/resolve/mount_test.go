package resolve_test

import (
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// TestMount: a mount is another name for a place, for one program alone (000 Fig 4-1).
func TestMount(t *testing.T) {
	ctx := t.Context()
	m := memfs.New(memfs.Config{})
	defer m.Close()
	root, err := m.Attach(ctx, sigma.Principal{System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	ns, other := resolve.New(resolve.Config{Root: root}), resolve.New(resolve.Config{Root: root})
	for _, dir := range []string{"/data/7", "/data/8", "/base", "/base/in"} {
		if err := ns.MkdirAll(ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := ns.Put(ctx, dir+"/f", []byte(dir), sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for path, target := range map[string]string{"/data/7/abs": "/in/f", "/data/7/rel": "f"} {
		if err := ns.Symlink(ctx, target, path); err != nil {
			t.Fatal(err)
		}
	}
	check := func(ns *resolve.Tree, path, want string) {
		t.Helper()
		if got, _, err := ns.Get(ctx, path); string(got) != want || (err != nil) != (want == "") {
			t.Errorf("%s is %q, %v; want %q", path, got, err, want)
		}
	}
	mount := func(path1, path2 string) {
		t.Helper()
		if err := ns.Mount(ctx, path1, path2); err != nil {
			t.Error(err)
		}
	}
	mount("/data/7", "/in")
	mount("/in", "/again")          // what /in is now
	mount("/data/8", "/in")         // in its place
	mount("/data/8/f", "/one")      // a file
	mount("/data/7", "/base/in")    // over what is there
	mount("/base/in/no", "/absent") // nothing
	for path, want := range map[string]string{"/in/f": "/data/8", "/again/f": "/data/7", "/again/rel": "/data/7",
		"/again/abs": "/data/8", "/one": "/data/8", "/base/in/f": "/data/7", "/base/f": "/base", "/absent": "",
		"/inn/f": ""} {
		check(ns, path, want)
	}
	check(other, "/in/f", "")
	check(other, "/base/in/f", "/base/in")
	if _, err := ns.Put(ctx, "/in/new", []byte("x"), sigma.PutOptions{}); err != nil {
		t.Error(err)
	}
	check(other, "/data/8/new", "x")
	if err := ns.Rename(ctx, "/in/new", "/again/new"); err != nil {
		t.Error(err)
	}
	check(other, "/data/7/new", "x")
	if got := ns.Real("/again/x"); got != "/data/7/x" {
		t.Errorf("/again/x is %s", got)
	}
	var names []string
	es, err := ns.ReadDir(ctx, "/")
	for _, e := range es {
		names = append(names, e.Name)
	}
	if got := strings.Join(names, " "); got != "again base data in one" || err != nil {
		t.Errorf("the root has %s, %v", got, err)
	}
	for _, err := range []error{ns.Remove(ctx, "/in"), ns.RemoveAll(ctx, "/in"), ns.Rename(ctx, "/again", "/x"),
		ns.Rename(ctx, "/base/f", "/one"), ns.Mount(ctx, "/data", "/sys/x"), ns.Mount(ctx, "/data", "/proc")} {
		if sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("got %v", err)
		}
	}
	mount("/data", "/")
	check(ns, "/8/f", "/data/8")
	check(ns, "/in/f", "/data/8")
	mount("/", "/top") // which is /data
	check(ns, "/top/7/f", "/data/7")
	for i := range resolve.MountsMax {
		err = ns.Mount(ctx, "/8", fmt.Sprintf("/m%d", i))
	}
	if sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("mounts without end: %v", err)
	}
}

// Undoing a mount leaves a tree as it was.
func TestUnmount(t *testing.T) {
	ctx := t.Context()
	m := memfs.New(memfs.Config{})
	defer m.Close()
	root, _ := m.Attach(ctx, sigma.Principal{System: true}, "")
	ns := resolve.New(resolve.Config{Root: root})
	if _, err := ns.Put(ctx, "/f", nil, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, m := range [][2]string{{"/f", "/g"}, {"/f", "/g/h"}} {
		if err := ns.Mount(ctx, m[0], m[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := ns.Unmount("/g"); err != nil {
		t.Error(err)
	}
	if _, err := ns.Stat(ctx, "/g"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
	if _, err := ns.Stat(ctx, "/g/h"); err != nil {
		t.Error(err)
	}
	if err := ns.Unmount("/g"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
}
