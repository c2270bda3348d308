package treetest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

var changeTests = []subtest{
	{name: "version-of-file", run: testFileVersion},
	{name: "version-of-directory", run: testDirVersion},
	{name: "watch", needs: []Capability{Watches}, run: testWatch},
	{name: "watch-never-misses", needs: []Capability{Watches}, run: testWatchNeverMisses},
	{name: "watch-many", needs: []Capability{Watches}, run: testWatchMany},
	{name: "leases", needs: []Capability{Leases}, run: testLeases},
	{name: "set-perm", needs: []Capability{SetPerm}, run: testSetPerm},
	{name: "mode-bits", needs: []Capability{SetPerm, Modes}, run: testModes},
	{name: "set-modified", needs: []Capability{SetModified}, run: testSetModified},
	{name: "storm", run: testStorm},
}

// grows checks that a step raises the version of the file at name, and that nothing else does.
func (e *env) grows(dir sigma.File, names []string, step string, do func() error) {
	e.Helper()
	before := e.statOf(dir, names...).ID.Version
	if again := e.statOf(dir, names...).ID.Version; again != before {
		e.Errorf("the version changed from %d to %d by itself", before, again)
	}
	e.ok(step, do())
	if after := e.statOf(dir, names...).ID.Version; after <= before {
		e.Errorf("%s: the version went from %d to %d", step, before, after)
	}
}

func testFileVersion(e *env) {
	e.write(e.dir, "f", "x")
	name := []string{"f"}
	for i := range 5 {
		e.grows(e.dir, name, "replacing", func() error {
			return e.tryWrite(e.dir, "f", fmt.Sprint(i), sigma.OpenWrite|sigma.OpenTruncate)
		})
	}
	if p, ok := e.dir.(sigma.Putter); ok {
		for i := range 5 {
			e.grows(e.dir, name, "Put", func() error {
				_, _, err := p.Put(e.ctx, name, []byte(fmt.Sprint(i)), sigma.PutOptions{})
				return err
			})
		}
	}
	if e.lacks(Rewrite) {
		return
	}
	f := e.open(e.dir, sigma.OpenWrite, "f")
	for range 5 {
		e.grows(e.dir, name, "WriteAt", func() error {
			_, err := f.WriteAt(e.ctx, []byte("x"), 0)
			return err
		})
	}
	size := uint64(10)
	e.grows(e.dir, name, "SetStat", func() error { return f.SetStat(e.ctx, sigma.StatChange{Size: &size}) })
	open := e.stat(f).ID
	f.Close()
	if closed := e.statOf(e.dir, "f").ID; closed != open {
		e.Errorf("closing the file changed it from %+v to %+v", open, closed)
	}
}

// A directory's version grows with every entry made, changed by rename, or removed.
func testDirVersion(e *env) {
	e.mkdir(e.dir, "d")
	e.mkdir(e.dir, "other")
	d, other := e.walk(e.dir, "d"), e.walk(e.dir, "other")
	defer d.Close()
	defer other.Close()
	in := []string{"d"}
	e.grows(e.dir, in, "making a file", func() error { return e.tryWrite(d, "f", "x", sigma.OpenWrite) })
	e.grows(e.dir, in, "Mkdir", func() error { return d.Mkdir(e.ctx, "sub", 0o777) })
	if !e.lacks(Symlinks) {
		e.grows(e.dir, in, "Symlink", func() error { return d.Symlink(e.ctx, "link", "/x") })
	}
	if p, ok := d.(sigma.Putter); ok {
		e.grows(e.dir, in, "Put of a new file", func() error {
			_, _, err := p.Put(e.ctx, []string{"p"}, nil, sigma.PutOptions{})
			return err
		})
	}
	e.grows(e.dir, in, "Rename in it", func() error { return d.Rename(e.ctx, "f", d, "g") })
	e.grows(e.dir, []string{"other"}, "Rename into it", func() error { return d.Rename(e.ctx, "g", other, "g") })
	e.grows(e.dir, in, "Rename into it", func() error { return other.Rename(e.ctx, "g", d, "g") })
	e.grows(e.dir, []string{"other"}, "Rename out of it", func() error {
		if err := d.Rename(e.ctx, "g", other, "g"); err != nil {
			return err
		}
		return other.Rename(e.ctx, "g", d, "g")
	})
	e.grows(e.dir, in, "Remove", func() error { return d.Remove(e.ctx, "g") })
	e.grows(e.dir, in, "Remove of a directory", func() error { return d.Remove(e.ctx, "sub") })
}

