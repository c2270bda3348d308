//go:build system

// Package examples runs the programs of examples/ as the guide says, on a real machine, and the SDK
// from a module of another's.
package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute*testenv.Slow())
	t.Cleanup(cancel)
	return ctx
}

func example(t *testing.T, name string) string {
	t.Helper()
	return shared.Program(t, "../../examples/"+name)
}

func TestFunction(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, example(t, "function"))
	for _, x := range []struct {
		args []string
		code sigma.StatusCode
		data string
	}{{[]string{"1", "2", "39"}, sigma.StatusOK, "42"}, {[]string{"one"}, sigma.StatusError, ""},
		{nil, sigma.StatusOK, "0"}} {
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: path, Args: x.args})
		if err != nil {
			t.Fatal(err)
		}
		st, err := c.WaitExit(ctx, ids[0])
		if err != nil || st.Code != x.code || string(st.Data) != x.data {
			t.Errorf("%q: got %v, %q, %v, want %v, %q", x.args, st.Code, st.Data, err, x.code, x.data)
		}
	}
}

// Goal: HTTP runs unchanged between two procs, the client waits for the server's name, and the name
// goes with the server.
func TestServerAndClient(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	server, client := s.Install(ctx, t, c, example(t, "server")), s.Install(ctx, t, c, example(t, "client"))
	clients, err := c.Spawn(ctx, sigma.Descriptor{Program: client, Args: []string{"/hello"}})
	if err != nil {
		t.Fatal(err)
	}
	servers, err := c.Spawn(ctx, sigma.Descriptor{Program: server, Args: []string{"/hello"},
		Start: sigma.StartedByCall})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, clients[0]); err != nil || !st.OK() {
		out, _, _ := c.Get(ctx, "/proc/"+string(clients[0])+"/stderr")
		t.Fatalf("client ended with %v, %v: %s", st, err, out)
	}
	out, _, err := c.Get(ctx, "/proc/"+string(clients[0])+"/stdout")
	if want := "hello /world, this is " + string(servers[0]) + "\n"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
	if err := c.Evict(ctx, servers[0], 0); err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, servers[0]); err != nil || !st.OK() {
		t.Errorf("server ended with %v, %v, want ok, because it heeds the notice", st, err)
	}
	testenv.Eventually(t, "the server's name is gone", func() error {
		if _, err := c.Lstat(ctx, "/hello"); sigma.KindOf(err) != sigma.KindNotFound {
			return sigma.Errorf("examples", sigma.KindOther, "lstat says %v", err)
		}
		return nil
	})
}

func TestWatcher(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, example(t, "watcher"))
	if err := c.Mkdir(ctx, "/watched", 0o755); err != nil {
		t.Fatal(err)
	}
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: path, Args: []string{"/watched"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "stop"} {
		if _, err := c.Put(ctx, "/watched/"+name, nil, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if st, err := c.WaitExit(ctx, ids[0]); err != nil || !st.OK() {
		t.Fatalf("got %v, %v", st, err)
	}
	out, _, err := c.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
	if want := "created a\ncreated b\ncreated stop\n"; err != nil || string(out) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

// Goal: a tree that a proc serves is walked into from the CLI as any directory is, also for
// writing.
func TestTree(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, example(t, "tree"))
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: path, Args: []string{"/mine"}, Start: sigma.StartedByCall})
	if err == nil {
		err = c.WaitStart(ctx, ids[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, want := s.Must(t, "cat", "/mine/greeting"), "served by "+string(ids[0])+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := c.MkdirAll(ctx, "/mine/d/e", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Put(ctx, "/mine/d/e/f", []byte("x"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := s.Must(t, "ls", "/mine/d/e"); got != "f\n" {
		t.Errorf("got %q, want f", got)
	}
	if err := c.Kill(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitExit(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Get(ctx, "/mine/greeting"); err == nil {
		t.Error("the tree of a dead proc can still be read")
	}
}

// Goal: the guide's way to use the SDK from a module outside this repository works.
func TestModuleOutside(t *testing.T) {
	s := shared.Get(t)
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod": "module example.org/mine\n\ngo 1.26\n\nrequire sigmaos.dev v0.0.0\n\nreplace sigmaos.dev => " + root +
			"\n",
		"go.sum": string(sums),
		"main.go": `package main

import (
	"context"
	"fmt"
	"os"

	"sigmaos.dev/sdk"
)

func main() {
	ctx := context.Background()
	c, err := sdk.Connect(ctx, os.Args[1], "default")
	if err == nil {
		var st any
		st, err = c.Stat(ctx, "/bin")
		fmt.Println(st != nil)
	}
	if err != nil {
		panic(err)
	}
}
`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "run", ".", s.Socket())
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "true\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
