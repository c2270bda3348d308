package treetest

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
)

var dataTests = []subtest{
	{name: "write-and-read", run: testWriteRead},
	{name: "read-past-end", run: testReadPastEnd},
	{name: "write-past-end", run: testWritePastEnd},
	{name: "huge-offsets", run: testHugeOffsets},
	{name: "open-modes", run: testOpenModes},
	{name: "truncate", run: testTruncate},
	{name: "create-existing", run: testCreateExisting},
	{name: "create-exclusive-race", run: testExclusiveRace},
	{name: "rewrite", needs: []Capability{Rewrite}, run: testRewrite},
	{name: "resize", needs: []Capability{Rewrite}, run: testResize},
	{name: "append-races", needs: []Capability{Rewrite}, run: testAppendRaces},
	{name: "read-after-remove", run: testReadAfterRemove},
	{name: "read-while-removed", run: testReadWhileRemoved},
	{name: "write-after-remove", run: testWriteAfterRemove},
	{name: "pass-file", needs: []Capability{PassFiles}, run: testPassFile},
}

func testWriteRead(e *env) {
	for _, size := range []int{0, 1, 4096, 8191, 8193, e.cfg.SizeMax} {
		name, want := fmt.Sprint(size), pattern(size)
		e.write(e.dir, name, want)
		e.wantData("content", e.read(e.dir, name), want)
		if st := e.statOf(e.dir, name); st.Size != uint64(size) {
			e.Errorf("Stat.Size: got %d, want %d", st.Size, size)
		}
	}
	f := e.open(e.dir, sigma.OpenRead, "8193")
	buf := make([]byte, 10)
	n, err := f.ReadAt(e.ctx, buf, 8190)
	e.ok("ReadAt", err)
	e.wantData("the end", string(buf[:n]), pattern(8193)[8190:])
}

func testReadPastEnd(e *env) {
	e.write(e.dir, "f", "abc")
	f := e.open(e.dir, sigma.OpenRead, "f")
	for _, offset := range []uint64{3, 4, 4096, 1 << 40} {
		if n, err := f.ReadAt(e.ctx, make([]byte, 10), offset); n != 0 || err != nil {
			e.Errorf("ReadAt(%d): got %d bytes, %v; want the end", offset, n, err)
		}
	}
	for _, offset := range []uint64{0, 3, 10} {
		if n, err := f.ReadAt(e.ctx, nil, offset); n != 0 || err != nil {
			e.Errorf("ReadAt(%d) of nothing: got %d bytes, %v", offset, n, err)
		}
	}
}

// lessons: a write past the end underflowed an unsigned subtraction.
func testWritePastEnd(e *env) {
	f := e.create(e.dir, "f", sigma.OpenReadWrite)
	for _, w := range []struct {
		at   uint64
		data string
	}{{10, "b"}, {0, "a"}, {5000, "c"}} {
		if n, err := f.WriteAt(e.ctx, []byte(w.data), w.at); n != 1 || err != nil {
			e.Fatalf("WriteAt(%d): got %d, %v", w.at, n, err)
		}
	}
	if n, err := f.WriteAt(e.ctx, nil, 9000); n != 0 || err != nil {
		e.Errorf("WriteAt of nothing: got %d, %v", n, err)
	}
	e.ok("Sync", f.Sync(e.ctx))
	want := "a" + strings.Repeat("\x00", 9) + "b" + strings.Repeat("\x00", 4989) + "c"
	e.wantData("own handle", e.readOpen(f), want)
	e.wantData("another handle", e.read(e.dir, "f"), want)
}

