package client

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/client/cache"
)

// machine gives a Realm as of one more machine, which remembers for as long as the test wants.
func (w *world) machine(lease time.Duration) (*Realm, *File) {
	w.Helper()
	r := New(Config{Dial: w.dial, Budget: &cache.Budget{}})
	r.front.cache = cache.New(cache.Config{Bytes: realmBytes, DataMax: dataMax, ListMax: listMax, Lease: lease,
		Budget: r.cfg.Budget})
	r.front.idle = lease
	w.Cleanup(r.Close)
	root, err := r.Root(w.Context())
	w.must(err)
	return r, root
}

func (w *world) get(f *File, names ...string) string {
	w.Helper()
	g, stop, err := f.Get(w.Context(), names, 0, 1000)
	if err != nil || stop != nil {
		w.Fatalf("get %q: %+v, %v", names, stop, err)
	}
	return string(g.Data)
}

func (w *world) put(f *File, data string, names ...string) sigma.FileID {
	w.Helper()
	id, stop, err := f.Put(w.Context(), names, []byte(data), sigma.PutOptions{})
	if err != nil || stop != nil {
		w.Fatalf("put %q: %+v, %v", names, stop, err)
	}
	return id
}

// recalled does something until it is answered without named.
func (w *world) recalled(r *Realm, do func()) {
	w.Helper()
	for {
		before := r.cfg.Budget.Counts()
		do()
		if after := r.cfg.Budget.Counts(); after.Misses == before.Misses && after.Hits > before.Hits {
			return
		}
		if w.Context().Err() != nil {
			w.Fatal("nothing is remembered")
		}
	}
}

// What was read is answered while there is no named, whatever was asked: contents, attributes,
// listings, links, absences; also by files that were opened from it.
func TestRecall(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	r, root := w.machine(time.Hour)
	w.must(root.Mkdir(ctx, "d", 0o755))
	w.put(root, "hello", "d", "f")
	w.must(root.Symlink(ctx, "l", "/d/f"))
	all := func() {
		if got := w.get(root, "d", "f"); got != "hello" {
			t.Fatalf("content %q", got)
		}
		if _, _, err := root.Get(ctx, []string{"d", "none"}, 0, 10); sigma.KindOf(err) != sigma.KindNotFound {
			t.Fatalf("what is not there: %v", err)
		}
		if _, _, err := root.Get(ctx, []string{"d", "f", "x"}, 0, 10); sigma.KindOf(err) != sigma.KindNotDir {
			t.Fatalf("below a file: %v", err)
		}
		if _, stop, err := root.Get(ctx, []string{"l", "x"}, 0, 10); err != nil || stop == nil ||
			stop.Target != "/d/f" || stop.Walked != 1 {
			t.Fatalf("a link: %+v, %v", stop, err)
		}
		d, ids, err := root.Walk(ctx, []string{"d"})
		if err != nil || len(ids) != 1 || ids[0].Kind != sigma.KindDir {
			t.Fatalf("walk: %v, %v", ids, err)
		}
		defer d.Close()
		w.must(d.Open(ctx, sigma.OpenRead))
		es, _, more, err := d.ReadDir(ctx, 0, 10)
		if err != nil || len(es) != 1 || es[0].Name != "f" || es[0].Size != 5 || more {
			t.Fatalf("listing: %+v, %v", es, err)
		}
		f, _, err := d.Walk(ctx, []string{"f"})
		w.must(err)
		defer f.Close()
		w.must(f.Open(ctx, sigma.OpenRead))
		b := make([]byte, 10)
		if n, err := f.ReadAt(ctx, b, 1); err != nil || string(b[:n]) != "ello" {
			t.Fatalf("read: %q, %v", b[:n], err)
		}
		if st, err := f.Stat(ctx); err != nil || st.Name != "f" || st.Size != 5 || st.ID.Version == 0 {
			t.Fatalf("stat: %+v, %v", st, err)
		}
	}
	w.recalled(r, all)
	w.kill()
	all()
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, _, err := root.Get(sigma.WithSync(soon), []string{"d", "f"}, 0, 10); err == nil {
		t.Error("what was to be current was answered while there is no named")
	}
	if _, _, err := root.Get(sigma.WithFence(soon, sigma.Fence{Name: "x", Epoch: 1}), []string{"d", "f"}, 0,
		10); err == nil {
		t.Error("what was fenced was answered while there is no named")
	}
	w.start()
	w.put(root, "again", "d", "f")
	if got := w.get(root, "d", "f"); got != "again" {
		t.Errorf("after a restart and a change: %q", got)
	}
}

