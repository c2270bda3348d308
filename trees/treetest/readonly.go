package treetest

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// ReadOnlyConfig says what to test of a tree whose files are made by its server, as /proc's are.
type ReadOnlyConfig struct {
	New       func(t *testing.T) sigma.Tree
	Principal sigma.Principal
	Root      string // what Attach is given
	// Dir leads to a directory that does not change during the test and has entries, File to a file
	// of at least two bytes that does not either. A tree may have more that change.
	Dir, File []string
}

// RunReadOnly is Run for trees in which nothing can be made: what can be read is as of any tree,
// and every attempt to change something is refused, as KindPermission or KindUnsupported, and
// changes nothing. Such trees lack watches, leases and passed files; versions of their files need
// not tell of changes.
func RunReadOnly(t *testing.T, cfg ReadOnlyConfig) {
	t.Helper()
	root, err := cfg.New(t).Attach(t.Context(), cfg.Principal, cfg.Root)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	defer root.Close()
	for _, s := range []struct {
		name string
		run  func(e *env, cfg ReadOnlyConfig)
	}{
		{"walk", readOnlyWalk}, {"listing", readOnlyListing}, {"read", readOnlyRead}, {"open-modes", readOnlyModes},
		{"bad-names", readOnlyNames}, {"refused", readOnlyRefused}, {"lacks", readOnlyLacks},
	} {
		t.Run(s.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			e := &env{T: t, ctx: ctx, cfg: Config{SizeMax: 1 << 20, Principal: cfg.Principal}, root: root}
			e.dir = e.walk(root, cfg.Dir...)
			defer e.dir.Close()
			s.run(e, cfg)
		})
	}
	t.Run("stalled-client", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		e := &env{T: t, ctx: ctx, cfg: Config{Principal: cfg.Principal}, root: root}
		e.stall(root, cfg.File, func() {
			for range 30 {
				e.read(root, cfg.File...)
				e.names(e.walk(root, cfg.Dir...))
			}
		})
	})
}

// readOnlyKinds are of what is refused because nothing can be changed here.
var readOnlyKinds = []sigma.Kind{sigma.KindPermission, sigma.KindUnsupported}

func readOnlyWalk(e *env, cfg ReadOnlyConfig) {
	f, ids, err := e.root.Walk(e.ctx, cfg.File)
	e.ok("Walk", err)
	defer f.Close()
	for i := range cfg.File {
		want := e.statOf(e.root, cfg.File[:i+1]...)
		if ids[i].Kind != want.ID.Kind || ids[i].Path != want.ID.Path || want.Name != cfg.File[i] {
			e.Errorf("id %d of a walk: got %+v, Stat says %+v", i, ids[i], want)
		}
	}
	clone := e.walk(f)
	defer clone.Close()
	if e.stat(clone).ID != e.stat(f).ID {
		e.Errorf("a clone is %+v, want %+v", e.stat(clone).ID, e.stat(f).ID)
	}
	e.wantStop(e.root, len(cfg.Dir), slices.Concat(cfg.Dir, []string{"no such name", "x"})...)
	e.wantStop(e.root, len(cfg.File), slices.Concat(cfg.File, []string{"x"})...)
	e.missing(e.dir, "no such name")
	_, _, err = f.Walk(e.ctx, []string{"x"})
	e.fails("Walk from a file", err, sigma.KindNotDir)
	e.missing(e.root, "no such name")
	f.Close()
	f.Close()
	_, err = f.Stat(e.ctx)
	e.fails("Stat of a closed handle", err)
}

func readOnlyListing(e *env, cfg ReadOnlyConfig) {
	all := e.list(e.dir, 1000)
	if len(all) == 0 {
		e.Fatal("there are no entries")
	}
	for _, size := range []int{1, 2, 3} {
		if got := e.list(e.dir, size); len(got) != len(all) {
			e.Errorf("%d at a time: got %d entries, want %d", size, len(got), len(all))
		}
	}
	for _, d := range all {
		if st := e.statOf(e.dir, d.Name); st.ID.Kind != d.ID.Kind || st.ID.Path != d.ID.Path || st.Name != d.Name {
			e.Errorf("listed %+v, Stat says %+v", d, st)
		}
	}
	e.list(e.root, 5)
}

func readOnlyRead(e *env, cfg ReadOnlyConfig) {
	want := e.read(e.root, cfg.File...)
	if len(want) < 2 {
		e.Fatalf("the file has %d bytes", len(want))
	}
	e.wantData("Get", string(e.get(e.root, cfg.File...).Data), want)
	f := e.open(e.root, sigma.OpenRead, cfg.File...)
	one := make([]byte, 1)
	n, err := f.ReadAt(e.ctx, one, 1)
	e.ok("ReadAt", err)
	e.wantData("the second byte", string(one[:n]), want[1:2])
	for _, offset := range []uint64{uint64(len(want)), 1 << 40, math.MaxInt64, math.MaxUint64} {
		if n, err := f.ReadAt(e.ctx, one, offset); n != 0 || err != nil && sigma.KindOf(err) != sigma.KindInvalid {
			e.Errorf("ReadAt(%d): got %d bytes, %v; want the end", offset, n, err)
		}
		if r, _, err := e.getter(e.root).Get(e.ctx, cfg.File, offset, 10); len(r.Data) != 0 || err != nil &&
			sigma.KindOf(err) != sigma.KindInvalid {
			e.Errorf("Get at %d: got %q, %v", offset, r.Data, err)
		}
	}
	_, _, err = e.getter(e.root).Get(e.ctx, cfg.Dir, 0, 10)
	e.fails("Get of a directory", err, sigma.KindIsDir)
}

