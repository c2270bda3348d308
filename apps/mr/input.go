package mr

import (
	"cmp"
	"context"
	"io"
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

// list finds all files of a job's input. A path that it is given by may be a symlink, which is
// followed; those below are skipped, because they could lead round in circles and count twice.
func list(ctx context.Context, names sigma.Namespace, job *Job) (listing, error) {
	l := &lister{names: names}
	l.wake = sync.NewCond(&l.mu)
	switch {
	case job.Prefix != "":
		i := strings.LastIndexByte(job.Prefix, '/')
		l.prefix = job.Prefix
		l.push(work{dir: job.Prefix[:i]})
	case job.Manifest != "":
		data, err := readWhole(ctx, names, job.Manifest)
		if err != nil {
			return listing{}, err
		}
		for part := range slices.Chunk(slices.Collect(strings.SplitSeq(string(data), "\n")), namesPerWork) {
			l.push(work{paths: slices.DeleteFunc(part, func(p string) bool { return p == "" })})
		}
	default:
		l.push(work{paths: []string{job.Input}})
	}
	var workers sync.WaitGroup
	for range requestsMax {
		workers.Go(func() { l.run(ctx) })
	}
	workers.Wait()
	slices.SortFunc(l.found.files, func(a, b inputFile) int { return cmp.Compare(a.path, b.path) })
	return l.found, l.err
}

// manifestMax bounds a manifest: FilesMax paths of common length.
const manifestMax = 64 << 20

func readWhole(ctx context.Context, names sigma.Namespace, path string) ([]byte, error) {
	h, err := names.Open(ctx, path, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	data, err := io.ReadAll(io.LimitReader(h, manifestMax+1))
	if err == nil && len(data) > manifestMax {
		err = sigma.PathError("mr.list", sigma.KindTooBig, path)
	}
	return data, err
}

// root finds what is at a path that the input is given by.
func (l *lister) root(ctx context.Context, path string) (more []work, got listing, err error) {
	st, err := l.names.Stat(ctx, path)
	switch {
	case err != nil:
	case st.ID.Kind == sigma.KindDir:
		more = []work{{dir: strings.TrimSuffix(path, "/")}}
	case st.ID.Kind == sigma.KindFile:
		got.add(path, int64(st.Size))
	default:
		err = &sigma.Error{Op: "mr.list", Path: path, Kind: sigma.KindInvalid,
			Msg: "the input is a " + st.ID.Kind.String() + ", not a file or directory"}
	}
	return more, got, err
}

// work is a directory to read or, if there are names, files of it whose sizes are to be asked; or
// paths that the input is given by.
type work struct {
	dir   string
	names []string
	paths []string
}

// namesPerWork is how many sizes one worker asks for, one after another.
const namesPerWork = 16

// lister is a stack of work and what was found so far.
type lister struct {
	names  sigma.Namespace
	prefix string // of all paths; only names in its own directory can differ from it

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

// run does work until there is none and no other worker can add any.
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
	for _, path := range w.paths {
		ws, g, err := l.root(ctx, path)
		if err != nil {
			return nil, got, err
		}
		more, got.files, got.bytes = append(more, ws...), append(got.files, g.files...), got.bytes+g.bytes
	}
	if w.paths != nil {
		return more, got, nil
	}
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
		case !strings.HasPrefix(w.dir+"/"+e.Name, l.prefix) && len(w.dir) < len(l.prefix):
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
