package remote

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskspace"
)

// other writes an object as another client of the store does.
func (w *world) other(key string, data []byte) {
	w.Helper()
	if _, err := w.srv.Client.PutObject(w.Context(), s3server.Bucket, key, bytes.NewReader(data), int64(len(data)), "",
		"", minio.PutObjectOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) otherRemoves(key string) {
	w.Helper()
	if err := w.srv.Client.RemoveObject(w.Context(), s3server.Bucket, key, minio.RemoveObjectOptions{}); err != nil {
		w.Fatal(err)
	}
}

// open opens an object for reading.
func (w *world) open(name string) sigma.File {
	w.Helper()
	f, err := w.walk(w.Context(), "b", name)
	if err == nil {
		err = f.Open(w.Context(), sigma.OpenRead)
	}
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(f.Close)
	return f
}

// Goal: objects that others change behind our back are never mixed, and never overwritten by who
// named a version.
func TestChangedBehindOurBack(t *testing.T) {
	w := newWorld(t, Config{})
	ctx := t.Context()
	big := pattern(5*chunkSize, 5)
	for _, name := range []string{"replaced", "removed"} {
		if err := w.stream(ctx, name, big); err != nil {
			t.Fatal(err)
		}
		if err := w.put(ctx, "small-"+name, []byte("small")); err != nil {
			t.Fatal(err)
		}
	}
	w.again(Config{})
	handles := map[string]sigma.File{}
	for _, name := range []string{"replaced", "removed", "small-replaced", "small-removed"} {
		handles[name] = w.open(name)
	}
	for _, name := range []string{"replaced", "small-replaced"} {
		w.other(key("b", name), bytes.Repeat([]byte("other"), len(big)/5))
	}
	for _, name := range []string{"removed", "small-removed"} {
		w.otherRemoves(key("b", name))
	}
	for _, name := range []string{"replaced", "removed"} {
		got, err := readAll(ctx, handles[name])
		if sigma.KindOf(err) != sigma.KindStale || !strings.Contains(err.Error(), "/s3/b/"+name) ||
			!strings.Contains(err.Error(), name) || !bytes.Equal(got, big[:len(got)]) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if got, err := readAll(ctx, handles["small-"+name]); err != nil || string(got) != "small" {
			t.Errorf("the bytes of a small object that was opened: %q, %v", got, err)
		}
	}
	w.eventually("the other's bytes are seen", func() bool {
		got, err := w.read(ctx, "replaced")
		return err == nil && strings.HasPrefix(string(got), "other")
	})
	w.eventually("a removed object is not seen", func() bool {
		_, err := w.read(ctx, "removed")
		return sigma.KindOf(err) == sigma.KindNotFound
	})

	// Conditions hold at the store, whatever is believed here.
	w.other(key("b", "counter"), []byte("1"))
	st := w.stat("counter")
	w.other(key("b", "counter"), []byte("2"))
	put := func(o sigma.PutOptions, name string) error {
		_, _, err := w.root.(sigma.Putter).Put(ctx, []string{"b", name}, []byte("ours"), o)
		return err
	}
	if err := put(sigma.PutOptions{IfVersion: st.ID.Version}, "counter"); sigma.KindOf(err) != sigma.KindVersion ||
		!strings.Contains(err.Error(), "/s3/b/counter") {
		t.Errorf("a version that is over: %v", err)
	}
	if got := w.srv.Object(t, key("b", "counter")); got != "2" {
		t.Errorf("the other's object is %q now", got)
	}
	if _,
		err := w.walk(ctx, "b",
		"fresh"); sigma.KindOf(err) != sigma.KindNotFound { // so that it is known not to be there
		t.Fatal(err)
	}
	w.other(key("b", "fresh"), []byte("first"))
	if err := put(sigma.PutOptions{MustMake: true}, "fresh"); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("what another made meanwhile: %v", err)
	}
	if got := w.srv.Object(t, key("b", "fresh")); got != "first" {
		t.Errorf("the other's new object is %q now", got)
	}
	w.eventually("its new version is taken", func() bool {
		return put(sigma.PutOptions{IfVersion: w.stat("counter").ID.Version}, "counter") == nil
	})
}

func (w *world) stat(name string) sigma.Stat {
	w.Helper()
	f, err := w.walk(w.Context(), "b", name)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return st
}

