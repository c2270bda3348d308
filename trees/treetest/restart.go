package treetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
)

// RestartConfig says what is tested of a server that keeps what it has over restarts.
type RestartConfig struct {
	// Start makes the server, with what an earlier one of the same subtest had, and stop ends it as
	// abruptly as the test can. New makes a place for a subtest's servers.
	New       func(t *testing.T) (start func() (tree sigma.Tree, stop func()))
	Principal sigma.Principal
	Root      string // what Attach is given
	Dir       string // is made in the root, and all is done in it
	TTL       time.Duration
	Lacks     []Capability
}

// RunRestarts checks what trees keep over restarts. Each subtest has a clock of its own
// (testing/synctest), so the servers may be no other processes.
func RunRestarts(t *testing.T, cfg RestartConfig) {
	t.Helper()
	for _, s := range []struct {
		name  string
		needs Capability
		run   func(r *restarting)
	}{
		{"files", "", restartFiles}, {"versions", "", restartVersions}, {"mid-listing", "", restartMidListing},
		{"fences", "", restartFences},
		{"quick", Leases, restartQuick}, {"delayed", Leases, restartDelayed},
		{"delayed-and-alone", Leases, restartAlone},
	} {
		if slices.Contains(cfg.Lacks, s.needs) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &restarting{env: &env{T: t, ctx: t.Context(), cfg: Config{Lacks: cfg.Lacks, SizeMax: 64 << 10}},
					rc: cfg, start: cfg.New(t)}
				r.begin()
				r.ok("Mkdir", r.root.Mkdir(r.ctx, cfg.Dir, 0o777))
				r.end()
				r.begin()
				s.run(r)
				r.end()
			})
		})
	}
}

type restarting struct {
	*env
	rc    RestartConfig
	start func() (sigma.Tree, func())
	stop  func()
}

// begin starts the server; end ends it.
func (r *restarting) begin() {
	r.Helper()
	var tree sigma.Tree
	var err error
	tree, r.stop = r.start()
	r.root, err = tree.Attach(r.ctx, r.rc.Principal, r.rc.Root)
	r.ok("Attach", err)
	if f, _, err := r.root.Walk(r.ctx, []string{r.rc.Dir}); err == nil {
		r.dir = f
	}
}

func (r *restarting) end() {
	r.stop()
	for _, f := range []sigma.File{r.dir, r.root} {
		if f != nil {
			f.Close()
		}
	}
	r.dir = nil
}

// down lets the server be away for a time.
func (r *restarting) down(d time.Duration) {
	r.Helper()
	r.end()
	r.pass(d)
	r.begin()
}

func (r *restarting) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Everything that was there is there.
func restartFiles(r *restarting) {
	sub := r.mkdir(r.dir, "sub")
	r.write(sub, "f", pattern(10000))
	if !r.lacks(Symlinks) {
		r.ok("Symlink", sub.Symlink(r.ctx, "l", "/to"))
	}
	before := map[string]sigma.Stat{}
	for _, name := range r.names(sub) {
		before[name] = r.statOf(sub, name)
	}
	r.ok("Rename", r.dir.Rename(r.ctx, "sub", r.dir, "moved"))
	r.down(0)
	r.wantNames(r.dir, "moved")
	moved := r.walk(r.dir, "moved")
	defer moved.Close()
	for name, want := range before {
		if got := r.statOf(moved, name); got.ID.Kind != want.ID.Kind || got.ID.Version != want.ID.Version ||
			got.Size != want.Size || got.Perm != want.Perm {
			r.Errorf("%s: got %+v, was %+v", name, got, want)
		}
	}
	if names := r.names(moved); len(names) != len(before) {
		r.Errorf("got %q", names)
	}
	r.wantData("content", r.read(moved, "f"), pattern(10000))
}

// Versions only grow, so that a condition of before is a condition after, and a watch goes on where
// it was: it neither misses nor invents a change.
func restartVersions(r *restarting) {
	first := r.put(r.dir, "f", "a", sigma.PutOptions{})
	second := r.put(r.dir, "f", "b", sigma.PutOptions{IfVersion: first.Version})
	r.down(0)
	_, _, err := r.putter(r.dir).Put(r.ctx, []string{"f"}, nil, sigma.PutOptions{IfVersion: first.Version})
	r.fails("Put at a version of before", err, sigma.KindVersion)
	var watched <-chan watchResult
	if !r.lacks(Watches) {
		watched = r.watching(r.watcher(r.dir, "f"), second.Version)
		synctest.Wait()
		select {
		case w := <-watched:
			r.Errorf("Watch invented %+v", w)
		default:
		}
	}
	third := r.put(r.dir, "f", "c", sigma.PutOptions{IfVersion: second.Version})
	if third.Version <= second.Version {
		r.Errorf("after a restart version %d follows %d", third.Version, second.Version)
	}
	if watched != nil {
		if w := <-watched; w.err != nil || w.v != third.Version {
			r.Errorf("Watch: got %+v, want version %d", w, third.Version)
		}
	}
}

