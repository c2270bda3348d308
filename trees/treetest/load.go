package treetest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

var loadTests = []subtest{
	{name: "watch-load-files", needs: []Capability{Watches}, run: testWatchLoadFiles},
	{name: "watch-load-directory", needs: []Capability{Watches}, run: testWatchLoadDir},
	{name: "stalled-client", run: testStalledClient},
}

// watchLog follows a file until its version is last, and returns the versions that Watch told. A
// version of 0 follows until the file is removed.
func (e *env) watchLog(w sigma.Watcher, since sigma.Version, last *atomic.Uint64) (told []sigma.Version) {
	for {
		v, err := w.Watch(e.ctx, since)
		if sigma.KindOf(err) == sigma.KindNotFound && err != nil {
			return told
		}
		if err != nil || v <= since {
			e.Errorf("Watch after %d: got %d, %v", since, v, err)
			return told
		}
		told = append(told, v)
		since = v
		if n := last.Load(); n != 0 && uint64(v) >= n {
			return told
		}
	}
}

// What watches of files tell is compared with the log of what was written: each version told was
// written, the last one written is told, and nothing is told of a file that nobody changed.
func testWatchLoadFiles(e *env) {
	const files, writers, each = 4, 4, 50
	p := e.putter(e.dir)
	var mu sync.Mutex
	wrote := make([][]sigma.Version, files) // mu
	var last [files]atomic.Uint64
	watchers := make([]sigma.Watcher, files)
	since := make([]sigma.Version, files)
	for i := range files {
		since[i] = e.put(e.dir, fmt.Sprint(i), "", sigma.PutOptions{}).Version
		watchers[i] = e.watcher(e.dir, fmt.Sprint(i))
	}
	e.put(e.dir, "quiet", "", sigma.PutOptions{})
	quietCtx, quiet := context.WithCancel(e.ctx)
	invented := make(chan error, 1)
	qw, qv := e.watcher(e.dir, "quiet"), e.statOf(e.dir, "quiet").ID.Version
	go func() {
		_, err := qw.Watch(quietCtx, qv)
		invented <- err
	}()
	told := make([][][]sigma.Version, files)
	var watching, writing sync.WaitGroup
	for i := range files {
		told[i] = make([][]sigma.Version, 3)
		for j := range told[i] {
			watching.Go(func() { told[i][j] = e.watchLog(watchers[i], since[i], &last[i]) })
		}
	}
	for w := range writers {
		writing.Go(func() {
			for k := range each {
				i := (w + k) % files
				id, _, err := p.Put(e.ctx, []string{fmt.Sprint(i)}, fmt.Append(nil, w, k), sigma.PutOptions{})
				if err != nil {
					e.Errorf("Put: %v", err)
					return
				}
				mu.Lock()
				wrote[i] = append(wrote[i], id.Version)
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	// one more change, so that a watcher that has seen all the others returns and finds that it was
	// the last
	for i := range files {
		id, _, err := p.Put(e.ctx, []string{fmt.Sprint(i)}, []byte("last"), sigma.PutOptions{})
		e.ok("Put", err)
		wrote[i] = append(wrote[i], id.Version)
		last[i].Store(uint64(id.Version))
	}
	for i := range files { // and in case it had returned before that was known
		_, err := e.removed(fmt.Sprint(i))
		e.ok("Remove", err)
	}
	watching.Wait()
	quiet()
	e.fails("a watch of what nobody changed", <-invented, sigma.KindCanceled)
	for i := range files {
		for j, versions := range told[i] {
			for _, v := range versions {
				if !slices.Contains(wrote[i], v) {
					e.Errorf("file %d: watcher %d was told version %d, which nobody wrote", i, j, v)
				}
			}
		}
	}
}

// removed removes a file and returns the directory's version before.
func (e *env) removed(name string) (sigma.Version, error) {
	before := e.stat(e.dir).ID.Version
	return before, e.dir.Remove(e.ctx, name)
}

// A watcher of a directory that lists it whenever it is told of a change ends with what is there,
// and is not told more often than something was done.
func testWatchLoadDir(e *env) {
	const writers, each = 4, 40
	w, sub := e.watcher(e.dir), e.mkdir(e.dir, "sub")
	since := e.stat(e.dir).ID.Version
	var done atomic.Int64 // changes of the directory that were tried
	var tells int64
	var seen []string
	var watching, writing sync.WaitGroup
	watching.Go(func() {
		for !slices.Contains(seen, "end") {
			v, err := w.Watch(e.ctx, since)
			if err != nil || v <= since {
				e.Errorf("Watch after %d: got %d, %v", since, v, err)
				return
			}
			since = v
			tells++
			seen = e.names(e.dir)
		}
	})
	for n := range writers {
		writing.Go(func() {
			for i := range each {
				name, other := fmt.Sprintf("%d.%d", n, i%5), fmt.Sprintf("%d.x", n)
				done.Add(1)
				var err error
				switch i % 4 {
				case 0, 1:
					err = e.tryWrite(e.dir, name, "", sigma.OpenWrite|sigma.OpenTruncate)
				case 2:
					if err = e.dir.Rename(e.ctx, fmt.Sprintf("%d.%d", n, (i-1)%5), e.dir, other); err == nil {
						done.Add(1) // a server may do the two halves one after the other
					}
				case 3:
					err = e.dir.Rename(e.ctx, other, sub, fmt.Sprintf("%d.%d", n, i))
				}
				if err != nil {
					e.Errorf("change %d: %v", i, err)
				}
			}
		})
	}
	writing.Wait()
	done.Add(1)
	e.write(e.dir, "end", "")
	watching.Wait()
	if want := e.names(e.dir); !slices.Equal(seen, want) {
		e.Errorf("the watcher's last listing is %q, want %q", seen, want)
	}
	if n := done.Load(); tells > n {
		e.Errorf("the watcher was told %d times of %d changes", tells, n)
	}
}

// A client that asks for much and reads no answer delays nobody else, and what it holds goes with
// it.
func testStalledClient(e *env) {
	e.write(e.dir, "large", pattern(60<<10))
	e.stall(e.dir, []string{"large"}, func() {
		for i := range 30 {
			e.write(e.dir, "small", fmt.Sprint(i))
			e.wantData("content", e.read(e.dir, "small"), fmt.Sprint(i))
			e.ok("Rename", e.dir.Rename(e.ctx, "small", e.dir, "other"))
			e.ok("Remove", e.dir.Remove(e.ctx, "other"))
			e.wantNames(e.dir, "large")
		}
	})
	e.ok("Remove", e.dir.Remove(e.ctx, "large"))
}

// stall lets a client of a server of what is below dir ask for the file and read no answers, while
// others do something.
func (e *env) stall(dir sigma.File, file []string, others func()) {
	e.Helper()
	a, b := net.Pipe() // which a proc may make too
	ours, theirs := session.NewStreamConn(a), session.NewStreamConn(b)
	ctx, cancel := context.WithCancel(e.ctx)
	served, stalled := make(chan error, 1), make(chan struct{})
	go func() {
		served <- treeserver.Serve(ctx, theirs, treeserver.Config{Tree: at{dir}, Principal: e.cfg.Principal})
	}()
	sent := make(chan struct{}, 4000)
	go func() { // ends when the server does
		defer close(stalled)
		defer close(sent)
		send := func(tag uint16, m sigmap.Message) bool {
			buf, err := sigmap.Encode(nil, tag, m)
			return err == nil && ours.Send(buf, nil) == nil
		}
		ok := send(sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma})
		if ok {
			_, _, err := ours.Recv()
			ok = err == nil && send(1, &sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid})
		}
		if ok {
			_, _, err := ours.Recv()
			ok = err == nil
		}
		for tag := uint16(2); ok && tag < 4000; tag++ {
			if ok = send(tag, &sigmap.Tget{Fid: 1, Names: file, Count: sigmap.DataMax}); ok {
				sent <- struct{}{}
			}
		}
	}()
	<-sent // a server that answers as it reads takes no more
	others()
	cancel()
	e.ok("Serve", <-served)
	ours.Close()
	<-stalled
}

// at is a tree whose root is a handle of another.
type at struct{ dir sigma.File }

func (a at) Attach(ctx context.Context, _ sigma.Principal, _ string) (sigma.File, error) {
	f, _, err := a.dir.Walk(ctx, nil)
	return f, err
}
