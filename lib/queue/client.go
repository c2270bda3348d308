package queue

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	"sigmaos.dev/lib/queue/journal"
	"sigmaos.dev/lib/queue/record"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// What programs submit, work at and read. Their fields are those of package record.
type (
	Task    = record.Task
	Hold    = record.Hold
	Held    = record.Held
	Dead    = record.Dead
	Result  = record.Result
	Outcome = record.Outcome
	Status  = record.Status
)

// Bounds of what a task and one request have.
const (
	DataMax  = record.DataMax
	BatchMax = record.BatchMax
)

// againPause is the time before a request is made again; it grows tenfold.
const againPause = 10 * time.Millisecond

// requestsMax is how many requests of one Queue are under way at a time; more wait.
const requestsMax = 64

// Queue is a queue as those use it that submit, work and read. What concerns more tasks than one
// message carries is divided. Each request is made until it is answered or ctx ends, whichever
// server leads. Safe for concurrent use.
type Queue struct {
	dir   string
	names interface {
		WaitFor(ctx context.Context, path string) error
	}
	calls *call.Client
	name  string
	room  chan struct{}

	mu       sync.Mutex
	seq      uint64          // mu; of the last submission
	underWay map[uint64]bool // mu; submissions
	lease    time.Duration   // mu; that the queue's workers have, once it is known
}

// Open gives the queue in a directory. It asks nobody, and there need not be a server yet. Close
// it.
func Open(c *sdk.Client, dir string) *Queue {
	d := c.Dialer(dir + "/leader")
	return OpenBy(c, dir, func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, "") })
}

// OpenBy is Open of a queue whose leader dial connects to, found otherwise.
func OpenBy(n interface {
	WaitFor(ctx context.Context, path string) error
}, dir string, dial func(context.Context) (net.Conn, error)) *Queue {
	return &Queue{dir: dir, names: n, calls: call.NewClient(dial, call.Config{CallsMax: 4096}), name: rand.Text(),
		room: make(chan struct{}, requestsMax), underWay: map[uint64]bool{}}
}

// Close ends the connection; what is under way fails.
func (q *Queue) Close() error { return q.calls.Close() }

