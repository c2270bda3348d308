//go:build system

package machine

import (
	"bufio"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
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

// Goal: the names can be in an operator's etcd, over TLS, whose loss is like that of quorum, and
// which belongs to one sigmaOS.
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
	store := t.TempDir()
	cert, key := filepath.Join(store, "cert.pem"), filepath.Join(store, "key.pem") // it is its own authority
	plain := []string{"up", "--detach", "--machine", "m1", "--etcd", address}
	up := slices.Concat(plain, []string{"--etcd-ca", cert, "--etcd-cert", cert, "--etcd-key", key})
	fails(s, cert+": cannot be read", up...)
	fails(s, "no etcd answers at "+address, plain...)
	fails(s, "--etcd does not go with --machines", "up", "--machines", "3", "--etcd", address)
	fails(s, "in the clear", "up", "--etcd", "192.0.2.9:2379")
	fails(s, "is not HOST:PORT", "up", "--etcd", "http://"+address)
	kill := startEtcd(t, program, store, address)
	fails(s, "no etcd, or wants certificates", plain...)
	s.Must(t, up...)
	s.Booted(t)
	ctx := testContext(t)
	r := &realm{s.Connect(ctx, t, defaultRealm), t, ctx, s, map[string]string{}}
	if _, err := r.Put(ctx, "/kept", []byte("words\n"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(s.DataDir, "named", "etcd")); err == nil {
		t.Error("there is an etcd of named's own too")
	}
	if st, err := os.Stat(filepath.Join(s.DataDir, "sigmad", "etcd")); err != nil || st.Mode() != fs.FileMode(0o600) {
		t.Errorf("what sigmad is told of it: %v, %v", st, err)
	}
	if _, err := r.Etcd(ctx); sigma.KindOf(err) != sigma.KindPermission || err == nil {
		t.Errorf("its key is told to others than named: %v", err)
	}
	if _, err := r.DialEtcd(ctx, address); sigma.KindOf(err) != sigma.KindPermission || err == nil {
		t.Errorf("others than named are connected to it: %v", err)
	}
	saved := filepath.Join(t.TempDir(), "names")
	s.Must(t, "snapshot", "save", saved)
	stays := r.spawn(r.descriptor("probe.c", "stay"))[0]
	r.started(stays)

	r.remembered("/kept", "words\n")
	kill()
	r.away("/kept", "words\n")
	put := func(path string) error {
		soon, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := r.Put(soon, path, []byte("words\n"), sigma.PutOptions{})
		if soon.Err() != nil {
			t.Fatalf("no answer within the deadline: %v", err)
		}
		return err
	}
	testenv.Eventually(t, "writes fail, and say why", func() error {
		switch err := put("/meanwhile"); {
		case err == nil:
			t.Fatal("a name was made without a store")
		case !strings.Contains(err.Error(), "no etcd answers at "+address):
			return err
		}
		return nil
	})
	kill = startEtcd(t, program, store, address)
	testenv.Eventually(t, "names are made again", func() error { return put("/more") })
	if out := s.Must(t, "cat", "/kept"); out != "words\n" {
		t.Errorf("what was kept before is %q", out)
	}
	if err := r.Kill(ctx, stays); err != nil {
		t.Error(err)
	}
	if st := r.wait(stays); st.Code != sigma.StatusEvicted {
		t.Errorf("a proc that ran all the time ends as %+v", st)
	}

	fails(testenv.New(t, testenv.Options{}), "another sigmaOS", up...)
	s.Down(t)
	fails(s, "which sigmaOS restores nothing", "snapshot", "restore", saved)
	kill()
	fails(s, "no etcd answers at "+address, "up", "--detach") // it is remembered
	startEtcd(t, program, store, address)
	s.Up(t)
	if out := s.Must(t, "cat", "/kept", "/more"); out != "words\nwords\n" {
		t.Errorf("after down and up there is %q", out)
	}
}
