package named

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// TestModel compares the service with a model that is too simple to be wrong: goal: no order of
// operations, restarts and failures of the store makes them differ. Method: random operations on
// few names; each must have the result that the model has. The store fails some commits: then the
// state must be the model's before or after the operation, and a commit that was given up on must
// not come through later.
func TestModel(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, seed, 1500) })
	}
}

func runModel(t *testing.T, seed uint64, steps int) {
	r := rand.New(rand.NewPCG(seed, 0))
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	root := attach(t, s)
	m := &modelNode{kind: sigma.KindDir, sub: map[string]*modelNode{}}
	defer func() {
		if t.Failed() {
			t.Logf("run again: go test ./trees/named -run TestModel/%d", seed)
		}
	}()
	withFailures := seed%2 == 1
	for i := range steps {
		if r.IntN(100) == 0 {
			stop()
			if n := store.finishLate(); n != 0 {
				t.Fatalf("step %d: %d late commits came through", i, n)
			}
			s, stop = serve(t, Config{Store: store})
			root = attach(t, s)
		}
		op := randomOp(r)
		if withFailures {
			store.setFail(randomFailure(r))
		}
		before := m.clone()
		want := op.model(m)
		err := op.real(t, root)
		store.setFail(nil)
		var got sigma.Kind
		var e *sigma.Error
		if err != nil && !errors.As(err, &e) {
			t.Fatalf("step %d: %v: error %v is no *sigma.Error", i, op, err)
		}
		if err != nil {
			got = e.Kind
		}
		if withFailures && (got == sigma.KindLost || got == sigma.KindNoSpace) {
			if r.IntN(2) == 0 {
				store.finishLate() // before the realm is loaded again; afterwards it must have no effect
			}
			switch now := real(t, root); {
			case now == before.String():
				m = before
			case now != m.String() || got == sigma.KindNoSpace:
				t.Fatalf("step %d: %v failed (%v) and left\n%s\nneither\n%s\nnor\n%s", i, op, err, now, before, m)
			}
			if n := store.finishLate(); n != 0 {
				t.Fatalf("step %d: %d late commits came through", i, n)
			}
			continue
		}
		if got != want {
			t.Fatalf("step %d: %v: got %v, want %v, in\n%s", i, op, err, want, before)
		}
		if i%50 == 0 {
			if now := real(t, root); now != m.String() {
				t.Fatalf("step %d: %v left\n%s\nwant\n%s", i, op, now, m)
			}
			l, err := root.slot.leader(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, l.tree, store)
		}
	}
}

func (m *memStore) setFail(f func(Batch) failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = f
}

// randomFailure fails the first commit sometimes; those after it, which load the realm again,
// succeed.
func randomFailure(r *rand.Rand) func(Batch) failure {
	what := failure(r.IntN(60))
	if what > isFull {
		return nil
	}
	return func(Batch) failure {
		now := what
		what = succeeds
		return now
	}
}

// modelNode is a file of the model. Kinds of results are 0 for success.
type modelNode struct {
	kind sigma.FileKind
	data string
	sub  map[string]*modelNode
}

func (m *modelNode) clone() *modelNode {
	c := *m
	if m.sub != nil {
		c.sub = map[string]*modelNode{}
		for n, s := range m.sub {
			c.sub[n] = s.clone()
		}
	}
	return &c
}

func (m *modelNode) String() string {
	var b strings.Builder
	m.print(&b, "/")
	return b.String()
}

func (m *modelNode) print(b *strings.Builder, path string) {
	fmt.Fprintf(b, "%s %v %q\n", path, m.kind, m.data)
	for _, n := range slices.Sorted(maps.Keys(m.sub)) {
		m.sub[n].print(b, path+n+"/")
	}
}

// real prints the service's tree as the model prints itself.
func real(t *testing.T, root *file) string {
	var b strings.Builder
	printReal(t, &b, root, "/")
	return b.String()
}

