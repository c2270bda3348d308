// Package view is what one proc sees of its realm's tree (architecture §6): a table of entries,
// each of which shows a place of the realm at a path, with rights. It makes the table of a child
// from what its descriptor asks for and its spawner's own table, and answers what decides about a
// path.
//
// It promises that a table made from another gives no way to a place that the other gives none to,
// nor more rights there. It assumes that whoever walks to a target follows no symlink on the way,
// or the table would say nothing about where that ends.
//
// Tables do not change; all is safe for concurrent use. Users: kernel, which enforces them, and
// schedd, which keeps them.
package view

import (
	"fmt"
	"slices"
	"strings"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Entry shows the place Target of the realm at Path.
type Entry struct {
	Path   []string
	Target []string // in the realm; no symlink on the way is to be followed
	Rights sigma.Rights
}

// Table is a view. A nil Table is that of a proc that sees all of its realm.
type Table struct {
	entries []Entry // by path; no two have the same
}

// Make makes the table of a child whose descriptor asks for entries, of which by sees the targets.
// Targets have been settled: they contain no symlink. KindPermission names the first entry for
// which by has no place, or fewer rights.
func Make(entries []sigma.ViewEntry, by *Table) (*Table, error) {
	const op = "view.Make"
	t := &Table{}
	for _, a := range entries {
		path, err := sigma.ParsePath(a.Path)
		if err != nil {
			return nil, sigma.Wrap(op, a.Path, err)
		}
		target, err := sigma.ParsePath(a.Target)
		if err != nil {
			return nil, sigma.Wrap(op, a.Target, err)
		}
		i, taken := t.find(path)
		if taken {
			return nil, sigma.Errorf(op, sigma.KindInvalid, "the view has two entries at %s", a.Path)
		}
		if by == nil || a.Rights == sigma.RightsNone {
			t.entries = slices.Insert(t.entries, i, Entry{path, target, a.Rights})
			continue
		}
		e, rest, found := by.Lookup(target)
		switch {
		case !found && len(by.Below(target)) == 0:
			return nil, denied(a, "the spawner's view does not show "+a.Target)
		case found && a.Rights&^e.Rights != 0:
			return nil, denied(a, fmt.Sprintf("the spawner has %v there", e.Rights))
		case found:
			real := slices.Concat(e.Target, rest)
			if len(real) > 0 && real[0] == sigma.NameSys || len(path) > 0 && path[0] == sigma.NameProc &&
				!slices.Equal(path, real) {
				return nil, denied(a, "the place is the system's")
			}
			t.entries = slices.Insert(t.entries, i, Entry{path, real, a.Rights})
		}
	}
	asked := len(t.entries)
	for _, a := range entries {
		if by != nil && a.Rights != sigma.RightsNone {
			t.bring(a, by)
		}
	}
	if len(t.entries) > sigma.ViewMax || t.Size() > sigma.ViewBytesMax {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf(
				"with what comes along from the spawner's view the view has %d entries of %d bytes; %d of %d bytes "+
					"are allowed",
				len(t.entries), t.Size(), sigma.ViewMax, sigma.ViewBytesMax),
			Hint: fmt.Sprintf("%d of them were asked for",
				asked)}
	}
	return t, nil
}

// bring adds what the spawner sees below the target by other entries than the one above it: without
// them, the child would see what they cover.
func (t *Table) bring(a sigma.ViewEntry, by *Table) {
	path, _ := sigma.ParsePath(a.Path)
	target, _ := sigma.ParsePath(a.Target)
	for _, e := range by.entries {
		if len(e.Path) <= len(target) || !hasPrefix(e.Path, target) {
			continue
		}
		at := slices.Concat(path, e.Path[len(target):])
		if i, taken := t.find(at); !taken {
			t.entries = slices.Insert(t.entries, i, Entry{at, e.Target, e.Rights & a.Rights})
		}
	}
}

func denied(a sigma.ViewEntry, why string) error {
	return &sigma.Error{Op: "view.Make", Path: a.Path, Kind: sigma.KindPermission,
		Msg:  fmt.Sprintf("the view's entry %s=%s:%v cannot be given: %s", a.Path, a.Target, a.Rights, why),
		Hint: "a view gives what the spawner has, at most"}
}

// find says where path's entry is in the order, and whether there is one.
func (t *Table) find(path []string) (int, bool) {
	return slices.BinarySearchFunc(t.entries, path, func(e Entry, path []string) int {
		return slices.CompareFunc(e.Path, path, strings.Compare)
	})
}

func hasPrefix(names, prefix []string) bool {
	return len(names) >= len(prefix) && slices.Equal(names[:len(prefix)], prefix)
}

// Lookup gives the entry that decides about a path, and the names of it that are left below the
// entry's place.
func (t *Table) Lookup(names []string) (e *Entry, rest []string, found bool) {
	for n := len(names); n >= 0; n-- {
		if i, ok := t.find(names[:n]); ok {
			return &t.entries[i], names[n:], true
		}
	}
	return nil, nil, false
}

// Below gives the next name of each path of an entry below the directory names, sorted.
func (t *Table) Below(names []string) (out []string) {
	for i := range t.entries {
		if e := &t.entries[i]; len(e.Path) > len(names) && hasPrefix(e.Path, names) {
			out = append(out, e.Path[len(names)])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Grants gives the rights that some entry gives at a place of the realm.
func (t *Table) Grants(place []string) (r sigma.Rights) {
	for i := range t.entries {
		e := &t.entries[i]
		if !hasPrefix(place, e.Target) {
			continue
		}
		if by, _, _ := t.Lookup(slices.Concat(e.Path,
			place[len(e.Target):])); by == e { // else another entry covers it there
			r |= e.Rights
		}
	}
	return r
}

// Writes reports whether anything may be changed.
func (t *Table) Writes() bool {
	return slices.ContainsFunc(t.entries, func(e Entry) bool { return e.Rights&sigma.RightWrite != 0 })
}

// Entries lists the table; the targets are places of the realm.
func (t *Table) Entries() []sigma.ViewEntry {
	out := make([]sigma.ViewEntry, len(t.entries))
	for i, e := range t.entries {
		out[i] = sigma.ViewEntry{Path: sigma.JoinPath(e.Path...), Target: sigma.JoinPath(e.Target...), Rights: e.Rights}
	}
	return out
}

// Size is about how many bytes the table occupies where it is kept or sent.
func (t *Table) Size() (n int) {
	if t == nil {
		return 0
	}
	for i := range t.entries {
		e := &t.entries[i]
		n += 5
		for _, names := range [][]string{e.Path, e.Target} {
			for _, name := range names {
				n += len(name) + 1
			}
		}
	}
	return n
}

// Code codes *t, which may be nil. What was decoded is as good as what Make makes.
func Code(c *sigmap.Coder, t **Table) {
	has := *t != nil
	if c.Bool(&has); !has {
		if c.Decoding() {
			*t = nil
		}
		return
	}
	var entries []sigma.ViewEntry
	if !c.Decoding() {
		entries = (*t).Entries()
	}
	c.View(&entries)
	if !c.Decoding() {
		return
	}
	created, err := fromEntries(entries)
	if err != nil {
		c.Fail("a view is not one: " + err.Error())
	}
	*t = created
}

func fromEntries(entries []sigma.ViewEntry) (*Table, error) {
	d := sigma.Descriptor{Program: "/", View: entries}
	if err := d.Check(); err != nil {
		return nil, err
	}
	return Make(entries, nil)
}
