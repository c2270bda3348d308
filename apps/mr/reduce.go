package mr

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"strconv"

	"sigmaos.dev/sigma"
)

// missingError says that what a map published cannot be read, so that the map must be repeated.
type missingError struct {
	redo
	error
}

func (e missingError) Unwrap() error { return e.error }

// Reduced is what a reduce did.
type Reduced struct {
	Different int64 // words
	Words     int64
	Machine   sigma.MachineID // where it ran
}

func (r Reduced) encode() []byte {
	return encodeRecord("different", r.Different, "words", r.Words, "machine", string(r.Machine))
}

func decodeReduced(data []byte) Reduced {
	r := parseRecord(data)
	return Reduced{Different: r.number("different"), Words: r.number("words"),
		Machine: sigma.MachineID(r.text("machine"))}
}

// Reduce merges one part of what the maps publish, as it appears, and writes that part of the
// output.
func Reduce(ctx context.Context, t Task) (Reduced, error) {
	dir := jobDir(t.Dir)
	var sum Reduced
	data, _, err := t.Names.Get(ctx, dir.file("job"))
	if err != nil {
		return sum, err
	}
	job := decodeJob(data)
	if data, _, err = t.Names.Get(ctx, dir.file("plan")); err != nil {
		return sum, err
	}
	maps := int(parseRecord(data).number("maps"))
	m := &merger{ctx: ctx, task: t, table: newTable(), sizeMax: int(t.Memory) / tableShare}
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
	task    Task
	table   *table
	sizeMax int
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
		m.table.add(r.word, r.count)
		if m.table.memory() > m.sizeMax {
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
	var buf [shortMax]byte
	for _, e := range m.table.sorted() {
		if err := w.add(m.table.wordOf(&e, &buf), e.count); err != nil {
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
func (m *merger) write(output string) (sum Reduced, err error) {
	final := output + "/" + partName(m.task.Index)
	o := &partWriter{ctx: m.ctx, names: m.task.Names, path: final, temp: final + "." + m.task.Attempt + "~"}
	defer o.abandon()
	emit := func(word []byte, count uint64) error {
		sum.Different++
		sum.Words += int64(count)
		return o.line(word, count)
	}
	if len(m.own) > 0 {
		if m.table.words() > 0 {
			if err := m.spill(); err != nil {
				return sum, err
			}
		}
		err = m.merge(emit)
	} else {
		var buf [shortMax]byte
		for _, e := range m.table.sorted() {
			if err = emit(m.table.wordOf(&e, &buf), e.count); err != nil {
				break
			}
		}
	}
	if err != nil {
		return sum, err
	}
	return sum, o.close()
}

// merge reads our own runs, which are sorted, in order.
func (m *merger) merge(emit func([]byte, uint64) error) error {
	var h runHeap
	defer func() {
		for _, r := range h {
			r.close()
		}
	}()
	for _, path := range m.own {
		r, err := openRun(m.ctx, m.task.Names, path)
		if err != nil {
			return err
		}
		if more, err := r.next(); err != nil || !more {
			r.close()
			if err != nil {
				return err
			}
			continue
		}
		h = append(h, r)
	}
	heap.Init(&h)
	var word []byte
	count := uint64(0)
	for len(h) > 0 {
		r := h[0]
		if string(r.word) != string(word) {
			if count > 0 {
				if err := emit(word, count); err != nil {
					return err
				}
			}
			word, count = append(word[:0], r.word...), 0
		}
		count += r.count
		more, err := r.next()
		if err != nil {
			return err
		}
		if more {
			heap.Fix(&h, 0)
		} else {
			heap.Pop(&h)
			r.close()
		}
	}
	if count > 0 {
		return emit(word, count)
	}
	return nil
}

// runHeap has the run with the least word first.
type runHeap []*runReader

func (h runHeap) Len() int           { return len(h) }
func (h runHeap) Less(i, j int) bool { return string(h[i].word) < string(h[j].word) }
func (h runHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *runHeap) Push(x any)        { *h = append(*h, x.(*runReader)) }
func (h *runHeap) Pop() any {
	old := *h
	r := old[len(old)-1]
	*h = old[:len(old)-1]
	return r
}

// partWriter writes lines into a file that appears whole or not at all.
type partWriter struct {
	ctx   context.Context
	names sigma.Namespace
	path  string
	temp  string
	buf   []byte
	file  sigma.Handle // nil as long as all fits one message
	named bool         // the file has its name, or none
}

// partBuffer is how much is written at once: several messages, so that their round trips are few.
const partBuffer = 4 * pieceMax

func (o *partWriter) line(word []byte, count uint64) error {
	o.buf = append(o.buf, word...)
	o.buf = append(o.buf, '\t')
	o.buf = strconv.AppendUint(o.buf, count, 10)
	o.buf = append(o.buf, '\n')
	if len(o.buf) >= partBuffer {
		return o.flush()
	}
	return nil
}

func (o *partWriter) flush() (err error) {
	if o.file == nil {
		if o.file, err = o.names.Create(o.ctx, o.temp, sigma.OpenWrite|sigma.OpenTruncate, 0o644); err != nil {
			return err
		}
	}
	_, err = o.file.Write(o.buf)
	o.buf = o.buf[:0]
	return err
}

func (o *partWriter) close() error {
	if o.file == nil {
		_, err := o.names.Put(o.ctx, o.path, o.buf, sigma.PutOptions{})
		return err
	}
	err := o.flush()
	err = errors.Join(err, o.file.Close())
	if err == nil {
		err = o.names.Rename(o.ctx, o.temp, o.path)
	}
	o.named = err == nil
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
