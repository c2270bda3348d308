package ux

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// ways are how often a realm's bytes are asked for.
const routes = 1000

// asking looks for files by everything that a tenant can do with names and handles, at random. It
// knows what the names of the other realm's files are, and where they are on the disk.
type asking struct {
	t      *testing.T
	ctx    context.Context
	tree   *Tree
	as     sigma.Principal
	random *rand.Rand
	found  int
}

const secretText = "bytes of the other realm"

var askedNames = []string{"secret", "dir", "..", ".", "", "/", "realms", "other", "tree", "temp", "trash", "fences",
	"1", "2", "..\x00", "dir/secret", "../../other/tree/secret", "/realms/other/tree/secret", "sigma:symlink:/secret",
	"link", "mine"}

func (a *asking) name() string { return askedNames[a.random.IntN(len(askedNames))] }

func (a *asking) names() (out []string) {
	for range a.random.IntN(5) {
		out = append(out, a.name())
	}
	return out
}

// look counts what was found. Most of what is asked for is an error.
func (a *asking) look(data []byte) {
	if bytes.Contains(data, []byte(secretText)) {
		a.found++
	}
}

// root attaches as the realm itself, or asks for another.
func (a *asking) root() sigma.File {
	name := []string{"", "", "other", "../other", "realms/other"}[a.random.IntN(5)]
	f, err := a.tree.Attach(a.ctx, a.as, name)
	if err != nil {
		if f, err = a.tree.Attach(a.ctx, a.as, ""); err != nil {
			a.t.Fatal(err)
		}
	}
	return f
}

// once asks in one way.
func (a *asking) once() {
	f := a.root()
	defer f.Close()
	if to, _, err := f.Walk(a.ctx, a.names()); err == nil && to != nil {
		f.Close()
		f = to
	}
	switch a.random.IntN(8) {
	case 0, 1:
		if g, _, err := f.(sigma.Getter).Get(a.ctx, a.names(), 0, 1<<16); err == nil {
			a.look(g.Data)
		}
	case 2:
		a.read(f)
	case 3:
		if to, err := f.Create(a.ctx, a.name(), sigma.OpenReadWrite|sigma.OpenHidden*sigma.OpenFlags(a.random.IntN(2)),
			0); err == nil {
			defer to.Close()
			a.fill(to)
		}
	case 4:
		f.Symlink(a.ctx, a.name(), strings.Join(a.names(), "/")+"/"+a.name())
		f.Mkdir(a.ctx, a.name(), 0)
	case 5:
		f.Rename(a.ctx, a.name(), f, a.name())
	case 6:
		f.(sigma.Putter).Put(a.ctx, append(a.names(), a.name()), []byte("/"+a.name()),
			sigma.PutOptions{Kind: []sigma.FileKind{sigma.KindFile, sigma.KindSymlink,
				sigma.KindEndpoint}[a.random.IntN(3)]})
	case 7:
		if es, _, _, err := f.ReadDir(a.ctx, 0, 100); err == nil {
			for _, e := range es {
				a.look([]byte(e.Name))
			}
		}
	}
}

// read reads an opened file by the handle and by a descriptor.
func (a *asking) read(f sigma.File) {
	if f.Open(a.ctx, sigma.OpenRead) == nil {
		a.fill(f)
	}
}

func (a *asking) fill(f sigma.File) {
	buf := make([]byte, 1<<12)
	n, _ := f.ReadAt(a.ctx, buf, 0)
	a.look(buf[:n])
	if d, err := f.(sigma.FilePasser).PassFile(a.ctx); err == nil {
		defer d.Close()
		n, _ := d.ReadAt(buf, 0)
		a.look(buf[:max(n, 0)])
	}
}

// Goal: another realm's bytes are never seen, asked for in 1,000 ways. The control asks the same as
// the realm whose bytes they are, and finds them.
func TestOtherRealm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for as, finds := range map[sigma.RealmID]bool{"asks": false, "other": true} {
		tree, err := New(Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		other, err := tree.Attach(t.Context(), sigma.Principal{Realm: "other"}, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range askedNames {
			if sigma.CheckName(name) == nil && name != "dir" { // none of what is asked for is there by chance only
				if _, _, err := other.(sigma.Putter).Put(t.Context(), []string{name}, []byte(secretText),
					sigma.PutOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		a := &asking{t: t, ctx: t.Context(), tree: tree, as: sigma.Principal{Realm: as},
			random: rand.New(rand.NewPCG(seed, 1))}
		for range routes {
			a.once()
		}
		if (a.found > 0) != finds {
			t.Errorf("realm %q found the bytes of realm other %d times", as, a.found)
		}
		t.Logf("realm %q found the bytes %d times", as, a.found)
	}
}