func printReal(t *testing.T, b *strings.Builder, f *file, path string) {
	st, err := f.Stat(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data := ""
	switch st.ID.Kind {
	case sigma.KindFile:
		data = get(t, f)
	case sigma.KindSymlink:
		if data, err = f.ReadLink(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(b, "%s %v %q\n", path, st.ID.Kind, data)
	if st.ID.Kind == sigma.KindDir {
		names := list(t, f, 2)
		slices.Sort(names)
		for _, n := range names {
			printReal(t, b, walk(t, f, n), path+n+"/")
		}
	}
}

// modelOp is one operation. Paths have one to three names.
type modelOp struct {
	do       string
	path, to []string
	data     string
	offset   uint64
	o        sigma.PutOptions
}

func randomPath(r *rand.Rand) []string {
	p := make([]string, 1+r.IntN(3))
	for i := range p {
		p[i] = string(rune('a' + r.IntN(4)))
	}
	return p
}

func randomOp(r *rand.Rand) modelOp {
	kinds := []string{"put", "put", "put", "mkdir", "mkdir", "symlink", "rm", "rm", "mv", "mv", "mv", "write",
		"truncate", "append", "get"}
	op := modelOp{do: kinds[r.IntN(len(kinds))], path: randomPath(r), to: randomPath(r), data: fmt.Sprint(r.IntN(1000)),
		offset: uint64(r.IntN(8))}
	if op.do == "put" {
		op.o.MustMake, op.o.MustExist, op.o.Append = r.IntN(4) == 0, r.IntN(4) == 0, r.IntN(4) == 0
		op.o.MustExist = op.o.MustExist && !op.o.MustMake
	}
	return op
}

func (o modelOp) real(t *testing.T, root *file) error {
	ctx := t.Context()
	if o.do == "put" {
		_, stopped, err := root.Put(ctx, o.path, []byte(o.data), o.o)
		if stopped != nil {
			return &sigma.Error{Kind: sigma.KindLoop}
		}
		return err
	}
	if o.do == "get" {
		_, stopped, err := root.Get(ctx, o.path, o.offset, 10)
		if stopped != nil {
			return &sigma.Error{Kind: sigma.KindLoop}
		}
		return err
	}
	switch o.do {
	case "write", "append", "truncate":
		f, err := tryWalk(t, root, o.path)
		if err != nil {
			return err
		}
		flags := map[string]sigma.OpenFlags{"write": sigma.OpenWrite, "append": sigma.OpenAppend,
			"truncate": sigma.OpenTruncate}[o.do]
		if err := f.Open(ctx, flags); err != nil || o.do == "truncate" {
			return err
		}
		_, err = f.WriteAt(ctx, []byte(o.data), o.offset)
		return err
	}
	dir, err := tryWalk(t, root, o.path[:len(o.path)-1])
	if err != nil {
		return err
	}
	name := o.path[len(o.path)-1]
	switch o.do {
	case "mkdir":
		return dir.Mkdir(ctx, name, 0o755)
	case "symlink":
		return dir.Symlink(ctx, name, o.data)
	case "rm":
		return dir.Remove(ctx, name)
	}
	to, err := tryWalk(t, root, o.to[:len(o.to)-1])
	if err != nil {
		return err
	}
	return dir.Rename(ctx, name, to, o.to[len(o.to)-1])
}

func tryWalk(t *testing.T, f *file, names []string) (*file, error) {
	w, ids, err := f.Walk(t.Context(), names)
	switch {
	case err != nil:
		return nil, err
	case w != nil:
		return w.(*file), nil
	case ids[len(ids)-1].Kind == sigma.KindDir:
		return nil, &sigma.Error{Kind: sigma.KindNotFound}
	}
	return nil, &sigma.Error{Kind: sigma.KindNotDir}
}

// find walks; kind 0 is success. Links are not followed.
func (m *modelNode) find(path []string) (*modelNode, sigma.Kind) {
	for _, n := range path {
		if m.kind != sigma.KindDir {
			return m, sigma.KindNotDir
		}
		if m.sub[n] == nil {
			return nil, sigma.KindNotFound
		}
		m = m.sub[n]
	}
	return m, 0
}

func (o modelOp) model(root *modelNode) sigma.Kind {
	dir, kind := root.find(o.path[:len(o.path)-1])
	name := o.path[len(o.path)-1]
	if o.do == "put" || o.do == "get" {
		if dir != nil && dir.kind == sigma.KindSymlink {
			return sigma.KindLoop
		}
	}
	if kind != 0 {
		return kind
	}
	if dir.kind != sigma.KindDir && o.do != "mv" {
		return sigma.KindNotDir
	}
	f := dir.sub[name]
	switch o.do {
	case "put":
		return o.modelPut(dir, name, f)
	case "mkdir", "symlink":
		return o.modelMake(dir, name, f)
	case "mv":
		return o.modelMove(root, dir, name, f)
	}
	switch {
	case f == nil:
		return sigma.KindNotFound
	case o.do == "rm" && len(f.sub) > 0:
		return sigma.KindNotEmpty
	case o.do == "rm":
		delete(dir.sub, name)
		return 0
	case f.kind == sigma.KindDir:
		return sigma.KindIsDir
	case f.kind == sigma.KindSymlink && o.do == "get":
		return sigma.KindLoop
	case f.kind == sigma.KindSymlink:
		return sigma.KindInvalid
	}
	switch o.do {
	case "append":
		f.data += o.data
	case "truncate":
		f.data = ""
	case "write":
		for uint64(len(f.data)) < o.offset {
			f.data += "\x00"
		}
		end := min(len(f.data), int(o.offset)+len(o.data))
		f.data = f.data[:o.offset] + o.data + f.data[end:]
	}
	return 0
}

func (o modelOp) modelPut(dir *modelNode, name string, f *modelNode) sigma.Kind {
	switch {
	case f == nil && o.o.MustExist:
		return sigma.KindNotFound
	case f == nil:
		dir.sub[name] = &modelNode{data: o.data}
	case o.o.MustMake:
		return sigma.KindExists
	case f.kind == sigma.KindDir:
		return sigma.KindIsDir
	case f.kind == sigma.KindSymlink:
		return sigma.KindLoop
	case o.o.Append:
		f.data += o.data
	default:
		f.data = o.data
	}
	return 0
}

func (o modelOp) modelMake(dir *modelNode, name string, f *modelNode) sigma.Kind {
	if f != nil {
		return sigma.KindExists
	}
	if o.do == "mkdir" {
		dir.sub[name] = &modelNode{kind: sigma.KindDir, sub: map[string]*modelNode{}}
	} else {
		dir.sub[name] = &modelNode{kind: sigma.KindSymlink, data: o.data}
	}
	return 0
}

func (o modelOp) modelMove(root, dir *modelNode, name string, f *modelNode) sigma.Kind {
	to, kind := root.find(o.to[:len(o.to)-1])
	newName := o.to[len(o.to)-1]
	switch {
	case kind != 0:
		return kind
	case dir.kind != sigma.KindDir || to.kind != sigma.KindDir:
		return sigma.KindNotDir
	case f == nil:
		return sigma.KindNotFound
	case to.sub[newName] == f:
		return 0
	case f.has(to):
		return sigma.KindInvalid
	}
	if old := to.sub[newName]; old != nil {
		switch {
		case old.kind == sigma.KindDir && f.kind != sigma.KindDir:
			return sigma.KindIsDir
		case old.kind != sigma.KindDir && f.kind == sigma.KindDir:
			return sigma.KindNotDir
		case len(old.sub) > 0:
			return sigma.KindNotEmpty
		}
	}
	delete(dir.sub, name)
	to.sub[newName] = f
	return 0
}

// has reports whether n is m or below.
func (m *modelNode) has(n *modelNode) bool {
	if m == n {
		return true
	}
	for _, s := range m.sub {
		if s.has(n) {
			return true
		}
	}
	return false
}
