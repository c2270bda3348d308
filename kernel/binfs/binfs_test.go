package binfs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/digest"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/s3"
)

// store is a realm's tree and a source in one, which a test can make fail.
type store struct {
	mu       sync.Mutex
	files    map[string]stored                     // mu
	versions map[sigma.FileID]stored               // mu; those that can still be had
	next     uint64                                // mu
	fetched  int                                   // mu; bytes
	broken   func(offset int64, data []byte) error // mu; may change what is read
}

type stored struct {
	id   sigma.FileID
	data []byte
}

func newStore() *store {
	return &store{files: map[string]stored{}, versions: map[sigma.FileID]stored{}}
}

// put makes a version; the ones before can only be had if keep.
func (s *store) put(path string, data []byte, keep bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.files[path]; ok && !keep {
		delete(s.versions, old.id)
	}
	s.next++
	f := stored{sigma.FileID{Path: s.next, Version: sigma.Version(s.next)}, data}
	s.files[path], s.versions[f.id] = f, f
}

func (s *store) breaking(f func(offset int64, data []byte) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = f
}

func (s *store) find(path string) (stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[path]
	if !ok {
		return f, sigma.PathError("test", sigma.KindNotFound, path)
	}
	return f, nil
}

func (s *store) Stat(_ context.Context, path string) (sigma.Stat, error) {
	f, err := s.find(path)
	return sigma.Stat{ID: f.id, Size: uint64(len(f.data))}, err
}

func (s *store) GetAt(_ context.Context, path string, _ uint64, _ int) (sigma.GetResult, error) {
	f, err := s.find(path)
	return sigma.GetResult{ID: f.id, Size: uint64(len(f.data))}, err
}

func (s *store) Handle(context.Context, string) (sigma.File, error) {
	return nil, sigma.Errorf("test", sigma.KindUnsupported, "not here")
}

func (s *store) Object(n Name) (Object, error) { return object{s, n}, nil }

type object struct {
	s *store
	n Name
}

func (o object) version() (stored, error) {
	f, ok := o.s.versions[o.n.ID]
	if !ok {
		return f, sigma.Errorf("test", sigma.KindStale, "the version is gone")
	}
	return f, nil
}

func (o object) ReadAt(_ context.Context, p []byte, offset int64) error {
	o.s.mu.Lock()
	f, err := o.version()
	broken := o.s.broken
	if err == nil {
		copy(p, f.data[offset:])
		o.s.fetched += len(p)
	}
	o.s.mu.Unlock()
	if err == nil && broken != nil {
		err = broken(offset, p)
	}
	return err
}

func (o object) Hash(_ context.Context, offset int64, size int) (Hash, error) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	f, err := o.version()
	if err != nil {
		return Hash{}, err
	}
	return digest.Of(f.data[offset : offset+int64(size)]), nil
}

func (o object) Check(context.Context) error {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	_, err := o.version()
	return err
}

func (o object) Close() {}

// large is a program that runs here, with random bytes behind it.
func large(t *testing.T, size int, seed uint64) []byte {
	t.Helper()
	data := staticProgram(t)
	more := make([]byte, max(size-len(data), 0))
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(more)
	return append(data, more...)
}

func newCache(t *testing.T, cfg Config) *Cache {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func mustOpen(t *testing.T, c *Cache, s Tree, path string) (*os.File, func()) {
	t.Helper()
	f, release, err := c.Open(t.Context(), "a", s, path)
	if err != nil {
		t.Fatal(err)
	}
	return f, release
}

func reads(t *testing.T, f *os.File, want []byte) {
	t.Helper()
	got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<40))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v; want %d", len(got), err, len(want))
	}
}

func (c *Cache) program(t *testing.T, s *store, path string) *program {
	t.Helper()
	f, err := s.find(path)
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[key{"a", path, f.id}]
}

