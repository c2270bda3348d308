package treetest

import (
	"fmt"
	"sync"

	"sigmaos.dev/sigma"
)

var entryTests = []subtest{
	{name: "mkdir-and-remove", run: testMkdirRemove},
	{name: "symlinks", needs: []Capability{Symlinks}, run: testSymlinks},
	{name: "listing", run: testListing},
	{name: "listing-large", run: testListingLarge},
	{name: "listing-during-changes", run: testListingChanges},
	{name: "removed-directory", run: testRemovedDir},
}

var renameTests = []subtest{
	{name: "rename", run: testRename},
	{name: "rename-refused", needs: []Capability{RenameDirs}, run: testRenameRefused},
	{name: "rename-follows", needs: []Capability{Identity}, run: testRenameFollows},
	{name: "rename-race", run: testRenameRace},
	{name: "rename-onto-race", run: testRenameOntoRace},
	{name: "rename-cross-race", needs: []Capability{RenameDirs}, run: testRenameCross},
}

func testMkdirRemove(e *env) {
	d := e.mkdir(e.dir, "d")
	e.write(e.dir, "f", "x")
	for _, name := range []string{"d", "f"} {
		e.fails("Mkdir of "+name, e.dir.Mkdir(e.ctx, name, 0o777), sigma.KindExists)
	}
	e.write(d, "g", "x")
	e.fails("Remove of a full directory", e.dir.Remove(e.ctx, "d"), sigma.KindNotEmpty)
	e.fails("Remove of what is missing", e.dir.Remove(e.ctx, "x"), sigma.KindNotFound)
	e.ok("Remove", d.Remove(e.ctx, "g"))
	e.wantNames(e.dir, "d", "f") // an empty directory stays
	e.ok("Remove", e.dir.Remove(e.ctx, "d"))
	e.ok("Remove", e.dir.Remove(e.ctx, "f"))
	e.missing(e.dir, "d")
	e.missing(e.dir, "f")
	e.wantNames(e.dir)
}

func testSymlinks(e *env) {
	targets := map[string]string{"abs": "/a/b", "rel": "a/b", "up": "../../../../etc/passwd", "self": "self",
		"long": "/" + pattern(1000), "odd": "\xff%s\n"}
	for name, target := range targets {
		e.ok("Symlink", e.dir.Symlink(e.ctx, name, target))
		e.fails("Symlink again", e.dir.Symlink(e.ctx, name, target), sigma.KindExists)
	}
	for name, want := range targets {
		f := e.walk(e.dir, name)
		got, err := f.ReadLink(e.ctx)
		f.Close()
		e.ok("ReadLink", err)
		e.wantData("ReadLink", got, want)
	}
	for _, d := range e.list(e.dir, 10) {
		if d.ID.Kind != sigma.KindSymlink {
			e.Errorf("%s is listed as a %v", d.Name, d.ID.Kind)
		}
	}
	e.fails("Symlink without target", e.dir.Symlink(e.ctx, "x", ""), sigma.KindInvalid)
	_, err := e.dir.Create(e.ctx, "abs", sigma.OpenWrite, 0o666)
	e.fails("Create of a link's name", err)
	e.ok("Rename", e.dir.Rename(e.ctx, "abs", e.dir, "moved"))
	e.ok("Remove", e.dir.Remove(e.ctx, "moved"))
	e.missing(e.dir, "moved")
}

func testListing(e *env) {
	e.wantNames(e.dir)
	e.mkdir(e.dir, "d")
	e.write(e.dir, "f", "abc")
	for _, d := range e.list(e.dir, 1) {
		st := e.statOf(e.dir, d.Name)
		if d.ID != st.ID || d.Size != 0 && d.Size != st.Size {
			e.Errorf("listed %+v, Stat says %+v", d, st)
		}
	}
	f := e.walk(e.dir)
	defer f.Close()
	e.ok("Open", f.Open(e.ctx, sigma.OpenRead))
	for range 2 { // a listing can begin again
		entries, next, more, err := f.ReadDir(e.ctx, 0, 1000)
		e.ok("ReadDir", err)
		if len(entries) != 2 || more {
			e.Errorf("ReadDir: got %v, more %t", entries, more)
		}
		if first := entries[0]; first.Next != 0 { // and go on after any entry that tells how
			rest, _, _, err := f.ReadDir(e.ctx, first.Next, 1000)
			e.ok("ReadDir", err)
			if len(rest) != 1 || rest[0].Name != entries[1].Name {
				e.Errorf("ReadDir after %q: got %v, want %q", first.Name, rest, entries[1].Name)
			}
		}
		if entries, _, more, err := f.ReadDir(e.ctx, next, 10); len(entries) != 0 || more || err != nil {
			e.Errorf("ReadDir after the end: got %v, more %t, %v", entries, more, err)
		}
	}
}

