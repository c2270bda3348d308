//go:build system

package hostile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskspace"
)

// smallDisk boots a system whose data is on a file system of its own.
func smallDisk(t *testing.T, options string) *testenv.System {
	t.Helper()
	testenv.RequireRoot(t)
	dir := t.TempDir()
	if err := syscall.Mount("sigma-test", dir, "tmpfs", 0, "mode=0711,"+options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, 0) })
	shared.Program(t, probe) // compiled elsewhere
	shared.Program(t, hello)
	t.Setenv("TMPDIR", dir)
	return testenv.Boot(t, testenv.Options{})
}

// A put larger than the disk ends in an error, by whichever way; so does every other while it is
// full. What runs goes on, what is cached starts, and when there is room again all is well.
func TestDiskFull(t *testing.T) {
	s := smallDisk(t, "size=200m")
	unharmed(t, s)
	x := newTenant(t, s)
	s.Must(t, "realm", "set", "--limit-scratch", "1000G",
		string(sigma.DefaultRealm)) // so that it is the disk that ends it
	x.works()
	x.running()
	block := bytes.Repeat([]byte("x"), 1<<20)
	for _, dir := range []string{"/s3/full", "/ux/~local/full"} {
		if err := x.MkdirAll(x.ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := x.Create(x.ctx, dir+"/huge", sigma.OpenWrite|sigma.OpenTruncate, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; err == nil && n < 5<<10; n++ {
			_, err = f.Write(block)
		}
		clear(t, "5 GB in "+dir, err, sigma.KindNoSpace)
		// The disk is full as long as the file is open; what is left is less than the part of a
		// write that was refused.
		for n := 0; n == 0 || err == nil && n < 40; n++ {
			_, err = x.Put(x.ctx, fmt.Sprint(dir, "/more-", n), block[:60000], sigma.PutOptions{})
		}
		clear(t, "60 KB more in "+dir, err, sigma.KindNoSpace)
		if st := x.wait(x.spawn(x.descriptor("exit", "7"))[0]); st.ExitCode != 7 && (st.Code != sigma.StatusError ||
			st.Msg == "") {
			t.Errorf("a proc on a full disk ended as %+v, want its code or an error with a reason", st)
		}
		f.Close()
		if err := x.RemoveAll(x.ctx, dir); err != nil {
			t.Errorf("remove what fills the disk: %v", err)
		}
		x.works()
	}
}

// Goal: one realm that fills the disk by objects leaves room for another's; and whatever it fills,
// objects, scratch files, databases or inodes, the names of all go on. That they would not if the
// disk were full TestNamesOnFullDisk shows.
func TestTenantFillsDisk(t *testing.T) {
	s := smallDisk(t, "size=500m,nr_inodes=4000")
	unharmed(t, s)
	x := newTenant(t, s)
	s.Must(t, "realm", "create", "other")
	s.Must(t, "realm", "set", "--limit-scratch", "1000G",
		string(sigma.DefaultRealm)) // so that it is the disk that ends it
	other := s.Connect(x.ctx, t, "other")
	names := func(after string) {
		t.Helper()
		if _, err := other.Put(x.ctx, "/name", []byte("text"), sigma.PutOptions{}); err != nil {
			t.Errorf("another realm's names after %s: %v", after, err)
		}
	}
	objects := func(after string) {
		t.Helper()
		for n := range 50 {
			if _, err := other.Put(x.ctx, fmt.Sprint("/s3/b/", n), []byte("text"), sigma.PutOptions{}); err != nil {
				t.Errorf("another realm's objects after %s: %v", after, err)
				return
			}
		}
	}
	block := bytes.Repeat([]byte("x"), 1<<20)
	fill := func(path string) error {
		f, err := x.Create(x.ctx, path, sigma.OpenWrite|sigma.OpenTruncate, 0o644)
		if err != nil {
			return err
		}
		defer f.Close() // the object is seen
		for n := 0; err == nil && n < 1000; n++ {
			_, err = f.Write(block)
		}
		return err
	}
	if err := other.MkdirAll(x.ctx, "/s3/b", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := x.MkdirAll(x.ctx, "/s3/full", 0o755); err != nil {
		t.Fatal(err)
	}
	some := bytes.Repeat([]byte("x"), 60<<10)
	var err error
	for n := 0; err == nil && n < 20_000; n++ {
		_, err = x.Put(x.ctx, fmt.Sprint("/s3/full/", n), some, sigma.PutOptions{})
	}
	clear(t, "objects without end", err, sigma.KindNoSpace)
	names("objects")
	objects("objects")
	err = nil
	for n := 0; err == nil && n < 10_000; n++ {
		err = x.Mkdir(x.ctx, fmt.Sprint("/s3/full/d", n), 0o755)
	}
	clear(t, "directories without end", err, sigma.KindNoSpace)
	names("directories")
	objects("directories")
	clear(t, "scratch files without end", fill("/ux/~local/full"), sigma.KindNoSpace)
	names("scratch files")
	s.Must(t, "sql", "create", "full")
	for n := 0; ; n++ {
		_, stderr, code := s.CLI(t, "sql", "full",
			"create table if not exists t (b); insert into t select zeroblob(1000000) from (values (1), (2), (3), "+
				"(4), (5), (6), (7), (8))")
		if code != 0 && strings.Contains(stderr, "the disk of the databases is full") {
			break
		}
		if code != 0 || n == 100 {
			t.Errorf("databases without end: %d: %s", code, stderr)
			break
		}
	}
	names("databases")
	x.running()
}

// On a disk that others fill names are refused at once, with what to do: as soon as less than the
// reserve is free, and when named has ended since nothing is. They are read and removed meanwhile,
// and written again when there is room.
func TestNamesOnFullDisk(t *testing.T) {
	s := smallDisk(t, "size=240m")
	filler := filepath.Join(filepath.Dir(s.DataDir), "filler")
	fill := func(but uint64) {
		t.Helper()
		os.Remove(filler)
		space, err := diskspace.Of(s.DataDir)
		if err != nil || uint64(space.Free) < but {
			t.Fatalf("the disk: %+v, %v", space, err)
		}
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(uint64(space.Free)-but)); err != nil &&
			err != syscall.ENOSPC {
			t.Fatal(err)
		}
	}
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(args ...string) {
		t.Helper()
		began := time.Now()
		_, stderr, code := s.CLI(t, args...)
		if took := time.Since(began); code == 0 || !strings.Contains(stderr, "the disk of the names is full") ||
			!strings.Contains(stderr, "machine m1's data directory") || took > 10*time.Second*testenv.Slow() {
			t.Errorf("sigma %q after %v: exit code %d: %s", args, took, code, stderr)
		}
	}
	doctor := func(state string) {
		t.Helper()
		out, _, _ := s.CLI(t, "doctor")
		for l := range strings.Lines(out) {
			if w := strings.Fields(l); len(w) > 1 && w[1] == "disk" && w[0] == state {
				return
			}
		}
		t.Errorf("sigma doctor does not say that the disk is %s:\n%s", state, out)
	}
	s.Must(t, "put", small, "/one")
	s.Must(t, "put", small, "/two")
	s.Must(t, "realm", "create", "before")
	s.Must(t, "run", shared.Program(t, hello)) // its program is put there
	doctor("ok")

	fill(20 << 20)
	refused("put", small, "/three")
	refused("mkdir", "/d")
	refused("realm", "create", "after")
	if got := s.Must(t, "cat", "/one"); got != "1" {
		t.Errorf("a read: %q", got)
	}
	s.Must(t, "rm", "/two")
	s.Must(t, "realm", "rm", "before")
	s.Must(t, "run", shared.Program(t, hello)) // needs none
	doctor("weak")

	fill(0)
	s.Kill9(t, "named")
	refused("put", small, "/three")
	refused("mkdir", "/d")
	refused("run", small)
	if out := s.Must(t, "status"); !strings.Contains(out, "disk full") {
		t.Errorf("sigma status:\n%s", out)
	}

	os.Remove(filler)
	for end := time.Now().Add(30 * time.Second * testenv.Slow()); ; {
		_, stderr, code := s.CLI(t, "put", small, "/three")
		if code == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with room there are no names: %s", stderr)
		}
	}
	if got := s.Must(t, "cat", "/one"); got != "1" {
		t.Errorf("afterwards there is %q", got)
	}
	doctor("ok")
}

// The same with names: files of no bytes until there is no inode.
func TestInodesGone(t *testing.T) {
	s := smallDisk(t, "size=200m,nr_inodes=400")
	unharmed(t, s)
	x := newTenant(t, s)
	x.works()
	x.running()
	for _, dir := range []string{"/s3/full", "/ux/~local/full"} {
		if err := x.MkdirAll(x.ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		for n := 0; err == nil && n < 2000; n++ {
			_, err = x.Put(x.ctx, fmt.Sprintf("%s/%d", dir, n), nil, sigma.PutOptions{})
		}
		clear(t, "files without end in "+dir, err, sigma.KindNoSpace)
		if st := x.wait(x.spawn(x.descriptor("exit", "7"))[0]); st.ExitCode != 7 && (st.Code != sigma.StatusError ||
			st.Msg == "") {
			t.Errorf("a proc without inodes ended as %+v, want its code or an error with a reason", st)
		}
		if err := x.RemoveAll(x.ctx, dir); err != nil {
			t.Errorf("remove the files: %v", err)
		}
		x.works()
	}
}

// limit sets a limit on a cgroup of the system, in the hierarchy of a controller, by the file of
// version 1 or 2, until the test asks for it to be lifted.
func limit(t *testing.T, s *testenv.System, controller, group string, files map[string]string) (lift func()) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.DataDir, "instance"))
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"/sys/fs/cgroup/" + controller, "/sys/fs/cgroup/" + controller + "/*",
		"/sys/fs/cgroup"} {
		dirs, _ := filepath.Glob(filepath.Join(root, "sigma-"+strings.TrimSpace(string(b)), group))
		for _, dir := range dirs {
			for file, value := range files {
				path := filepath.Join(dir, file)
				old, err := os.ReadFile(path)
				if err != nil {
					continue
				}
				if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
					t.Fatal(err)
				}
				return func() { os.WriteFile(path, bytes.TrimSpace(old), 0o644) }
			}
		}
	}
	t.Fatalf("no %s cgroup %q of the system is found", controller, group)
	return nil
}

