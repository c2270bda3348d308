package treetest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
)

var pipeTests = []subtest{
	{name: "pipe", needs: []Capability{Pipes}, run: testPipe},
	{name: "pipe-names", needs: []Capability{Pipes}, run: testPipeNames},
	{name: "pipe-waits", needs: []Capability{Pipes}, run: testPipeWaits},
	{name: "pipe-ends", needs: []Capability{Pipes}, run: testPipeEnds},
	{name: "pipe-canceled", needs: []Capability{Pipes}, run: testPipeCanceled},
	{name: "pipe-many", needs: []Capability{Pipes}, run: testPipeMany},
}

func (e *env) pipe(name string) {
	e.Helper()
	e.put(e.dir, name, "", sigma.PutOptions{Kind: sigma.KindPipe, Perm: 0o666})
}

// readPipe is one ReadAt.
func (e *env) readPipe(f sigma.File, size int) string {
	e.Helper()
	buf := make([]byte, size)
	n, err := f.ReadAt(e.ctx, buf, 7) // a pipe has no offsets
	e.ok("ReadAt", err)
	return string(buf[:n])
}

func (e *env) writePipe(f sigma.File, data string) {
	e.Helper()
	if n, err := f.WriteAt(e.ctx, []byte(data), 99); err != nil || n != len(data) {
		e.Fatalf("WriteAt: got %d, %v", n, err)
	}
}

// What is written is read once, in order.
func testPipe(e *env) {
	e.pipe("p")
	if st := e.statOf(e.dir, "p"); st.ID.Kind != sigma.KindPipe {
		e.Errorf("Stat: got %+v", st)
	}
	for _, d := range e.list(e.dir, 10) {
		if d.ID.Kind != sigma.KindPipe {
			e.Errorf("listed %+v", d)
		}
	}
	r, w := e.open(e.dir, sigma.OpenRead, "p"), e.open(e.dir, sigma.OpenWrite, "p")
	e.writePipe(w, "abc")
	e.writePipe(w, "def")
	e.wantData("the first bytes", e.readPipe(r, 2), "ab")
	e.wantData("the others", e.readPipe(r, 100), "cdef")
	e.wantData("nothing", e.readPipe(r, 0), "")
	_, err := w.ReadAt(e.ctx, make([]byte, 1), 0)
	e.fails("ReadAt of the writing end", err, sigma.KindPermission)
	_, err = r.WriteAt(e.ctx, []byte("x"), 0)
	e.fails("WriteAt of the reading end", err, sigma.KindPermission)
	both := e.walk(e.dir, "p")
	defer both.Close()
	e.fails("Open for both", both.Open(e.ctx, sigma.OpenReadWrite), sigma.KindInvalid)
	e.writePipe(w, "last")
	w.Close()
	e.wantData("what a writer left", e.readPipe(r, 100), "last")
	for range 2 {
		e.wantData("the end", e.readPipe(r, 100), "")
	}
	again := e.open(e.dir, sigma.OpenWrite|sigma.OpenAppend, "p")
	e.writePipe(again, "more")
	e.wantData("of a later writer", e.readPipe(r, 100), "more")
}

// A pipe's name is one as others, but nothing is put in its place.
func testPipeNames(e *env) {
	p := e.putter(e.dir)
	e.pipe("p")
	put := func(name, data string, o sigma.PutOptions) error {
		_, _, err := p.Put(e.ctx, []string{name}, []byte(data), o)
		return err
	}
	e.fails("Put of a pipe again", put("p", "", sigma.PutOptions{Kind: sigma.KindPipe}), sigma.KindExists)
	e.write(e.dir, "f", "x")
	e.fails("Put of a pipe onto a file", put("f", "", sigma.PutOptions{Kind: sigma.KindPipe}), sigma.KindExists)
	e.fails("Put of a pipe with content", put("q", "x", sigma.PutOptions{Kind: sigma.KindPipe}), sigma.KindInvalid)
	e.fails("Put onto a pipe", put("p", "x", sigma.PutOptions{}), sigma.KindInvalid)
	e.fails("Append to a pipe", put("p", "x", sigma.PutOptions{Append: true}), sigma.KindInvalid)
	_, _, err := e.getter(e.dir).Get(e.ctx, []string{"p"}, 0, 10)
	e.fails("Get of a pipe", err, sigma.KindUnsupported)
	_, err = e.dir.Create(e.ctx, "p", sigma.OpenWrite, 0o666)
	e.fails("Create of a pipe's name", err, sigma.KindInvalid, sigma.KindExists)
	size := uint64(1)
	f := e.walk(e.dir, "p")
	defer f.Close()
	e.fails("SetStat of a pipe's size", f.SetStat(e.ctx, sigma.StatChange{Size: &size}), sigma.KindInvalid)
	r, w := e.open(e.dir, sigma.OpenRead, "p"), e.open(e.dir, sigma.OpenWrite, "p")
	e.ok("Rename", e.dir.Rename(e.ctx, "p", e.dir, "moved"))
	e.ok("Remove", e.dir.Remove(e.ctx, "moved"))
	e.writePipe(w, "after its name")
	e.wantData("a removed pipe", e.readPipe(r, 100), "after its name")
	e.pipe("p")
	other := e.open(e.dir, sigma.OpenRead, "p")
	e.open(e.dir, sigma.OpenWrite, "p").Close()
	e.wantData("another pipe of that name", e.readPipe(other, 100), "")
	e.wantNames(e.dir, "f", "p")
}