// Who made a change sees it at once, whatever it was and however it was asked for; who was told
// that something is there sees it.
func TestOwnChanges(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	r, root := w.machine(time.Hour)
	_, other := w.machine(time.Hour)
	w.must(root.Mkdir(ctx, "d", 0o755))
	w.put(root, "", "d", "f")
	w.recalled(r, func() { w.get(root, "d", "f") })
	d, _, err := root.Walk(ctx, []string{"d"})
	w.must(err)
	defer d.Close()
	list := func() (names []string) {
		l, _, err := d.Walk(ctx, nil)
		w.must(err)
		defer l.Close()
		w.must(l.Open(ctx, sigma.OpenRead))
		es, _, _, err := l.ReadDir(ctx, 0, 100)
		w.must(err)
		for _, e := range es {
			names = append(names, e.Name)
		}
		return names
	}
	for i := range 200 {
		name := fmt.Sprint("n", i)
		if _, _, err := root.Get(ctx, []string{"d", name}, 0, 10); sigma.KindOf(err) != sigma.KindNotFound {
			t.Fatalf("%s before it is made: %v", name, err)
		}
		list()
		f, err := d.Create(ctx, name, sigma.OpenWrite|sigma.OpenExclusive, 0o644)
		w.must(err)
		_, err = f.WriteAt(ctx, []byte("x"), 0)
		w.must(err)
		if got := w.get(root, "d", name); got != "x" {
			t.Fatalf("%s has %q after a write", name, got)
		}
		perm := uint32(0o600)
		w.must(f.SetStat(ctx, sigma.StatChange{Perm: &perm}))
		if st, err := f.Stat(ctx); err != nil || st.Perm != perm {
			t.Fatalf("the mode is %o, %v", st.Perm, err)
		}
		f.Close()
		w.must(d.Rename(ctx, name, root, name))
		if _, _, err := root.Get(ctx, []string{"d", name}, 0, 10); sigma.KindOf(err) != sigma.KindNotFound {
			t.Fatalf("%s after it was moved: %v", name, err)
		}
		if got := w.get(root, name); got != "x" || slices.Contains(list(), name) {
			t.Fatalf("%s was moved: %q", name, got)
		}
		w.must(root.Remove(ctx, name))
		if _, _, err := root.Walk(ctx, []string{name}); sigma.KindOf(err) != sigma.KindNotFound {
			t.Fatalf("%s after it was removed: %v", name, err)
		}
		// Another machine makes it, and who is told so sees it.
		w.put(other, "theirs", "d", name)
		if _, _, err := root.Put(ctx, []string{"d", name}, nil,
			sigma.PutOptions{MustMake: true}); sigma.KindOf(err) != sigma.KindExists {
			t.Fatalf("made again: %v", err)
		}
		if got := w.get(root, "d", name); got != "theirs" {
			t.Fatalf("what is said to exist has %q", got)
		}
	}
	lease, err := root.Lease(ctx, time.Minute)
	w.must(err)
	_, _, err = root.Put(ctx, []string{"e"}, []byte("mortal"), sigma.PutOptions{Lease: lease})
	w.must(err)
	w.get(root, "e")
	w.must(root.Revoke(ctx, lease))
	if _, _, err := root.Get(ctx, []string{"e"}, 0, 10); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("an ephemeral file after its lease: %v", err)
	}
}

