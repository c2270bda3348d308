package diskfs

import (
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskspace"
)

// disk is a small file system that is there for the test's thread alone, and gone with it.
func disk(t *testing.T, options string) (dir string, remount func(flags uintptr)) {
	t.Helper()
	dir = t.TempDir()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		t.Skipf("skipped: a disk of a size needs root: %v", err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(unix.Mount("sigma-test", dir, "tmpfs", 0, options))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir, func(flags uintptr) {
		t.Helper()
		must(unix.Mount("", dir, "", unix.MS_REMOUNT|flags, ""))
	}
}

// Goal: whatever realms write, and however many files they make, the reserve of the names is left
// of the disk, and inodes for them; what is removed makes room. Who had nothing yet is told so too.
func TestTenantsLeaveRoom(t *testing.T) {
	for _, c := range []struct{ options, fill string }{{"size=16m", "bytes"}, {"size=16m", "holes"},
		{"size=64m,nr_inodes=320", "entries"}} {
		t.Run(c.fill, func(t *testing.T) {
			dir, _ := disk(t, c.options)
			x := newFixture(t, Config{Dir: dir, Policy: inPlace, QuotaBytes: sigma.GiB})
			whole, err := x.tree.disk()
			x.ok(err)
			block := strings.Repeat("x", 64<<10)
			for _, realm := range []sigma.RealmID{"r", "other"} {
				root, n, err := x.attach(realm), 0, error(nil)
				for ; err == nil; n++ {
					switch name := strconv.Itoa(n); c.fill {
					case "entries":
						err = root.Mkdir(t.Context(), name, 0o755)
					case "bytes":
						_, err = x.put(root, block, name)
					default:
						_, err = x.put(root, "", name)
						x.ok(err)
						f := x.walk(root, name)
						x.ok(f.Open(t.Context(), sigma.OpenWrite))
						_, err = f.WriteAt(t.Context(), []byte{1}, 1<<30)
						f.Close()
					}
				}
				x.want(err, sigma.KindNoSpace)
				if realm == "r" && n < 10 && c.fill != "holes" {
					t.Errorf("there was room for %d", n)
				}
			}
			if now, err := x.tree.disk(); err != nil || now.Free < 2*diskspace.Reserve(whole) ||
				now.Room < whole.Files/20 {
				t.Errorf("of %+v are left %+v, %v", whole, now, err)
			}
			x.ok(x.tree.RemoveRealm(t.Context(), "r"))
			_, err = x.put(x.attach("other"), "now", "again")
			x.ok(err)
		})
	}
}

// Goal: on a full disk who writes is told so; what is published stays whole, nothing that could not
// be written is published, the account stays right, and what is removed makes room.
func TestDiskFull(t *testing.T) {
	for name, policy := range map[string]Policy{"in place": inPlace, "objects": {Objects: true}} {
		t.Run(name, func(t *testing.T) {
			dir, _ := disk(t, "size=1m")
			x := newFixture(t, Config{Dir: dir, Policy: policy, QuotaBytes: 4 * sigma.GiB})
			root, ctx := x.attach("r"), t.Context()
			full := func(err error) {
				t.Helper()
				x.want(err, sigma.KindNoSpace)
				if err != nil && (!strings.Contains(err.Error(), "disk of the server is full") ||
					sigma.HintOf(err) == "") {
					t.Errorf("it says: %v", err)
				}
			}
			kept, block := strings.Repeat("kept ", 20_000), make([]byte, 64<<10)
			_, err := x.put(root, kept, "kept")
			x.ok(err)
			var flags sigma.OpenFlags
			if !policy.Objects {
				flags = sigma.OpenHidden
			}
			f, err := root.Create(ctx, "large", sigma.OpenWrite|flags, 0)
			x.ok(err)
			at := uint64(0)
			for err == nil && at < 2<<20 {
				n := 0
				n, err = f.WriteAt(ctx, block, at)
				at += uint64(n)
			}
			full(err)
			_, err = x.put(root, kept+kept+kept, "kept")
			full(err)
			if got, err := x.get(root, "kept"); err != nil || got != kept {
				t.Errorf("what was there before is %d bytes, %v", len(got), err)
			}
			if err := f.(sigma.Publisher).Publish(ctx); err == nil {
				t.Error("what could not be written is published")
			}
			f.Close()
			_, err = x.get(root, "large")
			x.want(err, sigma.KindNotFound)
			if !policy.Objects { // one that all see has what could be written
				f, err := root.Create(ctx, "seen", sigma.OpenWrite, 0)
				x.ok(err)
				for at, err = 0, nil; err == nil && at < 2<<20; at += uint64(len(block)) {
					_, err = f.WriteAt(ctx, block, at)
				}
				full(err)
				if st, err := f.Stat(ctx); err != nil || st.Size == 0 || st.Size > 1<<20 {
					t.Errorf("the file has %d bytes, %v", st.Size, err)
				}
				f.Close()
				x.ok(root.Remove(ctx, "seen"))
			}
			if f, _, err := hide(t, root, "passed"); x.tree.leases { // it could be written beyond what there is
				full(err)
				f.Close()
			}
			_, err = x.put(root, kept+kept, "kept")
			x.ok(err)
			if charged, counted := x.used("r"); charged != counted {
				t.Errorf("charged %d, on the disk are %d", charged, counted)
			}
		})
	}
}

// Goal: a disk that has become read-only is read; who would change it is told what is wrong, and
// can when it is as it was.
func TestDiskReadOnly(t *testing.T) {
	dir, remount := disk(t, "size=1m")
	x := newFixture(t, Config{Dir: dir, Policy: Policy{Links: true, Attributes: true}, QuotaBytes: sigma.GiB})
	root, ctx := x.attach("r"), t.Context()
	_, err := x.put(root, "text", "f")
	x.ok(err)
	remount(unix.MS_RDONLY)
	perm := uint32(0o600)
	for what, do := range map[string]func() error{
		"put":    func() error { _, err := x.put(root, "other", "f"); return err },
		"create": func() error { _, err := root.Create(ctx, "g", sigma.OpenWrite, 0); return err },
		"hidden": func() error { _, err := root.Create(ctx, "g", sigma.OpenWrite|sigma.OpenHidden, 0); return err },
		"mkdir":  func() error { return root.Mkdir(ctx, "d", 0) },
		"remove": func() error { return root.Remove(ctx, "f") },
		"rename": func() error { return root.Rename(ctx, "f", root, "g") },
		"link":   func() error { return root.Symlink(ctx, "l", "/x") },
		"chmod":  func() error { return x.walk(root, "f").SetStat(ctx, sigma.StatChange{Perm: &perm}) },
	} {
		err := do()
		if sigma.KindOf(err) != sigma.KindPermission || err == nil || !strings.Contains(err.Error(),
			"can only be read") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got, err := x.get(root, "f"); err != nil || got != "text" {
		t.Errorf("the file is %q, %v", got, err)
	}
	f := x.walk(root, "f")
	x.ok(f.Open(ctx, sigma.OpenReadWrite))
	_, err = f.WriteAt(ctx, []byte("x"), 0)
	x.want(err, sigma.KindPermission)
	f.Close()
	remount(0)
	_, err = x.put(root, "other", "f")
	x.ok(err)
	if charged, counted := x.used("r"); charged != counted {
		t.Errorf("charged %d, on the disk are %d", charged, counted)
	}
}
