package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigmaos.dev/sigma/retry"
)

// work is what is under way of one Work.
type work struct {
	q       *Queue
	do      func(ctx context.Context, t Held) ([]byte, error)
	room    chan struct{} // holds a token for each task under way
	results chan Result
	tasks   sync.WaitGroup

	mu      sync.Mutex
	running map[Hold]context.CancelFunc // mu
}

// Work does tasks, n at a time, until ctx ends or the queue cannot be used. It extends leases while
// do runs, whose context ends when the lease is lost. An error of do is an attempt that failed; a
// result whose lease was lost does not count. When ctx ends, what has begun is told for one more
// lease's time.
func (q *Queue) Work(ctx context.Context, n int, do func(ctx context.Context, t Held) ([]byte, error)) error {
	w := &work{q: q, do: do, room: make(chan struct{}, n), results: make(chan Result, n),
		running: map[Hold]context.CancelFunc{}}
	telling, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() {
		retry.Pause(telling, max(q.Lease(), time.Second))
		stop()
	})()
	var rest sync.WaitGroup
	var failed error
	told := make(chan struct{})
	rest.Go(func() { w.extend(telling) })
	rest.Go(func() {
		defer close(told)
		failed = w.tell(telling)
	})
	err := w.acquire(ctx, told)
	w.tasks.Wait()
	close(w.results)
	<-told
	stop()
	rest.Wait()
	return errors.Join(err, failed)
}

// acquire begins tasks, as many as there is room for.
func (w *work) acquire(ctx context.Context, told <-chan struct{}) error {
	for {
		select {
		case w.room <- struct{}{}:
		case <-told:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		held, err := w.q.Acquire(ctx, cap(w.room)-len(w.room)+1)
		if err != nil {
			return err
		}
		<-w.room
		for _, t := range held {
			w.room <- struct{}{}
			w.begin(ctx, t)
		}
	}
}

// begin does a task.
func (w *work) begin(ctx context.Context, t Held) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.running[t.Hold] = cancel
	w.mu.Unlock()
	w.tasks.Go(func() {
		data, err := w.do(ctx, t)
		r := Result{Hold: t.Hold, Data: data}
		if err != nil {
			r.Data, r.Failed = nil, err.Error()
			if r.Failed == "" {
				r.Failed = "failed"
			}
		} else if len(data) > DataMax {
			r.Data, r.Failed = nil, "the result is larger than a queue takes"
		}
		w.results <- r
	})
}

// tell ends holds, those together that end at about the same time.
func (w *work) tell(ctx context.Context) (err error) {
	for r := range w.results {
		all := []Result{r}
		for len(w.results) > 0 && len(all) < cap(w.results) {
			all = append(all, <-w.results)
		}
		var stale *StaleError
		if derr := w.q.Done(ctx, all...); derr != nil && !errors.As(derr, &stale) && err == nil {
			err = derr
		}
		w.mu.Lock()
		for _, r := range all {
			w.running[r.Hold]()
			delete(w.running, r.Hold)
		}
		w.mu.Unlock()
		for range all {
			<-w.room
		}
	}
	return err
}

// extend extends the leases of what runs.
func (w *work) extend(ctx context.Context) {
	for retry.Pause(ctx, max(w.q.Lease()/3, minExtend)) {
		var holds []Hold
		w.mu.Lock()
		for h := range w.running {
			holds = append(holds, h)
		}
		w.mu.Unlock()
		var stale *StaleError
		if errors.As(w.q.Extend(ctx, holds...), &stale) {
			w.mu.Lock()
			for _, h := range stale.Holds {
				if cancel := w.running[h]; cancel != nil {
					cancel()
				}
			}
			w.mu.Unlock()
		}
	}
}

// minExtend is the least time between extensions, and before the lease's length is known.
const minExtend = 10 * time.Millisecond