// leased makes a lease with a file.
func (r *restarting) leased(name string) sigma.LeaseID {
	r.Helper()
	id, err := r.root.(sigma.Leaser).Lease(r.ctx, r.rc.TTL)
	r.ok("Lease", err)
	r.put(r.dir, name, "x", sigma.PutOptions{Lease: id})
	return id
}

func (r *restarting) there(name string) bool {
	r.Helper()
	f, _, err := r.dir.Walk(r.ctx, []string{name})
	if err != nil {
		r.fails("Walk", err, sigma.KindNotFound)
		return false
	}
	f.Close()
	return true
}

// gone waits for an ephemeral file to go.
func (r *restarting) gone(what, name string) {
	r.Helper()
	r.pass(r.rc.TTL + time.Second)
	if r.there(name) {
		r.Errorf("%s: the file is there %v after its lease was renewed last", what, r.rc.TTL+time.Second)
	}
}

// A restart within the lease's time keeps its files, and the lease can be renewed; then it ends in
// its time.
func restartQuick(r *restarting) {
	id := r.leased("f")
	for range 3 {
		r.down(r.rc.TTL / 3)
		if st := r.statOf(r.dir, "f"); !st.Ephemeral {
			r.Errorf("got %+v", st)
		}
		r.ok("Renew", r.root.(sigma.Leaser).Renew(r.ctx, id))
	}
	r.gone("a quick restart", "f")
	r.fails("Renew", r.root.(sigma.Leaser).Renew(r.ctx, id), sigma.KindNotFound, sigma.KindStale)
}

// After more than the lease's time its holder and its files share one fate: if the lease can be
// renewed they are there.
func restartDelayed(r *restarting) {
	id := r.leased("f")
	r.down(2 * r.rc.TTL)
	err := r.root.(sigma.Leaser).Renew(r.ctx, id)
	if err != nil {
		r.fails("Renew", err, sigma.KindNotFound, sigma.KindStale)
	}
	if there := r.there("f"); there != (err == nil) {
		r.Errorf("the lease was renewed: %v; its file is there: %t", err, there)
	}
	if err == nil {
		r.pass(r.rc.TTL / 2)
		r.ok("Renew", r.root.(sigma.Leaser).Renew(r.ctx, id))
		r.pass(r.rc.TTL / 2)
		r.statOf(r.dir, "f")
	}
	r.gone("a delayed restart", "f")
}

// Nobody renews: the file goes within the lease's time of the restart.
func restartAlone(r *restarting) {
	r.leased("f")
	r.write(r.dir, "stays", "x")
	r.down(2 * r.rc.TTL)
	r.gone("a delayed restart", "f")
	r.wantNames(r.dir, "stays")
}

// A listing that a restart interrupts ends with an error or goes on rightly; the next one has
// everything, ephemeral names too.
func restartMidListing(r *restarting) {
	var want []string
	for i := range 30 {
		name := fmt.Sprintf("%02d", i)
		want = append(want, name)
		if i%3 == 0 && !r.lacks(Leases) {
			r.leased(name)
		} else {
			r.write(r.dir, name, "")
		}
	}
	f := r.walk(r.dir)
	r.ok("Open", f.Open(r.ctx, sigma.OpenRead))
	es, next, more, err := f.ReadDir(r.ctx, 0, 7)
	r.ok("ReadDir", err)
	if len(es) == 0 || !more {
		r.Errorf("the first of 30: %v, more %t", es, more)
	}
	r.down(0)
	var se *sigma.Error
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	if rest, _, _, err := f.ReadDir(ctx, next, 100); err != nil && !errors.As(err, &se) {
		r.Errorf("a listing over a restart: got %T %v", err, err)
	} else if err == nil && len(es)+len(rest) != len(want) {
		r.Errorf("a listing over a restart has %d and %d entries of %d", len(es), len(rest), len(want))
	}
	f.Close()
	if got := r.names(r.dir); !slices.Equal(got, want) {
		r.Errorf("got %q", got)
	}
}
