//go:build system

// Package hostile gives a machine what it must survive: descriptors that ask for what nobody has,
// programs that change under a spawn, an object store that stands still or has lost half of an
// object, and a machine without memory, processes, disk or inodes. Each time spawners get clear
// errors, procs that run live on, and the system recovers.
//
// Where a test fills the machine it fills a small one: a file system of its own for the data, or a
// limit on the system's cgroups.
package hostile

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

var shared testenv.Shared

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// testMax bounds each test.
const testMax = 5 * time.Minute

const (
	probe = "../machine/testdata/probe.c"
	hello = "../machine/testdata/hello.c"
)

// tenant is a client of a system with what the tests do.
type tenant struct {
	*sdk.Client
	t     *testing.T
	ctx   context.Context
	s     *testenv.System
	probe string // its path in the realm
}

// newTenant connects to the default realm, where the probe is installed, whose procs end with the
// test.
func newTenant(t *testing.T, s *testenv.System) *tenant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testMax)
	t.Cleanup(cancel)
	x := &tenant{s.Connect(ctx, t, sigma.DefaultRealm), t, ctx, s, ""}
	x.probe = s.Install(ctx, t, x.Client, shared.Program(t, probe))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testMax) // the test's own is over
		defer cancel()
		list, _ := x.List(ctx, false)
		for _, p := range list {
			x.Kill(ctx, p.ID)
			x.WaitExit(ctx, p.ID)
		}
	})
	return x
}

func (x *tenant) descriptor(args ...string) sigma.Descriptor {
	return sigma.Descriptor{Program: x.probe, Args: args, Memory: 8 * sigma.MiB}
}

func (x *tenant) spawn(ds ...sigma.Descriptor) []sigma.ProcID {
	x.t.Helper()
	ids, err := x.Spawn(x.ctx, ds...)
	if err != nil {
		x.t.Fatalf("spawn: %v", err)
	}
	return ids
}

func (x *tenant) wait(id sigma.ProcID) sigma.Status {
	x.t.Helper()
	st, err := x.WaitExit(x.ctx, id)
	if err != nil {
		x.t.Fatalf("wait for the end of %s: %v", id, err)
	}
	return st
}

// running starts a proc that stays, and checks at the test's end that nothing has happened to it.
func (x *tenant) running() {
	x.t.Helper()
	id := x.spawn(x.descriptor("stay"))[0]
	if err := x.WaitStart(x.ctx, id); err != nil {
		x.t.Fatal(err)
	}
	x.t.Cleanup(func() {
		list, err := x.List(context.WithoutCancel(x.ctx), false)
		for _, p := range list {
			if p.ID == id && p.State == sigma.ProcRunning {
				return
			}
		}
		x.t.Errorf("the proc that ran before has not lived on: %v", err)
	})
}

// works runs a proc and uses names, objects and scratch files.
func (x *tenant) works() {
	x.t.Helper()
	testenv.Eventually(x.t, "the system works", func() error {
		for _, path := range []string{"/works", "/s3/works/file", "/ux/~local/works"} {
			if dir := path[:strings.LastIndexByte(path, '/')]; dir != "" {
				if err := x.MkdirAll(x.ctx, dir, 0o755); err != nil {
					return err
				}
			}
			if _, err := x.Put(x.ctx, path, []byte("text"), sigma.PutOptions{}); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if b, _, err := x.Get(x.ctx, path); err != nil || string(b) != "text" {
				return fmt.Errorf("%s has %q: %w", path, b, err)
			}
			if err := x.Remove(x.ctx, path); err != nil {
				return err
			}
		}
		ids, err := x.Spawn(x.ctx, x.descriptor("exit", "3"))
		if err != nil {
			return err
		}
		if st, err := x.WaitExit(x.ctx, ids[0]); err != nil || st.ExitCode != 3 {
			return fmt.Errorf("a proc ended as %+v: %w", st, err)
		}
		return nil
	})
}

// unharmed fails the test at its end if a daemon has become another process.
func unharmed(t *testing.T, s *testenv.System, but ...string) {
	t.Helper()
	before := map[string]int{}
	for _, name := range testenv.Daemons() {
		before[name] = s.PID(name)
	}
	for _, name := range but {
		delete(before, name)
	}
	t.Cleanup(func() {
		for name, pid := range before {
			if now := s.PID(name); now != pid {
				t.Errorf("%s was process %d and is %d", name, pid, now)
			}
		}
	})
}

// clear checks an error for a spawner: of a kind that says what to do, with words.
func clear(t *testing.T, what string, err error, kinds ...sigma.Kind) {
	t.Helper()
	for _, k := range kinds {
		if err != nil && sigma.KindOf(err) == k {
			return
		}
	}
	t.Errorf("%s: got %v (%v), want one of %v", what, err, sigma.KindOf(err), kinds)
}