// do makes a request until it is answered.
func (q *Queue) do(ctx context.Context, m *call.Method, arg []byte) (*record.Coder, error) {
	for wait := againPause; ; wait = min(2*wait, 10*againPause) {
		reply, err := q.calls.Call(ctx, m, arg, nil)
		switch kind := sigma.KindOf(err); {
		case err == nil:
			return &record.Coder{B: reply, Reading: true}, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case kind == sigma.KindNotFound: // nobody leads
			if err := q.names.WaitFor(ctx, q.dir+"/leader"); err != nil && sigma.KindOf(err) != sigma.KindNotFound {
				return nil, err
			}
		case kind != sigma.KindLost && kind != sigma.KindCanceled && kind != sigma.KindStale && !kind.Retryable():
			return nil, err
		}
		if !retry.Pause(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// Submit enters tasks, in order, and gives their ids. It enters each once, however often servers
// die meanwhile; after an error some may have been entered. KindTooBig: beyond DataMax;
// KindNoSpace: the queue is full.
func (q *Queue) Submit(ctx context.Context, tasks ...Task) (ids []uint64, err error) {
	for _, t := range tasks {
		if len(t.Data) > DataMax || len(t.Key) > record.KeyMax {
			return nil, &sigma.Error{Op: "queue.Submit", Path: q.dir, Kind: sigma.KindTooBig,
				Msg:  fmt.Sprintf("a task has %d bytes and a key of %d; the most are %d and %d", len(t.Data), len(t.Key), DataMax, record.KeyMax),
				Hint: "put the data into a file and submit its path"}
		}
	}
	for len(tasks) > 0 && err == nil {
		n := part(tasks, func(t Task) int { return len(t.Key) + len(t.Data) })
		var some []uint64
		some, err = q.submit(ctx, tasks[:n])
		ids, tasks = append(ids, some...), tasks[n:]
	}
	return ids, sigma.Wrap("queue.Submit", q.dir, err)
}

// part is how many of some things fit one request.
func part[T any](all []T, size func(T) int) (n int) {
	for total := 0; n < len(all) && n < BatchMax; n++ {
		if total += size(all[n]) + record.HoldCost; n > 0 && total > journal.BatchMax-1024 {
			break
		}
	}
	return n
}

func (q *Queue) submit(ctx context.Context, tasks []Task) (ids []uint64, err error) {
	select {
	case q.room <- struct{}{}:
		defer func() { <-q.room }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	q.mu.Lock()
	q.seq++
	seq, oldest := q.seq, q.seq
	q.underWay[seq] = true
	for s := range q.underWay {
		oldest = min(oldest, s)
	}
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.underWay, seq)
		q.mu.Unlock()
	}()
	arg := &record.Coder{}
	arg.Text(&q.name)
	arg.Uint(&seq)
	arg.Uint(&oldest)
	record.List(arg, &tasks, (*record.Coder).Task)
	reply, err := q.do(ctx, record.CallSubmit, arg.B)
	if err != nil {
		return nil, err
	}
	record.List(reply, &ids, (*record.Coder).Uint)
	return ids, q.whole(reply, len(ids) == len(tasks))
}

// whole checks that an answer was one.
func (q *Queue) whole(c *record.Coder, ok bool) error {
	if c.Bad || !ok {
		return &sigma.Error{Op: "queue.Queue", Path: q.dir, Kind: sigma.KindInvalid, Msg: "the server's answer is none",
			Hint: "see that who serves the queue is built of the same version"}
	}
	return nil
}

// Acquire waits until there are tasks and takes up to n, in order of arrival. They are held by the
// caller until Done, or until the lease ends that the queue's Config says.
func (q *Queue) Acquire(ctx context.Context, n int) (tasks []Held, err error) {
	most, lease := uint64(max(min(n, BatchMax), 1)), uint64(0)
	arg := &record.Coder{}
	arg.Uint(&most)
	reply, err := q.do(ctx, record.CallAcquire, arg.B)
	if err == nil {
		reply.Uint(&lease)
		record.List(reply, &tasks, (*record.Coder).Held)
		err = q.whole(reply, true)
		q.mu.Lock()
		q.lease = time.Duration(lease)
		q.mu.Unlock()
	}
	return tasks, sigma.Wrap("queue.Acquire", q.dir, err)
}

// Lease is how long tasks are held without Extend, once Acquire has been answered.
func (q *Queue) Lease() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.lease
}

// Extend begins the leases of holds anew. The error is a *StaleError if some have ended.
func (q *Queue) Extend(ctx context.Context, holds ...Hold) error {
	return answerEach(ctx, q, record.CallExtend, holds, (*record.Coder).Hold, func(h Hold) (Hold, int) { return h, 0 })
}

// Done ends holds. A result is kept and its task ended in one step, or neither: it does not count
// if the lease has ended and the task may be another's. The error is a *StaleError then; all others
// count.
func (q *Queue) Done(ctx context.Context, results ...Result) error {
	for i := range results {
		if r := &results[i]; len(r.Data) > DataMax {
			return &sigma.Error{Op: "queue.Done", Path: q.dir, Kind: sigma.KindTooBig,
				Msg:  fmt.Sprintf("a result has %d bytes; the most are %d", len(r.Data), DataMax),
				Hint: "put the data into a file whose name has the attempt, and give its path"}
		} else if len(r.Failed) > record.FailedMax {
			r.Failed = r.Failed[:record.FailedMax]
		}
	}
	return answerEach(ctx, q, record.CallDone, results, (*record.Coder).Result, func(r Result) (Hold, int) {
		return r.Hold, len(r.Data) + len(r.Failed)
	})
}

// StaleError lists holds that are none any more: their leases have ended.
type StaleError struct {
	Holds []Hold
	err   *sigma.Error
}

func (e *StaleError) Error() string { return e.err.Error() }

// Unwrap gives an error of KindStale.
func (e *StaleError) Unwrap() error { return e.err }

// answerEach makes requests that are answered by one byte for each of all.
func answerEach[T any](ctx context.Context, q *Queue, m *call.Method, all []T, code func(*record.Coder, *T),
	of func(T) (Hold, int)) error {
	stale := &StaleError{}
	for len(all) > 0 {
		n := part(all, func(v T) int { _, size := of(v); return size })
		some := all[:n]
		all = all[n:]
		arg := &record.Coder{}
		record.List(arg, &some, code)
		reply, err := q.do(ctx, m, arg.B)
		if err != nil {
			return sigma.Wrap("queue."+m.Name, q.dir, err)
		}
		for _, v := range some {
			var valid uint8
			if reply.Byte(&valid); valid == 0 {
				hold, _ := of(v)
				stale.Holds = append(stale.Holds, hold)
			}
		}
		if err := q.whole(reply, true); err != nil {
			return err
		}
	}
	if len(stale.Holds) == 0 {
		return nil
	}
	stale.err = &sigma.Error{Op: "queue." + m.Name, Path: q.dir, Kind: sigma.KindStale,
		Msg:  fmt.Sprintf("%d tasks are not held by this worker any more", len(stale.Holds)),
		Hint: "extend leases in time, or serve the queue with a longer Lease"}
	return stale
}

// Results waits until there are outcomes after a sequence number, 0 at first, and gives up to n, in
// the order of endings.
func (q *Queue) Results(ctx context.Context, after uint64, n int) (found []Outcome, err error) {
	arg, most := &record.Coder{}, uint64(max(min(n, BatchMax), 1))
	arg.Uint(&after)
	arg.Uint(&most)
	reply, err := q.do(ctx, record.CallResults, arg.B)
	if err == nil {
		record.List(reply, &found, (*record.Coder).Outcome)
		err = q.whole(reply, true)
	}
	return found, sigma.Wrap("queue.Results", q.dir, err)
}

// Wait waits until a task has ended. KindInvalid: the queue does not know it any more.
func (q *Queue) Wait(ctx context.Context, id uint64) (o Outcome, err error) {
	reply, err := q.do(ctx, record.CallWait, uints(id))
	if err == nil {
		reply.Outcome(&o)
		err = q.whole(reply, true)
	}
	return o, sigma.Wrap("queue.Wait", q.dir, err)
}

// Forget lets the queue forget outcomes up to a sequence number. Dead tasks stay until they are
// revived or dropped.
func (q *Queue) Forget(ctx context.Context, upTo uint64) error {
	_, err := q.do(ctx, record.CallForget, uints(upTo))
	return sigma.Wrap("queue.Forget", q.dir, err)
}

// Dead lists dead tasks, in order of arrival, after an id; none when there are no more.
func (q *Queue) Dead(ctx context.Context, after uint64) (tasks []Dead, err error) {
	reply, err := q.do(ctx, record.CallDead, uints(after))
	if err == nil {
		record.List(reply, &tasks, (*record.Coder).Dead)
		err = q.whole(reply, true)
	}
	return tasks, sigma.Wrap("queue.Dead", q.dir, err)
}

// Revive has dead tasks wait again, as if they had not been tried.
func (q *Queue) Revive(ctx context.Context, ids ...uint64) error {
	return q.changeIDs(ctx, record.CallRevive, ids)
}

// Drop removes dead tasks.
func (q *Queue) Drop(ctx context.Context, ids ...uint64) error {
	return q.changeIDs(ctx, record.CallDrop, ids)
}

func (q *Queue) changeIDs(ctx context.Context, m *call.Method, ids []uint64) error {
	for len(ids) > 0 {
		n := min(len(ids), BatchMax)
		some := ids[:n]
		arg := &record.Coder{}
		record.List(arg, &some, (*record.Coder).Uint)
		if _, err := q.do(ctx, m, arg.B); err != nil {
			return sigma.Wrap("queue."+m.Name, q.dir, err)
		}
		ids = ids[n:]
	}
	return nil
}

// Status counts.
func (q *Queue) Status(ctx context.Context) (st Status, err error) {
	reply, err := q.do(ctx, record.CallStatus, nil)
	if err == nil {
		err = json.Unmarshal(reply.B, &st)
	}
	return st, sigma.Wrap("queue.Status", q.dir, err)
}

func uints(v uint64) []byte {
	c := &record.Coder{}
	c.Uint(&v)
	return c.B
}
