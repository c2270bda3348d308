package core

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/lib/queue/record"
)

// Entry is a task in the queue, with what its server knows besides.
type Entry struct {
	record.Entry
	Since    time.Time // when it was entered
	Deadline time.Time // of the hold
}

// submitter is a client that submits, with the ids that its requests got which may be made again.
type submitter struct {
	name     string
	latest   uint64 // when it submitted last, counted in requests of all
	oldest   uint64 // of its requests that may be made again
	requests map[uint64][]uint64
}

// Core is the state of a queue: a pure function of the records that were applied.
type Core struct {
	Next     uint64 // id
	nextSeq  uint64 // of outcomes
	Tasks    map[uint64]*Entry
	keys     map[string]uint64
	fresh    []uint64 // ids that wait since they were entered, in order
	returned []uint64 // ids that wait for another attempt, in order
	Outcomes []*Entry // in order of seq
	Counts   [record.StateEnd]int
	Bytes    int
	clients  map[string]*submitter
	requests uint64
}

// submittersMax bounds the submitters whose requests are remembered. The one that submitted longest
// ago is forgotten first.
const submittersMax = 4096

func New() *Core {
	return &Core{Next: 1, nextSeq: 1, Tasks: map[uint64]*Entry{}, keys: map[string]uint64{},
		clients: map[string]*submitter{}}
}

// apply makes the change of a record. What does not fit the state is ignored.
func (q *Core) Apply(r *record.Record) {
	switch r.Kind {
	case record.Submitted:
		q.submit(r)
	case record.Acquired:
		for _, id := range r.IDs {
			if e := q.Tasks[id]; e != nil && e.State == record.Waiting && q.unwait(id) {
				e.Attempt, e.Tries = e.Attempt+1, e.Tries+1
				q.move(e, record.InHand)
			}
		}
	case record.Ended:
		for i := range r.Ends {
			q.end(&r.Ends[i])
		}
	case record.Forgotten:
		q.forget(r.Seq)
	case record.Revived, record.Dropped:
		for _, id := range r.IDs {
			e := q.Tasks[id]
			if e == nil || e.State != record.Buried {
				continue
			}
			q.unlist(e)
			if r.Kind == record.Dropped {
				q.remove(e)
				continue
			}
			e.Tries = 0
			q.wait(e)
		}
	default:
		q.load(r)
	}
}

// submit enters the tasks of a request, unless it was made before.
func (q *Core) submit(r *record.Record) {
	s := q.clients[r.Client]
	if s == nil {
		q.makeRoom()
		s = &submitter{name: r.Client, requests: map[uint64][]uint64{}}
		q.clients[r.Client] = s
	}
	q.requests++
	s.latest = q.requests
	s.settle(r.Oldest)
	if _, again := s.requests[r.Seq]; again || r.Seq < s.oldest {
		return
	}
	ids := make([]uint64, len(r.Tasks))
	for i, t := range r.Tasks {
		if id := q.keys[t.Key]; t.Key != "" && id != 0 {
			ids[i] = id
			continue
		}
		e := &Entry{Entry: record.Entry{Task: t}}
		e.ID, ids[i] = q.Next, q.Next
		q.Next++
		q.enter(e)
	}
	s.requests[r.Seq] = ids
}

// settle forgets requests that will not be made again.
func (s *submitter) settle(oldest uint64) {
	if oldest <= s.oldest {
		return
	}
	s.oldest = oldest
	for seq := range s.requests {
		if seq < oldest {
			delete(s.requests, seq)
		}
	}
}

// makeRoom forgets a submitter if there are too many.
func (q *Core) makeRoom() {
	if len(q.clients) < submittersMax {
		return
	}
	var last *submitter
	for _, s := range q.clients {
		if last == nil || s.latest < last.latest {
			last = s
		}
	}
	delete(q.clients, last.name)
}

// end ends a hold, if the task is still held by that attempt.
func (q *Core) end(d *record.Ending) {
	e := q.Tasks[d.ID]
	if e == nil || e.State != record.InHand || e.Attempt != d.Attempt {
		return
	}
	q.Bytes -= e.Cost()
	e.Failed = d.Failed
	if d.How == record.Finished {
		e.Task.Data, e.Result.Data = nil, d.Data
	}
	q.Bytes += e.Cost()
	if d.How == record.Waiting {
		q.wait(e)
		return
	}
	q.move(e, d.How)
	e.Seq = q.nextSeq
	q.nextSeq++
	q.Outcomes = append(q.Outcomes, e)
}

// forget drops the outcomes up to a sequence number. Dead tasks stay in the queue.
func (q *Core) forget(upTo uint64) {
	n := q.After(upTo)
	for _, e := range q.Outcomes[:n] {
		if e.Seq = 0; e.State == record.Finished {
			q.remove(e)
		}
	}
	clear(q.Outcomes[:n])
	q.Outcomes = q.Outcomes[n:]
}

// after is the index of the first outcome after a sequence number.
func (q *Core) After(seq uint64) int {
	n, is := slices.BinarySearchFunc(q.Outcomes, seq, func(e *Entry, seq uint64) int { return cmp.Compare(e.Seq, seq) })
	if is {
		n++
	}
	return n
}

