package mr

import (
	"context"
	"io"
	"os"
	"sync"

	"sigmaos.dev/sigma"
)

// Task is one attempt of a map or reduce, as its proc knows it.
type Task struct {
	Names   sigma.Namespace
	Dir     string          // of the job, /mr/JOB
	Index   int             // which map or reduce
	Attempt string          // tells attempts apart; the ProcID
	Machine sigma.MachineID // where it runs
	Memory  sigma.Bytes     // what the proc was given; bounds the tables
}

// tableShare is which part of its memory a proc fills with words before it writes them out; a table
// takes three times its size while it grows.
const tableShare = 8

// fetchesMax is how many small files a mapper asks for at once. With fewer, client and server wake
// each other for each file; more gain nothing.
const fetchesMax = 16

// scratch makes this attempt's directory in the machine's scratch storage and returns its global
// path (001 §3.3).
func (t *Task) scratch(ctx context.Context, name string) (string, error) {
	local := "/ux/" + sigma.LocalName + t.Dir + "/" + name + "-" + t.Attempt
	if err := t.Names.MkdirAll(ctx, local, 0o700); err != nil {
		return "", err
	}
	return t.Names.AbsPath(ctx, local)
}

// inputError is an error of reading the input, as opposed to one of the machinery.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// Map counts the words of a bin and publishes the counts. If another attempt published first, its
// counts are the ones that are used.
func Map(ctx context.Context, t Task) (Counters, error) {
	sum := Counters{Machine: t.Machine}
	dir := jobDir(t.Dir)
	plan, _, err := t.Names.Get(ctx, dir.file("plan"))
	if err != nil {
		return sum, err
	}
	data, _, err := t.Names.Get(ctx, dir.bin(t.Index))
	if err != nil {
		return sum, err
	}
	splits, err := decodeBin(data)
	if err != nil {
		return sum, err
	}
	scratch, err := t.scratch(ctx, mapName(t.Index))
	if err != nil {
		return sum, err
	}
	out := newShuffle(ctx, t.Names, scratch, int(max(parseRecord(plan).number("reduces"), 1)))
	defer out.abandon()
	c := newCounter(int(t.Memory)/tableShare, nil)
	c.full = func() error {
		sum.Spill++
		return out.spill(c.table, &sum)
	}
	if err := countBin(ctx, t.Names, splits, c, &sum); err != nil {
		return sum, err
	}
	if err := out.spill(c.table, &sum); err != nil {
		return sum, err
	}
	if err := out.close(sum); err != nil {
		return sum, err
	}
	err = t.Names.Symlink(ctx, scratch, dir.out(t.Index))
	if sigma.KindOf(err) == sigma.KindExists && err != nil {
		err = t.Names.RemoveAll(ctx, scratch) // somebody else's counts are used
	}
	return sum, err
}

// shuffle writes the counts of a map, one run per reducer.
type shuffle struct {
	ctx   context.Context
	names sigma.Namespace
	dir   string
	runs  []*runWriter
}

func newShuffle(ctx context.Context, names sigma.Namespace, dir string, reduces int) *shuffle {
	s := &shuffle{ctx: ctx, names: names, dir: dir, runs: make([]*runWriter, reduces)}
	for i := range s.runs {
		s.runs[i] = newRunWriter(ctx, names, dir+"/"+reduceName(i))
	}
	return s
}

// spill writes all words of t out and empties it.
func (s *shuffle) spill(t *table, sum *Counters) error {
	for e := range t.all() {
		sum.Words += int64(e.count)
		if err := s.runs[partition(e.hash, len(s.runs))].add(e.word, e.count); err != nil {
			return err
		}
	}
	t.reset()
	return nil
}

// close ends all runs, several at a time, and writes the counters beside them.
func (s *shuffle) close(sum Counters) error {
	if _, err := s.names.Put(s.ctx, s.dir+"/counters", sum.encode(), sigma.PutOptions{Perm: 0o600}); err != nil {
		return err
	}
	return inParallel(fetchesMax, len(s.runs), func(i int) error {
		r := s.runs[i]
		s.runs[i] = nil
		return r.close()
	})
}

func (s *shuffle) abandon() {
	for _, r := range s.runs {
		if r != nil {
			r.abandon()
		}
	}
}

// inParallel calls f with 0 to n-1, at most limit at a time, and returns the first error.
func inParallel(limit, n int, f func(i int) error) error {
	if n == 1 {
		return f(0)
	}
	var workers sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := 0
	for range min(limit, n) {
		workers.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				stop := i >= n || first != nil
				mu.Unlock()
				if stop {
					return
				}
				if err := f(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	return first
}

// fetched is a split whose text is there, or can be read.
type fetched struct {
	split
	data []byte // of a small file
	file *openFile
	err  error
}

// countBin counts all splits. Small files are fetched several at a time, each in one round trip; of
// larger ones the file descriptor is asked for ahead.
func countBin(ctx context.Context, names sigma.Namespace, splits []split, c *counter, sum *Counters) error {
	ctx, cancel := context.WithCancel(ctx)
	fetches := make(chan fetched)
	done := make(chan struct{})
	go func() {
		defer close(done)
		inParallel(fetchesMax, len(splits), func(i int) error {
			f := fetch(ctx, names, splits[i])
			select {
			case fetches <- f:
			case <-ctx.Done():
				f.release()
				return ctx.Err()
			}
			return nil
		})
	}()
	defer func() { cancel(); <-done }()
	for range splits {
		var f fetched
		select {
		case f = <-fetches:
		case <-ctx.Done():
			return ctx.Err()
		}
		n, err := f.count(c)
		f.release()
		if err != nil {
			return err
		}
		sum.Files++
		sum.Bytes += n
	}
	return nil
}

func fetch(ctx context.Context, names sigma.Namespace, s split) (f fetched) {
	f.split = s
	if s.whole() && s.size <= pieceMax {
		f.data, _, f.err = names.Get(ctx, s.path)
	} else {
		f.file, f.err = openInput(ctx, names, s.path)
	}
	if f.err != nil {
		f.err = inputError{f.err}
	}
	return f
}

func (f *fetched) count(c *counter) (int64, error) {
	switch {
	case f.err != nil:
		return 0, f.err
	case f.file == nil:
		return int64(len(f.data)), c.whole(f.data)
	}
	to := f.to
	if f.to == f.size {
		to = 1 << 62 // what was appended since it was listed is counted as the end is reached
	}
	n, err := c.split(f.file.read, f.from, to)
	if err != nil && f.file.failed {
		err = inputError{err}
	}
	return n, err
}

func (f *fetched) release() {
	if f.file != nil {
		f.file.close()
	}
}

// openFile reads an input file: by a passed file descriptor, so that its bytes come from the page
// cache without a copy through a server, else by messages.
type openFile struct {
	handle sigma.Handle
	passed *os.File // nil if the server passes none
	failed bool
}

func openInput(ctx context.Context, names sigma.Namespace, path string) (*openFile, error) {
	h, err := names.Open(ctx, path, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	f, err := h.File()
	if err != nil && sigma.KindOf(err) != sigma.KindUnsupported {
		h.Close()
		return nil, err
	}
	return &openFile{handle: h, passed: f}, nil
}

func (f *openFile) read(p []byte, offset int64) (n int, err error) {
	if f.passed != nil {
		n, err = f.passed.ReadAt(p, offset)
	} else {
		n, err = f.handle.ReadAt(p, offset)
	}
	f.failed = err != nil && err != io.EOF
	return n, err
}

func (f *openFile) close() {
	if f.passed != nil {
		f.passed.Close()
	}
	f.handle.Close()
}