// Goal: a name may have every byte, and what others call their objects harms nobody: it is shown
// under its name, or not at all.
func TestNames(t *testing.T) {
	w := newWorld(t, Config{})
	ctx := t.Context()
	var names []string
	for b := 1; b < 256; b++ {
		if b != '/' {
			names = append(names, "x"+string([]byte{byte(b)})+"y", string([]byte{byte(b)})+"z")
		}
	}
	names = append(names, "%41", "%2F", "%00", "%", "%%", "a%20b", "ö", "\xc3", "\u202e", "...",
		strings.Repeat("n", 255))
	seen := map[string]bool{}
	for i, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		if err := w.put(ctx, name, []byte(strconv.Itoa(i))); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	w.again(Config{})
	listed, err := w.list(ctx, "b")
	if err != nil || len(listed) != len(seen) {
		t.Fatalf("%d names are listed, %v; want %d", len(listed), err, len(seen))
	}
	for _, name := range listed {
		if !seen[name] {
			t.Errorf("%q is listed, and nobody made it", name)
		}
	}
	for i, name := range names {
		if got, err := w.read(ctx, name); err != nil || string(got) != strconv.Itoa(i) &&
			slices.Index(names, name) == i {
			t.Errorf("%q reads %q, %v", name, got, err)
		}
	}
	for _, name := range names[:40] {
		if err := w.inBucket(ctx, func(b sigma.File) error { return b.Rename(ctx, name, b, name+"2") }); err != nil {
			t.Errorf("%q is not renamed: %v", name, err)
		}
		if err := w.inBucket(ctx, func(b sigma.File) error { return b.Remove(ctx, name+"2") }); err != nil {
			t.Errorf("%q is not removed: %v", name, err)
		}
	}

	// Keys that are nobody's names.
	w.mkdir("others")
	for _, k := range []string{"others//double", "others/..", "others/../b/up", "others/.", "others/%61", "others/%zz",
		"others/" + strings.Repeat("l", 300), "others/plain", "others/dir", "others/dir/in", "others/a b+c&d",
		"Bucket/big", "plain-file"} {
		_, err := w.srv.Client.PutObject(ctx, s3server.Bucket, key(k), strings.NewReader(k), int64(len(k)), "", "",
			minio.PutObjectOptions{})
		if err != nil { // a store that keeps objects in files has no such key
			t.Logf("the store takes no key %q: %v", k, err)
		}
	}
	got, err := w.list(ctx, "others")
	got = slices.DeleteFunc(got, func(name string) bool {
		return name == "double"
	}) // where keys are paths it is in others/ itself
	if want := "%61 %zz a b+c&d dir plain"; err != nil ||
		strings.Join(got, " ") != want { // %61 is no escape of ours: the letter a needs none
		t.Errorf("others' keys are listed as %q, %v; want %s", got, err, want)
	}
	if got, err := w.list(ctx); err != nil || strings.Join(got, " ") != "b others" {
		t.Errorf("the buckets are %q, %v", got, err)
	}
	for _, path := range [][]string{{"others", "dir", "in"}, {"others", "", "double"}, {"Bucket", "big"},
		{"plain-file"}, {"others", "..", "b"}} {
		if f, err := w.walk(ctx, path...); err == nil {
			f.Close()
			t.Errorf("%q leads somewhere", path)
		}
	}
}