func readOnlyModes(e *env, cfg ReadOnlyConfig) {
	for _, flags := range []sigma.OpenFlags{sigma.OpenWrite, sigma.OpenReadWrite, sigma.OpenTruncate | sigma.OpenWrite,
		sigma.OpenAppend | sigma.OpenWrite} {
		f := e.walk(e.root, cfg.File...)
		e.fails("Open for writing", f.Open(e.ctx, flags), readOnlyKinds...)
		_, err := f.WriteAt(e.ctx, []byte("x"), 0)
		e.fails("WriteAt", err)
		f.Close()
	}
	f := e.walk(e.root, cfg.File...)
	defer f.Close()
	_, err := f.ReadAt(e.ctx, make([]byte, 1), 0)
	e.fails("ReadAt before Open", err, sigma.KindInvalid)
	e.ok("Open", f.Open(e.ctx, sigma.OpenRead))
	e.fails("Open again", f.Open(e.ctx, sigma.OpenRead), sigma.KindInvalid)
	_, err = f.WriteAt(e.ctx, []byte("x"), 0)
	e.fails("WriteAt", err, sigma.KindPermission)
	_, _, _, err = f.ReadDir(e.ctx, 0, 10)
	e.fails("ReadDir of a file", err, sigma.KindNotDir, sigma.KindUnsupported)
	e.fails("Open of a directory for writing", e.walk(e.root, cfg.Dir...).Open(e.ctx, sigma.OpenWrite), sigma.KindIsDir)
	_, _, _, err = e.dir.ReadDir(e.ctx, 0, 10)
	e.fails("ReadDir before Open", err, sigma.KindInvalid)
	e.ok("Open", e.dir.Open(e.ctx, sigma.OpenRead))
	_, err = e.dir.ReadAt(e.ctx, make([]byte, 1), 0)
	e.fails("ReadAt of a directory", err, sigma.KindIsDir)
	_, _, _, err = e.dir.ReadDir(e.ctx, 0, 0)
	e.fails("ReadDir of no entries", err, sigma.KindInvalid)
}

func readOnlyNames(e *env, cfg ReadOnlyConfig) {
	for why, name := range badNames {
		for _, dir := range []sigma.File{e.root, e.dir} {
			_, _, err := dir.Walk(e.ctx, []string{name})
			e.fails("Walk, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
			_, _, err = e.getter(dir).Get(e.ctx, []string{name}, 0, 10)
			e.fails("Get, "+why, err, sigma.KindInvalid, sigma.KindTooBig)
			_, err = dir.Create(e.ctx, name, sigma.OpenWrite, 0o666)
			e.fails("Create, "+why, err)
		}
	}
	for b := range 256 { // none of them is there, and none does harm
		if name := string([]byte{'x', byte(b)}); b != 0 && b != '/' {
			e.missing(e.dir, name)
		}
	}
}

func readOnlyRefused(e *env, cfg ReadOnlyConfig) {
	before := e.names(e.dir)
	data := e.read(e.root, cfg.File...)
	name := before[0]
	perm, size, when := uint32(0o777), uint64(0), time.Unix(1, 0)
	refused := func(what string, err error) { e.Helper(); e.fails(what, err, readOnlyKinds...) }
	for _, n := range []string{"new", name} {
		_, err := e.dir.Create(e.ctx, n, sigma.OpenWrite|sigma.OpenTruncate, 0o666)
		refused("Create", err)
		refused("Mkdir", e.dir.Mkdir(e.ctx, n, 0o777))
		refused("Symlink", e.dir.Symlink(e.ctx, n, "/x"))
		for _, o := range []sigma.PutOptions{{}, {MustMake: true}, {Append: true}, {Kind: sigma.KindSymlink},
			{Kind: sigma.KindEndpoint}} {
			_, _, err = e.putter(e.dir).Put(e.ctx, []string{n}, []byte("/x"), o)
			refused("Put", err)
		}
	}
	refused("Remove", e.dir.Remove(e.ctx, name))
	refused("Rename", e.dir.Rename(e.ctx, name, e.dir, "new"))
	refused("Rename out", e.dir.Rename(e.ctx, name, e.root, "new"))
	f := e.walk(e.root, cfg.File...)
	defer f.Close()
	for _, h := range []sigma.File{e.dir, f} {
		for _, c := range []sigma.StatChange{{Perm: &perm}, {Size: &size}, {Modified: &when}} {
			refused("SetStat", h.SetStat(e.ctx, c))
		}
	}
	if after := e.names(e.dir); !slices.Equal(before, after) {
		e.Errorf("refused changes changed %q to %q", before, after)
	}
	e.wantData("content", e.read(e.root, cfg.File...), data)
}

func readOnlyLacks(e *env, cfg ReadOnlyConfig) {
	f := e.open(e.root, sigma.OpenRead, cfg.File...)
	for _, h := range []sigma.File{e.dir, f} {
		if w, ok := h.(sigma.Watcher); ok {
			_, err := w.Watch(e.ctx, 0)
			e.fails("Watch", err, sigma.KindUnsupported)
		}
		if l, ok := h.(sigma.Leaser); ok {
			_, err := l.Lease(e.ctx, time.Hour)
			e.fails("Lease", err, sigma.KindUnsupported)
		}
		if p, ok := h.(sigma.FilePasser); ok {
			_, err := p.PassFile(e.ctx)
			e.fails("PassFile", err, sigma.KindUnsupported)
		}
	}
}
