package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/sigma"
)

// world is a tree of one realm before a store, with a proxy in between.
type world struct {
	*testing.T
	srv   *s3server.Server
	proxy *s3server.Proxy
	tree  *Tree
	root  sigma.File
}

// bigSize is that of an object of three parts.
const bigSize = 2*partSize + 5

func newWorld(t *testing.T, cfg Config) *world {
	t.Helper()
	w := &world{T: t, srv: s3server.Start(t)}
	w.proxy = w.srv.Proxy(t)
	w.again(cfg)
	w.mkdir("b")
	return w
}

// again has another tree serve.
func (w *world) again(cfg Config) {
	w.Helper()
	patience := cfg.Patience
	cfg.Patience = 0 // attaching goes well, however busy the host is
	w.tree = newTree(w.T, cfg)
	root, err := at{w.tree, storeAt(w.proxy.Address)}.Attach(w.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(root.Close)
	w.root = root
	if patience != 0 {
		w.tree.spaces["r"].c.patience = patience // nobody asks the store yet
	}
}

// key is where the store has a file of the realm.
func key(names ...string) string { return "some/prefix/r/" + strings.Join(names, "/") }

func (w *world) mkdir(name string) {
	w.Helper()
	if err := w.root.Mkdir(w.Context(), name, 0o700); err != nil {
		w.Fatal(err)
	}
}

func (w *world) put(ctx context.Context, name string, data []byte) error {
	_, _, err := w.root.(sigma.Putter).Put(ctx, []string{"b", name}, data, sigma.PutOptions{})
	return err
}

func (w *world) walk(ctx context.Context, names ...string) (sigma.File, error) {
	f, ids, err := w.root.Walk(ctx, names)
	if err == nil && f == nil {
		return nil, sigma.Errorf("test.walk", sigma.KindNotFound, "after %d names", len(ids))
	}
	return f, err
}

// stream writes an object as a program does that has much to write.
func (w *world) stream(ctx context.Context, name string, data []byte) error {
	dir, err := w.walk(ctx, "b")
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.Create(ctx, name, sigma.OpenWrite|sigma.OpenTruncate, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for at := 0; at < len(data); at += 1 << 20 {
		if _, err := f.WriteAt(ctx, data[at:min(at+1<<20, len(data))], uint64(at)); err != nil {
			return err
		}
	}
	return f.(sigma.Publisher).Publish(ctx)
}

func (w *world) read(ctx context.Context, name string) ([]byte, error) {
	f, err := w.walk(ctx, "b", name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Open(ctx, sigma.OpenRead); err != nil {
		return nil, err
	}
	return readAll(ctx, f)
}

func readAll(ctx context.Context, f sigma.File) ([]byte, error) {
	var out bytes.Buffer
	buf := make([]byte, 1<<20)
	for {
		n, err := f.ReadAt(ctx, buf, uint64(out.Len()))
		out.Write(buf[:n])
		if err != nil || n == 0 {
			return out.Bytes(), err
		}
	}
}

func (w *world) list(ctx context.Context, names ...string) (out []string, err error) {
	f, err := w.walk(ctx, names...)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Open(ctx, sigma.OpenRead); err != nil {
		return nil, err
	}
	for at, more := uint64(0), true; more; {
		var page []sigma.DirEntry
		if page, at, more, err = f.ReadDir(ctx, at, 700); err != nil {
			return nil, err
		}
		for _, e := range page {
			out = append(out, e.Name)
		}
	}
	return out, nil
}

func (w *world) inBucket(ctx context.Context, do func(sigma.File) error) error {
	b, err := w.walk(ctx, "b")
	if err != nil {
		return err
	}
	defer b.Close()
	return do(b)
}

// uploads is how many uploads the store has open.
func (w *world) uploads() int {
	w.Helper()
	r, err := w.srv.Client.ListMultipartUploads(w.Context(), s3server.Bucket, "", "", "", "", 1000)
	if err != nil && minio.ToErrorResponse(err).Code != "NoSuchUpload" { // what gofakes3 says where none ever was
		w.Fatal(err)
	}
	return len(r.Uploads)
}

// eventually waits for what happens in the background.
func (w *world) eventually(what string, is func() bool) {
	w.Helper()
	for end := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(end) {
			w.Fatalf("%s: not within a minute", what)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-w.Context().Done():
			w.Fatal(w.Context().Err())
		}
	}
}

// pattern is bytes that tell where they come from.
func pattern(n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	out := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		v := rng.Uint64()
		for j := range 8 {
			out[i+j] = byte(v >> (8 * j))
		}
	}
	return out
}

// short is a patience for what never goes well.
const short = 200 * time.Millisecond

// Goal: whatever is wrong with the store, each operation fails with an error that names the object
// and the cause and no secret, and leaves what was there. Method: every fault, always, with every
// operation.
func TestFaultsAreNamed(t *testing.T) {
	w := newWorld(t, Config{})
	old, big := []byte("old bytes"), pattern(bigSize, 1)
	ctx := t.Context()
	for name, data := range map[string][]byte{"old": old, "moved": old, "gone": old} {
		if err := w.put(ctx, name, data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.stream(ctx, "big", big); err != nil {
		t.Fatal(err)
	}
	faults := []struct {
		name string
		set  func(*http.Request) s3server.Fault
		kind []sigma.Kind
		says string
	}{
		{"cut", s3server.Always(s3server.Fault{Cut: true}), []sigma.Kind{sigma.KindUnavailable}, "the object store "},
		{"hang", s3server.Always(s3server.Fault{Hang: true}), []sigma.Kind{sigma.KindTimeout},
			"did not answer in time"},
		{"slow down", s3server.Always(s3server.SlowDown), []sigma.Kind{sigma.KindBusy, sigma.KindUnavailable}, "503"},
		// HEAD has no code
		{"too many", s3server.Always(s3server.TooMany), []sigma.Kind{sigma.KindBusy}, "429"},
		{"internal", s3server.Always(s3server.Internal), []sigma.Kind{sigma.KindUnavailable}, "500"},
		{"gateway", s3server.Always(s3server.GatewayDown), []sigma.Kind{sigma.KindUnavailable}, "502"},
		{"denied", s3server.Always(s3server.Denied), []sigma.Kind{sigma.KindPermission}, "403"},
		{"garbage", s3server.Always(s3server.Garbage), []sigma.Kind{sigma.KindUnavailable}, "the object store "},
		{"read only", s3server.Writes(s3server.Denied), []sigma.Kind{sigma.KindPermission}, "403"},
		{"full", s3server.Writes(s3server.Full), []sigma.Kind{sigma.KindNoSpace}, "XMinioStorageFull"},
	}
	t.Run("faults", func(t *testing.T) {
		for _, f := range faults {
			t.Run(f.name, func(t *testing.T) {
				t.Parallel()
				x := &world{T: t, srv: w.srv, proxy: w.srv.Proxy(t)}
				onlyWrites := f.name == "read only" || f.name == "full"
				for _, o := range operations(x) {
					if onlyWrites && !o.writes {
						continue
					}
					var err error
					for patience := short; ; patience *= 4 {
						x.proxy.Set(nil)
						x.again(Config{Patience: patience}) // nothing is known or cached
						x.proxy.Set(f.set)
						err = o.do()
						if f.name == "hang" || sigma.KindOf(err) != sigma.KindTimeout ||
							patience > time.Minute { // else the host was too busy for one request
							break
						}
					}
					text, path := fmt.Sprint(err), "/s3/"+strings.Split(o.path, "/")[0]
					if onlyWrites {
						path = "/s3/" + o.path
					}
					if !slices.Contains(f.kind, sigma.KindOf(err)) || !strings.Contains(text, f.says) ||
						!strings.Contains(text, path) || strings.Contains(text, s3server.SecretKey) {
						t.Errorf("%s: %v: %v", o.name, sigma.KindOf(err), err)
					}
				}
			})
		}
	})
	w.proxy.Set(nil)
	w.again(Config{})
	for name, want := range map[string][]byte{"old": old, "moved": old, "gone": old, "big": big} {
		if got, err := w.read(ctx, name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v; want the %d old ones", name, len(got), err, len(want))
		}
	}
	if names, err := w.list(ctx, "b"); err != nil || strings.Join(names, " ") != "big gone moved old" {
		t.Errorf("the bucket has %q, %v", names, err)
	}
	w.eventually("uploads are aborted", func() bool { return w.uploads() == 0 })
}

// operation is one thing that a program does with objects.
type operation struct {
	name, path string
	writes     bool
	do         func() error
}

// operations are all of them; path is what is named when it fails.
func operations(w *world) []operation {
	ctx := w.Context()
	return []operation{
		{"read", "b/old", false, func() error { _, err := w.read(ctx, "old"); return err }},
		{"read much", "b/big", false, func() error { _, err := w.read(ctx, "big"); return err }},
		{"stat", "b/old", false, func() error {
			f, err := w.walk(ctx, "b", "old")
			if err == nil {
				defer f.Close()
				_, err = f.Stat(ctx)
			}
			return err
		}},
		{"list", "b", false, func() error { _, err := w.list(ctx, "b"); return err }},
		{"put", "b/old", true, func() error { return w.put(ctx, "old", []byte("half")) }},
		{"put new", "b/new", true, func() error { return w.put(ctx, "new", []byte("half")) }},
		{"stream", "b/big", true, func() error { return w.stream(ctx, "big", pattern(bigSize, 2)) }},
		{"remove", "b/gone", true, func() error {
			return w.inBucket(ctx, func(b sigma.File) error { return b.Remove(ctx, "gone") })
		}},
		{"rename", "b/moved", true, func() error {
			return w.inBucket(ctx, func(b sigma.File) error { return b.Rename(ctx, "moved", b, "old") })
		}},
		{"mkdir", "b/dir", true, func() error {
			return w.inBucket(ctx, func(b sigma.File) error { return b.Mkdir(ctx, "dir", 0o700) })
		}},
	}
}

// Goal: faults that pass are not noticed: what is written is what is read, once, and nobody sees
// half an object. Method: clients write, replace, move, remove and read while one request in four
// goes wrong, in any way; a reader at the store itself checks that all objects are whole at all
// times.
func TestFaultsPass(t *testing.T) {
	w := newWorld(t, Config{Patience: time.Minute})
	seed := rand.Uint64()
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	wrong := []s3server.Fault{{Cut: true}, {Lose: true}, {Short: true}, s3server.SlowDown, s3server.TooMany,
		s3server.Internal, s3server.GatewayDown, s3server.Garbage}
	w.proxy.Set(func(r *http.Request) s3server.Fault {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(4) > 0 {
			return s3server.Fault{}
		}
		f := wrong[rng.IntN(len(wrong))]
		if r.Method == http.MethodHead &&
			f.Status == http.StatusOK { // a proper answer of an empty object: nobody can tell
			return s3server.Internal
		}
		return f
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var watching sync.WaitGroup
	looks := 0
	watching.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			w.checkWhole(ctx)
			looks++
		}
	})
	var clients sync.WaitGroup
	for client := range 4 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(10+client)))
			name := fmt.Sprintf("of-%d", client)
			last := []byte(nil)
			for round := range 12 {
				body := whole(fmt.Sprintf("%s round %d ", name, round), 1+rng.IntN(9000))
				err := error(nil)
				switch action := rng.IntN(5); {
				case action == 0 && last != nil:
					if err = w.inBucket(ctx, func(b sigma.File) error { return b.Remove(ctx, name) }); err == nil {
						last = nil
					}
				case action == 1 && last != nil:
					to := fmt.Sprintf("of-%d-%d", client, round)
					if err = w.inBucket(ctx, func(b sigma.File) error {
						return b.Rename(ctx, name, b, to)
					}); err == nil {
						name = to
					}
				case action == 2 && round < 4:
					body = whole(name, bigSize)
					fallthrough
				default:
					if err = w.stream(ctx, name, body); err == nil {
						last = body
					}
				}
				if err != nil {
					t.Errorf("seed %d: client %d, round %d: %v", seed, client, round, err)
					return
				}
				got, err := w.read(ctx, name)
				if last == nil && sigma.KindOf(err) == sigma.KindNotFound {
					continue
				}
				if err != nil || !bytes.Equal(got, last) {
					t.Errorf("seed %d: client %d, round %d: it reads %d bytes, %v; want %d", seed, client, round,
						len(got), err, len(last))
					return
				}
			}
		})
	}
	clients.Wait()
	close(stop)
	watching.Wait()
	w.proxy.Set(nil)
	w.eventually("uploads are aborted", func() bool { return w.uploads() == 0 })
	if looks == 0 {
		t.Error("nobody looked at the store")
	}
}

