package treetest

import (
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

var lackTests = []subtest{{name: "lacks", run: testLacks}}

// testLacks checks that what the tree says it lacks is answered by KindUnsupported and leaves
// nothing behind.
func testLacks(e *env) {
	e.write(e.dir, "f", "abc")
	for _, c := range e.cfg.Lacks {
		check, ok := lacking[c]
		if !ok {
			e.Fatalf("there is no capability %q", c)
		}
		for what, err := range check(e) {
			e.fails(string(c)+": "+what, err, sigma.KindUnsupported)
		}
	}
	e.wantNames(e.dir, "f")
	e.wantData("content", e.read(e.dir, "f"), "abc")
}

// lacking gives, for each capability, what the operations that need it answered. A handle without
// the interface gives nothing.
var lacking = map[Capability]func(e *env) map[string]error{
	Rewrite: func(e *env) map[string]error {
		f := e.walk(e.dir, "f")
		defer f.Close()
		size := uint64(1)
		got := map[string]error{
			"Open for writing":  f.Open(e.ctx, sigma.OpenWrite),
			"Open for append":   f.Open(e.ctx, sigma.OpenWrite|sigma.OpenAppend),
			"Open for both":     f.Open(e.ctx, sigma.OpenReadWrite),
			"SetStat of a size": f.SetStat(e.ctx, sigma.StatChange{Size: &size}),
			"Put with Append":   e.tryPut(sigma.PutOptions{Append: true}),
		}
		_, got["Create of an existing file"] = e.dir.Create(e.ctx, "f", sigma.OpenWrite, 0o666)
		return got
	},
	Symlinks: func(e *env) map[string]error {
		return map[string]error{"Symlink": e.dir.Symlink(e.ctx, "x", "/x"),
			"Put": e.tryPut(sigma.PutOptions{Kind: sigma.KindSymlink})}
	},
	Endpoints: func(e *env) map[string]error {
		return map[string]error{"Put": e.tryPut(sigma.PutOptions{Kind: sigma.KindEndpoint})}
	},
	Pipes: func(e *env) map[string]error {
		p, ok := e.dir.(sigma.Putter)
		if !ok {
			return nil
		}
		_, _, err := p.Put(e.ctx, []string{"x"}, nil, sigma.PutOptions{Kind: sigma.KindPipe})
		return map[string]error{"Put": err}
	},
	SetPerm: func(e *env) map[string]error {
		perm := uint32(0o640)
		return map[string]error{"SetStat": e.trySetStat(sigma.StatChange{Perm: &perm})}
	},
	SetModified: func(e *env) map[string]error {
		when := time.Unix(1, 0)
		return map[string]error{"SetStat": e.trySetStat(sigma.StatChange{Modified: &when})}
	},
	Modes: func(*env) map[string]error { return nil }, // nothing is refused, which is what is lacking
	Watches: func(e *env) map[string]error {
		w, ok := e.dir.(sigma.Watcher)
		if !ok {
			return nil
		}
		_, err := w.Watch(e.ctx, 0)
		return map[string]error{"Watch": err}
	},
	Leases: func(e *env) map[string]error {
		got := map[string]error{"Put": e.tryPut(sigma.PutOptions{Lease: 1}),
			"Put with Wait": e.tryPut(sigma.PutOptions{MustMake: true, Wait: true})}
		if l, ok := e.root.(sigma.Leaser); ok {
			_, got["Lease"] = l.Lease(e.ctx, time.Hour)
		}
		return got
	},
	Hidden: func(e *env) map[string]error {
		_, err := e.dir.Create(e.ctx, "x", sigma.OpenWrite|sigma.OpenHidden, 0o666)
		return map[string]error{"Create": err}
	},
	// a handle is of a name: it has what is there, or nothing
	Identity: func(e *env) map[string]error {
		e.write(e.dir, "named", "abc")
		f := e.walk(e.dir, "named")
		defer f.Close()
		e.ok("Rename", e.dir.Rename(e.ctx, "named", e.dir, "other"))
		_, err := f.Stat(e.ctx)
		e.fails("Stat by the old name", err, sigma.KindNotFound)
		e.write(e.dir, "named", "defg")
		e.wantData("by the name", e.read(e.dir, "named"), "defg")
		if st, err := f.Stat(e.ctx); err != nil || st.Size != 4 {
			e.Errorf("Stat of what has the name now: %+v, %v", st, err)
		}
		for _, name := range []string{"named", "other"} {
			e.ok("Remove", e.dir.Remove(e.ctx, name))
		}
		return nil
	},
	RenameDirs: func(e *env) map[string]error {
		d := e.mkdir(e.dir, "d")
		e.write(d, "f", "x")
		got := map[string]error{"Rename": e.dir.Rename(e.ctx, "d", e.dir, "moved")}
		e.wantData("content", e.read(d, "f"), "x")
		e.ok("Remove", d.Remove(e.ctx, "f"))
		e.ok("Remove", e.dir.Remove(e.ctx, "d"))
		return got
	},
	LongPaths: func(e *env) map[string]error {
		t, name := e.tree(), strings.Repeat("n", 200)
		got := map[string]error{"MkdirAll": t.MkdirAll(e.ctx, strings.Repeat("/"+name, 6), 0o777)}
		e.ok("RemoveAll", t.RemoveAll(e.ctx, "/"+name))
		return got
	},
	PassFiles: func(e *env) map[string]error {
		f := e.open(e.dir, sigma.OpenRead, "f")
		p, ok := f.(sigma.FilePasser)
		if !ok {
			return nil
		}
		_, err := p.PassFile(e.ctx)
		return map[string]error{"PassFile": err}
	},
}

// tryPut puts to a name that is not there, or tells that it is unsupported where there is no Put.
func (e *env) tryPut(o sigma.PutOptions) error {
	p, ok := e.dir.(sigma.Putter)
	if !ok {
		return sigma.Errorf("treetest.tryPut", sigma.KindUnsupported, "the handle is no sigma.Putter")
	}
	_, _, err := p.Put(e.ctx, []string{"x"}, []byte("/x"), o)
	return err
}

func (e *env) trySetStat(c sigma.StatChange) error {
	f := e.walk(e.dir, "f")
	defer f.Close()
	return f.SetStat(e.ctx, c)
}
