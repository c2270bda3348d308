package mr

import (
	"bytes"
	"context"
	"io"
	"os"
	"sort"

	"golang.org/x/sync/errgroup"

	"sigmaos.dev/sigma"
)

// tableShare is the share of its memory, 1/8, that a proc fills with entries before it writes them
// out. A table takes three times its size while it grows.
const tableShare = 8

// fetchesMax is how many small files a mapper asks for at once. With fewer, client and server wake
// each other for each file; more gain nothing.
const fetchesMax = 16

// scratch makes this attempt's directory in the machine's scratch storage and returns its global
// path (001 §3.3).
func (t *attempt) scratch(ctx context.Context, name string) (string, error) {
	local := "/ux/" + sigma.LocalName + t.Dir + "/" + name + "-" + t.Attempt
	if err := t.Names.MkdirAll(ctx, local, 0o700); err != nil {
		return "", err
	}
	return t.Names.AbsPath(ctx, local)
}

// inputError is an error of reading the input, as opposed to one of the machinery.
type inputError struct{ error }

func (e inputError) Unwrap() error { return e.error }

// mapBin maps a bin and publishes what was emitted. If another attempt published first, what that
// emitted is used.
func (t *attempt) mapBin(ctx context.Context) (counters, error) {
	sum := counters{Machine: t.Machine}
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
	out := newShuffle(ctx, t.Names, scratch, decodePlan(plan).reduces)
	defer out.abandon()
	if t.Mapper.Ordered {
		if out.cuts, err = readCuts(ctx, t.Names, dir); err != nil {
			return sum, err
		}
	}
	emitter := newEmitter(int(t.Memory)/tableShare, func(t *table) error { return out.spill(t, &sum) })
	if err := t.mapSplits(ctx, splits, emitter, &sum); err != nil {
		return sum, err
	}
	if err := out.spill(emitter.table, &sum); err != nil {
		return sum, err
	}
	if err := out.close(sum); err != nil {
		return sum, err
	}
	err = t.Names.Symlink(ctx, scratch, dir.out(t.Index))
	if sigma.KindOf(err) == sigma.KindExists && err != nil {
		err = t.Names.RemoveAll(ctx, scratch) // somebody else's output is used
	}
	return sum, err
}

// Emitter takes what a Map emits. Keys and values may be of any bytes, and are copied. An empty
// value is none. Not safe for concurrent use.
type Emitter struct {
	table *table
	full  func(*table) error // must empty the table
	err   error
}

func newEmitter(most int, full func(*table) error) *Emitter {
	return &Emitter{table: newTable(most), full: full}
}

// Count emits a key n times, without a value.
func (e *Emitter) Count(key []byte, n uint64) {
	if lo, hi := e.table.pack(key); lo != 0 {
		e.table.addShort(lo, hi, n)
	} else {
		e.table.addLong(hashLong(key), key, nil, n)
	}
	if e.table.crowded {
		e.spill()
	}
}

// Emit emits a key with a value.
func (e *Emitter) Emit(key, value []byte) {
	if e.table.add(key, value, 1); e.table.crowded {
		e.spill()
	}
}

func (e *Emitter) spill() {
	if e.err == nil {
		e.err = e.full(e.table)
	}
	e.table.reset() // after an error all is in vain
}

// shuffle writes what a map emits, one run per reducer.
type shuffle struct {
	ctx   context.Context
	names sigma.Namespace
	dir   string
	runs  []*runWriter
	cuts  [][]byte // the first keys of reducers but the first; nil = by hash
}

func newShuffle(ctx context.Context, names sigma.Namespace, dir string, reduces int) *shuffle {
	s := &shuffle{ctx: ctx, names: names, dir: dir, runs: make([]*runWriter, max(reduces, 1))}
	for i := range s.runs {
		s.runs[i] = newRunWriter(ctx, names, dir+"/"+reduceName(i))
	}
	return s
}

// spill writes all entries of t out and empties it.
func (s *shuffle) spill(t *table, sum *counters) error {
	for e := range t.all() {
		sum.Records += int64(e.count)
		i := partition(e.hash, len(s.runs))
		if s.cuts != nil {
			i = sort.Search(len(s.cuts), func(i int) bool { return bytes.Compare(s.cuts[i], e.key) > 0 })
		}
		if err := s.runs[i].add(&e); err != nil {
			return err
		}
	}
	t.reset()
	return nil
}

// close ends all runs, several at a time, and writes the counters beside them.
func (s *shuffle) close(sum counters) error {
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

// inParallel calls f with 0 to n-1, at most limit at a time, and returns the first error, after
// which it calls f no more.
func inParallel(limit, n int, f func(i int) error) error {
	g, failed := errgroup.WithContext(context.Background())
	g.SetLimit(limit)
	for i := 0; i < n && failed.Err() == nil; i++ {
		g.Go(func() error { return f(i) })
	}
	return g.Wait()
}

// fetched is a split whose text is there, or can be read.
type fetched struct {
	split
	data []byte // of a small file
	file *openFile
	err  error
}

// mapSplits maps all splits. Small files are fetched several at a time, each in one round trip; of
// larger ones the file descriptor is asked for ahead.
func (t *attempt) mapSplits(ctx context.Context, splits []split, out *Emitter, sum *counters) error {
	ctx, cancel := context.WithCancel(ctx)
	fetches := make(chan fetched)
	done := make(chan struct{})
	go func() {
		defer close(done)
		inParallel(fetchesMax, len(splits), func(i int) error {
			f := fetch(ctx, t.Names, splits[i])
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
	r := &reader{between: t.Mapper.Between}
	for range splits {
		var f fetched
		select {
		case f = <-fetches:
		case <-ctx.Done():
			return ctx.Err()
		}
		n, err := f.records(r, func(text []byte) error {
			if err := t.Mapper.Map(f.path, text, out); err != nil {
				return inputError{err}
			}
			return out.err
		})
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

// records gives take the records of the split.
func (f *fetched) records(r *reader, take func(text []byte) error) (int64, error) {
	switch {
	case f.err != nil:
		return 0, f.err
	case f.file == nil && len(f.data) == 0:
		return 0, nil
	case f.file == nil:
		return int64(len(f.data)), take(f.data)
	}
	to := f.to
	if f.to == f.size {
		to = 1 << 62 // what was appended since it was listed is mapped as the end is reached
	}
	n, err := r.records(f.file.read, f.from, to, take)
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
