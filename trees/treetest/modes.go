package treetest

import (
	"fmt"

	"sigmaos.dev/sigma"
)

// modeCase is what a mode withholds from the owner: each of refused, and none of allowed. Both find
// a directory d with a file f and an empty directory s.
type modeCase struct {
	name             string
	file             bool // the mode is f's, else d's
	mode             uint32
	refused, allowed map[string]func(m *modes) error
}

// modes is what one check of modeCase works with. Its handles were made before the mode was
// changed.
type modes struct {
	*env
	name string // of the directory of this check; unique in the subtest
	d, f sigma.File
}

// testModes checks the three bits of a mode that count for the owner, as whom a program acts, one
// by one (9P intro(5), path_resolution(7)), each with a control: the same is done when the bit is
// there.
func testModes(e *env) {
	if e.cfg.Principal.System {
		e.Skip("the provider passes always")
	}
	n := 0
	for _, c := range modeCases(e) {
		for what, do := range c.refused {
			n++
			m, set := e.withMode(c, n)
			e.fails(c.name+": "+what, do(m), sigma.KindPermission)
			set(0o700)
			e.ok(c.name+": "+what+", when the mode was changed", do(m))
		}
		for what, do := range c.allowed {
			n++
			m, _ := e.withMode(c, n)
			e.ok(c.name+": "+what, do(m))
		}
	}
	e.openGoesOn()
}

// withMode makes what a case needs in a directory of its own, the nth. set changes the mode again.
func (e *env) withMode(c modeCase, n int) (m *modes, set func(perm uint32)) {
	m = &modes{env: e, name: fmt.Sprintf("case%d", n)}
	top := e.mkdir(e.dir, m.name)
	m.d = e.mkdir(top, "d")
	e.write(m.d, "f", "abc")
	e.ok("Mkdir", m.d.Mkdir(e.ctx, "s", 0o777))
	m.f = e.walk(m.d, "f")
	set = func(perm uint32) {
		of := m.d
		if c.file {
			of = m.f
		}
		e.ok("SetStat", of.SetStat(e.ctx, sigma.StatChange{Perm: &perm}))
	}
	set(c.mode)
	return m, set
}

func (m *modes) opens(f sigma.File, flags sigma.OpenFlags) error {
	g, _, err := f.Walk(m.ctx, nil)
	if err == nil {
		err = g.Open(m.ctx, flags)
		g.Close()
	}
	return err
}

func (m *modes) walks(from sigma.File, names ...string) error {
	f, _, err := from.Walk(m.ctx, names)
	if err == nil && f != nil {
		f.Close()
	}
	return err
}

func (m *modes) creates(name string) error {
	return closing(m.d.Create(m.ctx, name, sigma.OpenWrite, 0o666))
}

func (m *modes) gets(from sigma.File, names ...string) error {
	_, _, err := m.getter(from).Get(m.ctx, names, 0, 10)
	return err
}

func (m *modes) puts(name string) error {
	_, _, err := m.putter(m.d).Put(m.ctx, []string{name}, []byte("new"), sigma.PutOptions{})
	return err
}

// watches is a Watch that has something to tell, and so does not wait.
func (m *modes) watches(f sigma.File) error {
	w, ok := f.(sigma.Watcher)
	if !ok {
		return sigma.Errorf("treetest.watches", sigma.KindUnsupported, "no sigma.Watcher")
	}
	_, err := w.Watch(m.ctx, 0)
	return err
}