func testHugeOffsets(e *env) {
	f := e.create(e.dir, "f", sigma.OpenReadWrite)
	_, err := f.WriteAt(e.ctx, []byte("abc"), 0)
	e.ok("WriteAt", err)
	for _, offset := range []uint64{math.MaxInt64 - 1, 1 << 63, 1<<63 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		n, err := f.WriteAt(e.ctx, []byte("xyz"), offset)
		e.fails(fmt.Sprintf("WriteAt(%d)", offset), err, sigma.KindTooBig, sigma.KindNoSpace, sigma.KindInvalid)
		if n != 0 {
			e.Errorf("WriteAt(%d): wrote %d bytes", offset, n)
		}
		// Reading there is past the end; saying that it makes no sense is as good.
		if n, err := f.ReadAt(e.ctx, make([]byte, 3), offset); n != 0 || err != nil &&
			sigma.KindOf(err) != sigma.KindInvalid {
			e.Errorf("ReadAt(%d): got %d, %v", offset, n, err)
		}
		if offset > math.MaxInt64 {
			size := offset
			e.fails(fmt.Sprintf("SetStat to %d bytes", size), f.SetStat(e.ctx, sigma.StatChange{Size: &size}))
		}
		if g, ok := e.dir.(sigma.Getter); ok {
			e.write(e.dir, "g", "abc")
			r, _, err := g.Get(e.ctx, []string{"g"}, offset, 10)
			if len(r.Data) != 0 || err != nil && sigma.KindOf(err) != sigma.KindInvalid {
				e.Errorf("Get at %d: got %q, %v", offset, r.Data, err)
			}
		}
	}
	e.wantData("content", e.readOpen(f), "abc")
}

func testOpenModes(e *env) {
	e.write(e.dir, "f", "abc")
	d := e.mkdir(e.dir, "d")
	buf := make([]byte, 3)
	f := e.walk(e.dir, "f")
	defer f.Close()
	_, err := f.ReadAt(e.ctx, buf, 0)
	e.fails("ReadAt before Open", err, sigma.KindInvalid)
	_, err = f.WriteAt(e.ctx, buf, 0)
	e.fails("WriteAt before Open", err, sigma.KindInvalid)
	e.ok("Open", f.Open(e.ctx, sigma.OpenRead))
	e.fails("Open again", f.Open(e.ctx, sigma.OpenRead), sigma.KindInvalid)
	_, err = f.WriteAt(e.ctx, buf, 0)
	e.fails("WriteAt of a handle for reading", err, sigma.KindPermission)
	_, _, _, err = f.ReadDir(e.ctx, 0, 10)
	e.fails("ReadDir of a file", err, sigma.KindNotDir)

	w := e.open(e.dir, sigma.OpenWrite|sigma.OpenTruncate, "f")
	_, err = w.ReadAt(e.ctx, buf, 0)
	e.fails("ReadAt of a handle for writing", err, sigma.KindPermission)

	_, _, _, err = d.ReadDir(e.ctx, 0, 10)
	e.fails("ReadDir before Open", err, sigma.KindInvalid)
	e.fails("Open of a directory for writing", d.Open(e.ctx, sigma.OpenWrite), sigma.KindIsDir)
	e.ok("Open", d.Open(e.ctx, sigma.OpenRead))
	_, err = d.ReadAt(e.ctx, buf, 0)
	e.fails("ReadAt of a directory", err, sigma.KindIsDir)
	_, err = d.WriteAt(e.ctx, buf, 0)
	e.fails("WriteAt of a directory", err, sigma.KindIsDir)
	_, _, _, err = d.ReadDir(e.ctx, 0, 0)
	e.fails("ReadDir of no entries", err, sigma.KindInvalid)
	_, _, _, err = d.ReadDir(e.ctx, 0, -1)
	e.fails("ReadDir of -1 entries", err, sigma.KindInvalid)
}

func testTruncate(e *env) {
	e.write(e.dir, "f", "abcdef")
	f := e.open(e.dir, sigma.OpenWrite|sigma.OpenTruncate, "f")
	_, err := f.WriteAt(e.ctx, []byte("xy"), 0)
	e.ok("WriteAt", err)
	e.ok("Sync", f.Sync(e.ctx))
	e.wantData("content", e.read(e.dir, "f"), "xy")
	e.write(e.dir, "f", "")
	e.wantData("content", e.read(e.dir, "f"), "")
}

func testCreateExisting(e *env) {
	e.write(e.dir, "f", "abc")
	e.mkdir(e.dir, "d")
	_, err := e.dir.Create(e.ctx, "f", sigma.OpenWrite|sigma.OpenExclusive, 0o666)
	e.fails("Create of an existing file, exclusive", err, sigma.KindExists)
	_, err = e.dir.Create(e.ctx, "d", sigma.OpenWrite|sigma.OpenTruncate, 0o666)
	e.fails("Create of an existing directory", err, sigma.KindIsDir)
	f := e.create(e.dir, "f", sigma.OpenRead)
	e.wantData("Create of an existing file for reading", e.readOpen(f), "abc")
	e.write(e.dir, "f", "x")
	e.wantData("content", e.read(e.dir, "f"), "x")
}