// Goal: starts of one program at once fetch it once; a replaced program is fetched again, and what
// was handed out before stays what it was.
func TestOpen(t *testing.T) {
	s := newStore()
	good := large(t, 3<<20, 1)
	s.put("/p", good, false)
	c := newCache(t, Config{Source: s})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			f, release, err := c.Open(t.Context(), "a", s, "/p")
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			reads(t, f, good)
		})
	}
	all.Wait()
	if s.fetched != len(good) {
		t.Errorf("fetched %d bytes of %d", s.fetched, len(good))
	}
	old, release := mustOpen(t, c, s, "/p")
	defer release()
	changed := append(bytes.Clone(good), "another version"...)
	s.put("/p", changed, false)
	f, release2 := mustOpen(t, c, s, "/p")
	defer release2()
	reads(t, old, good)
	reads(t, f, changed)
	s.put("/same", changed, false)
	f, release3 := mustOpen(t, c, s, "/same")
	defer release3()
	reads(t, f, changed)
	if n := c.Stats(); n.Programs != 2 || n.Bytes != uint64(len(good)+len(changed)) {
		t.Errorf("%+v, want each content once", n)
	}
}

// A failure is told to all who wait, leaves nothing in the cache, and is not remembered.
func TestOpenFails(t *testing.T) {
	s := newStore()
	c := newCache(t, Config{Source: s, OpenMax: time.Minute})
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	s.put("/bad", []byte("no program"), false)
	s.put("/none", nil, false)
	fails := func(path string, want sigma.Kind) {
		t.Helper()
		if _, _, err := c.Open(ctx, "a", s, path); err == nil || sigma.KindOf(err) != want {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
	fails("/nothing", sigma.KindNotFound)
	for range 2 {
		fails("/bad", sigma.KindNoExec)
		fails("/none", sigma.KindNoExec)
	}
	s.put("/p", large(t, 0, 2), false)
	tries := 0
	s.breaking(func(offset int64, _ []byte) error {
		if offset == 0 {
			if tries++; tries > 1 { // the first has failed
				giveUp()
			}
		}
		return sigma.Errorf("test", sigma.KindUnavailable, "the store is down")
	})
	fails("/p", sigma.KindUnavailable)
	s.breaking(nil)
	mustOpen(t, c, s, "/p")
	if n := c.Stats(); n.Programs != 1 {
		t.Errorf("%+v, want the good one only", n)
	}
}

// Bytes that come damaged are fetched again and counted; a store that sends nothing else makes
// starts fail.
func TestDamagedOnTheWay(t *testing.T) {
	s := newStore()
	good := large(t, 3<<20, 3)
	s.put("/p", good, false)
	c := newCache(t, Config{Source: s, OpenMax: time.Minute})
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	damaged := 0
	s.breaking(func(offset int64, data []byte) error {
		if offset == 2*chunkSize {
			data[77] ^= 1
			if damaged++; damaged > 1 { // it came again
				giveUp()
			}
		}
		return nil
	})
	if _, _, err := c.Open(ctx, "a", s, "/p"); err == nil {
		t.Error("a damaged program was opened")
	}
	if n := c.Stats().CorruptFetched; n == 0 {
		t.Error("nothing was counted")
	}
	s.breaking(nil)
	f, release := mustOpen(t, c, s, "/p")
	defer release()
	reads(t, f, good)
}

// Goal: a program that is on disk since before a restart is used without being fetched, but not
// before its bytes were found to be right.
func TestRestart(t *testing.T) {
	s := newStore()
	good, small := large(t, 3<<20, 4), large(t, 0, 5)[:]
	s.put("/p", good, false)
	s.put("/small", small, false)
	dir := t.TempDir()
	c := newCache(t, Config{Source: s, Dir: dir})
	for _, path := range []string{"/p", "/small"} {
		_, release := mustOpen(t, c, s, path)
		release()
	}
	stored := contentFiles(t, dir, 2)
	c.Close()
	before := s.fetched
	c = newCache(t, Config{Source: s, Dir: dir})
	f, release := mustOpen(t, c, s, "/p")
	reads(t, f, good)
	release()
	if s.fetched != before {
		t.Errorf("%d bytes were fetched again", s.fetched-before)
	}
	c.Close()
	// One bit changes, and the end is cut off.
	for _, path := range stored {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[chunkSize+5] ^= 4
		if err := os.WriteFile(path, b[:len(b)-1], 0); err != nil {
			t.Fatal(err)
		}
	}
	c = newCache(t, Config{Source: s, Dir: dir})
	for path, want := range map[string][]byte{"/p": good, "/small": small} {
		f, release := mustOpen(t, c, s, path)
		reads(t, f, want)
		release()
	}
	if n := c.Stats(); n.CorruptStored != 4 || n.FetchedChunks != 4 {
		t.Errorf("%+v, want two chunks of each to be fetched again", n)
	}
	c.Close()
	// What describes the bytes is not believed either.
	for _, path := range stored {
		if err := os.WriteFile(path+".txt", []byte("nonsense\n{}"), 0); err != nil {
			t.Fatal(err)
		}
	}
	c = newCache(t, Config{Source: s, Dir: dir})
	if n := c.Stats(); n.Programs != 0 || n.Bytes != 0 {
		t.Errorf("%+v", n)
	}
	contentFiles(t, dir, 0)
}

// contentFiles waits until n programs are stored complete.
func contentFiles(t *testing.T, dir string, n int) (paths []string) {
	t.Helper()
	eventually(t, strconv.Itoa(n)+" contents", func() bool {
		described, _ := filepath.Glob(filepath.Join(contentsDir(dir), "*.txt"))
		paths = nil
		for _, d := range described {
			paths = append(paths, d[:len(d)-4])
		}
		left, _ := os.ReadDir(contentsDir(dir))
		return len(paths) == n && len(left) == 2*n
	})
	return paths
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	look, late := time.NewTicker(time.Millisecond), time.After(20*time.Second)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("it does not become so: %s", what)
		}
	}
}