// unlist takes a task's outcome out of the list.
func (q *Core) unlist(e *Entry) {
	if i := q.After(e.Seq); e.Seq != 0 {
		q.Outcomes = slices.Delete(q.Outcomes, i-1, i)
	}
	e.Seq = 0
}

// enter adds a task that waits.
func (q *Core) enter(e *Entry) {
	q.add(e)
	q.fresh = append(q.fresh, e.ID)
}

func (q *Core) add(e *Entry) {
	q.Tasks[e.ID] = e
	if e.Key != "" {
		q.keys[e.Key] = e.ID
	}
	q.Counts[e.State]++
	q.Bytes += e.Cost()
}

// wait has a task wait again, at the place of its id.
func (q *Core) wait(e *Entry) {
	q.move(e, record.Waiting)
	i, _ := slices.BinarySearch(q.returned, e.ID)
	q.returned = slices.Insert(q.returned, i, e.ID)
}

// unwait takes a waiting id out of its list, where it usually is the first.
func (q *Core) unwait(id uint64) bool {
	for _, l := range []*[]uint64{&q.fresh, &q.returned} {
		i, is := slices.BinarySearch(*l, id)
		switch {
		case is && i == 0:
			*l = (*l)[1:]
			return true
		case is:
			*l = slices.Delete(*l, i, i+1)
			return true
		}
	}
	return false
}

// first gives up to n waiting tasks, in order of their ids.
func (q *Core) First(n int) (ids []uint64) {
	fresh, returned := q.fresh, q.returned
	for ; n > 0 && len(fresh)+len(returned) > 0; n-- {
		from := &fresh
		if len(fresh) == 0 || len(returned) > 0 && returned[0] < fresh[0] {
			from = &returned
		}
		ids, *from = append(ids, (*from)[0]), (*from)[1:]
	}
	return ids
}

func (q *Core) move(e *Entry, to record.State) {
	q.Counts[e.State]--
	q.Counts[to]++
	e.State = to
}

func (q *Core) remove(e *Entry) {
	q.Counts[e.State]--
	q.Bytes -= e.Cost()
	delete(q.Tasks, e.ID)
	if e.Key != "" {
		delete(q.keys, e.Key)
	}
}

// load applies a record of a snapshot.
func (q *Core) load(r *record.Record) {
	switch r.Kind {
	case record.Counters:
		q.nextSeq, q.Next = max(q.nextSeq, r.Seq), max(q.Next, r.Oldest)
	case record.Submitter:
		q.requests++
		s := q.clients[r.Client]
		if s == nil {
			s = &submitter{name: r.Client, oldest: r.Oldest, latest: q.requests, requests: map[uint64][]uint64{}}
			q.clients[r.Client] = s
		}
		if r.Seq != 0 {
			s.requests[r.Seq] = r.IDs
		}
	case record.Whole:
		e := &Entry{Entry: r.Entry}
		ends, wait := e.Seq != 0, e.State == record.Waiting
		if q.Tasks[e.ID] != nil || e.ID >= q.Next || e.State >= record.StateEnd || e.Seq >= q.nextSeq ||
			ends && (e.State < record.Finished || q.After(e.Seq-1) < len(q.Outcomes)) ||
			wait && len(q.returned) > 0 && q.returned[len(q.returned)-1] >= e.ID {
			return
		}
		q.add(e)
		if wait {
			q.returned = append(q.returned, e.ID)
		}
		if ends {
			q.Outcomes = append(q.Outcomes, e)
		}
	}
}

// Chunks gives the whole state, as records in parts of up to size bytes, to be applied in order.
func (q *Core) Chunks(size int) (chunks [][]byte) {
	c := &record.Coder{}
	add := func(r *record.Record) {
		at := len(c.B)
		if r.Code(c); len(c.B) > size && at > 0 {
			chunks = append(chunks, c.B[:at:at])
			c = &record.Coder{B: append(make([]byte, 0, size), c.B[at:]...)}
		}
	}
	add(&record.Record{Kind: record.Counters, Seq: q.nextSeq, Oldest: q.Next})
	clients := slices.SortedFunc(maps.Values(q.clients), func(a, b *submitter) int {
		return cmp.Compare(a.latest, b.latest)
	})
	for _, s := range clients {
		add(&record.Record{Kind: record.Submitter, Client: s.name, Oldest: s.oldest})
		for seq, ids := range s.requests {
			add(&record.Record{Kind: record.Submitter, Client: s.name, Oldest: s.oldest, Seq: seq, IDs: ids})
		}
	}
	all := slices.SortedFunc(maps.Values(q.Tasks), func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.ID, b.ID))
	})
	for _, e := range all {
		add(&record.Record{Kind: record.Whole, Entry: e.Entry})
	}
	return append(chunks, c.B)
}

// Known gives the ids of a request that was made before.
func (q *Core) Known(client string, seq uint64) ([]uint64, bool) {
	s := q.clients[client]
	if s == nil {
		return nil, false
	}
	ids, is := s.requests[seq]
	return ids, is
}