func modeCases(e *env) []modeCase {
	type ops = map[string]func(m *modes) error
	size := uint64(1)
	stat := func(m *modes) error { _, err := m.d.Stat(m.ctx); return err }
	list := func(m *modes) error { return m.opens(m.d, sigma.OpenRead) }
	get := func(m *modes) error { return m.gets(m.d, "f") }
	reading := ops{"Open": func(m *modes) error {
		return m.opens(m.f, sigma.OpenRead)
	}, "Open for both": func(m *modes) error { return m.opens(m.f, sigma.OpenReadWrite) }, "Get": get}
	listing := ops{"Open": list}
	if !e.lacks(Watches) {
		reading["Watch"] = func(m *modes) error { return m.watches(m.f) }
		listing["Watch"] = func(m *modes) error { return m.watches(m.d) }
	}
	changing := ops{
		"Create": func(m *modes) error {
			return m.creates("new")
		}, "Put": func(m *modes) error { return m.puts("new") },
		"Mkdir": func(m *modes) error {
			return m.d.Mkdir(m.ctx, "new", 0o777)
		}, "Remove": func(m *modes) error { return m.d.Remove(m.ctx, "f") },
		"Remove of a directory": func(m *modes) error { return m.d.Remove(m.ctx, "s") },
		"Rename":                func(m *modes) error { return m.d.Rename(m.ctx, "f", m.d, "new") },
		"Rename out of it":      func(m *modes) error { return m.d.Rename(m.ctx, "f", m.dir, m.name+"f") },
		"Rename into it": func(m *modes) error {
			m.quickly(m.dir, m.name+"x", "x")
			return m.dir.Rename(m.ctx, m.name+"x", m.d, "f")
		},
	}
	if !e.lacks(Symlinks) {
		changing["Symlink"] = func(m *modes) error { return m.d.Symlink(m.ctx, "new", "/x") }
	}
	return []modeCase{
		{"a file without r", true, 0o277, reading, ops{"Open for writing": func(m *modes) error {
			return m.opens(m.f, sigma.OpenWrite)
		}, "Put": func(m *modes) error { return m.puts("f") }}},
		{"a file without w", true, 0o577, ops{
			"Open for writing": func(m *modes) error {
				return m.opens(m.f, sigma.OpenWrite)
			}, "Open that truncates": func(m *modes) error { return m.opens(m.f, sigma.OpenTruncate) },
			"Open for append": func(m *modes) error {
				return m.opens(m.f, sigma.OpenWrite|sigma.OpenAppend)
			}, "Create": func(m *modes) error { return m.creates("f") },
			"Put": func(m *modes) error {
				return m.puts("f")
			}, "SetStat of a size": func(m *modes) error { return m.f.SetStat(m.ctx, sigma.StatChange{Size: &size}) },
		}, ops{"Get": get, "Open": reading["Open"], "Remove": changing["Remove"], "Rename": changing["Rename"]}},
		{"a directory without r", false, 0o377, listing, ops{"Get": get, "Create": changing["Create"], "Stat": stat}},
		{"a directory without w", false, 0o577, changing, ops{"Get": get, "Put to what is there": func(m *modes) error {
			return m.puts("f")
		}, "Create of what is there": func(m *modes) error { return m.creates("f") }, "Open": list}},
		{"a directory without x", false, 0o677, ops{
			"Walk": func(m *modes) error {
				return m.walks(m.d, "f")
			}, "Get": get, "Put": func(m *modes) error { return m.puts("f") },
			"Create": func(m *modes) error { return m.creates("f") },
			"Walk through it": func(m *modes) error {
				return m.walks(m.dir, m.name, "d", "f")
			}, "Get through it": func(m *modes) error { return m.gets(m.dir, m.name, "d", "f") },
			"Mkdir": changing["Mkdir"], "Remove": changing["Remove"], "Rename": changing["Rename"],
			"Rename into it": changing["Rename into it"],
		}, ops{"Open": list, "Stat": stat, "Open of a file found before": reading["Open"]}},
	}
}

// openGoesOn checks that what is open stays so, whatever becomes of the mode, and that who creates
// a file may write it, whatever mode it gave.
func (e *env) openGoesOn() {
	created, err := e.dir.Create(e.ctx, "ro", sigma.OpenReadWrite|sigma.OpenExclusive, 0o400)
	e.ok("Create with mode 0400", err)
	defer created.Close()
	none := uint32(0)
	for i, mode := range []*uint32{nil, &none} {
		if mode != nil {
			e.ok("SetStat", created.SetStat(e.ctx, sigma.StatChange{Perm: mode}))
		}
		_, err = created.WriteAt(e.ctx, []byte{byte('a' + i)}, 0)
		e.ok("WriteAt by who has it open", err)
		e.wantData("ReadAt by who has it open", e.readOpen(created), string(rune('a'+i)))
		f := e.walk(e.dir, "ro")
		e.fails("Open for writing by another", f.Open(e.ctx, sigma.OpenWrite), sigma.KindPermission)
		f.Close()
	}
	f := e.walk(e.dir, "ro")
	defer f.Close()
	all := uint32(0o600)
	e.ok("SetStat of a file of mode 0", f.SetStat(e.ctx, sigma.StatChange{Perm: &all}))
	e.wantData("Get after it", string(e.get(e.dir, "ro").Data), "b")
}
