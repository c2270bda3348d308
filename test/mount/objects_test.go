//go:build system

package mount

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// bucket makes a bucket for this test below a mount.
func bucket(t *testing.T) (dir, path string) {
	t.Helper()
	s := shared.Get(t)
	top := mountAt(t, s, filepath.Join(t.TempDir(), "m"))
	path = "/s3/" + strings.ToLower(t.Name())
	s.Must(t, "mkdir", path)
	t.Cleanup(func() { s.CLI(t, "rm", "-r", path) })
	return filepath.Join(top, path), path
}

// Goal: whatever a program leaves when it has closed a file is the object, for programs elsewhere
// at once. Method: lines of a shell, after each of which the realm is asked behind the mount's
// back.
func TestClosesPublish(t *testing.T) {
	s := shared.Get(t)
	dir, path := bucket(t)
	for _, c := range []struct{ name, line, want string }{
		{"made", `: > made`, ""},
		{"copied", `: > /tmp/$$.empty; cp /tmp/$$.empty copied; rm /tmp/$$.empty`, ""},
		{"touched", `touch touched`, ""},
		{"renamed", `touch f; mv f renamed`, ""},
		{"emptied", `echo full > emptied; : > emptied`, ""},
		{"renamed-open", `exec 3> f; echo one >&3; mv f renamed-open; echo two >&3`, "one\ntwo\n"},
		{"forked", `{ echo a; /bin/true; echo b; } > forked`, "a\nb\n"},
		{"children", `{ for i in 1 2 3; do sh -c "echo $i"; done; } > children`, "1\n2\n3\n"},
		{"appended", `{ echo a; /bin/true; echo b; /bin/true; } >> appended`, "a\nb\n"},
		{"synced", `{ echo a; sync synced; echo b; } > synced`, "a\nb\n"},
		{"read-meanwhile", `{ echo a; cat read-meanwhile >&2; echo b; } > read-meanwhile`, "a\nb\n"},
		{"replaced", `echo old > replaced; exec 3> replaced; echo new > n; mv n replaced; echo late >&3`, "new\n"},
		{"replaced-later",
			// the kernel looks it up again
			`echo old > replaced-later; exec 3> replaced-later; /bin/true; sleep 1.2; echo new > n; mv n replaced-later; echo late >&3`, "new\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, dir, "bash", "-e", "-c", c.line)
			if got := s.Must(t, "cat", path+"/"+c.name); got != c.want {
				t.Errorf("%s left %q, want %q", c.line, got, c.want)
			}
			if got, err := os.ReadFile(filepath.Join(dir, c.name)); err != nil || string(got) != c.want {
				t.Errorf("%s left %q below the mount, %v, want %q", c.line, got, err, c.want)
			}
		})
	}
	run(t, dir, "bash", "-e", "-c", `exec 3> never; echo x >&3; rm never; echo y >&3`)
	if out, _, code := s.CLI(t, "cat", path+"/never"); code == 0 {
		t.Errorf("a file that was removed while it was written is an object: %q", out)
	}
}

// A descriptor of an object reads what was written through it, after the close of a duplicate and
// after the object's removal too.
func TestObjectStaysOpen(t *testing.T) {
	dir, _ := bucket(t)
	name := filepath.Join(dir, "f")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	defer f.Close()
	child := func() { // whose exit closes a duplicate
		cmd := exec.Command("/bin/true")
		cmd.ExtraFiles = []*os.File{f}
		must(t, cmd.Run())
	}
	same := func(want string) {
		t.Helper()
		got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<20))
		st, serr := f.Stat()
		if err != nil || serr != nil || string(got) != want || st.Size() != int64(len(want)) {
			t.Errorf("%q, %v, %v, %v, want %q", got, err, st, serr, want)
		}
	}
	write := func(text string, at int64) {
		t.Helper()
		_, err := f.WriteAt([]byte(text), at)
		must(t, err)
	}
	write("one two", 0)
	child()
	same("one two")
	write("2", 4)
	same("one 2wo")
	child()
	must(t, os.Remove(name))
	same("one 2wo")
	write("three", 8)
	same("one 2wo\x00three")
	must(t, f.Truncate(3))
	same("one")
}

// Goal: a tree that went through objects is the tree, and one that went through scratch storage
// has its links, modes and times too. Method: cp -r and tar there and back, compared by diff(1)
// and by what find(1) prints.
func TestRoundTrips(t *testing.T) {
	need(t, "cp", "diff", "tar", "find")
	objects, _ := bucket(t)
	_, scratch := mounted(t, shared.Get(t))
	src := t.TempDir()
	run(t, src, "bash", "-e", "-c",
		`mkdir -p a/b 'with space' empty; echo text > a/b/f; : > a/b/empty; : > 'with space/ lead'; echo x > $'new\nline'; echo y > -dash; echo z > $'\xff\xfe'; echo q > 'quote"'\''*?'
		head -c 300000 /dev/urandom > a/large; echo dots > ...; printf 'no newline' > ä`)
	// Objects have no modes and times of their own: tar is told to leave them.
	for _, how := range []string{`cp -r "$1" "$2"`,
		`mkdir "$2"; tar -C "$1" -cf - . | tar -C "$2" -xmf - --no-same-permissions --no-same-owner`} {
		there, again := filepath.Join(objects, "there"), filepath.Join(t.TempDir(), "again")
		run(t, src, "bash", "-e", "-o", "pipefail", "-c", how, "-", src, there)
		run(t, src, "bash", "-e", "-o", "pipefail", "-c", how, "-", there, again)
		run(t, src, "diff", "-r", "--", src, there)
		run(t, src, "diff", "-r", "--", src, again)
		must(t, os.RemoveAll(there))
	}

	run(t, src, "bash", "-e", "-c",
		`ln -s a/b/f rel; ln -s nowhere dangling; chmod 600 a/large; chmod 750 a; touch -d '2001-02-03 04:05:06.789' a/b/f; touch -d 2002-02-02 a`)
	list := func(dir string) string {
		return run(t, dir, "bash", "-c",
			`find . -mindepth 1 ! -type l -printf '%P %y %m %s %T@\n' -o -printf '%P %l\n' | sed 's/^\(.* d [0-7]*\) [0-9]* /\1 /' | LC_ALL=C sort`)
	}
	want := list(src)
	for _, how := range []string{`cp -a "$1" "$2"`,
		`mkdir "$2"; tar --format=pax -C "$1" -cf - . | tar -C "$2" -xpf -`} {
		there, again := filepath.Join(scratch, "there"), filepath.Join(t.TempDir(), "again")
		run(t, src, "bash", "-e", "-o", "pipefail", "-c", how, "-", src, there)
		run(t, src, "bash", "-e", "-o", "pipefail", "-c", how, "-", there, again)
		for _, dir := range []string{there, again} {
			run(t, src, "diff", "-r", "--no-dereference", "--", src, dir)
			if got := list(dir); got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", how, got, want)
			}
		}
		must(t, os.RemoveAll(there))
	}
}