func (e *env) watcher(dir sigma.File, names ...string) sigma.Watcher {
	e.Helper()
	f := e.walk(dir, names...)
	e.Cleanup(f.Close)
	w, ok := f.(sigma.Watcher)
	if !ok {
		e.Fatal("the handle is no sigma.Watcher")
	}
	return w
}

// watchResult is the answer to one Watch.
type watchResult struct {
	v   sigma.Version
	err error
}

func (e *env) watching(w sigma.Watcher, since sigma.Version) <-chan watchResult {
	c := make(chan watchResult, 1)
	go func() {
		v, err := w.Watch(e.ctx, since)
		c <- watchResult{v, err}
	}()
	return c
}

func testWatch(e *env) {
	e.write(e.dir, "f", "x")
	w := e.watcher(e.dir, "f")
	now := e.statOf(e.dir, "f").ID.Version
	v, err := w.Watch(e.ctx, now-1)
	e.ok("Watch of the past", err)
	if v != now {
		e.Errorf("Watch of the past: got %d, want %d", v, now)
	}
	changed := e.watching(w, now)
	e.write(e.dir, "f", "y")
	if r := <-changed; r.err != nil || r.v <= now {
		e.Errorf("Watch: got %+v, want a version after %d", r, now)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err = w.Watch(ctx, e.statOf(e.dir, "f").ID.Version)
	e.fails("Watch, canceled", err, sigma.KindCanceled)

	dw := e.watcher(e.dir)
	dirNow := e.stat(e.dir).ID.Version
	dirChanged := e.watching(dw, dirNow)
	removed := e.watching(w, e.statOf(e.dir, "f").ID.Version)
	e.ok("Remove", e.dir.Remove(e.ctx, "f"))
	if r := <-dirChanged; r.err != nil || r.v <= dirNow {
		e.Errorf("Watch of a directory: got %+v, want a version after %d", r, dirNow)
	}
	e.fails("Watch of a removed file", (<-removed).err, sigma.KindNotFound)
	_, err = w.Watch(e.ctx, 0)
	e.fails("Watch of a file removed before", err, sigma.KindNotFound)
}

// Since versions are compared, no change between two calls is missed: a watcher that follows a file
// ends at its last version.
func testWatchNeverMisses(e *env) {
	e.put(e.dir, "f", "0", sigma.PutOptions{})
	const changes = 200
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range changes {
			if _, _, err := e.dir.(sigma.Putter).Put(e.ctx, []string{"f"}, []byte(fmt.Sprint(i+1)),
				sigma.PutOptions{}); err != nil {
				e.Errorf("Put: %v", err)
				return
			}
		}
	}()
	w := e.watcher(e.dir, "f")
	// If the last change is missed, Watch waits until the subtest's timeout.
	for seen, last := sigma.Version(0), ""; last != fmt.Sprint(changes); {
		v, err := w.Watch(e.ctx, seen)
		e.ok("Watch", err)
		if v <= seen {
			e.Fatalf("Watch after %d gave %d", seen, v)
		}
		seen = v
		got := e.get(w.(sigma.File))
		last = string(got.Data)
		if got.ID.Version < seen {
			e.Fatalf("the watched handle is at version %d, Watch said %d", got.ID.Version, seen)
		}
	}
	<-done
}

// One change wakes all who wait.
func testWatchMany(e *env) {
	e.write(e.dir, "f", "x")
	now := e.statOf(e.dir, "f").ID.Version
	var all []<-chan watchResult
	for range 50 {
		all = append(all, e.watching(e.watcher(e.dir, "f"), now))
	}
	e.write(e.dir, "f", "y")
	for _, c := range all {
		if r := <-c; r.err != nil || r.v <= now {
			e.Errorf("Watch: got %+v, want a version after %d", r, now)
		}
	}
}