// The cache stays within its size, forgets what was not used for longest, and never what is used.
func TestEviction(t *testing.T) {
	s := newStore()
	c := newCache(t, Config{Source: s, Max: 10 << 20})
	var held []byte
	for i := range 6 {
		path := "/" + strconv.Itoa(i)
		data := large(t, 3<<20, uint64(10+i))
		s.put(path, data, false)
		f, release := mustOpen(t, c, s, path)
		if i == 0 {
			held = data
			defer release()
			defer func() { reads(t, f, held) }()
		} else {
			release()
		}
	}
	n := c.Stats()
	if n.Bytes > 10<<20 || n.Evicted != 3 {
		t.Errorf("%+v", n)
	}
	for i, want := range []bool{true, false, false, false, true, true} {
		if got := c.program(t, s, "/"+strconv.Itoa(i)) != nil; got != want {
			t.Errorf("program %d is known: %v, want %v", i, got, want)
		}
	}
}

// A disk that takes nothing makes starts fail and nothing else.
func TestFullDisk(t *testing.T) {
	s := newStore()
	good := large(t, 3<<20, 20)
	s.put("/p", good, false)
	c := newCache(t, Config{Source: s})
	f, err := s.find("/p")
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.enter(Name{Realm: "a", Path: "/p", ID: f.id, Size: int64(len(good))})
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	p.w.Close()
	p.w = full
	if _, _, err := c.Open(t.Context(), "a", s, "/p"); sigma.KindOf(err) != sigma.KindNoSpace || err == nil {
		t.Errorf("got %v", err)
	}
	b := make([]byte, 1000)
	if n, err := p.readAt(t.Context(), b, chunkSize-500); err != nil ||
		!bytes.Equal(b[:n], good[chunkSize-500:chunkSize+500]) {
		t.Errorf("who runs it reads %d bytes, %v", n, err)
	}
}

