// Package treetest is the conformance kit of sigma.Tree: every tree, and every way to reach one,
// passes Run.
//
// A tree may lack capabilities of a closed list, and then must answer KindUnsupported to what needs
// them; there are no other differences. Each subtest works in a directory of its own and leaves
// what it made; those that concern trees in general say with which lesson or sentence of
// sigma/file.go they deal. The tests of trees and of the session protocol use it.
package treetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// Capability is something that a tree may lack.
type Capability string

// The capabilities.
const (
	Rewrite     Capability = "rewrite"      // opening a file for writing without truncating, appending, SetStat.Size
	Symlinks    Capability = "symlinks"     // Symlink, Put of KindSymlink
	Endpoints   Capability = "endpoints"    // Put of KindEndpoint
	SetPerm     Capability = "set-perm"     // SetStat.Perm
	SetModified Capability = "set-modified" // SetStat.Modified
	Modes       Capability = "modes"        // modes withhold something from their owner
	Watches     Capability = "watches"      // sigma.Watcher
	Leases      Capability = "leases"       // sigma.Leaser, PutOptions.Lease, PutOptions.Wait
	PassFiles   Capability = "pass-files"   // sigma.FilePasser
	Pipes       Capability = "pipes"        // Put of KindPipe
	Hidden      Capability = "hidden"       // sigma.OpenHidden
	RenameDirs  Capability = "rename-dirs"  // Rename of a directory
	LongPaths   Capability = "long-paths"   // paths beyond 900 bytes or so
	Identity    Capability = "identity"     // files that are more than what is at a name: handles follow renames
)

// Config says what to test.
type Config struct {
	// New makes the tree, once for a Run, and lets t clean it up.
	New       func(t *testing.T) sigma.Tree
	Principal sigma.Principal
	Root      string // what Attach is given
	// Dir is made in the root, and all tests work in it; "" means "treetest".
	Dir   string
	Lacks []Capability
	// ListEntries is the size of the large directory; 0 means 3000.
	ListEntries int
	// SizeMax bounds the files that are made; 0 means 1 MiB.
	SizeMax int
	// Depth is how deep directories are nested; 0 means as deep as a path can say.
	Depth int
}

// timeout bounds a subtest, so that a tree that wedges fails instead of hanging.
const timeout = time.Minute

// env is what a subtest works with.
type env struct {
	*testing.T
	cfg  Config
	ctx  context.Context
	root sigma.File
	dir  sigma.File // of this subtest
}

// Run runs the kit.
func Run(t *testing.T, cfg Config) {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = "treetest"
	}
	if cfg.ListEntries == 0 {
		cfg.ListEntries = 3000
	}
	if cfg.SizeMax == 0 {
		cfg.SizeMax = 1 << 20
	}
	if cfg.Depth == 0 {
		cfg.Depth = sigma.PathMax/2 - 1
	}
	tree := cfg.New(t)
	root, err := tree.Attach(t.Context(), cfg.Principal, cfg.Root)
	if err != nil {
		t.Fatalf("Attach: %v", err)
	}
	defer root.Close()
	if err := root.Mkdir(t.Context(), cfg.Dir, 0o777); err != nil {
		t.Fatalf("Mkdir of %q in the root: %v", cfg.Dir, err)
	}
	for _, group := range [][]subtest{walkTests, pathTests, dataTests, hiddenTests, entryTests, renameTests, raceTests,
		wholeTests, changeTests, fenceTests, loadTests, pipeTests, lackTests} {
		for _, s := range group {
			t.Run(s.name, func(t *testing.T) { runOne(t, cfg, root, s) })
		}
	}
}

type subtest struct {
	name  string
	needs []Capability
	run   func(e *env)
}