// Goal: a directory of any length is listed, each name once, page by page, also while others add to
// it. SIGMA_TEST_S3_KEYS=1000000 is the full size; CI bears less.
func TestManyKeys(t *testing.T) {
	n := 3500
	if text := os.Getenv("SIGMA_TEST_S3_KEYS"); text != "" {
		n, _ = strconv.Atoi(text)
	}
	w := newWorld(t, Config{})
	ctx := t.Context()
	const writers = 8
	errs := make(chan error, writers)
	for i := range writers {
		go func() {
			for k := i; k < n; k += writers {
				_, err := w.srv.Client.PutObject(ctx, s3server.Bucket, key("b", fmt.Sprintf("k%07d", k)),
					strings.NewReader("x"), 1, "", "", minio.PutObjectOptions{})
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	before := w.proxy.Asked.Load()
	names, err := w.list(ctx, "b")
	if err != nil || len(names) != n || !slices.IsSorted(names) || len(slices.Compact(names)) != n {
		t.Fatalf("%d names, %v; want %d", len(names), err, n)
	}
	if asked := w.proxy.Asked.Load() - before; asked > int64(n/listPage+10) {
		t.Errorf("the store was asked %d times for %d names", asked, n)
	}
	dir, err := w.walk(ctx, "b")
	if err == nil {
		err = dir.Open(ctx, sigma.OpenRead)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	page, next, _, err := dir.ReadDir(ctx, 0, n/2)
	if err != nil || len(page) == 0 {
		t.Fatal(len(page), err)
	}
	last := page[len(page)-1].Name
	w.other(key("b", "a-before"), []byte("x"))
	w.other(key("b", last+"-after"), []byte("x"))
	if page, _, _, err = dir.ReadDir(ctx, next, 10); err != nil || len(page) == 0 || page[0].Name <= last {
		t.Errorf("after %s comes %v, %v", last, page, err)
	}
}

// disk is how many bytes the files below a directory have on the disk.
func disk(t *testing.T, dir string) (n uint64) {
	t.Helper()
	filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		var st syscall.Stat_t
		if err == nil && e.Type().IsRegular() && syscall.Lstat(name, &st) == nil {
			n += uint64(st.Blocks) * 512
		}
		return nil
	})
	return n
}

// A realm that begins objects and never ends them, writes parts that wait for others, or reads more
// objects than the cache keeps files of, is bounded alone: in what it has open, in its part of the
// disk, and in files.
func TestOpenWithoutEnd(t *testing.T) {
	const openMax = 200
	w := newWorld(t, Config{OpenMax: openMax})
	ctx, sp := t.Context(), w.tree.spaces["r"]
	bucket, err := w.walk(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	var files []sigma.File
	for err == nil && len(files) <= openMax {
		var f sigma.File
		if f, err = bucket.Create(ctx, fmt.Sprint("never-", len(files)), sigma.OpenWrite, 0); err == nil {
			files = append(files, f)
		}
	}
	if len(files) != openMax || sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("%d uploads were begun, then %v", len(files), err)
	}
	disk, err := diskspace.Of(w.tree.spool)
	if err != nil {
		t.Fatal(err)
	}
	for n, f := range files { // their holes could be filled at any time
		if _, err = f.WriteAt(ctx, []byte{1}, objectMax-2); err != nil || n > 64 {
			break
		}
	}
	if held := sp.spooled.Load(); sigma.KindOf(err) != sigma.KindNoSpace || held > int64(diskspace.Left(disk)) {
		t.Errorf("%d bytes of uploads on a disk of which %v are left, then %v", held, diskspace.Left(disk), err)
	}
	for _, f := range files {
		f.Close()
	}
	w.eventually("all is given back", func() bool { return sp.opened.Load() == 0 && sp.spooled.Load() == 0 })
	small := attr{kind: sigma.KindFile, size: 1}
	for n := range entriesMax + 100 {
		small.etag = fmt.Sprint(n)
		e, err := w.tree.cache.use(sp, "/s3/b/o", "b/o", small)
		if err != nil {
			t.Fatal(err)
		}
		w.tree.cache.leave(e)
	}
	if n := len(w.tree.cache.entries); n > entriesMax {
		t.Errorf("the cache has %d files", n)
	}
	small.size = 1 << 62
	if _, err := w.tree.cache.use(sp, "/s3/b/o", "b/o", small); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("a store that says 2^62 bytes: %v", err)
	}
}

// Goal: what was read is not asked of the store again, and the cache keeps to its size, also for
// one object that is larger.
func TestCache(t *testing.T) {
	w := newWorld(t, Config{})
	ctx := t.Context()
	const size = 3 * chunkSize
	bodies := map[string][]byte{}
	for i := range 3 {
		name := fmt.Sprintf("o%d", i)
		bodies[name] = pattern(chunkSize-7, uint64(i))
		if err := w.put(ctx, name, bodies[name]); err != nil {
			t.Fatal(err)
		}
	}
	bodies["large"] = pattern(7*chunkSize+1, 9)
	if err := w.stream(ctx, "large", bodies["large"]); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w.again(Config{Dir: dir, Cache: size})
	check := func(name string) {
		t.Helper()
		if got, err := w.read(ctx, name); err != nil || !bytes.Equal(got, bodies[name]) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if used := disk(t, filepath.Join(dir, "cache")); used > size+chunkSize { // a chunk may be on its way
			t.Errorf("after %s the cache has %d bytes", name, used)
		}
	}
	gets := func(do func()) int64 {
		before := w.proxy.Asked.Load()
		w.proxy.Set(nil)
		do()
		return w.proxy.Asked.Load() - before
	}
	check("o0")
	w.stat("o0")                                  // it is known for a moment now
	if n := gets(func() { check("o0") }); n > 4 { // is it the same still? but not its bytes
		t.Errorf("what is in the cache was asked for %d times", n)
	}
	w.proxy.Set(nil)
	for _, name := range []string{"o1", "o2", "large", "o0", "large"} {
		check(name)
	}
	// A descriptor has the whole object, or is not passed.
	for _, name := range []string{"o2", "large", "o0"} {
		f := w.open(name)
		file, err := f.(sigma.FilePasser).PassFile(ctx)
		if name == "large" {
			if sigma.KindOf(err) != sigma.KindUnsupported {
				t.Errorf("an object larger than the cache was passed: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer file.Close()
		check("large") // which takes the room of all others
		if got, err := io.ReadAll(file); err != nil || !bytes.Equal(got, bodies[name]) {
			t.Errorf("by descriptor %s has %d bytes, %v", name, len(got), err)
		}
		if _, err := file.WriteAt([]byte("x"), 0); err == nil {
			t.Errorf("%s can be written by its descriptor", name)
		}
	}
	// A file that was damaged on the disk is not believed.
	check("o1")
	filepath.WalkDir(filepath.Join(dir, "cache"), func(name string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if f, err := os.OpenFile(name, os.O_WRONLY, 0); err == nil {
				f.WriteAt([]byte("damage"), 100)
				f.Close()
			}
		}
		return nil
	})
	check("o1")
}
