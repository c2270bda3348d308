package mr

import (
	"bufio"
	"bytes"
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"strconv"

	"sigmaos.dev/sigma"
)

// missingError is that what a map published cannot be read, so that the map must be repeated.
type missingError struct {
	redo
	error
}

func (e missingError) Unwrap() error { return e.error }

// reduced is what a reduce did.
type reduced struct {
	Keys    int64           // different ones
	Records int64           // that were emitted under them
	Machine sigma.MachineID // where it ran
}

func (r reduced) encode() []byte {
	return encodeRecord("keys", r.Keys, "records", r.Records, "machine", string(r.Machine))
}

func decodeReduced(data []byte) reduced {
	r := parseRecord(data)
	return reduced{Keys: r.number("keys"), Records: r.number("records"),
		Machine: sigma.MachineID(r.text("machine"))}
}

// reduce merges one part of what the maps publish, as it appears, and writes that part of the
// output.
func (t *attempt) reduce(ctx context.Context) (reduced, error) {
	dir := jobDir(t.Dir)
	var sum reduced
	data, _, err := t.Names.Get(ctx, dir.file("job"))
	if err != nil {
		return sum, err
	}
	job := decodeJob(data)
	if data, _, err = t.Names.Get(ctx, dir.file("plan")); err != nil {
		return sum, err
	}
	maps := int(parseRecord(data).number("maps"))
	m := &merger{ctx: ctx, task: t, table: newTable(int(t.Memory) / tableShare)}
	defer m.close()
	if err := m.gather(maps); err != nil {
		return sum, err
	}
	if sum, err = m.write(job.Output); err != nil {
		return sum, err
	}
	sum.Machine = t.Machine
	_, err = t.Names.Put(ctx, dir.done(t.Index), sum.encode(), sigma.PutOptions{})
	return sum, err
}

// merger adds up runs in a table. A table that becomes too large is written as a sorted run of our
// own; at the end all are merged in order.
type merger struct {
	ctx     context.Context
	task    *attempt
	table   *table
	scratch string   // directory of our own runs, "" as long as there are none
	own     []string // paths of them
}

// gather reads the part of every map, in the order in which they are published.
func (m *merger) gather(maps int) error {
	out := jobDir(m.task.Dir).file("out")
	seen := make([]bool, maps)
	for n := 0; n < maps; {
		st, err := m.task.Names.Stat(m.ctx,
			out) // the version before looking, so that a link made in between is not missed
		if err != nil {
			return err
		}
		entries, err := m.task.Names.ReadDir(m.ctx, out)
		if err != nil {
			return err
		}
		for _, e := range entries {
			i, ok := taskIndex(e.Name, "m", maps)
			if !ok || seen[i] {
				continue
			}
			if err := m.take(i); err != nil {
				return err
			}
			seen[i] = true
			n++
		}
		if n < maps {
			if _, err := m.task.Names.Watch(m.ctx, out, st.ID.Version); err != nil {
				return err
			}
		}
	}
	return nil
}

// take adds what map i published for us. A run that cannot be read to its end fails this reducer,
// so that nothing half-added is used.
func (m *merger) take(i int) error {
	link := jobDir(m.task.Dir).out(i)
	target, err := m.task.Names.ReadLink(m.ctx, link)
	if err != nil {
		return err
	}
	err = m.add(target + "/" + reduceName(m.task.Index))
	if err != nil && m.ctx.Err() == nil {
		var own ownError
		if !errors.As(err, &own) {
			return missingError{redo{i, target}, err}
		}
	}
	return err
}

// ownError is an error of writing our own runs, which no map is to blame for.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

func (m *merger) add(path string) error {
	r, err := openRun(m.ctx, m.task.Names, path)
	if err != nil {
		return err
	}
	defer r.close()
	for {
		more, err := r.next()
		if !more || err != nil {
			return err
		}
		m.table.add(r.entry.key, r.entry.value, r.entry.count)
		if m.table.crowded {
			if err := m.spill(); err != nil {
				return ownError{err}
			}
		}
	}
}

func (m *merger) spill() (err error) {
	if m.scratch == "" {
		if m.scratch, err = m.task.scratch(m.ctx, reduceName(m.task.Index)); err != nil {
			return err
		}
	}
	w := newRunWriter(m.ctx, m.task.Names, m.scratch+"/run-"+strconv.Itoa(len(m.own)))
	next := m.table.sorted()
	for e, more, _ := next(); more; e, more, _ = next() {
		if err := w.add(&e); err != nil {
			w.abandon()
			return err
		}
	}
	m.own = append(m.own, w.path)
	m.table.reset()
	return w.close()
}

func (m *merger) close() {
	if m.scratch != "" {
		m.task.Names.RemoveAll(context.WithoutCancel(m.ctx), m.scratch)
	}
}