// With no process left for procs, spawns are refused with a reason, or wait; afterwards all goes
// on.
func TestProcessesGone(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	unharmed(t, s)
	x := newTenant(t, s)
	x.works()
	x.running()
	lift := limit(t, s, "pids", "rest/be/"+string(sigma.DefaultRealm), map[string]string{"pids.max": "20"})
	defer lift()
	var ds []sigma.Descriptor
	for range 30 {
		ds = append(ds, x.descriptor("stay"))
	}
	started, refused := 0, 0
	ids := x.spawn(ds...)
	for _, id := range ids {
		err := x.WaitStart(x.ctx, id)
		switch {
		case err == nil:
			started++
		case len(err.Error()) > 20:
			refused++
		default:
			t.Errorf("%s: %v", id, err)
		}
	}
	if started == 0 || refused == 0 {
		t.Errorf("%d procs were started and %d refused with room for 20 processes", started, refused)
	}
	lift()
	for _, id := range ids {
		x.Kill(x.ctx, id)
		x.wait(id)
	}
	x.works()
}

// When the machine's memory is gone though no proc has exceeded its own, procs die, which their
// waiters are told, and no daemon does.
func TestMemoryGone(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	unharmed(t, s)
	x := newTenant(t, s)
	x.works()
	hold := s.Install(x.ctx, t, x.Client, shared.Program(t, "testdata/hold.c"))
	const all, procs, each = 300, 40, 12 // MiB: much less than a daemon has
	lift := limit(t, s, "memory", "", map[string]string{"memory.limit_in_bytes": strconv.Itoa(all << 20),
		"memory.max": strconv.Itoa(all << 20)})
	defer lift()
	ds := make([]sigma.Descriptor, procs)
	for i := range ds {
		ds[i] = sigma.Descriptor{Program: hold, Args: []string{strconv.Itoa(each)}, Memory: 16 * sigma.MiB}
	}
	ids := x.spawn(ds...)
	dead, alive := map[sigma.ProcID]bool{}, 0
	testenv.Eventually(t, "each proc has its memory or has died", func() error {
		alive = 0
		for _, id := range ids {
			out, _, err := x.Get(x.ctx, sigma.JoinPath("proc", string(id), "stdout"))
			if err != nil {
				return err
			}
			list, err := x.List(x.ctx, false)
			if err != nil {
				return err
			}
			lives := slices.ContainsFunc(list, func(p sigma.ProcInfo) bool { return p.ID == id })
			if lives && len(out) == 0 {
				return fmt.Errorf("%s has not begun", id)
			}
			if lives {
				alive++
			} else {
				dead[id] = true
			}
		}
		return nil
	})
	if alive == 0 || len(dead) == 0 || alive*each > all {
		t.Errorf("%d procs with %d MiB each live in %d MiB, %d have died", alive, each, all, len(dead))
	}
	for id := range dead {
		if st := x.wait(id); st.OK() || st.Msg == "" {
			t.Errorf("%s ended as %+v", id, st)
		}
	}
	lift()
	x.works()
}
