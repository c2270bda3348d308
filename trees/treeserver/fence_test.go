package treeserver_test

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
	"sigmaos.dev/trees/s3"
	"sigmaos.dev/trees/treeserver"
)

// lingering is a tree that knows of no fences, whose calls wait until they are told to go on.
type lingering struct {
	treeserver.Base
	began, proceed chan struct{}
}

func (s lingering) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return s, nil
}
func (s lingering) Stat(context.Context) (sigma.Stat, error) { return sigma.Stat{}, nil }
func (s lingering) Mkdir(ctx context.Context, _ string, _ uint32) error {
	s.began <- struct{}{}
	<-ctx.Done()
	<-s.proceed // it ends late
	return sigma.Wrap("lingering", "", ctx.Err())
}

// TestFences: the kit fences a tree that knows nothing of it, over all its sessions; the first
// request of a newer epoch waits until what was under way has ended.
func TestFences(t *testing.T) {
	tree := lingering{began: make(chan struct{}), proceed: make(chan struct{})}
	cfg := treeserver.Config{Tree: tree, Fences: fence.NewTable(fence.Config{})}
	_, old := dial(t, pairs["packet"], cfg)
	_, leader := dial(t, pairs["packet"], cfg)
	at := func(epoch sigma.Epoch) context.Context {
		return sigma.WithFence(t.Context(), sigma.Fence{Name: "/leader", Epoch: epoch})
	}
	created, asked := make(chan error, 1), make(chan error, 1)
	go func() { created <- old.Mkdir(at(1), "d", 0) }()
	<-tree.began
	go func() { _, err := leader.Stat(at(2)); asked <- err }()
	for cfg.Fences.Newest("/leader") != 2 {
		if _, err := old.Stat(t.Context()); err != nil { // goes on meanwhile
			t.Fatal(err)
		}
	}
	if len(asked) > 0 {
		t.Error("the new leader was answered while the old one's request was under way")
	}
	close(tree.proceed)
	if err := <-created; sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("the request that was under way: %v", err)
	}
	if err := <-asked; err != nil {
		t.Error(err)
	}
	if _, err := old.Stat(at(1)); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("a request of the old leader: %v", err)
	}
	if _, err := old.Stat(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestFencedPublish: an object that a leader began to write is not published after it was deposed,
// though to close a handle carries no fence.
func TestFencedPublish(t *testing.T) {
	ctx := t.Context()
	tree, err := s3.New(s3.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	_, root := dial(t, pairs["packet"], treeserver.Config{Tree: tree, Principal: sigma.Principal{Realm: "r"}})
	if err := root.Mkdir(ctx, "bucket", 0o777); err != nil {
		t.Fatal(err)
	}
	bucket, _, err := root.Walk(ctx, []string{"bucket"})
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	if _, _, err := bucket.(sigma.Putter).Put(ctx, []string{"o"}, []byte("first"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	old, leader := sigma.WithFence(ctx, sigma.Fence{Name: "/leader", Epoch: 1}),
		sigma.WithFence(ctx, sigma.Fence{Name: "/leader", Epoch: 2})
	for _, how := range []string{"create", "open"} {
		var f sigma.File
		if how == "create" {
			f, err = bucket.Create(old, "o", sigma.OpenWrite|sigma.OpenTruncate, 0o666)
		} else if f, _, err = bucket.Walk(ctx, []string{"o"}); err == nil {
			err = f.Open(old, sigma.OpenWrite|sigma.OpenTruncate)
		}
		if err != nil {
			t.Fatal(how, err)
		}
		if _, err := f.WriteAt(old, []byte("late"), 0); err != nil {
			t.Fatal(how, err)
		}
		if _, err := bucket.Stat(leader); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if _, err := bucket.Stat(ctx); err != nil { // a moment, in which the server closes it too
			t.Fatal(err)
		}
		if r, _, err := bucket.(sigma.Getter).Get(ctx, []string{"o"}, 0, 10); err != nil || string(r.Data) != "first" {
			t.Errorf("%s: the object is %q, %v", how, r.Data, err)
		}
		old = sigma.WithFence(ctx, sigma.Fence{Name: "/leader of " + how, Epoch: 1})
		leader = sigma.WithFence(ctx, sigma.Fence{Name: "/leader of " + how, Epoch: 2})
	}
}