// A reader waits for a writer and for what it writes, a writer for a reader and for room.
func testPipeWaits(e *env) {
	const total = 300 << 10 // more than fits
	e.pipe("p")
	want := pattern(total)
	var wg sync.WaitGroup
	r := e.open(e.dir, sigma.OpenRead, "p")
	var got strings.Builder
	wg.Go(func() {
		buf := make([]byte, 10000)
		for {
			n, err := r.ReadAt(e.ctx, buf, 0)
			if err != nil || n == 0 {
				if err != nil {
					e.Errorf("ReadAt: %v", err)
				}
				return
			}
			got.Write(buf[:n])
		}
	})
	w := e.open(e.dir, sigma.OpenWrite, "p")
	e.writePipe(w, want)
	w.Close()
	wg.Wait()
	e.wantData("what was read", got.String(), want)

	// With no reader yet, the writer waits.
	e.pipe("q")
	w = e.open(e.dir, sigma.OpenWrite, "q")
	wg.Go(func() {
		if n, err := w.WriteAt(e.ctx, []byte("early"), 0); n != 5 || err != nil {
			e.Errorf("WriteAt: %d, %v", n, err)
		}
	})
	r = e.open(e.dir, sigma.OpenRead, "q")
	e.wantData("of a writer that was first", e.readPipe(r, 100), "early")
	wg.Wait()
}

// The end is when the last writer goes; a writer hears when the last reader goes.
func testPipeEnds(e *env) {
	e.pipe("p")
	r, w1, w2 := e.open(e.dir, sigma.OpenRead, "p"), e.open(e.dir, sigma.OpenWrite, "p"), e.open(e.dir, sigma.OpenWrite,
		"p")
	end := make(chan string, 1)
	go func() {
		buf := make([]byte, 100)
		n, err := r.ReadAt(e.ctx, buf, 0)
		end <- fmt.Sprint(n, err)
	}()
	w1.Close()
	select {
	case got := <-end:
		e.Fatalf("ReadAt while there is a writer: %s", got)
	default:
	}
	w2.Close()
	e.wantData("the end", <-end, "0 <nil>")
	w := e.open(e.dir, sigma.OpenWrite, "p")
	broken := make(chan error, 1)
	go func() {
		for {
			if _, err := w.WriteAt(e.ctx, make([]byte, 4096), 0); err != nil { // until it is full
				broken <- err
				return
			}
		}
	}()
	r.Close()
	e.fails("WriteAt that waits when the last reader goes", <-broken, sigma.KindUnavailable)
	_, err := w.WriteAt(e.ctx, []byte("x"), 0)
	e.fails("WriteAt without readers", err, sigma.KindUnavailable)
	w.Close()
	r, w = e.open(e.dir, sigma.OpenRead, "p"), e.open(e.dir, sigma.OpenWrite, "p")
	e.writePipe(w, "fresh")
	e.wantData("what earlier ones left is gone", e.readPipe(r, 100), "fresh")
}

// A reader that gives up waiting loses nothing.
func testPipeCanceled(e *env) {
	e.pipe("p")
	r, w := e.open(e.dir, sigma.OpenRead, "p"), e.open(e.dir, sigma.OpenWrite, "p")
	for range 5 {
		ctx, cancel := context.WithCancel(e.ctx)
		gaveUp := make(chan error, 1)
		go func() {
			n, err := r.ReadAt(ctx, make([]byte, 10), 0)
			if n != 0 {
				e.Errorf("read %d bytes that nobody wrote", n)
			}
			gaveUp <- err
		}()
		cancel()
		e.fails("ReadAt, canceled", <-gaveUp, sigma.KindCanceled)
	}
	e.writePipe(w, "kept")
	e.wantData("after all", e.readPipe(r, 100), "kept")
	ctx, cancel := context.WithCancel(e.ctx)
	filled, stop := 0, make(chan struct{})
	go func() {
		defer close(stop)
		for {
			n, err := w.WriteAt(ctx, make([]byte, 4096), 0)
			filled += n
			if err != nil {
				return
			}
			if filled == 64<<10 { // it is full; the next waits
				cancel()
			}
		}
	}()
	<-stop
	w.Close()
	if got := len(e.readOpen(r)); got != filled {
		e.Errorf("read %d bytes, %d were written", got, filled)
	}
}

// Records of several writers are whole, and each is read by one of several readers.
func testPipeMany(e *env) {
	const writers, readers, each = 4, 3, 100
	e.pipe("p")
	var writing, reading sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{} // mu
	record := func(w, i int) string { return fmt.Sprintf("%-63s\n", fmt.Sprintf("<%d.%d>", w, i)) }
	hold := e.open(e.dir, sigma.OpenWrite, "p")
	for range readers {
		r := e.open(e.dir, sigma.OpenRead, "p")
		reading.Go(func() {
			buf := make([]byte, 64)
			for {
				n, err := r.ReadAt(e.ctx, buf, 0)
				if err != nil || n == 0 {
					if err != nil {
						e.Errorf("ReadAt: %v", err)
					}
					return
				}
				mu.Lock()
				seen[string(buf[:n])]++
				mu.Unlock()
			}
		})
	}
	for w := range writers {
		f := e.open(e.dir, sigma.OpenWrite, "p")
		writing.Go(func() {
			for i := range each {
				if _, err := f.WriteAt(e.ctx, []byte(record(w, i)), 0); err != nil {
					e.Errorf("WriteAt: %v", err)
					return
				}
			}
			f.Close()
		})
	}
	writing.Wait()
	hold.Close()
	reading.Wait()
	for w := range writers {
		for i := range each {
			if n := seen[record(w, i)]; n != 1 {
				e.Errorf("record %d.%d was read %d times", w, i, n)
			}
		}
	}
	if len(seen) != writers*each {
		e.Errorf("got %d different records, want %d", len(seen), writers*each)
	}
}