func runOne(t *testing.T, cfg Config, root sigma.File, s subtest) {
	e := &env{T: t, cfg: cfg, root: root}
	for _, c := range s.needs {
		if e.lacks(c) {
			t.Skipf("the tree lacks %s", c)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	e.ctx = ctx
	top := e.walk(root, cfg.Dir)
	defer top.Close()
	e.ok("Mkdir", top.Mkdir(ctx, s.name, 0o777))
	e.dir = e.walk(top, s.name)
	defer e.dir.Close()
	s.run(e)
}

func (e *env) lacks(c Capability) bool { return slices.Contains(e.cfg.Lacks, c) }

func (e *env) ok(what string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v (%v)", what, err, sigma.KindOf(err))
	}
}

// fails checks that err is a *sigma.Error of one of the kinds; with none, of any kind.
func (e *env) fails(what string, err error, kinds ...sigma.Kind) {
	e.Helper()
	var se *sigma.Error
	switch {
	case err == nil:
		e.Errorf("%s: got no error, want %v", what, kinds)
	case !errors.As(err, &se):
		e.Errorf("%s: got %T %v, want a *sigma.Error", what, err, err)
	case len(kinds) > 0 && !slices.Contains(kinds, se.Kind):
		e.Errorf("%s: got %v (%v), want %v", what, err, se.Kind, kinds)
	}
}

func (e *env) walk(f sigma.File, names ...string) sigma.File {
	e.Helper()
	got, ids, err := f.Walk(e.ctx, names)
	if err != nil || got == nil || len(ids) != len(names) {
		e.Fatalf("Walk(%q): got %v, ids %v, error %v", names, got, ids, err)
	}
	return got
}

// missing checks that name is not in dir.
func (e *env) missing(dir sigma.File, name string) {
	e.Helper()
	f, _, err := dir.Walk(e.ctx, []string{name})
	if f != nil {
		f.Close()
	}
	e.fails("Walk to "+name, err, sigma.KindNotFound)
}

// open walks to a file and opens it; the handle is closed when the subtest ends.
func (e *env) open(dir sigma.File, flags sigma.OpenFlags, names ...string) sigma.File {
	e.Helper()
	f := e.walk(dir, names...)
	e.Cleanup(f.Close)
	e.ok("Open", f.Open(e.ctx, flags))
	return f
}

// create makes a file and leaves it open.
func (e *env) create(dir sigma.File, name string, flags sigma.OpenFlags) sigma.File {
	e.Helper()
	f, err := dir.Create(e.ctx, name, flags, 0o666)
	e.ok("Create "+name, err)
	e.Cleanup(f.Close)
	return f
}

// write makes or replaces a file by the plain calls.
func (e *env) write(dir sigma.File, name, data string) {
	e.Helper()
	e.ok("write "+name, e.tryWrite(dir, name, data, sigma.OpenWrite|sigma.OpenTruncate))
}

// quickly is write by Put where there is one, which need not wait for a disk.
func (e *env) quickly(dir sigma.File, name, data string) {
	e.Helper()
	p, ok := dir.(sigma.Putter)
	if !ok {
		e.write(dir, name, data)
		return
	}
	_, _, err := p.Put(e.ctx, []string{name}, []byte(data), sigma.PutOptions{})
	e.ok("Put "+brief(name), err)
}

func (e *env) tryWrite(dir sigma.File, name, data string, flags sigma.OpenFlags) error {
	f, err := dir.Create(e.ctx, name, flags, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	for done := 0; done < len(data); {
		n, err := f.WriteAt(e.ctx, []byte(data[done:min(done+8192, len(data))]), uint64(done))
		if err != nil {
			return err
		}
		done += n
	}
	return f.Sync(e.ctx)
}

// readOpen reads all of an open handle.
func (e *env) readOpen(f sigma.File) string {
	e.Helper()
	var all []byte
	buf := make([]byte, 8192)
	for {
		n, err := f.ReadAt(e.ctx, buf, uint64(len(all)))
		e.ok("ReadAt", err)
		if n == 0 {
			return string(all)
		}
		all = append(all, buf[:n]...)
	}
}

func (e *env) read(dir sigma.File, names ...string) string {
	e.Helper()
	f := e.walk(dir, names...)
	defer f.Close()
	e.ok("Open", f.Open(e.ctx, sigma.OpenRead))
	return e.readOpen(f)
}

func (e *env) wantData(what, got, want string) {
	e.Helper()
	if got != want {
		e.Errorf("%s: got %s, want %s", what, brief(got), brief(want))
	}
}

func brief(s string) string {
	if len(s) <= 60 {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%d bytes %q...", len(s), s[:40])
}

func (e *env) stat(f sigma.File) sigma.Stat {
	e.Helper()
	st, err := f.Stat(e.ctx)
	e.ok("Stat", err)
	return st
}

func (e *env) statOf(dir sigma.File, names ...string) sigma.Stat {
	e.Helper()
	f := e.walk(dir, names...)
	defer f.Close()
	return e.stat(f)
}

func (e *env) mkdir(dir sigma.File, name string) sigma.File {
	e.Helper()
	e.ok("Mkdir "+name, dir.Mkdir(e.ctx, name, 0o777))
	f := e.walk(dir, name)
	e.Cleanup(f.Close)
	return f
}

// list reads a directory in pieces of at most size entries and checks what any listing must keep.
func (e *env) list(dir sigma.File, size int) []sigma.DirEntry {
	e.Helper()
	f := e.walk(dir)
	defer f.Close()
	e.ok("Open", f.Open(e.ctx, sigma.OpenRead))
	var all []sigma.DirEntry
	seen := map[string]bool{}
	for cookie := uint64(0); ; {
		entries, next, more, err := f.ReadDir(e.ctx, cookie, size)
		e.ok("ReadDir", err)
		if len(entries) > size {
			e.Fatalf("ReadDir: got %d entries, want at most %d", len(entries), size)
		}
		for _, d := range entries {
			if seen[d.Name] {
				e.Errorf("ReadDir: %q is listed twice", d.Name)
			}
			seen[d.Name] = true
		}
		all = append(all, entries...)
		if !more {
			return all
		}
		if next == cookie {
			e.Fatalf("ReadDir: there is more after cookie %d but it does not move", cookie)
		}
		cookie = next
	}
}

func (e *env) names(dir sigma.File) []string {
	e.Helper()
	var names []string
	for _, d := range e.list(dir, 100) {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return names
}

func (e *env) wantNames(dir sigma.File, want ...string) {
	e.Helper()
	slices.Sort(want)
	if got := e.names(dir); !slices.Equal(got, want) {
		e.Errorf("listing: got %q, want %q", got, want)
	}
}

// putter gives dir's Putter, or skips.
func (e *env) putter(dir sigma.File) sigma.Putter {
	e.Helper()
	p, ok := dir.(sigma.Putter)
	if !ok {
		e.Skip("the handle is no sigma.Putter; the server kit stands in")
	}
	return p
}

func (e *env) getter(dir sigma.File) sigma.Getter {
	e.Helper()
	g, ok := dir.(sigma.Getter)
	if !ok {
		e.Skip("the handle is no sigma.Getter; the server kit stands in")
	}
	return g
}

// put is Put that must work.
func (e *env) put(dir sigma.File, name, data string, o sigma.PutOptions) sigma.FileID {
	e.Helper()
	id, stopped, err := e.putter(dir).Put(e.ctx, []string{name}, []byte(data), o)
	e.ok("Put "+name, err)
	if stopped != nil {
		e.Fatalf("Put %s: stopped at %+v", name, *stopped)
	}
	return id
}

// get is Get, and fails the test on an error.
func (e *env) get(dir sigma.File, names ...string) sigma.GetResult {
	e.Helper()
	r, stopped, err := e.getter(dir).Get(e.ctx, names, 0, e.cfg.SizeMax)
	e.ok("Get", err)
	if stopped != nil {
		e.Fatalf("Get: stopped at %+v", *stopped)
	}
	return r
}

// pattern makes n bytes that differ by position.
func pattern(n int) string {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%d,", i)
	}
	return b.String()[:n]
}

// badNames can never be one component of a path; why each is bad is its key.
var badNames = map[string]string{
	"empty": "", "dot": ".", "dotdot": "..", "slash": "a/b", "slash first": "/a", "NUL": "a\x00b",
	"256 bytes": strings.Repeat("n", 256),
	"10 MB":     strings.Repeat("n", 10<<20),
}
