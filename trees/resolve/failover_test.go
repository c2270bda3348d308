package resolve_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
)

// dying is a tree that ends its server's sessions in the middle of some operation, which gets no
// answer.
type dying struct {
	sigma.Tree
	op    atomic.Value // string; when
	die   func()
	calls atomic.Int32
}

func (d *dying) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	f, err := d.Tree.Attach(ctx, p, name)
	return dyingFile{f, d}, err
}

func (d *dying) at(ctx context.Context, op string) {
	d.calls.Add(1)
	if d.op.Load() == op {
		go d.die()
		<-ctx.Done()
	}
}

// dyingFile has only the plain calls and Get and Put.
type dyingFile struct {
	sigma.File
	d *dying
}

func (f dyingFile) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	f.d.at(ctx, "walk")
	got, ids, err := f.File.Walk(ctx, names)
	if got != nil {
		got = dyingFile{got, f.d}
	}
	return got, ids, err
}

func (f dyingFile) Get(ctx context.Context, names []string, offset uint64, n int) (sigma.GetResult, *sigma.Stopped,
	error) {
	f.d.at(ctx, "get")
	return treeserver.Get(ctx, f.File, names, offset, n)
}

func (f dyingFile) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	f.d.at(ctx, "put")
	return treeserver.Put(ctx, f.File, names, data, o)
}

func (f dyingFile) Stat(ctx context.Context) (sigma.Stat, error) {
	f.d.at(ctx, "stat")
	return f.File.Stat(ctx)
}

func (f dyingFile) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	f.d.at(ctx, "readdir")
	return f.File.ReadDir(ctx, cookie, n)
}

// TestFailover kills a member of a union in the middle of each operation. What reads goes on with
// the next member; a Put, of which nobody knows whether it was done, says so.
func TestFailover(t *testing.T) {
	for op, do := range map[string]func(w *world) error{
		"get":     func(w *world) error { w.holds("/svc/~any/f", "second"); return nil },
		"walk":    func(w *world) error { _, err := w.Stat(w.Context(), "/svc/~any/f"); return err },
		"stat":    func(w *world) error { _, err := w.Lstat(w.Context(), "/svc/~any/f"); return err },
		"readdir": func(w *world) error { _, err := w.ReadDir(w.Context(), "/svc/~any"); return err },
		"put": func(w *world) error {
			_, err := w.Put(w.Context(), "/svc/~any/f", nil, sigma.PutOptions{})
			return err
		},
	} {
		t.Run(op, func(t *testing.T) {
			w := newWorld(t, nil)
			w.mkdir("/svc")
			d := &dying{Tree: treeWith(t, "f", "first")}
			d.op.Store("")
			first := w.serve("/svc/1", "m2", d)
			d.die = first.kill
			w.serve("/svc/2", "m3", treeWith(t, "f", "second"))
			w.holds("/svc/~any/f", "first")
			d.op.Store(op)
			err := do(w)
			if op == "put" {
				w.fails("Put", err, sigma.KindLost, "/svc/~any/f")
				w.holds("/svc/~any/f", "second")
			} else if err != nil {
				t.Errorf("got %v (%v), want the answer of the next", err, sigma.KindOf(err))
			}
			_, err = w.Put(t.Context(), "/svc/~any/g", []byte("new"), sigma.PutOptions{}) // the first cannot be reached
			w.ok("Put", err)
			w.holds("/svc/2/g", "new")
		})
	}
}

// TestRedial: a server that died in the middle, and lives again, is asked again by what reads.
func TestRedial(t *testing.T) {
	w := newWorld(t, nil)
	d := &dying{Tree: treeWith(t, "f", "data")}
	d.op.Store("get")
	s := w.serve("/one", "m2", d)
	d.die = func() { d.op.Store(""); s.kill(); s.revive() }
	w.holds("/one/f", "data")
	if n := d.calls.Load(); n < 2 {
		t.Errorf("the server was asked %d times", n)
	}
}

// TestUnionLookup: a name is found in the first member that has it, and made in the first that has
// its directory.
func TestUnionLookup(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/svc")
	for i := range 4 {
		w.serve(fmt.Sprintf("/svc/%d", i), "m2", treeWith(t, fmt.Sprintf("only%d", i), fmt.Sprint(i)))
		w.put(fmt.Sprintf("/svc/%d/all", i), fmt.Sprint(i))
	}
	w.mkdir("/svc/2/d")
	for i := range 4 {
		w.holds(fmt.Sprintf("/svc/~any/only%d", i), fmt.Sprint(i))
	}
	w.holds("/svc/~any/all", "0")
	w.put("/svc/~any/new", "x")
	w.holds("/svc/0/new", "x")
	w.put("/svc/~any/d/new", "y")
	w.holds("/svc/2/d/new", "y")
	_, _, err := w.Get(t.Context(), "/svc/~any/none")
	w.fails("Get", err, sigma.KindNotFound, "/svc/~any/none")
	if p, err := w.AbsPath(t.Context(), "/svc/~any/only3"); err != nil || p != "/svc/3/only3" {
		t.Errorf("AbsPath: %q, %v", p, err)
	}
}

// TestSilentMember: a member that does not answer is passed over after a while, also if nobody set
// a deadline; and so is one whose name leads nowhere.
func TestSilentMember(t *testing.T) {
	w := newWorld(t, nil)
	w.mkdir("/svc")
	w.publish("/svc/0", sigma.Endpoint{Realm: "r", Machine: "m", Proc: "p", ID: "AAAAAAAAAAAAAAAAAAAAAA",
		Form: sigma.FormTree})
	silent := w.serve("/svc/1", "m2", memfs.New(memfs.Config{}))
	silent.silent = true
	w.serve("/svc/2", "m2", treeWith(t, "f", "data"))
	began := time.Now()
	w.holds("/svc/~any/f", "data")
	t.Logf("after %v", time.Since(began))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := w.Get(ctx, "/svc/1/f")
	w.fails("Get from a silent server", err, sigma.KindTimeout, "/svc/1/f")
}