// Whoever was told by a watch, or by another file, that something changed on another machine, sees
// all that was changed there before.
func TestCauseComesFirst(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	_, writer := w.machine(time.Hour)
	r, reader := w.machine(time.Hour)
	v := w.put(writer, "", "flag").Version
	w.put(writer, "", "data")
	w.recalled(r, func() { w.get(reader, "data"); w.get(reader, "flag") })
	flag, _, err := reader.Walk(ctx, []string{"flag"})
	w.must(err)
	defer flag.Close()
	for i := range 300 {
		text := fmt.Sprint(i)
		told := make(chan sigma.Version, 1)
		if since := v; i%2 == 0 {
			go func() {
				v, _ := flag.(sigma.Watcher).Watch(ctx, since)
				told <- v
			}()
		}
		w.put(writer, text, "data")
		v = w.put(writer, text, "flag").Version
		if i%2 == 0 {
			if now := <-told; now == 0 {
				t.Fatal("the watch failed")
			}
		} else {
			for w.get(reader, "flag") != text {
			}
		}
		if got := w.get(reader, "data"); got != text {
			t.Fatalf("round %d: told by the flag, but the data is %q", i, got)
		}
	}
	_, _, err = writer.Put(ctx, []string{"flag"}, nil, sigma.PutOptions{})
	w.must(err)
	w.must(writer.Remove(ctx, "data"))
	w.must(writer.Remove(ctx, "flag"))
	if _, err := flag.(sigma.Watcher).Watch(ctx, 1<<60); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a watch of what is removed: %v", err)
	}
	for _, name := range []string{"flag", "data"} {
		if _, _, err := reader.Get(ctx, []string{name}, 0, 10); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("%s after the watch told that all is removed: %v", name, err)
		}
	}
}

// Who passes on news of another machine says so, and what was changed there before is read.
func TestDoubt(t *testing.T) {
	w := newWorld(t)
	_, writer := w.machine(time.Hour)
	r, reader := w.machine(time.Hour)
	w.put(writer, "", "f")
	w.recalled(r, func() { w.get(reader, "f") })
	for i := range 300 {
		text := fmt.Sprint(i)
		w.put(writer, text, "f")
		r.Doubt()
		if got := w.get(reader, "f"); got != text {
			t.Fatalf("round %d: read %q", i, got)
		}
	}
}

// stamp is a version of a file, and when who wrote it knew.
type stamp struct {
	version sigma.Version
	at      time.Time
}

const boundFiles = 3

// bounds is what programs of several machines wrote and when they knew it.
type bounds struct {
	*world
	ctx         context.Context
	over, wrote chan struct{}
	hits, worst atomic.Int64

	mu      sync.Mutex
	written [boundFiles][]stamp // mu
}

// known is the newest version of a file that somebody knew before a time.
func (b *bounds) known(i int, before time.Time) (v sigma.Version) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.written[i] {
		if s.at.Before(before) {
			v = max(v, s.version)
		}
	}
	return v
}

// write returns the version that it made.
func (b *bounds) write(root *File, k int, name []string) sigma.Version {
	id, _, err := root.Put(b.ctx, name, []byte("x"), sigma.PutOptions{})
	if err != nil {
		b.Errorf("put: %v", err)
		return 0
	}
	b.mu.Lock()
	b.written[k] = append(b.written[k], stamp{id.Version, time.Now()})
	b.mu.Unlock()
	select {
	case b.wrote <- struct{}{}:
	default:
	}
	return id.Version
}

