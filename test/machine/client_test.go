//go:build system

package machine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// realm is a client of one realm with what most tests do with it.
type realm struct {
	*sdk.Client
	t    *testing.T
	ctx  context.Context
	s    *testenv.System
	path map[string]string // installed programs
}

// connect opens a realm of the shared system. At the test's end its procs are ended, so that a test
// that failed does not spoil others.
func connect(t *testing.T, id sigma.RealmID) *realm {
	t.Helper()
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, id)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testMax*testenv.Slow()) // the test's own is over
		defer cancel()
		list, _ := c.List(ctx, false)
		for _, p := range list {
			c.Kill(ctx, p.ID)
			c.WaitExit(ctx, p.ID)
		}
	})
	return &realm{c, t, ctx, s, map[string]string{}}
}

// newRealm makes a realm that lives as long as the test.
func newRealm(t *testing.T, id sigma.RealmID) *realm {
	t.Helper()
	s := shared.Get(t)
	s.Must(t, "realm", "create", string(id))
	t.Cleanup(func() { s.CLI(t, "realm", "rm", "--force", string(id)) })
	return connect(t, id)
}

// descriptor of a program of testdata that is told a word and more.
func (r *realm) descriptor(source string, args ...string) sigma.Descriptor {
	r.t.Helper()
	if r.path[source] == "" {
		r.path[source] = r.s.Install(r.ctx, r.t, r.Client, program(r.t, source))
	}
	return sigma.Descriptor{Program: r.path[source], Args: args}
}

func (r *realm) spawn(ds ...sigma.Descriptor) []sigma.ProcID {
	r.t.Helper()
	ids, err := r.Spawn(r.ctx, ds...)
	if err != nil {
		r.t.Fatalf("spawn: %v", err)
	}
	return ids
}

func (r *realm) started(id sigma.ProcID) {
	r.t.Helper()
	if err := r.WaitStart(r.ctx, id); err != nil {
		r.t.Fatalf("wait for the start of %s: %v; it wrote %s", id, err, r.output(id))
	}
}

func (r *realm) wait(id sigma.ProcID) sigma.Status {
	r.t.Helper()
	st, err := r.WaitExit(r.ctx, id)
	if err != nil {
		r.t.Fatalf("wait for the end of %s: %v", id, err)
	}
	return st
}

// run spawns one proc of the C or Go probe and waits for its end.
func (r *realm) run(source string, args ...string) (sigma.Status, string) {
	r.t.Helper()
	id := r.spawn(r.descriptor(source, args...))[0]
	return r.wait(id), r.output(id)
}

// output is what a proc wrote so far, to both streams.
func (r *realm) output(id sigma.ProcID) string {
	r.t.Helper()
	var all strings.Builder
	for _, name := range []string{"stdout", "stderr"} {
		b, _, err := r.Get(r.ctx, fmt.Sprintf("/proc/%s/%s", id, name))
		if err != nil {
			r.t.Fatalf("read the %s of %s: %v", name, id, err)
		}
		all.Write(b)
	}
	return all.String()
}

// wrote waits until a proc has written text to stdout.
func (r *realm) wrote(id sigma.ProcID, text string) {
	r.t.Helper()
	path := fmt.Sprintf("/proc/%s/stdout", id)
	for {
		b, at, err := r.Get(r.ctx, path)
		if err != nil {
			r.t.Fatalf("read %s: %v", path, err)
		}
		if strings.Contains(string(b), text) {
			return
		}
		if _, err := r.Watch(r.ctx, path, at.Version); err != nil {
			r.t.Fatalf("%s does not say %q but %q: %v", path, text, b, err)
		}
	}
}

func (r *realm) info(id sigma.ProcID) sigma.ProcInfo {
	r.t.Helper()
	list, err := r.List(r.ctx, true)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, p := range list {
		if p.ID == id {
			return p
		}
	}
	r.t.Fatalf("proc %s is not listed", id)
	return sigma.ProcInfo{}
}

// censused counts what there is once the daemons have the sessions that the first procs of either
// class, and the first removal of a realm since one of them was started, bring with them: lcsched
// needs a while until it leads.
func censused(t *testing.T, s *testenv.System) testenv.Census {
	t.Helper()
	s.Must(t, "realm", "create", "goes-first")
	s.Must(t, "-r", "goes-first", "run", program(t, "hello.c"))
	s.Must(t, "-r", "goes-first", "run", "--lc", "0.01", program(t, "hello.c"))
	s.Must(t, "realm", "rm", "--force", "goes-first")
	return s.Census()
}

func kindIs(t *testing.T, what string, err error, want sigma.Kind) {
	t.Helper()
	if err == nil || sigma.KindOf(err) != want {
		t.Errorf("%s: got %v (%v), want %v", what, err, sigma.KindOf(err), want)
	}
}