// whole is an object that says how long it is.
func whole(what string, n int) []byte {
	text := fmt.Sprintf("%d %s", n, what)
	return append([]byte(text), bytes.Repeat([]byte{'x'}, max(0, n-len(text)))...)[:max(n, len(text))]
}

// checkWhole reads the store's objects behind the proxy's back.
func (w *world) checkWhole(ctx context.Context) {
	list, err := w.srv.Client.ListObjectsV2(s3server.Bucket, key("b", ""), "", "", "", 1000)
	if err != nil {
		w.Error(err)
		return
	}
	for _, o := range list.Contents {
		if strings.HasSuffix(o.Key, "/") {
			continue
		}
		body, info, _, err := w.srv.Client.GetObject(ctx, s3server.Bucket, o.Key, minio.GetObjectOptions{})
		if err != nil { // removed meanwhile
			continue
		}
		text, err := io.ReadAll(body)
		body.Close()
		n := 0
		fmt.Sscanf(string(text[:min(len(text), 20)]), "%d", &n)
		if err == nil && (int64(len(text)) != info.Size || len(text) < n || n == 0) {
			w.Errorf("the store shows %d bytes of %s, which has %d", len(text), o.Key, n)
		}
	}
}

// A store that refuses in the middle of a large object leaves the old one and no parts, also if
// this process dies with it.
func TestStoreRefusesUnderWriter(t *testing.T) {
	w := newWorld(t, Config{})
	ctx := t.Context()
	old := pattern(bigSize, 3)
	if err := w.stream(ctx, "big", old); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w.again(Config{Dir: dir})
	var parts atomic.Int64
	w.proxy.Set(func(r *http.Request) s3server.Fault { // the first part comes through
		if r.URL.Query().Has("partNumber") {
			parts.Add(1)
		}
		if parts.Load() > 1 { // nothing helps, and nothing is tried again
			return s3server.Denied
		}
		return s3server.Fault{}
	})
	if err := w.stream(ctx, "big", pattern(bigSize, 4)); sigma.KindOf(err) != sigma.KindPermission ||
		!strings.Contains(err.Error(), "/s3/b/big") {
		t.Errorf("the writer is told %v", err)
	}
	w.tree.Close()
	if w.uploads() != 1 {
		t.Errorf("the store has %d uploads: the test tests nothing", w.uploads())
	}
	w.proxy.Set(nil)
	w.again(Config{Dir: dir})
	if got, err := w.read(ctx, "big"); err != nil || !bytes.Equal(got, old) {
		t.Errorf("there are %d bytes, %v; want the old ones", len(got), err)
	}
	w.eventually("the upload is aborted", func() bool { return w.uploads() == 0 })
}

// An answer whose bytes are not the store's is not believed where the store says a checksum.
func TestFlippedBytes(t *testing.T) {
	w := newWorld(t, Config{})
	if err := w.put(t.Context(), "o", []byte("what was put")); err != nil {
		t.Fatal(err)
	}
	gets := 0
	w.proxy.Set(func(r *http.Request) s3server.Fault {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/b/o") {
			gets++
			return s3server.Fault{Flip: gets < 3}
		}
		return s3server.Fault{}
	})
	if got, err := w.read(t.Context(), "o"); err != nil || string(got) != "what was put" || gets != 3 {
		t.Errorf("got %q, %v after %d requests", got, err, gets)
	}
}