// write writes the part, sorted, under a name of this attempt and moves it to its place when it is
// complete.
func (m *merger) write(output string) (sum reduced, err error) {
	final := output + "/" + partName(m.task.Index)
	o := &partWriter{ctx: m.ctx, names: m.task.Names, path: final, temp: final + "." + m.task.Attempt + "~"}
	defer o.abandon()
	out := bufio.NewWriterSize(o, partBuffer)
	if len(m.own) > 0 {
		if m.table.entries() > 0 {
			if err := m.spill(); err != nil {
				return sum, err
			}
		}
		sum, err = m.merge(out)
	} else {
		sum, err = reduceAll(m.table.sorted(), m.task.Reducer, out)
	}
	if err != nil {
		return sum, err
	}
	return sum, o.close(out)
}

// reduceAll calls reduce for each key that next gives, in order. An entry is valid until the next
// one.
func reduceAll(next func() (entry, bool, error), reduce Reducer, out *bufio.Writer) (sum reduced, err error) {
	var key []byte
	e, more, err := next()
	for more && err == nil {
		key = append(key[:0], e.key...)
		values := func(yield func([]byte, uint64) bool) {
			for wanted := true; wanted && more && err == nil && bytes.Equal(e.key, key); e, more, err = next() {
				sum.Records += int64(e.count)
				wanted = yield(e.value, e.count)
			}
		}
		if failed := reduce(key, values, out); failed != nil {
			return sum, inputError{failed}
		}
		for range values { // what it left
		}
		sum.Keys++
	}
	return sum, err
}

// merge reads our own runs, which are sorted, in order.
func (m *merger) merge(out *bufio.Writer) (reduced, error) {
	var h runHeap
	defer func() {
		for _, r := range h {
			r.close()
		}
	}()
	for _, path := range m.own {
		r, err := openRun(m.ctx, m.task.Names, path)
		if err != nil {
			return reduced{}, err
		}
		h = append(h, r)
		if more, err := r.next(); err != nil || !more { // an own run has entries
			return reduced{}, errors.Join(err, r.damaged(nil))
		}
	}
	heap.Init(&h)
	given := false
	return reduceAll(func() (entry, bool, error) {
		if given {
			more, err := h[0].next()
			if err != nil {
				return entry{}, false, err
			}
			if more {
				heap.Fix(&h, 0)
			} else {
				heap.Pop(&h).(*runReader).close()
			}
		}
		if given = len(h) > 0; !given {
			return entry{}, false, nil
		}
		return h[0].entry, true, nil
	}, m.task.Reducer, out)
}

// runHeap has the run with the least entry first.
type runHeap []*runReader

func (h runHeap) Len() int { return len(h) }
func (h runHeap) Less(i, j int) bool {
	a, b := &h[i].entry, &h[j].entry
	return cmp.Or(bytes.Compare(a.key, b.key), bytes.Compare(a.value, b.value)) < 0
}
func (h runHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)   { *h = append(*h, x.(*runReader)) }
func (h *runHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	*h = old[:len(old)-1]
	return r
}

// partWriter writes a file that appears whole or not at all. What reaches it comes from a buffer of
// partBuffer bytes.
type partWriter struct {
	ctx   context.Context
	names sigma.Namespace
	path  string
	temp  string
	file  sigma.Handle // nil as long as nothing exceeds the buffer
	whole bool         // what is written next is all
	named bool         // the file has its name, or none
}

// partBuffer is how much is written at once: several messages, so that their round trips are few.
const partBuffer = 4 * pieceMax

func (o *partWriter) Write(p []byte) (n int, err error) {
	if o.whole && o.file == nil {
		_, err := o.names.Put(o.ctx, o.path, p, sigma.PutOptions{})
		o.named = err == nil
		return len(p), err
	}
	if o.file == nil {
		if o.file, err = o.names.Create(o.ctx, o.temp, sigma.OpenWrite|sigma.OpenTruncate, 0o644); err != nil {
			return 0, err
		}
	}
	return o.file.Write(p)
}

// close writes what is in the buffer and gives the file its name.
func (o *partWriter) close(buffer *bufio.Writer) error {
	o.whole = true
	err := buffer.Flush()
	switch {
	case err == nil && o.file == nil && !o.named: // nothing was written
		_, err = o.Write(nil)
	case o.file != nil:
		err = errors.Join(err, o.file.Close())
		if err == nil {
			err = o.names.Rename(o.ctx, o.temp, o.path)
		}
		o.named = err == nil
	}
	return err
}

func (o *partWriter) abandon() {
	if o.file != nil && !o.named {
		o.file.Close()
		o.names.Remove(context.WithoutCancel(o.ctx), o.temp)
	}
}

func (e missingError) Error() string {
	return fmt.Sprintf("the output of map %d cannot be read: %v", e.Map, e.error)
}