func testExclusiveRace(e *env) {
	const n = 8
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = e.tryWrite(e.dir, "f", fmt.Sprint(i), sigma.OpenWrite|sigma.OpenExclusive) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		if err != nil {
			e.fails("the loser of a race", err, sigma.KindExists)
		} else if won >= 0 {
			e.Errorf("%d and %d both made the file", won, i)
		} else {
			won = i
		}
	}
	e.wantData("content", e.read(e.dir, "f"), fmt.Sprint(won))
}

func testRewrite(e *env) {
	e.write(e.dir, "f", "abcdef")
	f := e.open(e.dir, sigma.OpenReadWrite, "f")
	reader := e.open(e.dir, sigma.OpenRead, "f")
	_, err := f.WriteAt(e.ctx, []byte("XY"), 2)
	e.ok("WriteAt", err)
	e.wantData("own handle", e.readOpen(f), "abXYef")
	e.wantData("a handle opened before", e.readOpen(reader), "abXYef")
	g := e.open(e.dir, sigma.OpenAppend|sigma.OpenWrite, "f")
	_, err = g.WriteAt(e.ctx, []byte("!"), 0)
	e.ok("WriteAt", err)
	e.wantData("content", e.read(e.dir, "f"), "abXYef!")
}

func testResize(e *env) {
	e.write(e.dir, "f", "abcdef")
	f := e.walk(e.dir, "f")
	defer f.Close()
	for _, c := range []struct {
		size uint64
		want string
	}{{3, "abc"}, {5, "abc\x00\x00"}, {0, ""}, {2, "\x00\x00"}} {
		e.ok("SetStat", f.SetStat(e.ctx, sigma.StatChange{Size: &c.size}))
		e.wantData("content", e.read(e.dir, "f"), c.want)
	}
	one := uint64(1)
	e.fails("SetStat of a directory's size", e.dir.SetStat(e.ctx, sigma.StatChange{Size: &one}), sigma.KindIsDir)
}

