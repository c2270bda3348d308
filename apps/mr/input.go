package mr

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
)

// inputFile is a file to be counted.
type inputFile struct {
	path string
	size int64
}

// listing is the input as it was found.
type listing struct {
	files   []inputFile // sorted by path
	bytes   int64
	skipped int // links, devices and the like, which are not followed
}

// requestsMax bounds the requests a listing has in flight: enough to hide their latency, few enough
// not to delay others at the servers.
const requestsMax = 32

// list finds all files at and below root. A root that is a symlink is followed; those below are
// skipped, because they could lead round in circles and count twice.
func list(ctx context.Context, names sigma.Namespace, root string) (listing, error) {
	st, err := names.Stat(ctx, root)
	if err != nil {
		return listing{}, err
	}
	if st.ID.Kind != sigma.KindDir {
		if st.ID.Kind != sigma.KindFile {
			return listing{}, &sigma.Error{Op: "mr.list", Path: root, Kind: sigma.KindInvalid,
				Msg: "the input is a " + st.ID.Kind.String() + ", not a file or directory"}
		}
		return listing{files: []inputFile{{root, int64(st.Size)}}, bytes: int64(st.Size)}, nil
	}
	l := &lister{names: names}
	l.wake = sync.NewCond(&l.mu)
	l.push(work{dir: strings.TrimSuffix(root, "/")})
	var workers sync.WaitGroup
	for range requestsMax {
		workers.Go(func() { l.run(ctx) })
	}
	workers.Wait()
	slices.SortFunc(l.found.files, func(a, b inputFile) int { return cmp.Compare(a.path, b.path) })
	return l.found, l.err
}

// work is a directory to read or, if there are names, files of it whose sizes are to be asked.
type work struct {
	dir   string
	names []string
}

// namesPerWork is how many sizes one worker asks for, one after another.
const namesPerWork = 16

// lister is a stack of work and what was found so far.
type lister struct {
	names sigma.Namespace

	mu    sync.Mutex
	wake  *sync.Cond
	todo  []work  // mu
	busy  int     // mu; workers that may still push
	dirs  int     // mu; that were found
	found listing // mu
	err   error   // mu
}

func (l *lister) push(ws ...work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.todo = append(l.todo, ws...)
	l.wake.Broadcast()
}

// run does work until there is none and nobody can make more.
func (l *lister) run(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.todo) == 0 && l.busy > 0 && l.err == nil {
			l.wake.Wait()
		}
		if len(l.todo) == 0 || l.err != nil {
			l.wake.Broadcast()
			return
		}
		w := l.todo[len(l.todo)-1]
		l.todo = l.todo[:len(l.todo)-1]
		l.busy++
		l.mu.Unlock()
		more, got, err := l.do(ctx, w)
		l.mu.Lock()
		l.busy--
		l.todo = append(l.todo, more...)
		l.found.files = append(l.found.files, got.files...)
		l.found.bytes += got.bytes
		l.found.skipped += got.skipped
		l.dirs += len(more)
		if err == nil && max(len(l.found.files),
			l.dirs) > FilesMax { // a tenant's tree may show directories without an end
			err = &sigma.Error{Op: "mr.list", Path: w.dir, Kind: sigma.KindTooBig,
				Msg:  "the input has more files or directories than one job can count",
				Hint: "run one job per directory"}
		}
		if l.err == nil {
			l.err = err
		}
		l.wake.Broadcast()
	}
}

func (l *lister) do(ctx context.Context, w work) (more []work, got listing, err error) {
	if w.names != nil {
		for _, n := range w.names {
			path := w.dir + "/" + n
			st, err := l.names.Lstat(ctx, path)
			if err != nil {
				return nil, got, err
			}
			got.add(path, int64(st.Size))
		}
		return nil, got, nil
	}
	dir := w.dir
	if dir == "" {
		dir = "/"
	}
	entries, err := l.names.ReadDir(ctx, dir)
	if err != nil {
		return nil, got, err
	}
	var unsized []string
	for _, e := range entries {
		switch {
		case e.ID.Kind == sigma.KindDir:
			more = append(more, work{dir: w.dir + "/" + e.Name})
		case e.ID.Kind != sigma.KindFile:
			got.skipped++
		case e.Size > 0: // some servers tell
			got.add(w.dir+"/"+e.Name, int64(e.Size))
		default:
			unsized = append(unsized, e.Name)
		}
	}
	for part := range slices.Chunk(unsized, namesPerWork) {
		more = append(more, work{dir: w.dir, names: part})
	}
	return more, got, nil
}

func (l *listing) add(path string, size int64) {
	l.files = append(l.files, inputFile{path, size})
	l.bytes += size
}
