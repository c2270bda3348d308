//go:build system

package mount

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// What open(2), rename(2) and the like promise holds, and what is refused has the errno that
// programs expect.
func TestFiles(t *testing.T) {
	top, work := mounted(t, shared.Get(t))
	at := func(name string) string { return filepath.Join(work, name) }
	write := func(name, data string) { t.Helper(); must(t, os.WriteFile(at(name), []byte(data), 0o644)) }
	read := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(at(name)); err != nil || string(got) != want {
			t.Errorf("%s has %.100q, %v, want %.100q", name, got, err, want)
		}
	}
	refused := func(what string, err error, want syscall.Errno) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	write("f", "abc")
	must(t, os.Mkdir(at("d"), 0o700))
	write("d/x", "x")

	_, err := os.OpenFile(at("f"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	refused("O_EXCL", err, syscall.EEXIST)
	refused("rmdir of a full directory", syscall.Rmdir(at("d")), syscall.ENOTEMPTY)
	refused("unlink of a directory", syscall.Unlink(at("d")), syscall.EISDIR)
	refused("rename of a file over a directory", os.Rename(at("f"), at("d")), syscall.EEXIST)
	refused("RENAME_NOREPLACE", unix.Renameat2(unix.AT_FDCWD, at("d/x"), unix.AT_FDCWD, at("f"), unix.RENAME_NOREPLACE),
		syscall.EEXIST)
	refused("a name of 256 bytes", os.WriteFile(at(strings.Repeat("n", 256)), nil, 0o600), syscall.ENAMETOOLONG)
	refused("a hard link", os.Link(at("f"), at("g")), syscall.EPERM)
	refused("a FIFO", unix.Mkfifo(at("g"), 0o600), syscall.EPERM)
	must(t, unix.Mknod(at("g"), unix.S_IFREG|0o640, 0))
	if st, err := os.Stat(at("g")); err != nil || st.Mode() != 0o640 {
		t.Errorf("mknod of a file made %v, %v", st, err)
	}
	refused("a rename to another server", os.Rename(at("f"), filepath.Join(top, "elsewhere")), syscall.EXDEV)
	refused("making a machine's directory", os.Mkdir(filepath.Join(top, "ux/m99"), 0o700), syscall.EACCES)
	refused("chown", os.Chown(at("f"), 12345, -1), syscall.EPERM)
	read("f", "abc")

	must(t, os.Rename(at("d/x"), at("f")))
	read("f", "x")
	must(t, os.Truncate(at("f"), 5))
	read("f", "x\x00\x00\x00\x00")
	a, err := os.OpenFile(at("f"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	b, err := os.OpenFile(at("f"), os.O_APPEND|os.O_WRONLY, 0)
	must(t, err)
	for i := range 10 {
		fmt.Fprintf([]*os.File{a, b}[i%2], "%d", i)
	}
	read("f", "x\x00\x00\x00\x000123456789")

	when := time.Unix(1_300_000_000, 123_456_789)
	must(t, os.Chtimes(at("f"), when, when))
	before := changeTime(t, at("f"))
	must(t, os.Chmod(at("f"), 0o751))
	if !changeTime(t, at("f")).After(before) {
		t.Error("chmod does not move the time of change")
	}
	st, err := os.Stat(at("f"))
	must(t, err)
	if !st.ModTime().Equal(when) || st.Mode() != 0o751 {
		t.Errorf("time %v and mode %v, want %v and 0751", st.ModTime(), st.Mode(), when)
	}
	must(t, os.Remove(at("f")))
	if _, err := a.WriteString("more"); err != nil {
		t.Errorf("a write to an open file that was removed: %v", err)
	}
	a.Close()
	b.Close()
	var fs unix.Statfs_t
	if err := unix.Statfs(work, &fs); err != nil || fs.Namelen != 255 || fs.Blocks == 0 || fs.Bavail == 0 ||
		fs.Bavail > fs.Blocks {
		t.Errorf("statfs: %+v, %v", fs, err)
	}
}

// Links lead where they lead in the realm, and never to the host's files.
func TestLinks(t *testing.T) {
	s := shared.Get(t)
	top, work := mounted(t, s)
	must(t, os.WriteFile(filepath.Join(work, "f"), []byte("here"), 0o644))
	must(t, os.Mkdir(filepath.Join(work, "d"), 0o755))
	for _, c := range []struct{ link, target, reads string }{
		{"same", "f", "f"},
		{"d/up", "../f", filepath.Join(work, "f")}, // the kernel is not told to climb
		{"whole", filepath.Join(work, "f"), filepath.Join(work, "f")},
	} {
		must(t, os.Symlink(c.target, filepath.Join(work, c.link)))
		if got, err := os.ReadFile(filepath.Join(work, c.link)); err != nil || string(got) != "here" {
			t.Errorf("%s -> %s: %q, %v", c.link, c.target, got, err)
		}
		if got, err := os.Readlink(filepath.Join(work, c.link)); err != nil || got != c.reads {
			t.Errorf("%s reads as %q, %v, want %q", c.link, got, err, c.reads)
		}
	}
	must(t, os.Symlink("/etc/passwd", filepath.Join(work, "out")))
	if got, err := os.Readlink(filepath.Join(work, "out")); err != nil || got != filepath.Join(top, "etc/passwd") {
		t.Errorf("a link to /etc/passwd reads as %q, %v", got, err)
	}
	must(t, os.Symlink("d/../"+strings.Repeat("../", 30)+"etc/passwd", filepath.Join(work, "up")))
	if got, err := os.ReadFile(filepath.Join(work, "up")); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a link that climbs out gave %.100q, %v", got, err)
	}
	if got := s.Must(t, "cat", "/ux/~local/"+t.Name()+"/whole"); got != "here" {
		t.Errorf("in the realm the link leads to %q", got)
	}
}

// Where links are trusted tar and rsync take them out as they were put in.
func TestTrustedLinks(t *testing.T) {
	need(t, "tar", "rsync")
	s := shared.Get(t)
	top := mountAt(t, s, filepath.Join(t.TempDir(), "m"), "--trust-links")
	work := filepath.Join(top, "ux/~local", t.Name())
	t.Cleanup(func() { s.CLI(t, "rm", "-r", "/ux/~local/"+t.Name()) })
	src := t.TempDir()
	must(t, os.Mkdir(filepath.Join(src, "d"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "f"), []byte("text"), 0o644))
	for link, target := range map[string]string{"same": "f", "d/up": "../f", "whole": "/etc/passwd",
		"inside": filepath.Join(work, "f"), "away": "../../../x", "round": "d/../d/../f"} {
		must(t, os.Symlink(target, filepath.Join(src, link)))
	}
	run(t, src, "rsync", "-aJ", src+"/", work) // but for links' times, which are not kept
	if got, err := os.Readlink(filepath.Join(work, "whole")); got != "/etc/passwd" {
		t.Errorf("the link reads as %q, %v", got, err)
	}
	if out := run(t, src, "rsync", "-aJ", "-n", "-i", "--checksum", "--delete", src+"/", work); out != "" {
		t.Errorf("what is there differs: %s", out)
	}
	back := t.TempDir()
	run(t, src, "tar", "cf", filepath.Join(back, "tar"), "-C", work, ".")
	must(t, os.Mkdir(filepath.Join(back, "out"), 0o755))
	run(t, src, "tar", "xf", filepath.Join(back, "tar"), "-C", filepath.Join(back, "out"))
	if out := run(t, src, "rsync", "-aJ", "-n", "-i", "--checksum", "--delete", src+"/",
		filepath.Join(back, "out")); out != "" {
		t.Errorf("what came back by tar differs: %s", out)
	}
}

// Names are bytes, and a large directory is listed whole, each name once.
func TestNames(t *testing.T) {
	_, work := mounted(t, shared.Get(t))
	for c := 1; c < 256; c++ {
		if c != '/' {
			must(t, os.WriteFile(filepath.Join(work, "x"+string([]byte{byte(c)})), nil, 0o644))
		}
	}
	entries, err := os.ReadDir(work)
	if err != nil || len(entries) != 254 {
		t.Errorf("%d names, %v, want 254", len(entries), err)
	}
	many := 3000
	if os.Getenv("SIGMA_TEST_MOUNT") == "full" {
		many = 100_000
	}
	dir := filepath.Join(work, "many")
	must(t, os.Mkdir(dir, 0o755))
	for i := range many {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d", i)), nil, 0o644))
	}
	d, err := os.Open(dir)
	must(t, err)
	defer d.Close()
	seen := map[string]bool{}
	for {
		names, err := d.Readdirnames(100)
		for _, n := range names {
			if seen[n] {
				t.Fatalf("%s is listed twice", n)
			}
			seen[n] = true
		}
		if err == io.EOF {
			break
		}
		must(t, err)
	}
	if len(seen) != many {
		t.Errorf("%d names, want %d", len(seen), many)
	}
}

// Locks hold between programs on the mount, and mapped memory is the file's.
func TestLocksAndMaps(t *testing.T) {
	_, work := mounted(t, shared.Get(t))
	name := filepath.Join(work, "f")
	must(t, os.WriteFile(name, make([]byte, 1<<16), 0o644))
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := open(), open()
	must(t, unix.Flock(int(a.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	if err := unix.Flock(int(b.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("a second flock: %v", err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 10}
	must(t, unix.FcntlFlock(a.Fd(), unix.F_OFD_SETLK, &lock))
	if err := unix.FcntlFlock(b.Fd(), unix.F_OFD_SETLK, &lock); err != unix.EAGAIN {
		t.Errorf("a second fcntl lock: %v", err)
	}
	for _, how := range []int{unix.MAP_SHARED, unix.MAP_PRIVATE} {
		m, err := unix.Mmap(int(a.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, how)
		must(t, err)
		copy(m[5000:], "mapped")
		if how == unix.MAP_SHARED {
			must(t, unix.Msync(m, unix.MS_SYNC))
		}
		must(t, unix.Munmap(m))
	}
	if out := shared.Get(t).Must(t, "cat", "/ux/~local/"+t.Name()+"/f"); !strings.HasPrefix(out[5000:], "mapped") {
		t.Errorf("what was written to shared memory is not in the file")
	}
}

// A change elsewhere that leaves the size as it was, of mode, time or bytes, is seen.
func TestChangesOfOneSizeElsewhere(t *testing.T) {
	s := shared.Get(t)
	_, work := mounted(t, s)
	name, path := filepath.Join(work, "f"), "/ux/~local/"+t.Name()+"/f"
	must(t, os.WriteFile(name, []byte("one"), 0o644))
	shows := func(what string, is func(fs.FileInfo) bool) {
		t.Helper()
		testenv.Eventually(t, "the mount shows "+what, func() error {
			st, err := os.Stat(name)
			if err == nil && !is(st) {
				err = fmt.Errorf("%v %d %v", st.Mode(), st.Size(), st.ModTime())
			}
			return err
		})
	}
	at := time.Now().Add(-time.Hour).Truncate(time.Second)
	must(t, os.Chtimes(name, at, at))
	shows("the time that was set", func(st fs.FileInfo) bool { return st.ModTime().Equal(at) })
	s.Must(t, "chmod", "600", path)
	shows("the mode", func(st fs.FileInfo) bool { return st.Mode() == 0o600 })
	_, err := s.Connect(testContext(t), t, "default").Put(testContext(t), path, []byte("two"), sigma.PutOptions{})
	must(t, err)
	shows("the time of the change", func(st fs.FileInfo) bool { return st.ModTime().After(at) && st.Size() == 3 })
	got, err := os.ReadFile(name)
	must(t, err)
	if string(got) != "two" {
		t.Errorf("it reads as %q", got)
	}
}

// What is done elsewhere is seen within the time that the page says, also by who has the file open
// already; tail -f shows lines as they come.
func TestChangesElsewhere(t *testing.T) {
	need(t, "tail")
	s := shared.Get(t)
	_, work := mounted(t, s)
	name, path := filepath.Join(work, "log"), "/ux/~local/"+t.Name()+"/log"
	must(t, os.WriteFile(name, []byte("one\n"), 0o644))
	tail := exec.CommandContext(testContext(t), "tail", "-s", "0.2", "-f", name)
	out, err := tail.StdoutPipe()
	must(t, err)
	must(t, tail.Start())
	defer func() { tail.Process.Kill(); tail.Wait() }()
	lines := bufio.NewScanner(out)
	next := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Errorf("tail shows %q, want %q", lines.Text(), want)
		}
	}
	next("one")
	c := s.Connect(testContext(t), t, "default")
	f, err := c.Open(testContext(t), path, 2|16)
	must(t, err)
	_, err = f.Write([]byte("two\n"))
	must(t, err)
	next("two")
	must(t, f.Close())
	s.Must(t, "rm", path)
	testenv.Eventually(t, "the mount knows that the file was removed", func() error {
		if _, err := os.Stat(name); !os.IsNotExist(err) {
			return fmt.Errorf("stat: %v", err)
		}
		return nil
	})
}

// Objects are written whole: what is closed is there, and what the store cannot do is refused.
func TestObjects(t *testing.T) {
	s := shared.Get(t)
	top, _ := mounted(t, s)
	s.Must(t, "mkdir", "/s3/mounted")
	defer s.Must(t, "rm", "-r", "/s3/mounted")
	name := filepath.Join(top, "s3/mounted/object")
	must(t, os.WriteFile(name, []byte(strings.Repeat("object\n", 100_000)), 0o644))
	if got := s.Must(t, "cat", "/s3/mounted/object"); len(got) != 700_000 {
		t.Errorf("%d bytes are stored, want 700000", len(got))
	}
	if got, err := os.ReadFile(name); err != nil || len(got) != 700_000 {
		t.Errorf("%d bytes are read, %v", len(got), err)
	}
	if f, err := os.OpenFile(name, os.O_RDWR, 0); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("opened for changing: %v, %v", f, err)
	}
}

// A large file, which is read by its descriptor, is the same file for those who write to it
// meanwhile, and for those who come later.
func TestLargeFile(t *testing.T) {
	_, work := mounted(t, shared.Get(t))
	name := filepath.Join(work, "large")
	data := make([]byte, 5<<20+123)
	rand.NewChaCha8([32]byte{1}).Read(data)
	must(t, os.WriteFile(name, data, 0o644))
	same := func(what string, f io.ReaderAt) {
		t.Helper()
		got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%s: %d bytes, %v, want %d, and the same", what, len(got), err, len(data))
		}
	}
	open := func(flags int) *os.File {
		t.Helper()
		f, err := os.OpenFile(name, flags, 0)
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	write := func(f *os.File, at int64) {
		t.Helper()
		copy(data[at:], "written meanwhile")
		_, err := f.WriteAt([]byte("written meanwhile"), at)
		must(t, err)
	}
	reader := open(os.O_RDONLY)
	same("read", reader)
	writer := open(os.O_RDWR)
	write(writer, 1<<20)
	same("read while it is written", reader)
	same("read by the writer", writer)
	mapped, err := unix.Mmap(int(reader.Fd()), 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	if !bytes.Equal(mapped, data) {
		t.Error("mapped memory is not the file")
	}
	must(t, unix.Munmap(mapped))
	must(t, reader.Close())
	write(writer, 2<<20)
	late := open(os.O_RDONLY)
	write(writer, 3<<20)
	must(t, writer.Close())
	same("read by who came while it was written", late)
	must(t, late.Close())
	data = data[:1<<20]
	must(t, os.Truncate(name, int64(len(data))))
	same("read when it was cut", open(os.O_RDONLY))
}

// An ordinary user's mounts are as root's, but that the kernel does not read passed descriptors by
// itself, and that fusermount3 mounts.
func TestOrdinaryUser(t *testing.T) {
	if _, _, inside := testenv.RootlessUIDs(); inside {
		t.Skip("skipped: this is the ordinary user")
	}
	testenv.Rootless(t, "^Test(LargeFile|Links|LocksAndMaps|SQLite|KilledMount)$", "")
}

func changeTime(t *testing.T, name string) time.Time {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(name, &st))
	return time.Unix(st.Ctim.Unix())
}

// A file that is removed, or replaced, while it is open is a file for those who have it open,
// wherever it was.
func TestRemovedWhileOpen(t *testing.T) {
	s := shared.Get(t)
	top, scratch := mounted(t, s)
	objects, _ := bucket(t)
	names := filepath.Join(top, t.Name())
	must(t, os.Mkdir(names, 0o755))
	t.Cleanup(func() { s.CLI(t, "rm", "-r", "/"+t.Name()) })
	for _, dir := range []string{scratch, names, objects} {
		t.Run(strings.Split(strings.TrimPrefix(dir, top), "/")[1], func(t *testing.T) {
			removedWhileOpen(t, dir, dir == objects)
		})
	}
}

func removedWhileOpen(t *testing.T, dir string, object bool) {
	at := func(name string) string { return filepath.Join(dir, name) }
	f, err := os.OpenFile(at("f"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	must(t, err)
	defer f.Close()
	_, err = f.WriteString("hello")
	must(t, err)
	must(t, os.Remove(at("f")))
	_, err = f.WriteString(" more")
	must(t, err)
	buf := make([]byte, 100)
	if n, err := f.ReadAt(buf, 0); string(buf[:n]) != "hello more" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	if off, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE); off != 10 || err != nil {
		t.Errorf("the hole is at %d, %v", off, err)
	}
	if !object { // an object has no attributes, and one that was never published is nobody's but its writer's
		must(t, f.Chmod(0o600))
		must(t, unix.Futimes(int(f.Fd()), []unix.Timeval{{Sec: 1}, {Sec: 2}}))
		again, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
		if err != nil || string(again) != "hello more" {
			t.Errorf("opened again: %q, %v", again, err)
		}
	}
	must(t, f.Sync())
	must(t, f.Truncate(3))
	var st unix.Stat_t
	must(t, unix.Fstat(int(f.Fd()), &st))
	if st.Size != 3 || st.Nlink != 0 || !object && (st.Mode&0o777 != 0o600) {
		t.Errorf("fstat: %+v, want 3 bytes, no link and mode 0600", st)
	}
	var fs unix.Statfs_t
	must(t, unix.Fstatfs(int(f.Fd()), &fs))

	must(t, os.WriteFile(at("old"), []byte("old"), 0o644))
	must(t, os.WriteFile(at("new"), []byte("new"), 0o644))
	r, err := os.Open(at("old"))
	must(t, err)
	defer r.Close()
	must(t, os.Rename(at("new"), at("old")))
	if got, err := io.ReadAll(r); err != nil || string(got) != "old" {
		t.Errorf("who has what was replaced reads %q, %v", got, err)
	}
	if got, err := os.ReadFile(at("old")); err != nil || string(got) != "new" {
		t.Errorf("what replaced it is %q, %v", got, err)
	}
}

// Goal: a sparse file takes the blocks that it takes on the disk, for who has it open and for
// others.
func TestSparseFile(t *testing.T) {
	_, work := mounted(t, shared.Get(t))
	f, err := os.Create(filepath.Join(work, "sparse"))
	must(t, err)
	defer f.Close()
	_, err = f.WriteAt(make([]byte, 4096), 64<<20)
	must(t, err)
	must(t, f.Sync())
	same := func(who string) {
		t.Helper()
		var st unix.Statx_t
		must(t, unix.Statx(unix.AT_FDCWD, f.Name(), unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS,
			&st)) // not what the kernel remembers
		if st.Size != 64<<20+4096 || st.Blocks < 8 || st.Blocks > 2048 {
			t.Errorf("%s: %d bytes in %d blocks of 512", who, st.Size, st.Blocks)
		}
	}
	same("open")
	must(t, f.Close())
	same("closed")
}
