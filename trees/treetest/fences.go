package treetest

import (
	"context"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
)

var fenceTests = []subtest{
	{name: "fences", run: testFences},
	{name: "fences-absurd", run: testFencesAbsurd},
	{name: "fences-end-waiting", needs: []Capability{Watches}, run: testFencesWaiting},
	{name: "conditional", run: testConditional},
	{name: "put-waits", needs: []Capability{Leases}, run: testPutWaits},
	{name: "put-waits-in-vain", needs: []Capability{Leases}, run: testPutWaitsInVain},
}

// at is the context of a leader of an epoch; each subtest has a fence of its own.
func (e *env) at(epoch sigma.Epoch) context.Context {
	return sigma.WithFence(e.ctx, sigma.Fence{Name: "/" + e.cfg.Dir + "/" + e.Name(), Epoch: epoch})
}

// requests are one request of each kind in e.dir, where there are the files f and g and the
// directory d. Handles are those of before.
func (e *env) requests(h *handles) map[string]func(ctx context.Context) error {
	out := map[string]func(ctx context.Context) error{
		"Walk": func(ctx context.Context) error {
			f, _, err := e.dir.Walk(ctx, []string{"f"})
			if f != nil {
				f.Close()
			}
			return err
		},
		"Stat": func(ctx context.Context) error { _, err := h.file.Stat(ctx); return err },
		"SetStat": func(ctx context.Context) error {
			n := uint64(1)
			return h.file.SetStat(ctx, sigma.StatChange{Size: &n})
		},
		"Open": func(ctx context.Context) error { return h.file.Open(ctx, sigma.OpenWrite|sigma.OpenTruncate) },
		"Create": func(ctx context.Context) error {
			return closing(e.dir.Create(ctx, "new", sigma.OpenWrite|sigma.OpenExclusive, 0o666))
		},
		"Create over": func(ctx context.Context) error {
			return closing(e.dir.Create(ctx, "f", sigma.OpenWrite|sigma.OpenTruncate, 0o666))
		},
		"ReadAt":  func(ctx context.Context) error { _, err := h.reads.ReadAt(ctx, make([]byte, 1), 0); return err },
		"WriteAt": func(ctx context.Context) error { _, err := h.writes.WriteAt(ctx, []byte("old"), 0); return err },
		"Sync":    func(ctx context.Context) error { return h.writes.Sync(ctx) },
		"ReadDir": func(ctx context.Context) error { _, _, _, err := h.lists.ReadDir(ctx, 0, 10); return err },
		"Mkdir":   func(ctx context.Context) error { return e.dir.Mkdir(ctx, "newdir", 0o777) },
		"Remove":  func(ctx context.Context) error { return e.dir.Remove(ctx, "g") },
		"Rename":  func(ctx context.Context) error { return e.dir.Rename(ctx, "f", e.dir, "newname") },
		"Get": func(ctx context.Context) error {
			_, _, err := e.getter(e.dir).Get(ctx, []string{"f"}, 0, 10)
			return err
		},
		"Put": func(ctx context.Context) error {
			_, _, err := e.putter(e.dir).Put(ctx, []string{"f"}, []byte("old"), sigma.PutOptions{})
			return err
		},
	}
	if !e.lacks(Symlinks) {
		out["Symlink"] = func(ctx context.Context) error { return e.dir.Symlink(ctx, "newlink", "/x") }
	}
	if !e.lacks(Rewrite) {
		out["Put with Append"] = func(ctx context.Context) error {
			_, _, err := e.putter(e.dir).Put(ctx, []string{"f"}, []byte("old"), sigma.PutOptions{Append: true})
			return err
		}
	}
	if !e.lacks(Leases) {
		out["Put with Wait"] = func(ctx context.Context) error {
			_, _, err := e.putter(e.dir).Put(ctx, []string{"f"}, []byte("old"), sigma.PutOptions{MustMake: true,
				Wait: true})
			return err
		}
		out["Lease"] = func(ctx context.Context) error {
			_, err := e.root.(sigma.Leaser).Lease(ctx, time.Hour)
			return err
		}
	}
	if w, ok := e.dir.(sigma.Watcher); ok && !e.lacks(Watches) {
		out["Watch"] = func(ctx context.Context) error { _, err := w.Watch(ctx, 0); return err }
	}
	if c, ok := h.reads.(sigma.Conditional); ok {
		out["ReadAtIf"] = func(ctx context.Context) error {
			_, err := c.ReadAtIf(ctx, make([]byte, 1), 0, 0)
			return err
		}
	}
	if c, ok := h.writes.(sigma.Conditional); ok && !e.lacks(Rewrite) {
		out["WriteAtIf"] = func(ctx context.Context) error {
			_, _, err := c.WriteAtIf(ctx, []byte("old"), 0, 0)
			return err
		}
	}
	return out
}