// Records that several handles append at once are all there, whole.
func testAppendRaces(e *env) {
	const writers, records = 8, 25
	e.write(e.dir, "f", "")
	var wg sync.WaitGroup
	for w := range writers {
		f := e.open(e.dir, sigma.OpenWrite|sigma.OpenAppend, "f")
		wg.Go(func() {
			for r := range records {
				if w%2 == 0 {
					if _, err := f.WriteAt(e.ctx, []byte(fmt.Sprintf("<%d.%d>\n", w, r)), 0); err != nil {
						e.Errorf("WriteAt: %v", err)
					}
				} else if p, ok := e.dir.(sigma.Putter); ok {
					if _, _, err := p.Put(e.ctx, []string{"f"}, []byte(fmt.Sprintf("<%d.%d>\n", w, r)),
						sigma.PutOptions{Append: true}); err != nil {
						e.Errorf("Put: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSuffix(e.read(e.dir, "f"), "\n"), "\n")
	seen := map[string]bool{}
	for _, l := range lines {
		seen[l] = true
	}
	want := writers * records
	if _, ok := e.dir.(sigma.Putter); !ok {
		want /= 2
	}
	if len(lines) != want || len(seen) != want {
		e.Errorf("got %d records, %d different, want %d", len(lines), len(seen), want)
	}
	for w := 0; w < writers; w += 2 {
		if !seen[fmt.Sprintf("<%d.%d>", w, records-1)] {
			e.Errorf("the last record of writer %d is missing", w)
		}
	}
}

func testReadAfterRemove(e *env) {
	e.write(e.dir, "f", "abc")
	e.write(e.dir, "g", "def")
	f := e.open(e.dir, sigma.OpenRead, "f")
	g := e.open(e.dir, sigma.OpenRead, "g")
	e.ok("Remove", e.dir.Remove(e.ctx, "f"))
	e.write(e.dir, "h", "new")
	e.ok("Rename", e.dir.Rename(e.ctx, "h", e.dir, "g"))
	e.wantData("a removed file", e.readOpen(f), "abc")
	e.wantData("a replaced file", e.readOpen(g), "def")
	e.wantNames(e.dir, "g")
	e.wantData("its successor", e.read(e.dir, "g"), "new")
	e.write(e.dir, "f", "other")
	e.wantData("a removed file", e.readOpen(f), "abc")
}

// Who reads a large file gets all of it, although it is removed meanwhile and others of its name
// come and go.
func testReadWhileRemoved(e *env) {
	size := min(e.cfg.SizeMax, 200<<10)
	want := pattern(size)
	e.write(e.dir, "f", want)
	var readers [4]sigma.File
	for i := range readers {
		readers[i] = e.open(e.dir, sigma.OpenRead, "f")
	}
	half := make([]byte, size/2)
	for i, f := range readers {
		n, err := f.ReadAt(e.ctx, half, 0)
		e.ok("ReadAt", err)
		e.wantData("the first half", string(half[:n]), want[:n])
		if i == 0 {
			e.ok("Remove", e.dir.Remove(e.ctx, "f"))
		}
		e.write(e.dir, "f", fmt.Sprint("another ", i))
		e.ok("Remove", e.dir.Remove(e.ctx, "f"))
	}
	for _, f := range readers {
		e.wantData("a removed file", e.readOpen(f), want)
		f.Close()
	}
	e.wantNames(e.dir)
}

// What is written to a removed file is nowhere to be seen, whether the server takes it or not.
func testWriteAfterRemove(e *env) {
	f := e.create(e.dir, "f", sigma.OpenReadWrite)
	_, err := f.WriteAt(e.ctx, []byte("abc"), 0)
	e.ok("WriteAt", err)
	g := e.create(e.dir, "g", sigma.OpenReadWrite)
	if e.lacks(Rewrite) { // there is nothing to remove before
		e.ok("Sync", f.Sync(e.ctx))
		e.ok("Sync", g.Sync(e.ctx))
	}
	e.ok("Remove", e.dir.Remove(e.ctx, "f"))
	e.write(e.dir, "h", "successor")
	e.ok("Rename", e.dir.Rename(e.ctx, "h", e.dir, "g"))
	for _, f := range []sigma.File{f, g} {
		if _, err := f.WriteAt(e.ctx, []byte("XYZ"), 0); err == nil {
			err = f.Sync(e.ctx)
		} else {
			e.fails("WriteAt of a removed file", err, sigma.KindNotFound, sigma.KindStale, sigma.KindUnsupported)
		}
		f.Close()
	}
	e.wantNames(e.dir, "g")
	e.wantData("its successor", e.read(e.dir, "g"), "successor")
}

func testPassFile(e *env) {
	want := pattern(10000)
	e.write(e.dir, "f", want)
	f := e.open(e.dir, sigma.OpenRead, "f")
	var files [2]*os.File
	for i := range files {
		var err error
		files[i], err = f.(sigma.FilePasser).PassFile(e.ctx)
		e.ok("PassFile", err)
		defer files[i].Close()
	}
	for i, file := range files { // each has a position of its own
		got, err := io.ReadAll(file)
		e.ok(fmt.Sprintf("reading passed file %d", i), err)
		e.wantData("passed file", string(got), want)
		if st, err := file.Stat(); err != nil || !st.Mode().IsRegular() {
			e.Errorf("the passed file is %v, %v", st, err)
		}
		if _, err := file.WriteAt([]byte("x"), 0); err == nil {
			e.Error("the passed file can be written")
		}
		if err := file.Truncate(0); err == nil {
			e.Error("the passed file can be truncated")
		}
	}
	closed := e.walk(e.dir, "f")
	defer closed.Close()
	_, err := closed.(sigma.FilePasser).PassFile(e.ctx)
	e.fails("PassFile before Open", err, sigma.KindInvalid)
	if e.lacks(Rewrite) {
		return // what is open for writing is another file, which is hidden
	}
	w := e.open(e.dir, sigma.OpenWrite|sigma.OpenTruncate, "f")
	_, err = w.(sigma.FilePasser).PassFile(e.ctx)
	e.fails("PassFile of a handle for writing", err, sigma.KindPermission)
}