// Goal: a program in the object store's tree is fetched by version; one that is replaced while its
// bytes come is the old one as a whole or an error.
func TestTreeSource(t *testing.T) {
	objects, err := s3.New(s3.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	root, err := objects.Attach(t.Context(), sigma.Principal{Realm: "a"}, "")
	if err != nil {
		t.Fatal(err)
	}
	tree := resolve.New(resolve.Config{Root: root})
	if err := tree.Mkdir(t.Context(), "/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	good, other := large(t, 2<<20, 30), large(t, 2<<20, 31)
	put := func(data []byte) {
		t.Helper()
		if _, err := tree.Put(t.Context(), "/bin/p", data, sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put(good)
	c := newCache(t, Config{Tree: func(sigma.RealmID) (Tree, error) { return tree, nil }})
	f, release := mustOpen(t, c, tree, "/bin/p")
	defer release()
	reads(t, f, good)
	if n := c.Stats(); n.CorruptFetched != 0 || n.FetchedBytes != uint64(len(good)) {
		t.Errorf("%+v", n)
	}
	st, err := tree.Stat(t.Context(), "/bin/p")
	if err != nil {
		t.Fatal(err)
	}
	name := Name{Realm: "a", Path: "/bin/p", ID: st.ID, Size: int64(st.Size)}
	held, err := c.cfg.Source.Object(name)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	<-held.(*treeObject).pin().ready
	put(other)
	late, err := c.cfg.Source.Object(name)
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	b := make([]byte, chunkSize)
	if err := held.ReadAt(t.Context(), b, chunkSize); err != nil || !bytes.Equal(b, good[chunkSize:2*chunkSize]) {
		t.Errorf("who held the old version: %v", err)
	}
	if h, err := held.Hash(t.Context(), chunkSize, chunkSize); err != nil || h != digest.Of(b) {
		t.Errorf("its hash: %v", err)
	}
	if _, err := late.Hash(t.Context(), 0, chunkSize); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("who comes late: %v", err)
	}
	f, release2 := mustOpen(t, c, tree, "/bin/p")
	defer release2()
	reads(t, f, other)
}

// restless is a tree whose one program is replaced each time somebody has been told of a version of
// it, and before each time that it is opened.
type restless struct {
	*resolve.Tree
	t     *testing.T
	asked sync.Once
	told  chan struct{} // closed when a version has been told
	base  []byte        // each version begins with it
	mu    sync.Mutex
	next  int // mu
}

func (r *restless) replace() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	if _, err := r.Put(r.t.Context(), "/bin/p", fmt.Appendf(bytes.Clone(r.base), "%9d", r.next),
		sigma.PutOptions{}); err != nil && r.t.Context().Err() == nil {
		r.t.Error(err)
	}
}

func (r *restless) Stat(ctx context.Context, path string) (sigma.Stat, error) {
	defer r.replace()
	return r.Tree.Stat(ctx, path)
}

func (r *restless) GetAt(ctx context.Context, path string, offset uint64, count int) (sigma.GetResult, error) {
	if count == 1 { // who asks for the version
		defer r.asked.Do(func() { close(r.told) })
		defer r.replace()
	}
	return r.Tree.GetAt(ctx, path, offset, count)
}

func (r *restless) Handle(ctx context.Context, path string) (sigma.File, error) {
	<-r.told
	r.replace()
	return r.Tree.Handle(ctx, path)
}

// Goal: a start is not lost to somebody who replaces its program faster than that can be fetched.
func TestReplacedAllTheTime(t *testing.T) {
	objects, err := s3.New(s3.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(objects.Close)
	root, err := objects.Attach(t.Context(), sigma.Principal{Realm: "a"}, "")
	if err != nil {
		t.Fatal(err)
	}
	tree := &restless{Tree: resolve.New(resolve.Config{Root: root}), t: t, told: make(chan struct{}),
		base: large(t, 600<<10, 40)}
	if err := tree.Mkdir(t.Context(), "/bin", 0o755); err != nil {
		t.Fatal(err)
	}
	tree.replace()
	c := newCache(t, Config{Tree: func(sigma.RealmID) (Tree, error) { return tree, nil }})
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			f, release, err := c.Open(t.Context(), "a", tree, "/bin/p")
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
			if err != nil {
				t.Error(err)
			}
			version := b[min(len(b), len(tree.base)):]
			if n, err := strconv.Atoi(strings.TrimSpace(string(version))); err != nil || n == 0 ||
				!bytes.HasPrefix(b, tree.base) {
				t.Errorf("what was opened is no version of the program: %q", version)
			}
		})
	}
	all.Wait()
}

func FuzzRecords(f *testing.F) {
	f.Add([]byte("{}\n"))
	line := `{"Name":{"Realm":"a","Path":"/p","File":1,"Version":2},"Size":300000,"Node":7}` + "\n"
	f.Add(append([]byte(line), logRecord(1, Hash{1})...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, hashes, err := readLog(b); err == nil {
			for i := range hashes {
				if i < 0 || i >= chunks(r.Size) {
					t.Errorf("chunk %d of %d bytes", i, r.Size)
				}
			}
		}
		readContent(b, Hash{})
	})
}
