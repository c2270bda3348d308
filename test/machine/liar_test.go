//go:build system

package machine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

// Goal: a tenant's tree that lies harms nobody: who walks into it gets an error by its deadline,
// sigmad, which fetches programs through it, answers who spawned them, does not grow, and serves
// others meanwhile.
func TestLyingTree(t *testing.T) {
	r := newRealm(t, "liars")
	d := r.descriptor("liar", "/liar")
	d.Start = sigma.StartedByCall
	liar := r.spawn(d)[0]
	r.started(liar)
	sigmad := r.s.PID("sigmad")
	before := memory(t, sigmad)
	var all sync.WaitGroup
	silent := r.spawn(sigma.Descriptor{Program: "/liar/silence/bin/x"})[0]
	for _, how := range treetest.Lies() {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(r.ctx, time.Second)
			defer cancel()
			path := "/liar/" + how + "/bin/x"
			r.Get(ctx, path)
			r.ReadDir(ctx, path)
			r.Put(ctx, path, []byte("x"), sigma.PutOptions{})
			if how == "silence" || how == "half" { // these are waited for until they are given up
				return
			}
			for _, program := range []string{path, "/liar/" + how + "/~any/x"} {
				ids, err := r.Spawn(r.ctx, sigma.Descriptor{Program: program})
				if err != nil {
					continue
				}
				if st, err := r.WaitExit(r.ctx, ids[0]); err != nil || st.OK() {
					t.Errorf("%s: a program of a liar ended with %+v, %v", how, st, err)
				}
			}
		})
	}
	for range 3 {
		if st, out := r.run("hello.c"); !st.OK() {
			t.Errorf("another proc: %+v %s", st, out)
		}
	}
	all.Wait()
	if err := r.Kill(r.ctx, silent); err != nil {
		t.Errorf("killing what waits for a liar: %v", err)
	}
	if st := r.wait(silent); st.OK() {
		t.Errorf("got %+v", st)
	}
	if pid := r.s.PID("sigmad"); pid != sigmad {
		t.Errorf("sigmad is another: %d, was %d", pid, sigmad)
	}
	if after := memory(t, sigmad); after > before+(200<<10) {
		t.Errorf("sigmad has %d KiB, had %d", after, before)
	}
	r.Kill(r.ctx, liar)
}

// memory is what a process has taken at most, in KiB.
func memory(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}
