//go:build system

package cluster

import (
	"os/exec"
	"path/filepath"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// Goal: whoever decided when a snapshot was taken, and wherever it was asked for, it is restored on
// any control machine and on a fresh one, and objects and databases that were copied back as root
// are there again without a hand on their owners. Method: of three control machines, of which m1
// decides, m1 and m3 go for good; m2, which has never decided, and a fresh machine begin with the
// snapshot and with the stores of m1.
func TestRestoreAnywhere(t *testing.T) {
	t.Parallel()
	c := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3})
	m1, m3 := c.Machine(0), c.Machine(2)
	source, snapshot := filepath.Join(t.TempDir(), "source"), filepath.Join(t.TempDir(), "names")
	must(t, exec.Command("sh", "-c", "echo kept > "+source).Run())
	m1.Must(t, "put", source, "/kept")
	m1.Must(t, "mkdir", "/s3/books")
	m1.Must(t, "put", source, "/s3/books/kept")
	m1.Must(t, "sql", "create", "accounts")
	m1.Must(t, "sql", "accounts", "create table t as select 'kept' as word")
	m3.Must(t, "snapshot", "save", snapshot)
	m3.Down(t)
	m1.Down(t)
	must(t, c.Machine(1).Kill()) // it could do nothing alone
	m2, fresh := c.Machine(1), testenv.New(t, testenv.Options{Machine: "other"})
	m2.WaitStopped(t)
	m2.Must(t, "snapshot", "restore", "--replace", snapshot)
	fresh.Must(t, "snapshot", "restore", snapshot)
	for _, s := range []*testenv.System{m2.System, fresh} {
		for _, store := range []string{"s3d", "dbd"} { // cp does not keep owners
			must(t, exec.Command("cp", "-r", filepath.Join(m1.DataDir, store), s.DataDir).Run())
		}
	}
	must(t, m2.Boot())
	fresh.Up(t)
	for _, s := range []*testenv.System{m2.System, fresh} {
		for _, path := range []string{"/kept", "/s3/books/kept"} {
			if got := s.Must(t, "cat", path); got != "kept\n" {
				t.Errorf("%s: %s has %q", s.DataDir, path, got)
			}
		}
		if got := s.Must(t, "sql", "accounts", "--csv", "select word from t"); got != "word\nkept\n" {
			t.Errorf("%s: the database has %q", s.DataDir, got)
		}
	}
	if got := m2.Must(t, "machine", "ls", "-q"); got != "m2\n" {
		t.Errorf("the machines are %q", got)
	}
}
