package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/lib/queue/core"
	"sigmaos.dev/lib/queue/journal"
	"sigmaos.dev/lib/queue/record"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// server is a leader: it changes the state at once, and answers when the change is written.
type server struct {
	cfg Config

	mu      sync.Mutex
	core    *core.Core       // mu
	journal *journal.Journal // mu
	leases  []lease          // mu; in order of their ends, with those of holds that have ended or were extended
	parked  []*worker        // mu; in order of arrival
	changed chan struct{}    // mu; closed when a task ends
	wake    chan struct{}    // holds a token when there may be a batch to write
	failed  context.CancelCauseFunc
}

// worker waits for tasks.
type worker struct {
	most  int
	given chan []uint64
}

// newServer reads the queue.
func newServer(ctx context.Context, n journal.Names, cfg Config, epoch uint64) (*server, error) {
	s := &server{cfg: cfg, core: core.New(), changed: make(chan struct{}), wake: make(chan struct{}, 1)}
	var err error
	s.journal, err = journal.Open(ctx, n, cfg.Dir, epoch, func(records []byte) error {
		return record.Decode(records, s.core.Apply)
	})
	if err != nil {
		return nil, err
	}
	now := time.Now()
	for _, e := range s.core.Tasks {
		if e.Since = now; e.State == record.InHand {
			s.holdLocked(e, now)
		}
	}
	return s, nil
}

// handler answers a call.
type handler func(ctx context.Context, in, out *record.Coder) error

func (s *server) handlers() map[*call.Method]handler {
	return map[*call.Method]handler{record.CallSubmit: s.submit, record.CallAcquire: s.acquire,
		record.CallExtend: s.extend, record.CallDone: s.done, record.CallResults: s.results,
		record.CallWait: s.wait, record.CallForget: s.forget, record.CallDead: s.dead,
		record.CallRevive: s.revive, record.CallDrop: s.drop, record.CallStatus: s.status}
}

// run serves until ctx ends or the log cannot be written.
func (s *server) run(ctx context.Context, serve func(context.Context, *call.Server) error) error {
	ctx, s.failed = context.WithCancelCause(ctx)
	defer s.failed(nil)
	calls := call.NewServer(call.Config{CallsMax: 4096})
	for m, h := range s.handlers() {
		err := calls.Handle(m, func(caller context.Context, arg, reply []byte) ([]byte, error) {
			out := &record.Coder{B: reply}
			err := h(caller, &record.Coder{B: arg, Reading: true}, out)
			return out.B, err
		})
		if err != nil {
			return err
		}
	}
	var all sync.WaitGroup
	all.Go(func() { s.writeBatches(ctx) })
	all.Go(func() { s.expireLeases(ctx) })
	err := serve(ctx, calls)
	s.failed(err)
	calls.Close()
	all.Wait()
	return context.Cause(ctx)
}