// handles are what an old leader holds.
type handles struct{ file, reads, writes, lists sigma.File }

func closing(f sigma.File, err error) error {
	if err == nil {
		f.Close()
	}
	return err
}

// testFences: after any request of a newer epoch, none of an older one is admitted, whatever it is
// and by whatever handle; all others are. 000 §3.6
func testFences(e *env) {
	e.put(e.dir, "f", "first", sigma.PutOptions{})
	e.put(e.dir, "g", "second", sigma.PutOptions{})
	old := e.at(5)
	h := &handles{file: e.walk(e.dir, "f"), reads: e.open(e.dir, sigma.OpenRead, "f"),
		lists: e.open(e.dir, sigma.OpenRead)}
	var err error
	h.writes, err = e.dir.Create(old, "written", sigma.OpenWrite|sigma.OpenTruncate, 0o666)
	e.ok("Create of the first epoch", err)
	e.Cleanup(h.writes.Close)
	e.Cleanup(h.file.Close)
	_, err = h.writes.WriteAt(old, []byte("mine"), 0)
	e.ok("WriteAt of the first epoch", err)
	e.ok("Sync of the first epoch", h.writes.Sync(old))
	st, err := e.dir.Stat(e.at(6)) // nobody tells a server of a new epoch but requests, of any kind
	e.ok("Stat of the next epoch", err)
	for what, do := range e.requests(h) {
		e.fails(what+" of the old leader", do(old), sigma.KindStale)
	}
	e.wantNames(e.dir, "f", "g", "written")
	for name, want := range map[string]string{"f": "first", "g": "second", "written": "mine"} {
		e.wantData(name, e.read(e.dir, name), want)
	}
	if now := e.stat(e.dir); now.ID != st.ID {
		e.Errorf("the directory is %+v, was %+v", now.ID, st.ID)
	}
	other := sigma.WithFence(e.ctx, sigma.Fence{Name: "another of " + e.Name(), Epoch: 1})
	for what, ctx := range map[string]context.Context{"the new leader": e.at(6), "who has no fence": e.ctx,
		"the leader of another service": other} {
		_, _, err := e.putter(e.dir).Put(ctx, []string{"f"}, []byte(what), sigma.PutOptions{})
		e.ok("Put of "+what, err)
		e.wantData("f", string(e.get(e.dir, "f").Data), what)
	}
	e.fails("Put of the old leader", e.tryPutAt(old), sigma.KindStale)
}

// tryPutAt puts f as the leader that ctx is of.
func (e *env) tryPutAt(ctx context.Context) error {
	_, _, err := e.putter(e.dir).Put(ctx, []string{"f"}, nil, sigma.PutOptions{})
	return err
}

// testFencesAbsurd: an epoch from nowhere shuts nobody out.
func testFencesAbsurd(e *env) {
	e.ok("Put", e.tryPutAt(e.at(7)))
	for _, epoch := range []sigma.Epoch{0, 7 + fence.JumpMax + 1, 1<<64 - 1} {
		e.fails("an absurd epoch", e.tryPutAt(e.at(epoch)), sigma.KindInvalid)
	}
	e.ok("Put of the last one that was not absurd", e.tryPutAt(e.at(7)))
	e.ok("Put of one that is ahead", e.tryPutAt(e.at(7+fence.JumpMax)))
	e.fails("Put of the first", e.tryPutAt(e.at(7)), sigma.KindStale)
}

// testFencesWaiting: a request that an old leader left waiting ends as stale, rather than hold the
// new one up.
func testFencesWaiting(e *env) {
	e.put(e.dir, "f", "", sigma.PutOptions{})
	w, ok := e.dir.(sigma.Watcher)
	if !ok {
		e.Skip("the handle is no sigma.Watcher")
	}
	since := e.stat(e.dir).ID.Version
	waits := map[string]func() error{
		"Watch": func() error { _, err := w.Watch(e.at(1), since); return err },
	}
	if !e.lacks(Leases) {
		waits["Put with Wait"] = func() error {
			_, _, err := e.putter(e.dir).Put(e.at(1), []string{"f"}, nil, sigma.PutOptions{MustMake: true, Wait: true})
			return err
		}
	}
	ended := make(chan func(), len(waits))
	for what, wait := range waits {
		go func() {
			err := wait()
			ended <- func() { e.fails(what, err, sigma.KindStale) }
		}()
	}
	// Whether they wait already or not, they end as soon as there is a newer epoch.
	_, err := e.dir.Stat(e.at(2))
	e.ok("Stat of the next epoch", err)
	for range waits {
		(<-ended)()
	}
}

