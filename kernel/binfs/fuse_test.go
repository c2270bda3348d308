package binfs

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// mountFUSE does what the launcher does.
func mountFUSE(t *testing.T) *Mount {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dev, err := unix.Open("/dev/fuse", os.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	var device *os.File // once there is something to poll for
	t.Cleanup(func() {
		if device != nil {
			device.Close()
		}
	})
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(fs)
	err = unix.FsconfigSetString(fs, "fd", strconv.Itoa(dev))
	for key, value := range map[string]string{"source": "test", "rootmode": "40555", "user_id": "0", "group_id": "0"} {
		if err == nil {
			err = unix.FsconfigSetString(fs, key, value)
		}
	}
	if err == nil {
		err = unix.FsconfigSetFlag(fs, "allow_other")
	}
	if err == nil {
		err = unix.FsconfigCreate(fs)
	}
	if err != nil {
		t.Skip(err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		t.Skip(err)
	}
	device = os.NewFile(uintptr(dev), "fuse")
	m := &Mount{Device: device, Root: os.NewFile(uintptr(root), "root")}
	t.Cleanup(func() { m.Root.Close() })
	return m
}

// again gives the same mount to another server, as the launcher does when sigmad was restarted.
func (m *Mount) again(t *testing.T) *Mount {
	t.Helper()
	raw, err := m.Device.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, 0) })
	if err != nil {
		t.Fatal(err)
	}
	d := os.NewFile(uintptr(fd), "fuse")
	t.Cleanup(func() { d.Close() })
	return &Mount{Device: d, Root: m.Root}
}

func onFUSE(t *testing.T, f *os.File) bool {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return true // the mount has no statfs
	}
	return st.Type == 0x65735546
}

// Goal: a program runs before its bytes are all here, and later by a plain file, after which the
// kernel forgets the node.
func TestPaging(t *testing.T) {
	s := newStore()
	good := large(t, 8<<20, 40)
	s.put("/p", good, false)
	c := newCache(t, Config{Source: s, Mount: mountFUSE(t), FillDelay: -1})
	f, release := mustOpen(t, c, s, "/p")
	again, releaseAgain := mustOpen(t, c, s, "/p")
	if !onFUSE(t, f) || again != f {
		t.Fatalf("the file is not one that is paged and shared: %v, %v", f, again)
	}
	releaseAgain()
	// By a shell: this process answers for the file, and cannot while it waits, with a processor of
	// Go's, until its own child has executed it.
	cmd := exec.Command("/bin/sh", "-c", "exec /proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{f}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if n := c.Stats().FetchedBytes; n >= uint64(len(good)/2) {
		t.Errorf("%d of %d bytes were fetched for it", n, len(good))
	}
	p := c.program(t, s, "/p")
	reads(t, f, good)
	<-p.done
	if s.fetched != len(good) {
		t.Errorf("fetched %d bytes of %d", s.fetched, len(good))
	}
	plain, release2 := mustOpen(t, c, s, "/p")
	defer release2()
	if onFUSE(t, plain) {
		t.Error("a complete program is still paged")
	}
	reads(t, plain, good)
	release()
	eventually(t, "the kernel forgets the node", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return p.live == 0 && len(c.nodes) == 0
	})
}

// Goal: what pages from a store that is down waits, goes on when it returns, and fails after the
// bound.
func TestStoreDown(t *testing.T) {
	s := newStore()
	good := large(t, 8<<20, 41)
	s.put("/p", good, false)
	c := newCache(t, Config{Source: s, Mount: mountFUSE(t), FillDelay: -1})
	f, release := mustOpen(t, c, s, "/p")
	defer release()
	down := make(chan struct{}, 1000)
	s.breaking(func(int64, []byte) error {
		down <- struct{}{}
		return sigma.Errorf("test", sigma.KindUnavailable, "the store is down")
	})
	got := make(chan error, 1)
	b := make([]byte, 100)
	at := int64(len(good) - chunkSize*5)
	go func() {
		_, err := f.ReadAt(b, at)
		got <- err
	}()
	<-down
	<-down
	s.breaking(nil)
	if err := <-got; err != nil || !bytes.Equal(b, good[at:at+100]) {
		t.Errorf("after the store came back: %v", err)
	}
	c = newCache(t, Config{Source: s, Mount: mountFUSE(t), FillDelay: -1, FaultMax: 50 * time.Millisecond})
	f, release2 := mustOpen(t, c, s, "/p")
	defer release2()
	s.breaking(func(int64, []byte) error { return sigma.Errorf("test", sigma.KindUnavailable, "the store is down") })
	if _, err := f.ReadAt(b, at); err == nil || !strings.Contains(err.Error(), "input/output") {
		t.Errorf("after the bound: %v", err)
	}
}

