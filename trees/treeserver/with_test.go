package treeserver_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// came is what came with the last request.
type came struct {
	once  sigma.Once
	fence sigma.Fence
}

// carried is a tree that notes it.
type carried struct {
	treeserver.Base
	last *atomic.Pointer[came]
}

func newCarried() carried { return carried{last: new(atomic.Pointer[came])} }

func (c carried) note(ctx context.Context) {
	c.last.Store(&came{sigma.OnceOf(ctx), sigma.FenceOf(ctx)})
}

func (c carried) Remembers() bool                                                     { return true }
func (c carried) Attach(context.Context, sigma.Principal, string) (sigma.File, error) { return c, nil }
func (c carried) Stat(ctx context.Context) (sigma.Stat, error) {
	c.note(ctx)
	return sigma.Stat{}, nil
}
func (c carried) Mkdir(ctx context.Context, _ string, _ uint32) error { c.note(ctx); return nil }
func (c carried) Open(context.Context, sigma.OpenFlags) error         { return nil }
func (c carried) WriteAt(ctx context.Context, p []byte, _ uint64) (int, error) {
	c.note(ctx)
	return len(p), nil
}
func (c carried) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return c, nil, nil
}

// TestWith: what a context carries at the client is in the context of the server; numbers only go
// with mutations, one with each; a plain client cannot send any.
func TestWith(t *testing.T) {
	ctx := t.Context()
	once, fence := sigma.Once{Client: 7, Seq: 3, Done: 2, Again: true}, sigma.Fence{Name: "/leader", Epoch: 9}
	tree := newCarried()
	_, root := dial(t, pairs["packet"], treeserver.Config{Tree: tree})
	both := sigma.WithFence(sigma.WithOnce(ctx, once), fence)
	for _, c := range []struct {
		name string
		do   func() error
		came
	}{
		{"a mutation with both", func() error { return root.Mkdir(both, "d", 0) }, came{once, fence}},
		{"one with nothing", func() error { return root.Mkdir(ctx, "d", 0) }, came{sigma.Once{}, sigma.Fence{}}},
		{"one with a number", func() error {
			return root.Mkdir(sigma.WithOnce(ctx, once), "d", 0)
		}, came{once, sigma.Fence{}}},
		{"no mutation", func() error { _, err := root.Stat(both); return err }, came{sigma.Once{}, fence}},
	} {
		if err := c.do(); err != nil || *tree.last.Load() != c.came {
			t.Errorf("%s: got %+v, %v", c.name, *tree.last.Load(), err)
		}
	}
	f, _, err := root.Walk(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	long := sigma.WithFence(ctx, sigma.Fence{Name: strings.Repeat("f", sigma.PathMax), Epoch: 1})
	if err := f.Open(ctx, sigma.OpenWrite); err != nil {
		t.Fatal(err)
	}
	if n, err := f.WriteAt(long, make([]byte, 3*sigmap.DataMax), 0); n != 3*sigmap.DataMax || err != nil ||
		len(tree.last.Load().fence.Name) != sigma.PathMax {
		t.Errorf("wrote %d bytes with a long fence, %v", n, err)
	}
	if _, err := f.WriteAt(both, make([]byte, 3*sigmap.DataMax), 0); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("one number for several messages: %v", err)
	}

	_, forgets := dial(t, pairs["packet"], treeserver.Config{Tree: newMemfs(t)})
	if err := forgets.Mkdir(sigma.WithOnce(ctx, once), "d", 0o755); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("a server that does not remember was asked again: %v", err)
	}
	once.Again = false
	if err := forgets.Mkdir(sigma.WithOnce(ctx, once), "d", 0o755); err != nil {
		t.Errorf("a server that does not remember: %v", err)
	}

	r := serve(t, pairs["packet"], treeserver.Config{Tree: tree}).start(sigmap.VersionPlain)
	r.send(1, &sigmap.Twith{Once: once, Request: &sigmap.Tmkdir{Fid: 1, Name: "d"}})
	if m := want[*sigmap.Rlerror](r, 1); m.Errno != uint32(sigma.KindUnsupported.Errno()) {
		t.Errorf("a plain client got %+v", m)
	}
}

// TestWithHostile: a Twith that makes no sense ends the session; one of an unknown request is
// answered.
func TestWithHostile(t *testing.T) {
	one := func(m sigmap.Message) []byte {
		buf, err := sigmap.Encode(nil, 1, m)
		if err != nil {
			t.Fatal(err)
		}
		return buf
	}
	good := one(&sigmap.Twith{Once: sigma.Once{Client: 1, Seq: 1}, Request: &sigmap.Tclunk{Fid: 9}})
	const flags, seq, typ = 7, 7 + 1 + 8, 7 + 1 + 24 + 2 + 8
	for name, change := range map[string]func(b []byte){
		"unknown flags":        func(b []byte) { b[flags] = 8 },
		"number 0":             func(b []byte) { b[seq] = 0 },
		"nothing carried":      func(b []byte) { clear(b[flags:typ]) },
		"a with in a with":     func(b []byte) { b[typ] = 144 },
		"a version in a with":  func(b []byte) { b[typ] = 100 },
		"a flush in a with":    func(b []byte) { b[typ] = 108 },
		"a reply in a with":    func(b []byte) { b[typ] = 117 },
		"an epoch of no fence": func(b []byte) { b[typ-1] = 1 },
		"another request":      func(b []byte) { b[typ] = 132 },
	} {
		r := serve(t, pairs["packet"], treeserver.Config{Tree: newCarried()}).start(sigmap.VersionSigma)
		b := append([]byte(nil), good...)
		change(b)
		if err := r.conn.Send(b, nil); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.conn.Recv(); !session.Ended(err) {
			t.Errorf("%s: got %v", name, err)
		}
		if r.waitEnd(); r.err == nil {
			t.Errorf("%s: the server says nothing was wrong", name)
		}
	}
	r := serve(t, pairs["packet"], treeserver.Config{Tree: newCarried()}).start(sigmap.VersionSigma)
	b := append([]byte(nil), good...)
	b[typ] = 200
	if err := r.conn.Send(b, nil); err != nil {
		t.Fatal(err)
	}
	r.fails(1, sigma.KindUnsupported)
}
