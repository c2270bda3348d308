//go:build system

package machine

import (
	"bufio"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/internal/testenv"
)

// startEtcd runs an operator's etcd until kill is called.
func startEtcd(t *testing.T, program, dir, address string) (kill func()) {
	t.Helper()
	cmd := exec.Command(program, dir, address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	over := false
	kill = func() {
		if !over {
			over = true
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	t.Cleanup(kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		kill()
		t.Fatalf("etcd says %q, %v, %s", line, err, said.String())
	}
	return kill
}

// Goal: the names can be in an etcd of the operator's, whose loss is like that of quorum, and which belongs to one sigmaOS.
func TestExternalEtcd(t *testing.T) {
	s := testenv.New(t, testenv.Options{})
	if _, _, rootless := testenv.RootlessUIDs(); rootless {
		t.Skip("skipped: up --etcd needs root")
	}
	program := program(t, "etcd")
	address := fmt.Sprintf("127.%d.%d.%d:2379", 64+rand.IntN(100), rand.IntN(256), 1+rand.IntN(250)) // nobody else's
	fails := func(s *testenv.System, says string, args ...string) {
		t.Helper()
		if _, stderr, code := s.CLI(t, args...); code == 0 || !strings.Contains(stderr, says) {
			t.Fatalf("sigma %q: exit code %d: %s", args, code, stderr)
		}
	}
	up := []string{"up", "--detach", "--machine", "m1", "--etcd", address}
	fails(s, "no etcd answers at "+address, up...)
	fails(s, "--etcd does not go with --machines", "up", "--machines", "3", "--etcd", address)
	fails(s, "in the clear", "up", "--etcd", "192.0.2.9:2379")
	store, local := t.TempDir(), filepath.Join(t.TempDir(), "words")
	kill := startEtcd(t, program, store, address)
	s.Must(t, up...)
	s.Booted(t)
	if err := os.WriteFile(local, []byte("words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Must(t, "put", local, "/kept")
	if _, err := os.Lstat(filepath.Join(s.DataDir, "named", "etcd")); err == nil {
		t.Error("there is an etcd of named's own too")
	}
	if st, err := os.Stat(filepath.Join(s.DataDir, "sigmad", "etcd")); err != nil || st.Mode() != fs.FileMode(0o600) {
		t.Errorf("what sigmad is told of it: %v, %v", st, err)
	}
	saved := filepath.Join(t.TempDir(), "names")
	s.Must(t, "snapshot", "save", saved)

	kill()
	testenv.Eventually(t, "named says that it may not answer any more", func() error { // it may until its lease is over
		if _, stderr, code := s.CLI(t, "stat", "/kept"); code == 0 || !strings.Contains(stderr, "quorum is lost") {
			return fmt.Errorf("exit code %d: %s", code, stderr)
		}
		return nil
	})
	kill = startEtcd(t, program, store, address)
	testenv.Eventually(t, "the names are back", func() error {
		if out, stderr, code := s.CLI(t, "cat", "/kept"); code != 0 || out != "words\n" {
			return fmt.Errorf("%q: %s", out, stderr)
		}
		return nil
	})
	s.Must(t, "put", local, "/more")

	other := testenv.New(t, testenv.Options{})
	fails(other, "another sigmaOS", up...)

	s.Down(t)
	fails(s, "which sigmaOS restores nothing", "snapshot", "restore", saved)
	s.Up(t) // it is remembered
	if out := s.Must(t, "cat", "/kept", "/more"); out != "words\nwords\n" {
		t.Errorf("after down and up there is %q", out)
	}
}