// many makes n empty files, quickly where it can.
func (e *env) many(dir sigma.File, prefix string, n int) {
	e.Helper()
	p, ok := dir.(sigma.Putter)
	const makers = 8 // a server that writes many changes at once does so only for many at once
	var wg sync.WaitGroup
	for w := range makers {
		wg.Go(func() {
			for i := w; i < n; i += makers {
				name := fmt.Sprintf("%s%06d", prefix, i)
				err := error(nil)
				if ok {
					_, _, err = p.Put(e.ctx, []string{name}, nil, sigma.PutOptions{})
				} else {
					err = e.tryWrite(dir, name, "", sigma.OpenWrite)
				}
				if err != nil {
					e.Errorf("making %s: %v", name, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A large directory is listed whole in pieces of any size, is not removed, and moves as a whole.
func testListingLarge(e *env) {
	d, to := e.mkdir(e.dir, "large"), e.mkdir(e.dir, "to")
	e.many(d, "", e.cfg.ListEntries)
	for _, size := range []int{1000, 37} {
		if got := len(e.list(d, size)); got != e.cfg.ListEntries {
			e.Errorf("%d entries at a time: got %d, want %d", size, got, e.cfg.ListEntries)
		}
	}
	e.fails("Remove", e.dir.Remove(e.ctx, "large"), sigma.KindNotEmpty)
	if e.lacks(RenameDirs) {
		return
	}
	e.ok("Rename", e.dir.Rename(e.ctx, "large", to, "moved"))
	e.wantNames(e.dir, "to")
	if got := len(e.list(e.walk(to, "moved"), 1000)); got != e.cfg.ListEntries {
		e.Errorf("moved: got %d entries, want %d", got, e.cfg.ListEntries)
	}
	e.statOf(to, "moved", fmt.Sprintf("%06d", e.cfg.ListEntries-1))
}

// Every entry that exists during the whole listing is in it once, whatever comes and goes
// meanwhile.
func testListingChanges(e *env) {
	const stay = 100
	e.many(e.dir, "stay", stay)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("come%d", i%10)
			err := e.tryWrite(e.dir, name, "", sigma.OpenWrite|sigma.OpenTruncate)
			if err == nil && i%3 > 0 {
				err = e.dir.Rename(e.ctx, name, e.dir, "go")
			} else if err == nil {
				err = e.dir.Remove(e.ctx, name)
			}
			if err != nil {
				e.Errorf("changing: %v", err)
				return
			}
		}
	}()
	for range 20 {
		n := 0
		for _, d := range e.list(e.dir, 7) {
			if d.Name[:2] == "st" {
				n++
			}
		}
		if n != stay {
			e.Errorf("a listing has %d of %d entries that were always there", n, stay)
		}
	}
	close(stop)
	<-done
}

func testRemovedDir(e *env) {
	d := e.mkdir(e.dir, "d")
	e.ok("Remove", e.dir.Remove(e.ctx, "d"))
	_, err := d.Create(e.ctx, "f", sigma.OpenWrite, 0o666)
	if err == nil {
		err = e.tryWrite(d, "f", "x", sigma.OpenWrite)
	}
	e.fails("Create in a removed directory", err, sigma.KindNotFound, sigma.KindStale)
	e.fails("Mkdir in a removed directory", d.Mkdir(e.ctx, "d", 0o777), sigma.KindNotFound, sigma.KindStale)
	e.write(e.dir, "f", "x")
	e.fails("Rename into a removed directory", e.dir.Rename(e.ctx, "f", d, "f"), sigma.KindNotFound, sigma.KindStale)
	e.wantNames(e.dir, "f")
}

func testRename(e *env) {
	a, b := e.mkdir(e.dir, "a"), e.mkdir(e.dir, "b")
	e.write(a, "f", "f")
	e.ok("Rename in place", a.Rename(e.ctx, "f", a, "g"))
	e.ok("Rename elsewhere", a.Rename(e.ctx, "g", b, "h"))
	e.wantNames(a)
	e.wantData("content", e.read(e.dir, "b", "h"), "f")
	e.write(b, "i", "i")
	e.ok("Rename onto a file", b.Rename(e.ctx, "i", b, "h"))
	e.wantNames(b, "h")
	e.wantData("content", e.read(b, "h"), "i")
	e.ok("Rename onto itself", b.Rename(e.ctx, "h", b, "h"))
	e.wantData("content", e.read(b, "h"), "i")
	if e.lacks(RenameDirs) {
		return
	}
	e.ok("Rename of a directory onto an empty one", e.dir.Rename(e.ctx, "b", e.dir, "a"))
	e.wantNames(e.dir, "a")
	e.wantData("content", e.read(e.dir, "a", "h"), "i")
}

func testRenameRefused(e *env) {
	a, b := e.mkdir(e.dir, "a"), e.mkdir(e.dir, "b")
	sub := e.mkdir(a, "sub")
	e.write(e.dir, "f", "f")
	e.write(b, "x", "x")
	e.fails("Rename of what is missing", e.dir.Rename(e.ctx, "x", e.dir, "y"), sigma.KindNotFound)
	e.fails("Rename of a file onto a directory", e.dir.Rename(e.ctx, "f", e.dir, "a"), sigma.KindIsDir)
	e.fails("Rename of a directory onto a file", e.dir.Rename(e.ctx, "a", e.dir, "f"), sigma.KindNotDir)
	e.fails("Rename onto a full directory", e.dir.Rename(e.ctx, "a", e.dir, "b"), sigma.KindNotEmpty)
	e.fails("Rename into itself", e.dir.Rename(e.ctx, "a", a, "a"), sigma.KindInvalid)
	e.fails("Rename below itself", e.dir.Rename(e.ctx, "a", sub, "a"), sigma.KindInvalid)
	e.fails("Rename onto a directory above", a.Rename(e.ctx, "sub", e.dir, "a"), sigma.KindNotEmpty)
	e.wantNames(e.dir, "a", "b", "f")
	e.wantNames(a, "sub")
}

func testRenameFollows(e *env) {
	a, b := e.mkdir(e.dir, "a"), e.mkdir(e.dir, "b")
	e.write(a, "f", "abc")
	open := e.open(e.dir, sigma.OpenRead, "a", "f")
	walked := e.walk(e.dir, "a", "f")
	defer walked.Close()
	e.ok("Rename", a.Rename(e.ctx, "f", b, "g"))
	above := []string{"b"}
	if !e.lacks(RenameDirs) {
		e.ok("Rename of its directory", e.dir.Rename(e.ctx, "b", a, "c"))
		above = []string{"a", "c"}
	}
	e.wantData("an open handle", e.readOpen(open), "abc")
	for _, f := range []sigma.File{open, walked} {
		if st := e.stat(f); st.Name != "g" || st.Size != 3 {
			e.Errorf("Stat after rename: got %+v, want name g and 3 bytes", st)
		}
	}
	e.ok("Open after rename", walked.Open(e.ctx, sigma.OpenRead))
	e.wantData("a handle opened after rename", e.readOpen(walked), "abc")
	e.write(b, "h", "through the moved directory's handle")
	e.wantNames(b, "g", "h")
	e.wantData("content", e.read(e.dir, append(above, "h")...), "through the moved directory's handle")
}

// Concurrent renames of one file have exactly one winner.
func testRenameRace(e *env) {
	const n = 8
	to := e.mkdir(e.dir, "to")
	for round := range 10 {
		e.write(e.dir, "f", fmt.Sprint(round))
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { errs[i] = e.dir.Rename(e.ctx, "f", to, fmt.Sprintf("%d.%d", round, i)) })
		}
		wg.Wait()
		winners := 0
		for i, err := range errs {
			if err != nil {
				e.fails("a loser", err, sigma.KindNotFound)
				continue
			}
			winners++
			e.wantData("content", e.read(to, fmt.Sprintf("%d.%d", round, i)), fmt.Sprint(round))
		}
		if winners != 1 {
			e.Errorf("round %d: %d renames of one file succeeded, want 1", round, winners)
		}
	}
}

// Concurrent renames onto one name all succeed, and one file is left.
func testRenameOntoRace(e *env) {
	const n = 8
	to := e.mkdir(e.dir, "to")
	for i := range n {
		e.write(e.dir, fmt.Sprint(i), fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := e.dir.Rename(e.ctx, fmt.Sprint(i), to, "f"); err != nil {
				e.Errorf("Rename: %v", err)
			}
		})
	}
	wg.Wait()
	e.wantNames(to, "f")
	e.wantNames(e.dir, "to")
	if got := e.read(to, "f"); len(got) != 1 {
		e.Errorf("content: got %q", got)
	}
}

// Two directories cannot be moved into each other, and nothing waits for ever.
func testRenameCross(e *env) {
	for round := range 20 {
		an, bn := fmt.Sprintf("a%d", round), fmt.Sprintf("b%d", round)
		a, b := e.mkdir(e.dir, an), e.mkdir(e.dir, bn)
		var errs [2]error
		var wg sync.WaitGroup
		wg.Go(func() { errs[0] = e.dir.Rename(e.ctx, an, b, "x") })
		wg.Go(func() { errs[1] = e.dir.Rename(e.ctx, bn, a, "x") })
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			e.Errorf("round %d: got %v and %v, want one winner", round, errs[0], errs[1])
		}
	}
}