// testConditional: reads and writes at a version. 000 Fig 4-2
func testConditional(e *env) {
	id := e.put(e.dir, "f", "0123456789", sigma.PutOptions{})
	r := e.open(e.dir, sigma.OpenRead, "f")
	c, ok := r.(sigma.Conditional)
	if !ok {
		e.Skip("the handle is no sigma.Conditional")
	}
	read := func(v sigma.Version, offset uint64) (string, error) {
		p := make([]byte, 4)
		n, err := c.ReadAtIf(e.ctx, p, offset, v)
		return string(p[:n]), err
	}
	for _, v := range []sigma.Version{0, id.Version} {
		for offset, want := range map[uint64]string{2: "2345", 8: "89", 10: "", 100: ""} {
			got, err := read(v, offset)
			e.ok("ReadAtIf", err)
			e.wantData("ReadAtIf", got, want)
		}
	}
	_, err := read(id.Version+1, 0)
	e.fails("ReadAtIf of a version that is not there", err, sigma.KindVersion)
	if e.lacks(Rewrite) {
		w, err := e.dir.Create(e.ctx, "f", sigma.OpenWrite|sigma.OpenTruncate, 0o666)
		e.ok("Create", err)
		defer w.Close()
		_, _, err = w.(sigma.Conditional).WriteAtIf(e.ctx, []byte("x"), 0, id.Version)
		e.fails("WriteAtIf", err, sigma.KindUnsupported)
		return
	}
	w := e.open(e.dir, sigma.OpenReadWrite, "f").(sigma.Conditional)
	n, now, err := w.WriteAtIf(e.ctx, []byte("abc"), 9, id.Version)
	e.ok("WriteAtIf", err)
	if st := e.statOf(e.dir, "f"); n != 3 || now <= id.Version || st.ID.Version != now || st.Size != 12 {
		e.Errorf("WriteAtIf wrote %d bytes from version %d to %d; the file is %+v", n, id.Version, now, st)
	}
	_, _, err = w.WriteAtIf(e.ctx, []byte("lost"), 0, id.Version)
	e.fails("WriteAtIf of the version before", err, sigma.KindVersion)
	_, err = read(id.Version, 0)
	e.fails("ReadAtIf of the version before", err, sigma.KindVersion)
	e.wantData("content", e.read(e.dir, "f"), "012345678abc")
	_, _, err = w.WriteAtIf(e.ctx, []byte("X"), 0, 0)
	e.ok("WriteAtIf of any version", err)
	e.put(e.dir, "f", "replaced", sigma.PutOptions{})
	_, _, err = w.WriteAtIf(e.ctx, []byte("lost"), 0, now)
	e.fails("WriteAtIf after a Put", err, sigma.KindVersion)
	e.wantData("content", e.read(e.dir, "f"), "replaced")
	e.countConditionally()
}

