package view

import (
	"bytes"
	"context"
	"testing"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// oneKey is a store that has one key.
type oneKey struct {
	value []byte
	full  error // of a Put
}

func (c *oneKey) Config(context.Context) (*layout.Config, error) {
	return layout.New("s", "/p", 1, 1, 1), nil
}
func (c *oneKey) Get(context.Context, string) ([]byte, uint64, error) { return c.value, 1, nil }
func (c *oneKey) Put(_ context.Context, _ string, v []byte, _ kv.Options) (uint64, error) {
	if c.full == nil {
		c.value = bytes.Clone(v)
	}
	return 2, c.full
}
func (c *oneKey) PutIf(context.Context, string, uint64, []byte, kv.Options) (uint64, error) {
	return 0, sigma.Errorf("oneKey", sigma.KindVersion, "the key is there")
}
func (c *oneKey) Delete(context.Context, string) error { return nil }
func (c *oneKey) Keys(context.Context, uint16, string, int) ([]kv.Item, error) {
	return []kv.Item{{Key: "k", Version: 1}}, nil
}

// Goal: a value is replaced when its writer closes the file, whose error says if that was not
// possible, and stays if the writer's connection ends.
func TestPublish(t *testing.T) {
	for _, x := range []struct {
		name, want string
		full       error
		dies       bool
	}{
		{"closed", "new", nil, false},
		{"the writer dies", "old value", nil, true},
		{"the store is full", "old value", sigma.Errorf("kv", sigma.KindNoSpace, "full"), false},
	} {
		c := &oneKey{value: []byte("old value"), full: x.full}
		a, b, err := session.Pair()
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan bool)
		go func() {
			treeserver.Serve(t.Context(), b, treeserver.Config{Tree: Tree{c}})
			close(done)
		}()
		client, err := session.Dial(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		var f sigma.File
		root, err := client.Attach(t.Context(), "")
		if err == nil {
			f, _, err = root.Walk(t.Context(), []string{"0", "k"})
		}
		if err == nil {
			err = f.Open(t.Context(), sigma.OpenWrite|sigma.OpenTruncate)
		}
		if err == nil {
			_, err = f.WriteAt(t.Context(), []byte("new"), 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !x.dies {
			if err := f.(sigma.Publisher).Publish(t.Context()); sigma.KindOf(err) != sigma.KindOf(x.full) {
				t.Errorf("%s: %v, want %v", x.name, err, x.full)
			}
		}
		client.Close()
		<-done
		if string(c.value) != x.want {
			t.Errorf("%s: %q, want %q", x.name, c.value, x.want)
		}
	}
}

// FuzzName: each key has a name that leads back to it, and no two names lead to one key.
func FuzzName(f *testing.F) {
	for _, s := range []string{"a", ".", "..", "a/b", "\x00", "%2F", "%2f", "ü", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 0 && len(s) <= 1024 {
			if key, ok := Key(Name(s)); !ok || key != s {
				t.Errorf("%q became %q, and %q again", s, Name(s), key)
			}
		}
		if key, ok := Key(s); ok && Name(key) != s {
			t.Errorf("%q and %q are names of %q", s, Name(key), key)
		}
	})
}