func testLeases(e *env) {
	l, ok := e.root.(sigma.Leaser)
	if !ok {
		e.Fatal("the root is no sigma.Leaser")
	}
	id, err := l.Lease(e.ctx, time.Hour)
	e.ok("Lease", err)
	e.put(e.dir, "f", "x", sigma.PutOptions{Lease: id})
	e.put(e.dir, "g", "x", sigma.PutOptions{})
	if !e.statOf(e.dir, "f").Ephemeral || e.statOf(e.dir, "g").Ephemeral {
		e.Error("Stat.Ephemeral: want it for f, not for g")
	}
	e.ok("Renew", l.Renew(e.ctx, id))
	e.ok("Rename", e.dir.Rename(e.ctx, "f", e.dir, "h"))
	e.ok("Revoke", l.Revoke(e.ctx, id))
	e.wantNames(e.dir, "g")
	e.fails("Renew of a revoked lease", l.Renew(e.ctx, id), sigma.KindNotFound, sigma.KindStale)
	_, _, err = e.putter(e.dir).Put(e.ctx, []string{"f"}, nil, sigma.PutOptions{Lease: id})
	e.fails("Put under a revoked lease", err, sigma.KindNotFound, sigma.KindStale)
	_, err = l.Lease(e.ctx, -time.Second)
	e.fails("Lease of -1s", err, sigma.KindInvalid)
	e.wantNames(e.dir, "g")
}

func testSetPerm(e *env) {
	e.write(e.dir, "f", "x")
	f := e.walk(e.dir, "f")
	defer f.Close()
	perm := uint32(0o640)
	e.ok("SetStat", f.SetStat(e.ctx, sigma.StatChange{Perm: &perm}))
	if got := e.stat(f).Perm; got != perm {
		e.Errorf("Perm: got %o, want %o", got, perm)
	}
}

func testSetModified(e *env) {
	e.write(e.dir, "f", "x")
	f := e.walk(e.dir, "f")
	defer f.Close()
	when := time.Unix(1_000_000_000, 0)
	e.ok("SetStat", f.SetStat(e.ctx, sigma.StatChange{Modified: &when}))
	if got := e.stat(f).Modified; !got.Equal(when) {
		e.Errorf("Modified: got %v, want %v", got, when)
	}
}

// storm does everything at once on a few names: errors are allowed, wedging, crashing and a torn
// listing are not.
func testStorm(e *env) {
	sub := e.mkdir(e.dir, "sub")
	dirs := []sigma.File{e.dir, sub}
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for i := range 60 {
				k := w*7 + i
				d, other, name := dirs[k%2], dirs[k/2%2], fmt.Sprintf("n%d", k%5)
				switch k % 6 {
				case 0:
					_ = e.tryWrite(d, name, name, sigma.OpenWrite|sigma.OpenTruncate)
				case 1:
					_ = d.Rename(e.ctx, name, other, fmt.Sprintf("n%d", i%5))
				case 2:
					_ = d.Remove(e.ctx, name)
				case 3:
					_ = d.Mkdir(e.ctx, name, 0o777)
				case 4:
					if p, ok := d.(sigma.Putter); ok {
						_, _, _ = p.Put(e.ctx, []string{name}, []byte(name), sigma.PutOptions{})
					}
				case 5:
					if f, _, err := d.Walk(e.ctx, []string{name}); err == nil && f != nil {
						_, _ = f.Stat(e.ctx)
						_ = f.Open(e.ctx, sigma.OpenRead)
						_, _ = f.ReadAt(e.ctx, make([]byte, 10), 0)
						f.Close()
					}
				}
			}
		})
	}
	wg.Wait()
	for _, d := range dirs {
		for _, entry := range e.list(d, 3) {
			if st := e.statOf(d, entry.Name); st.ID != entry.ID || st.Name != entry.Name {
				e.Errorf("listed %+v, Stat says %+v", entry, st)
			}
		}
	}
}
