package mr

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

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
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(requestsMax)
	l := &lister{names: names, prefix: job.Prefix, workers: workers}
	workers.Go(func() error { return l.begin(ctx, job) })
	err := workers.Wait()
	slices.SortFunc(l.found.files, func(a, b inputFile) int { return cmp.Compare(a.path, b.path) })
	return l.found, err
}

// begin lists what the input is given by.
func (l *lister) begin(ctx context.Context, job *Job) error {
	switch {
	case job.Prefix != "":
		return l.dir(ctx, job.Prefix[:strings.LastIndexByte(job.Prefix, '/')])
	case job.Manifest == "":
		return l.root(ctx, job.Input)
	}
	data, err := readWhole(ctx, l.names, job.Manifest)
	if err != nil {
		return err
	}
	return l.each(slices.DeleteFunc(strings.Split(string(data), "\n"), func(p string) bool { return p == "" }),
		func(path string) error { return l.root(ctx, path) })
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
func (l *lister) root(ctx context.Context, path string) error {
	st, err := l.names.Stat(ctx, path)
	switch {
	case err != nil:
		return err
	case st.ID.Kind == sigma.KindDir:
		return l.dir(ctx, strings.TrimSuffix(path, "/"))
	case st.ID.Kind == sigma.KindFile:
		var got listing
		got.add(path, int64(st.Size))
		return l.note(path, got, 0)
	}
	return &sigma.Error{Op: "mr.list", Path: path, Kind: sigma.KindInvalid,
		Msg: "the input is a " + st.ID.Kind.String() + ", not a file or directory"}
}

// namesPerWork is how many paths one worker asks about, one after another.
const namesPerWork = 16

// lister is what was found so far.
type lister struct {
	names   sigma.Namespace
	prefix  string // of all paths; only names in its own directory can differ from it
	workers *errgroup.Group

	mu    sync.Mutex
	dirs  int     // mu; that were found
	found listing // mu
}

// share has another worker do something, or does it if none is free.
func (l *lister) share(do func() error) error {
	if l.workers.TryGo(do) {
		return nil
	}
	return do()
}

// each shares what is to be done for names.
func (l *lister) each(names []string, do func(name string) error) error {
	for part := range slices.Chunk(names, namesPerWork) {
		if err := l.share(func() error {
			for _, name := range part {
				if err := do(name); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// note adds what was found at a path.
func (l *lister) note(path string, got listing, dirs int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found.files = append(l.found.files, got.files...)
	l.found.bytes += got.bytes
	l.found.skipped += got.skipped
	l.dirs += dirs
	if max(len(l.found.files), l.dirs) > FilesMax { // a tenant's tree may show directories without an end
		return &sigma.Error{Op: "mr.list", Path: path, Kind: sigma.KindTooBig,
			Msg:  "the input has more files or directories than one job can count",
			Hint: "run one job per directory"}
	}
	return nil
}

// dir lists a directory and all below it.
func (l *lister) dir(ctx context.Context, dir string) error {
	entries, err := l.names.ReadDir(ctx, cmp.Or(dir, "/"))
	if err != nil {
		return err
	}
	var got listing
	var dirs, unsized []string
	for _, e := range entries {
		path := dir + "/" + e.Name
		switch {
		case !strings.HasPrefix(path, l.prefix) && len(dir) < len(l.prefix):
		case e.ID.Kind == sigma.KindDir:
			dirs = append(dirs, path)
		case e.ID.Kind != sigma.KindFile:
			got.skipped++
		case e.Size > 0: // some servers tell
			got.add(path, int64(e.Size))
		default:
			unsized = append(unsized, path)
		}
	}
	if err := l.note(dir, got, len(dirs)); err != nil {
		return err
	}
	for _, d := range dirs {
		if err := l.share(func() error { return l.dir(ctx, d) }); err != nil {
			return err
		}
	}
	return l.each(unsized, func(path string) error {
		st, err := l.names.Lstat(ctx, path)
		if err != nil {
			return err
		}
		var got listing
		got.add(path, int64(st.Size))
		return l.note(path, got, 0)
	})
}

func (l *listing) add(path string, size int64) {
	l.files = append(l.files, inputFile{path, size})
	l.bytes += size
}
