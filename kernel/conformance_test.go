package kernel

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treetest"
)

// sessionTree is the tree that a proc of the realm default finds at its file descriptor 3, from a
// place on.
type sessionTree struct {
	m    *machine
	path []string
}

func (s sessionTree) Attach(ctx context.Context, _ sigma.Principal, _ string) (sigma.File, error) {
	f, _, err := s.m.proc(sigma.Principal{Realm: sigma.DefaultRealm, Proc: "p"}).Walk(ctx, s.path)
	return f, err
}

// TestTreeConformance: what the server of names can do is not lost on the way through sigmad.
func TestTreeConformance(t *testing.T) {
	treetest.Run(t, treetest.Config{
		New: func(t *testing.T) sigma.Tree {
			m := boot(t)
			m.realms.mu.Lock()
			defer m.realms.mu.Unlock()
			m.realms.trees[sigma.DefaultRealm] = memfs.New(memfs.Config{SizeMax: sigma.GiB})
			return sessionTree{m: m}
		},
		Principal: sigma.Principal{Realm: sigma.DefaultRealm},
		Lacks:     []treetest.Capability{treetest.Hidden, treetest.PassFiles},
		Depth:     200,
	})
}

// TestProcConformance: /proc is a tree as others are, in which nobody can make anything.
func TestProcConformance(t *testing.T) {
	var id sigma.ProcID
	m := boot(t)
	c := m.connect(sigma.DefaultRealm)
	for range 3 {
		id = m.spawn(c, sigma.Descriptor{})
		p := <-m.procs
		if err := p.open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []struct {
		name string
		treetest.ReadOnlyConfig
	}{
		{"proc", treetest.ReadOnlyConfig{New: func(*testing.T) sigma.Tree {
			return sessionTree{m, []string{"proc"}}
		}, Dir: []string{string(id)}, File: []string{string(id), "status"}}},
	} {
		t.Run(at.name, func(t *testing.T) {
			at.Principal = sigma.Principal{Realm: sigma.DefaultRealm}
			treetest.RunReadOnly(t, at.ReadOnlyConfig)
		})
	}
}