// countConditionally counts in a file by several writers, none of whom overwrites another's count.
func (e *env) countConditionally() {
	const writers, each = 3, 10
	e.put(e.dir, "n", "\x00", sigma.PutOptions{})
	var wg sync.WaitGroup
	for range writers {
		f := e.open(e.dir, sigma.OpenReadWrite, "n").(sigma.Conditional)
		st := e.walk(e.dir, "n")
		e.Cleanup(st.Close)
		wg.Go(func() {
			for done := 0; done < each && e.ctx.Err() == nil; {
				s, err := st.Stat(e.ctx)
				if err != nil {
					e.Errorf("Stat: %v", err)
					return
				}
				p := []byte{0}
				if _, err = f.ReadAtIf(e.ctx, p, 0, s.ID.Version); err == nil {
					p[0]++
					_, _, err = f.WriteAtIf(e.ctx, p, 0, s.ID.Version)
				}
				if err == nil {
					done++
				} else if sigma.KindOf(err) != sigma.KindVersion {
					e.Errorf("counting: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	e.wantData("count", e.read(e.dir, "n"), string([]byte{writers * each}))
}

// testPutWaits: candidates for one name have it one after the other, each once; those who gave up
// are passed over. 000 §3.6
func testPutWaits(e *env) {
	const candidates = 5
	e.put(e.dir, "leader", "first", sigma.PutOptions{MustMake: true})
	p := e.putter(e.dir)
	elected := make(chan string)
	var wg sync.WaitGroup
	for i := range candidates {
		wg.Go(func() {
			who := string(rune('a' + i))
			if _, _, err := p.Put(e.ctx, []string{"leader"}, []byte(who), sigma.PutOptions{MustMake: true,
				Wait: true}); err != nil {
				e.Errorf("Put of %s: %v", who, err)
			}
			elected <- who
		})
	}
	impatient, giveUp := context.WithCancel(e.ctx)
	gaveUp := make(chan error, 1)
	go func() {
		_, _, err := p.Put(impatient, []string{"leader"}, []byte("impatient"), sigma.PutOptions{MustMake: true,
			Wait: true})
		gaveUp <- err
	}()
	giveUp()
	e.fails("Put of who gave up", <-gaveUp, sigma.KindCanceled)
	e.fails("Put of who does not wait", e.tryNew("leader"), sigma.KindExists)
	e.wantData("leader", e.read(e.dir, "leader"), "first")
	had := map[string]bool{}
	for range candidates {
		e.ok("Remove", e.dir.Remove(e.ctx, "leader"))
		who := <-elected
		e.wantData("leader", e.read(e.dir, "leader"), who)
		had[who] = true
		// To be renamed away is to be gone too.
		e.ok("Rename", e.dir.Rename(e.ctx, "leader", e.dir, "former"))
		if len(had) < candidates {
			who = <-elected
			e.wantData("leader", e.read(e.dir, "leader"), who)
			had[who] = true
		} else {
			break
		}
	}
	if len(had) != candidates {
		e.Errorf("%d candidates were elected, want %d", len(had), candidates)
	}
	wg.Wait()
	e.ok("Put of a name that is free", e.tryWait(sigma.PutOptions{MustMake: true, Wait: true}))
}

func (e *env) tryNew(name string) error {
	_, _, err := e.putter(e.dir).Put(e.ctx, []string{name}, nil, sigma.PutOptions{MustMake: true})
	return err
}

func (e *env) tryWait(o sigma.PutOptions) error {
	_, _, err := e.putter(e.dir).Put(e.ctx, []string{"free"}, nil, o)
	return err
}

// testPutWaitsInVain: the candidate whose lease ended meanwhile, the one whose directory is
// removed, and the one who makes no sense.
func testPutWaitsInVain(e *env) {
	e.fails("Wait without MustMake", e.tryWait(sigma.PutOptions{Wait: true}), sigma.KindInvalid)
	e.fails("a lease that does not exist", e.tryWait(sigma.PutOptions{Wait: true, MustMake: true, Lease: 12345}),
		sigma.KindNotFound)
	d := e.mkdir(e.dir, "d")
	e.put(d, "leader", "first", sigma.PutOptions{})
	l := e.root.(sigma.Leaser)
	lease, err := l.Lease(e.ctx, time.Minute)
	e.ok("Lease", err)
	ended := make(chan error, 2)
	wait := func(o sigma.PutOptions) {
		o.MustMake, o.Wait = true, true
		_, _, err := e.putter(d).Put(e.ctx, []string{"leader"}, nil, o)
		ended <- err
	}
	go wait(sigma.PutOptions{Lease: lease})
	e.ok("Revoke", l.Revoke(e.ctx, lease))
	e.ok("Remove", d.Remove(e.ctx, "leader"))
	e.fails("Put of who has no lease any more", <-ended, sigma.KindNotFound)
	e.put(d, "leader", "second", sigma.PutOptions{})
	go wait(sigma.PutOptions{})
	e.ok("Remove", d.Remove(e.ctx, "leader"))
	if err := <-ended; err != nil {
		e.Fatalf("Put of who waits: %v", err)
	}
	e.ok("Remove", d.Remove(e.ctx, "leader"))
	e.ok("Remove of the directory", e.dir.Remove(e.ctx, "d"))
	e.fails("Put in a directory that is gone", func() error {
		go wait(sigma.PutOptions{})
		return <-ended
	}(), sigma.KindNotFound, sigma.KindStale)
}

// Epochs that were admitted are known after a restart, also one that came with a read or with a
// request that failed; one that was refused is not.
func restartFences(r *restarting) {
	r.ok("Put", r.tryPutAt(r.at(3)))
	_, err := r.dir.Stat(r.at(4))
	r.ok("Stat", err)
	other := func(epoch sigma.Epoch) context.Context {
		return sigma.WithFence(r.ctx, sigma.Fence{Name: "other \xff\n\"", Epoch: epoch})
	}
	r.fails("Remove of what is not there", r.dir.Remove(other(9), "missing"), sigma.KindNotFound)
	r.fails("an absurd epoch", r.tryPutAt(other(1<<63)), sigma.KindInvalid)
	for range 2 {
		r.down(0)
		r.fails("Put of the leader before", r.tryPutAt(r.at(3)), sigma.KindStale)
		_, err := r.dir.Stat(other(8))
		r.fails("Stat of the leader before", err, sigma.KindStale)
		r.ok("Put of the leader", r.tryPutAt(r.at(4)))
		r.ok("Put of another leader", r.tryPutAt(other(9)))
	}
	r.ok("Put of the next leader", r.tryPutAt(r.at(5)))
	r.down(0)
	r.fails("Put of the leader before", r.tryPutAt(r.at(4)), sigma.KindStale)
}