// writeBatches writes what there is to write.
func (s *server) writeBatches(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		s.mu.Lock()
		b := s.journal.Next()
		if s.journal.SnapshotDue() {
			write, finish := s.journal.Snapshot(s.core.Chunks(journal.BatchMax))
			all.Go(func() { s.finish(write(ctx), finish) })
		}
		s.mu.Unlock()
		if b != nil {
			all.Go(func() { s.finish(s.journal.Write(ctx, b), s.journal.Written) })
			continue
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (s *server) finish(err error, then func()) {
	if err != nil {
		s.failed(err)
		return
	}
	s.mu.Lock()
	then()
	s.mu.Unlock()
	s.stir()
}

// stir has writeBatches look.
func (s *server) stir() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// changeLocked makes a change and has it written.
func (s *server) changeLocked(r *record.Record) *journal.Batch {
	c := &record.Coder{}
	r.Code(c)
	b := s.journal.Add(c.B)
	s.core.Apply(r)
	s.stir()
	return b
}

// lock takes the lock when the log is not far behind.
func (s *server) lock(ctx context.Context) error {
	for {
		s.mu.Lock()
		b := s.journal.Behind()
		if b == nil {
			return nil
		}
		s.mu.Unlock()
		if err := b.Settle(ctx); err != nil {
			return err
		}
	}
}

var errArgument = sigma.Errorf("queue.Serve", sigma.KindInvalid, "this is no argument of the method")

func (s *server) submit(ctx context.Context, in, out *record.Coder) error {
	r := &record.Record{Kind: record.Submitted}
	in.Text(&r.Client)
	in.Uint(&r.Seq)
	in.Uint(&r.Oldest)
	record.List(in, &r.Tasks, (*record.Coder).Task)
	if in.Bad || len(r.Client) > record.KeyMax || len(r.Tasks) > record.BatchMax || r.Seq == 0 ||
		r.Oldest > r.Seq {
		return errArgument
	}
	size := 0
	for _, t := range r.Tasks {
		size += record.EntryCost + len(t.Key) + len(t.Data)
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	if _, again := s.core.Known(r.Client, r.Seq); again {
		size = 0
	}
	if s.core.Bytes+size > s.cfg.Bytes {
		s.mu.Unlock()
		return &sigma.Error{Op: "queue.Submit", Path: s.cfg.Dir, Kind: sigma.KindNoSpace,
			Msg:  fmt.Sprintf("the queue is full: %d bytes of %d", s.core.Bytes, s.cfg.Bytes),
			Hint: "wait until there is less in it, forget outcomes that were read, drop dead tasks, or serve it with more Bytes"}
	}
	first := s.core.Next
	b := s.changeLocked(r)
	now := time.Now()
	for id := first; id < s.core.Next; id++ {
		s.core.Tasks[id].Since = now
	}
	ids, _ := s.core.Known(r.Client, r.Seq)
	s.feedLocked()
	s.mu.Unlock()
	record.List(out, &ids, (*record.Coder).Uint)
	return b.Settle(ctx)
}

// feedLocked gives waiting tasks to waiting workers, as evenly as it can.
func (s *server) feedLocked() {
	for len(s.parked) > 0 && s.core.Counts[record.Waiting] > 0 {
		w, n := s.parked[0], len(s.parked)
		s.parked = s.parked[1:]
		w.given <- s.takeLocked(min((s.core.Counts[record.Waiting]+n-1)/n, w.most))
	}
}

// takeLocked has up to n tasks held.
func (s *server) takeLocked(n int) []uint64 {
	ids, size := s.core.First(n), 0
	for i, id := range ids {
		if size += len(s.core.Tasks[id].Task.Data); size > record.ReplyMax {
			ids = ids[:max(i, 1)]
			break
		}
	}
	s.changeLocked(&record.Record{Kind: record.Acquired, IDs: ids})
	now := time.Now()
	for _, id := range ids {
		s.holdLocked(s.core.Tasks[id], now)
	}
	return ids
}

// lease is when a hold ends, unless it was extended.
type lease struct {
	*core.Entry
	attempt uint64
	at      time.Time
}

func (s *server) holdLocked(e *core.Entry, now time.Time) {
	e.Deadline = now.Add(s.cfg.Lease)
	s.leases = append(s.leases, lease{e, e.Attempt, e.Deadline})
}

// expireLeases ends holds whose time is over.
func (s *server) expireLeases(ctx context.Context) {
	for retry.Pause(ctx, s.cfg.Lease/20) && s.lock(ctx) == nil {
		now := time.Now()
		var over []record.Ending
		for len(s.leases) > 0 && s.leases[0].at.Before(now) {
			l := s.leases[0]
			s.leases = s.leases[1:]
			if l.State == record.InHand && l.Attempt == l.attempt && !l.Deadline.After(now) {
				over = append(over, s.failLocked(l.Entry, "the worker's lease ended"))
			}
		}
		s.endLocked(over)
		s.mu.Unlock()
	}
}

// failLocked is the end of an attempt that failed.
func (s *server) failLocked(e *core.Entry, why string) record.Ending {
	d := record.Ending{Result: record.Result{Hold: e.Hold, Failed: why}, How: record.Waiting}
	if e.Tries >= uint64(s.cfg.Attempts) {
		d.How = record.Buried
	}
	return d
}

// endLocked ends holds, in parts that fit a batch, and gives waiting tasks to workers.
func (s *server) endLocked(ends []record.Ending) {
	if len(ends) == 0 {
		return
	}
	for len(ends) > 0 {
		n, size := 0, 0
		for n < len(ends) && (n == 0 || size < journal.BatchMax/2) {
			size += len(ends[n].Data) + len(ends[n].Failed) + record.HoldCost
			n++
		}
		s.changeLocked(&record.Record{Kind: record.Ended, Ends: ends[:n]})
		ends = ends[n:]
	}
	if n := len(s.core.Outcomes); n > s.cfg.Keep {
		s.changeLocked(&record.Record{Kind: record.Forgotten, Seq: s.core.Outcomes[n-s.cfg.Keep-1].Seq})
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.feedLocked()
}

// acquire waits for tasks.
func (s *server) acquire(ctx context.Context, in, out *record.Coder) error {
	var most uint64
	if in.Uint(&most); in.Bad || most == 0 || most > record.BatchMax {
		return errArgument
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	var ids []uint64
	if s.core.Counts[record.Waiting] > 0 {
		ids = s.takeLocked(int(most))
	} else {
		w := &worker{most: int(most), given: make(chan []uint64, 1)}
		s.parked = append(s.parked, w)
		s.mu.Unlock()
		select {
		case ids = <-w.given:
			s.mu.Lock()
		case <-ctx.Done():
			s.mu.Lock()
			s.unparkLocked(w)
			s.mu.Unlock()
			return ctx.Err()
		}
	}
	tasks := make([]record.Held, 0, len(ids))
	for _, id := range ids {
		if e := s.core.Tasks[id]; e != nil {
			tasks = append(tasks, record.Held{Hold: e.Hold, Task: e.Task})
		}
	}
	b := s.journal.Latest()
	s.mu.Unlock()
	lease := uint64(s.cfg.Lease)
	out.Uint(&lease)
	record.List(out, &tasks, (*record.Coder).Held)
	return b.Settle(ctx)
}

// unparkLocked forgets a worker that waits no more; what it was given meanwhile waits again.
func (s *server) unparkLocked(w *worker) {
	s.parked = slices.DeleteFunc(s.parked, func(p *worker) bool { return p == w })
	select {
	case ids := <-w.given:
		var back []record.Ending
		for _, id := range ids {
			if e := s.core.Tasks[id]; e != nil && e.State == record.InHand {
				back = append(back, s.failLocked(e, "the worker was gone when it was given the task"))
			}
		}
		s.endLocked(back)
	default:
	}
}

// extend begins leases anew. It answers for each hold whether it is valid.
func (s *server) extend(ctx context.Context, in, out *record.Coder) error {
	var holds []record.Hold
	if record.List(in, &holds, (*record.Coder).Hold); in.Bad || len(holds) > record.BatchMax {
		return errArgument
	}
	s.mu.Lock()
	now := time.Now()
	for _, h := range holds {
		valid := uint8(0)
		if e := s.core.Tasks[h.ID]; e != nil && e.State == record.InHand && e.Attempt == h.Attempt {
			s.holdLocked(e, now)
			valid = 1
		}
		out.Byte(&valid)
	}
	s.mu.Unlock()
	return nil
}

// done ends holds. It answers for each whether the result counts.
func (s *server) done(ctx context.Context, in, out *record.Coder) error {
	var rs []record.Result
	if record.List(in, &rs, (*record.Coder).Result); in.Bad || len(rs) > record.BatchMax {
		return errArgument
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	ends := make([]record.Ending, 0, len(rs))
	given := map[uint64]bool{}
	for _, r := range rs {
		e, counts := s.core.Tasks[r.ID], uint8(1)
		switch {
		case len(r.Data) > record.DataMax || len(r.Failed) > record.FailedMax:
			counts = 0
		case e == nil || e.Attempt != r.Attempt || e.State == record.Waiting || given[r.ID]:
			counts = 0
		case e.State != record.InHand: // it is said again
		case r.Failed != "":
			ends = append(ends, s.failLocked(e, r.Failed))
		default:
			ends = append(ends, record.Ending{Result: r, How: record.Finished})
		}
		given[r.ID] = given[r.ID] || counts == 1
		out.Byte(&counts)
	}
	s.endLocked(ends)
	b := s.journal.Latest()
	s.mu.Unlock()
	return b.Settle(ctx)
}

// results waits for outcomes after a sequence number.
func (s *server) results(ctx context.Context, in, out *record.Coder) error {
	var after, most uint64
	in.Uint(&after)
	if in.Uint(&most); in.Bad || most == 0 || most > record.BatchMax {
		return errArgument
	}
	s.mu.Lock()
	for s.core.After(after) == len(s.core.Outcomes) {
		if err := s.awaitLocked(ctx); err != nil {
			return err
		}
	}
	var found []record.Outcome
	size := 0
	for _, e := range s.core.Outcomes[s.core.After(after):] {
		if size += len(e.Result.Data); uint64(len(found)) == most || size > record.ReplyMax {
			break
		}
		found = append(found, outcome(e))
	}
	b := s.journal.Latest()
	s.mu.Unlock()
	record.List(out, &found, (*record.Coder).Outcome)
	return b.Settle(ctx)
}

func outcome(e *core.Entry) record.Outcome {
	return record.Outcome{Seq: e.Seq, Key: e.Key, Result: e.Result}
}

// awaitLocked waits until tasks end. With an error the lock is not held any more.
func (s *server) awaitLocked(ctx context.Context) error {
	changed := s.changed
	s.mu.Unlock()
	select {
	case <-changed:
		s.mu.Lock()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait waits until a task has ended.
func (s *server) wait(ctx context.Context, in, out *record.Coder) error {
	var id uint64
	if in.Uint(&id); in.Bad {
		return errArgument
	}
	s.mu.Lock()
	for {
		e := s.core.Tasks[id]
		if e == nil {
			s.mu.Unlock()
			return &sigma.Error{Op: "queue.Wait", Path: s.cfg.Dir, Kind: sigma.KindInvalid,
				Msg:  fmt.Sprintf("the queue knows no task %d", id),
				Hint: "its outcome may be forgotten: serve the queue with a larger Keep, or read Results"}
		}
		if e.State == record.Finished || e.State == record.Buried {
			o, b := outcome(e), s.journal.Latest()
			s.mu.Unlock()
			out.Outcome(&o)
			return b.Settle(ctx)
		}
		if err := s.awaitLocked(ctx); err != nil {
			return err
		}
	}
}

func (s *server) forget(ctx context.Context, in, out *record.Coder) error {
	r := &record.Record{Kind: record.Forgotten}
	if in.Uint(&r.Seq); in.Bad {
		return errArgument
	}
	return s.change(ctx, r)
}

func (s *server) revive(ctx context.Context, in, out *record.Coder) error {
	return s.changeIDs(ctx, record.Revived, in)
}

func (s *server) drop(ctx context.Context, in, out *record.Coder) error {
	return s.changeIDs(ctx, record.Dropped, in)
}

func (s *server) changeIDs(ctx context.Context, k record.Kind, in *record.Coder) error {
	r := &record.Record{Kind: k}
	if record.List(in, &r.IDs, (*record.Coder).Uint); in.Bad || len(r.IDs) > record.BatchMax {
		return errArgument
	}
	return s.change(ctx, r)
}

func (s *server) change(ctx context.Context, r *record.Record) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	b := s.changeLocked(r)
	s.feedLocked()
	s.mu.Unlock()
	return b.Settle(ctx)
}

// dead lists dead tasks after an id, with their data.
func (s *server) dead(ctx context.Context, in, out *record.Coder) error {
	var after uint64
	if in.Uint(&after); in.Bad {
		return errArgument
	}
	s.mu.Lock()
	var found []*core.Entry
	for _, e := range s.core.Tasks {
		if e.State == record.Buried && e.ID > after {
			found = append(found, e)
		}
	}
	slices.SortFunc(found, func(a, b *core.Entry) int { return cmp.Compare(a.ID, b.ID) })
	var tasks []record.Dead
	size := 0
	for _, e := range found {
		if size += len(e.Task.Data) + record.EntryCost; size > record.ReplyMax {
			break
		}
		tasks = append(tasks, record.Dead{Held: record.Held{Hold: e.Hold, Task: e.Task}, Failed: e.Failed})
	}
	b := s.journal.Latest()
	s.mu.Unlock()
	record.List(out, &tasks, (*record.Coder).Dead)
	return b.Settle(ctx)
}

func (s *server) status(ctx context.Context, in, out *record.Coder) error {
	s.mu.Lock()
	q := s.core
	st := record.Status{Waiting: q.Counts[record.Waiting], Held: q.Counts[record.InHand],
		Done: q.Counts[record.Finished], Dead: q.Counts[record.Buried], Workers: len(s.parked), Bytes: q.Bytes,
		Submitted: q.Next - 1}
	if first := q.First(1); len(first) > 0 {
		st.Oldest = time.Since(q.Tasks[first[0]].Since)
	}
	b := s.journal.Latest()
	s.mu.Unlock()
	text, err := json.Marshal(st)
	if err != nil {
		return err
	}
	out.B = append(out.B, text...)
	return b.Settle(ctx)
}
