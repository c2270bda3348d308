//go:build system

package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: a leader that stood still while another was elected can change nothing any more, wherever
// its state is: with named, in the scratch storage, in the object store, in a tenant's tree, which
// learned of the new epoch only by the new leader's requests. Method: one that does not listen is
// frozen until its successor has worked, and then thawed.
func TestLeader(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	spawn := func(program string, args ...string) sigma.ProcID {
		t.Helper()
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: program, Args: args, Start: sigma.StartedByCall})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Kill(context.WithoutCancel(ctx), ids[0]) })
		return ids[0]
	}
	started := func(id sigma.ProcID) {
		t.Helper()
		if err := c.WaitStart(ctx, id); err != nil {
			out, _, _ := c.Get(ctx, "/proc/"+string(id)+"/stderr")
			t.Fatalf("%v: %s", err, out)
		}
	}
	started(spawn(s.Install(ctx, t, c, example(t, "tree")), "/election-tree"))
	dirs := []string{"/election/state", "/ux/~local/election", "/s3/election/state", "/election-tree/state"}
	for _, dir := range dirs {
		if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	leader := s.Install(ctx, t, c, example(t, "leader"))
	args := append([]string{"-ttl", "3s"}, append([]string{"/election/leader"}, dirs...)...)
	old := spawn(leader, append([]string{"-stubborn"}, args...)...)
	started(old)
	next := spawn(leader, args...)
	if err := c.Freeze(ctx, old); err != nil {
		t.Fatal(err)
	}
	started(next)
	if err := c.Thaw(ctx, old); err != nil {
		t.Fatal(err)
	}
	st, err := c.WaitExit(ctx, old)
	out, _, _ := c.Get(ctx, "/proc/"+string(old)+"/stdout")
	said, _, _ := c.Get(ctx, "/proc/"+string(old)+"/stderr")
	if err != nil || !st.OK() {
		t.Fatalf("the old leader ended with %v, %v: %s%s", st, err, out, said)
	}
	for _, dir := range dirs {
		for _, change := range []string{"put", "write", "rename", "mkdir", "remove"} {
			if !strings.Contains(string(out), dir+": "+change+": ") {
				t.Errorf("%s: %s was not refused", dir, change)
			}
		}
		for _, name := range []string{"state", "written", "latest"} {
			data, _, err := c.Get(ctx, dir+"/"+name)
			for err == nil && len(data) == 0 && ctx.Err() == nil { // the leader truncates it, then writes
				data, _, err = c.Get(ctx, dir+"/"+name)
			}
			if want := fmt.Sprintf("epoch 2 by %s\n", next); err != nil || string(data) != want {
				t.Errorf("%s/%s: got %q, %v, want %q", dir, name, data, err, want)
			}
		}
	}
	if data, _, err := c.Get(ctx, "/election/leader"); err != nil || string(data) != string(next) {
		t.Errorf("the leader is %q, %v", data, err)
	}
	if err := c.Evict(ctx, next, 0); err != nil {
		t.Fatal(err)
	}
	if st, err := c.WaitExit(ctx, next); err != nil || st.Code != sigma.StatusEvicted || st.ExitCode != 0 {
		t.Errorf("the new leader ended with %v, %v", st, err)
	}
	if _, err := c.Stat(ctx, "/election/leader"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("the leader that went left its file: %v", err)
	}
}

// Goal: the program of the guide's section on leaders is one, and what it says is so.
func TestLeaderOfGuide(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs/guide/sdk.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(guide), "\n## Leaders\n")
	_, block, found := strings.Cut(section, "\n```go\n")
	text, _, _ := strings.Cut(block, "```")
	if !found {
		t.Fatal("the guide has no such section")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(dir, "guide-leader"), file)
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	program := s.Install(ctx, t, c, filepath.Join(dir, "guide-leader"))
	for _, dir := range []string{"/kv/state", "/s3/kv"} {
		if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for epoch := 1; epoch <= 2; epoch++ {
		ids, err := c.Spawn(ctx, sigma.Descriptor{Program: program})
		if err != nil {
			t.Fatal(err)
		}
		st, err := c.WaitExit(ctx, ids[0])
		out, _, _ := c.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
		if err != nil || !st.OK() || string(out) != fmt.Sprintf("leads at epoch %d\n", epoch) {
			said, _, _ := c.Get(ctx, "/proc/"+string(ids[0])+"/stderr")
			t.Fatalf("got %q, %s, %v, %v", out, said, st, err)
		}
		if state, _, err := c.Get(ctx, "/s3/kv/state"); err != nil || string(state) != "by "+string(ids[0]) {
			t.Errorf("the state is %q, %v", state, err)
		}
	}
}
