package resolve_test

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/resolve"
)

// losing is a root whose replies to changes are lost as often as lost says. Like named it remembers
// the numbers of those that it has made.
type losing struct {
	sigma.File
	lost    int
	kept    bool // it remembers
	created map[sigma.Once]error
	asked   []sigma.Once
}

// once makes a change unless it was made, and may lose the reply.
func (f *losing) once(ctx context.Context, do func() error) error {
	o := sigma.OnceOf(ctx)
	f.asked = append(f.asked, o)
	again := o.Again
	o.Again = false
	err, was := f.created[o]
	switch {
	case was:
	case again && !f.kept:
		return sigma.Errorf("test", sigma.KindLost, "not remembered")
	default:
		if err = do(); f.kept {
			f.created[o] = err
		}
	}
	if f.lost > 0 {
		f.lost--
		return sigma.Errorf("test", sigma.KindLost, "the reply is lost")
	}
	return err
}

func (f *losing) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		return f, nil, nil
	}
	return f.File.Walk(ctx, names)
}
func (f *losing) Close() {}

func (f *losing) Mkdir(ctx context.Context, name string, perm uint32) error {
	return f.once(ctx, func() error { return f.File.Mkdir(ctx, name, perm) })
}

func (f *losing) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (id sigma.FileID,
	stop *sigma.Stopped, err error) {
	err = f.once(ctx, func() error {
		id, stop, err = f.File.(sigma.Putter).Put(ctx, names, data, o)
		return err
	})
	return id, stop, err
}

// TestOnce: a change whose reply is lost is asked for again with its number, and the next one has
// the next; one that goes on through a link is another request there.
func TestOnce(t *testing.T) {
	ctx := t.Context()
	for _, kept := range []bool{true, false} {
		root, err := memfs.New(memfs.Config{}).Attach(ctx, sigma.Principal{}, "")
		if err != nil {
			t.Fatal(err)
		}
		f := &losing{File: root, kept: kept, created: map[sigma.Once]error{}}
		tree := resolve.New(resolve.Config{Root: f})
		want := map[bool]sigma.Kind{true: 0, false: sigma.KindLost}[kept]
		for seq, op := range []func() error{
			func() error { return tree.Mkdir(ctx, "/d", 0o755) },
			func() error { _, err := tree.Put(ctx, "/f", nil, sigma.PutOptions{MustMake: true}); return err },
		} {
			f.lost, f.asked = 2, nil
			if err := op(); sigma.KindOf(err) != want {
				t.Errorf("remembers %t: got %v", kept, err)
			}
			for i, o := range f.asked {
				if o.Client == 0 || o.Seq != uint64(seq+1) || o.Done != uint64(seq) || o.Again != (i > 0) {
					t.Errorf("request %d of change %d has %+v", i, seq+1, o)
				}
			}
		}
		f.lost = 0
		if err := tree.Mkdir(ctx, "/d", 0o755); sigma.KindOf(err) != sigma.KindExists {
			t.Errorf("got %v", err)
		}
		f.asked = nil
		if err := tree.Symlink(ctx, "/f", "/link"); err != nil {
			t.Fatal(err)
		}
		if _, err := tree.Put(ctx, "/link", []byte("x"), sigma.PutOptions{}); err != nil || len(f.asked) != 2 ||
			f.asked[0] == f.asked[1] {
			t.Errorf("a put through a link: %+v, %v", f.asked, err)
		}
	}
}
