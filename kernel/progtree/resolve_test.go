package progtree

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/changeboard"
	"sigmaos.dev/trees/diskfs"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// serveBoarded serves a tree on disk that counts its changes, and returns a session to it.
func serveBoarded(t *testing.T, policy diskfs.Policy) *session.Client {
	t.Helper()
	board, err := changeboard.New()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := diskfs.New(diskfs.Config{Dir: t.TempDir(), Policy: policy, Board: board})
	if err != nil {
		t.Fatal(err)
	}
	a, b, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		over <- treeserver.Serve(context.Background(), b,
			treeserver.Config{Tree: treeserver.Admin{Tree: tree, Changes: board.File},
				Principal: sigma.Principal{System: true}})
	}()
	c, err := session.Dial(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-over; tree.Close() })
	return c
}

func recalls(t *Tree, path string) bool {
	r := t.remembered(path)
	return r != nil && r.stands()
}

// TestResolve: what a path leads to is remembered until anything on the way changes: the file, a
// link, a directory above, or the session to a server. The writer is another view of the same
// realm; whatever it was told is done must be seen.
func TestResolve(t *testing.T) {
	ctx := t.Context()
	names, objects := serveBoarded(t, diskfs.Policy{Links: true}), serveBoarded(t, diskfs.Policy{Objects: true})
	view := func() *resolve.Tree {
		root, err := Attach(ctx, names, "r")
		if err != nil {
			t.Fatal(err)
		}
		return resolve.New(resolve.Config{Root: root, Dial: func(ctx context.Context, _ sigma.Endpoint) (sigma.File,
			<-chan struct{}, error) {
			f, err := Attach(ctx, objects, "r")
			return f, objects.Done(), err
		}})
	}
	writer, tree := view(), New(view())
	put := func(path, data string, kind sigma.FileKind) func() error {
		return func() error {
			_, err := writer.Put(ctx, path, []byte(data), sigma.PutOptions{Kind: kind})
			return err
		}
	}
	endpoint := sigma.Endpoint{Realm: "r", Machine: "m", ID: "AAECAwQFBgcICQoLDA0ODw", Form: sigma.FormTree}.String()
	const program = "/bin/p"
	for _, step := range []struct {
		name   string
		change func() error
		kind   sigma.Kind
		size   uint64
	}{
		{"mount", put("/s3", endpoint, sigma.KindEndpoint), sigma.KindNotFound, 0},
		{"directories", func() error { return writer.MkdirAll(ctx, "/s3/a/b", 0o755) }, sigma.KindNotFound, 0},
		{"link", func() error { return writer.Symlink(ctx, "/s3/a/b", "/bin") }, sigma.KindNotFound, 0},
		{"put", put("/s3/a/b/p", "1", sigma.KindFile), 0, 1},
		{"replace", put("/s3/a/b/p", "22", sigma.KindFile), 0, 2},
		{"something else", put("/other", "x", sigma.KindFile), 0, 2}, // shares the root
		{"rename over", func() error {
			if _, err := writer.Put(ctx, "/s3/a/b/q", []byte("333"), sigma.PutOptions{}); err != nil {
				return err
			}
			return writer.Rename(ctx, "/s3/a/b/q", "/s3/a/b/p")
		}, 0, 3},
		{"directory above renamed", func() error {
			return writer.Rename(ctx, "/s3/a/b", "/s3/a/z")
		}, sigma.KindNotFound, 0},
		{"link set anew", put("/bin", "/s3/a/z", sigma.KindSymlink), 0, 3},
		{"directory above removed", func() error { return writer.RemoveAll(ctx, "/s3/a/z") }, sigma.KindNotFound, 0},
		{"made again", func() error {
			if err := writer.MkdirAll(ctx, "/s3/a/z", 0o755); err != nil {
				return err
			}
			return put("/s3/a/z/p", "4444", sigma.KindFile)()
		}, 0, 4},
	} {
		if err := step.change(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		st, err := tree.Stat(ctx, program)
		if sigma.KindOf(err) != step.kind || st.Size != step.size {
			t.Errorf("%s: got %d bytes, %v; want %d, %v", step.name, st.Size, err, step.size, step.kind)
		}
		if got := recalls(tree, program); got != (err == nil) {
			t.Errorf("%s: is remembered: got %t, want %t", step.name, got, err == nil)
		}
	}
	held := 0 // a counter may be shared, but not by all
	for i := range 8 {
		dir := "/s3/c/" + string(rune('a'+i))
		if err := writer.MkdirAll(ctx, dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := tree.Stat(ctx, program); err != nil {
			t.Fatal(err)
		}
		if err := put(dir+"/x", "x", sigma.KindFile)(); err != nil {
			t.Fatal(err)
		}
		if recalls(tree, program) {
			held++
		}
	}
	if held == 0 {
		t.Error("changes elsewhere made everything forgotten")
	}
	objects.Close()
	if recalls(tree, program) {
		t.Error("what was found outlives the session to the server")
	}
}