// Goal: who waits for a page when sigmad is killed gets it from the next. Method: a cache is ended
// with a READ that it never answers, and another takes the same mount and directory.
func TestTakeOver(t *testing.T) {
	s := newStore()
	good := large(t, 8<<20, 42)
	s.put("/p", good, false)
	dir, m := t.TempDir(), mountFUSE(t)
	first := newCache(t, Config{Source: s, Dir: dir, Mount: m.again(t), FillDelay: -1})
	f, _ := mustOpen(t, first, s, "/p")
	own, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) // a proc's, so to speak
	if err != nil {
		t.Fatal(err)
	}
	proc := os.NewFile(uintptr(own), "proc")
	defer proc.Close()
	asked := make(chan struct{}, 1000)
	s.breaking(func(int64, []byte) error {
		asked <- struct{}{}
		return sigma.Errorf("test", sigma.KindUnavailable, "the store is down")
	})
	got := make(chan error, 1)
	b := make([]byte, 100)
	at := int64(len(good) - chunkSize*5)
	go func() {
		_, err := proc.ReadAt(b, at)
		got <- err
	}()
	<-asked
	first.Close()
	s.breaking(nil)
	second := newCache(t, Config{Source: s, Dir: dir, Mount: m.again(t), FillDelay: -1})
	if knowsResend(t) {
		if err := <-got; err != nil || !bytes.Equal(b, good[at:at+100]) {
			t.Errorf("who waited: %v", err)
		}
	}
	reads(t, proc, good)
	if n := second.Stats(); n.CorruptStored != 0 || n.FetchedBytes >= uint64(len(good)) {
		t.Errorf("%+v, want what was there to be used", n)
	}
	// Complete it may be, a node of a former life it has too.
	eventually(t, "complete", func() bool { return second.program(t, s, "/p").complete() })
	contentFiles(t, dir, 1)
	second.Close()
	third := newCache(t, Config{Source: s, Dir: dir, Mount: m.again(t), FillDelay: -1})
	if err := unix.Fadvise(int(proc.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	reads(t, proc, good)
	if n := third.Stats(); n.FetchedBytes != 0 {
		t.Errorf("%+v, want nothing to be fetched", n)
	}
}

// Goal: a program's file can be closed while nobody answers the kernel, as when sigmad is stopped.
// Otherwise who closes it could not even be killed, and a killed sigmad would wait for itself.
func TestCloseUnanswered(t *testing.T) {
	s := newStore()
	s.put("/p", large(t, 8<<20, 40), false)
	c := newCache(t, Config{Source: s, Mount: mountFUSE(t), FillDelay: -1})
	f, release := mustOpen(t, c, s, "/p")
	if !onFUSE(t, f) {
		t.Fatal("the file is not one that is paged")
	}
	mine, err := unix.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	c.cfg.Mount.Device.SetReadDeadline(time.Unix(1, 0)) // the server ends
	c.served.Wait()
	closed := make(chan error, 1)
	go func() { closed <- unix.Close(mine) }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Second):
		t.Fatal("the file is not closed")
	}
	release()
}

// knowsResend says whether this kernel gives unanswered requests out again (6.9).
func knowsResend(t *testing.T) bool {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	major, rest, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	minor, _, _ := strings.Cut(rest, ".")
	x, _ := strconv.Atoi(major)
	y, _ := strconv.Atoi(minor)
	return x > 6 || x == 6 && y >= 9
}

func FuzzRequest(f *testing.F) {
	f.Add(append([]byte{47, 0, 0, 0, opLookup, 0, 0, 0}, make([]byte, 39)...))
	f.Add(append([]byte{88, 0, 0, 0, opBatchForget, 0, 0, 0}, make([]byte, 80)...))
	f.Add(append([]byte{80, 0, 0, 0, opRead, 0, 0, 0}, make([]byte, 72)...))
	f.Add(append([]byte{104, 0, 0, 0, opInit, 0, 0, 0}, make([]byte, 96)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRequest(b)
		if err != nil {
			return
		}
		if len(r.body.forgets)*16 > len(b) || len(r.body.name) > len(b) {
			t.Errorf("%+v of %d bytes", r, len(b))
		}
		initReply(r.unique, r.body.init)
	})
}