// program reads and writes until all is over. seen is what its machine has read.
func (b *bounds) program(r *Realm, root *File, rng *rand.Rand, seen *[boundFiles]atomic.Uint64) {
	for !b.Failed() {
		select {
		case <-b.over:
			b.hits.Add(int64(r.cfg.Budget.Counts().Hits))
			return
		default:
		}
		k := rng.IntN(boundFiles)
		name := []string{"f" + strconv.Itoa(k)}
		own := sigma.Version(0)
		if rng.IntN(20) == 0 {
			own = b.write(root, k, name)
		}
		ctx, bound := b.ctx, feedLease
		if rng.IntN(20) == 0 {
			ctx, bound = sigma.WithSync(ctx), 0
		}
		before, asked := sigma.Version(seen[k].Load()), time.Now()
		g, _, err := root.Get(ctx, name, 0, 100)
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			b.Errorf("get: %v", err)
			return
		}
		got := g.ID.Version
		for s := seen[k].Load(); s < uint64(got) && !seen[k].CompareAndSwap(s, uint64(got)); s = seen[k].Load() {
		}
		switch old := b.known(k, asked.Add(-bound)); {
		case got < own:
			b.Errorf("read version %d after writing %d", got, own)
		case got < before:
			b.Errorf("read version %d after %d", got, before)
		case got < old:
			b.Errorf("read version %d, though %d was known %v before", got, old, bound)
		}
		b.measure(k, got, asked)
	}
}

// measure notes by how much an answer was too old.
func (b *bounds) measure(k int, got sigma.Version, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.written[k] {
		if s.version > got && s.at.Before(asked) {
			b.worst.Store(max(b.worst.Load(), int64(asked.Sub(s.at))))
		}
	}
}

// Goal: programs on three machines read and write few files, while named is killed again and again:
// each program reads its own writes, what a machine reads of a file never goes back, nobody reads
// what was replaced more than the lease before, and a read that is to be current is. Method: every
// writer notes when it knew its write; every reader compares.
func TestBounds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b := &bounds{world: newWorld(t), ctx: ctx, over: make(chan struct{}), wrote: make(chan struct{}, 1)}
	var work sync.WaitGroup
	for m := range 3 {
		r := New(Config{Dial: b.dial, Budget: &cache.Budget{}})
		t.Cleanup(r.Close)
		root, err := r.Root(ctx)
		b.must(err)
		var seen [boundFiles]atomic.Uint64
		for p := range 2 {
			work.Go(func() { b.program(r, root, rand.New(rand.NewPCG(uint64(m), uint64(p))), &seen) })
		}
	}
	for range 3 {
		for range 100 {
			select {
			case <-b.wrote:
			case <-ctx.Done():
				t.Fatal("the programs are stuck")
			}
		}
		b.restart()
	}
	close(b.over)
	work.Wait()
	if b.hits.Load() == 0 {
		t.Error("nothing was remembered")
	}
	t.Logf("%d hits; the oldest answer was %v behind", b.hits.Load(), time.Duration(b.worst.Load()))
}

// When nobody reads any more everything is forgotten, and named is asked no more; who reads again
// is served.
func TestIdle(t *testing.T) {
	w := newWorld(t)
	r := New(Config{Dial: w.dial, Budget: &cache.Budget{}})
	r.front.idle = 50 * time.Millisecond
	t.Cleanup(r.Close)
	root, err := r.Root(t.Context())
	w.must(err)
	for range 2 {
		w.put(root, "x", "f")
		for r.cfg.Budget.Counts().Feeds == 0 {
			w.get(root, "f")
		}
		r.front.feeding.Wait()
		if n := r.cfg.Budget.Counts(); n.Feeds+n.Entries+n.Bytes != 0 || r.front.running.Load() {
			t.Errorf("when nobody reads there is %+v", n)
		}
	}
}

// onlyFiles is a server that tells no changes.
type onlyFiles struct{ Root }

// A server that tells no changes is asked each time.
func TestServerWithoutFeed(t *testing.T) {
	w := newWorld(t)
	r := New(Config{Budget: &cache.Budget{}, Dial: func(ctx context.Context) (Session, error) {
		s, err := w.dial(ctx)
		s.Root = onlyFiles{s.Root}
		return s, err
	}})
	t.Cleanup(r.Close)
	root, err := r.Root(t.Context())
	w.must(err)
	for i := range 20 {
		w.put(root, fmt.Sprint(i), "f")
		if got := w.get(root, "f"); got != fmt.Sprint(i) {
			t.Errorf("got %q", got)
		}
		w.restart()
	}
	if n := r.cfg.Budget.Counts(); n.Hits+n.Entries != 0 {
		t.Errorf("%+v", n)
	}
}
