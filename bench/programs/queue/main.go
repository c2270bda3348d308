// Command queue is the client, and for sigmaOS the server, of the bench of work queues:
//
//	queue serve DIR                                 serves a queue of sigmaOS, as a proc
//	queue run sigma DIR BATCH MEMBERS SECONDS       measures it, as a proc
//	queue run redis ADDRESS BATCH MEMBERS SECONDS   measures a stream of Redis
//
// So many MEMBERS submit tasks and so many work, each BATCH of them with one request; a task is
// submitted, acquired under a lease and done, each acknowledged before the next request of the same
// member. It prints tasks done per second as JSON, and how long lone tasks took from submission to
// end.
package main

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/lib/queue"
	"sigmaos.dev/lib/queue/server"
	"sigmaos.dev/sdk"
)

const (
	taskBytes = 100
	window    = 8192 // tasks that are submitted and not done, so that workers find some
	lones     = 100
)

// service is a work queue.
type service interface {
	// member makes the connection of one submitter or worker.
	member(ctx context.Context) (member, error)
}

// member is one submitter or worker.
type member interface {
	submit(ctx context.Context, tasks [][]byte) error
	// work takes up to n tasks, waiting for one, and ends them.
	work(ctx context.Context, n int) (done int, err error)
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, args []string) error {
	if args[0] == "serve" {
		return serve(ctx, args[1])
	}
	numbers := make([]int, 3)
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.Atoi(args[3+i]); err != nil {
			return err
		}
	}
	var s service = &redisService{address: args[2]}
	if args[1] == "sigma" {
		c, err := sdk.Open(ctx)
		if err != nil {
			return err
		}
		s = sigmaService{c, args[2]}
	}
	rep, err := measure(ctx, s, numbers[0], numbers[1], time.Duration(numbers[2])*time.Second)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(rep)
}

func serve(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	return server.Serve(ctx, c, server.Config{Dir: dir}, nil)
}

// report is what was measured.
type report struct {
	PerSecond float64   `json:"tasks_per_s"`
	Lone      []float64 `json:"lone_us"`
	Tasks     int64     `json:"tasks"` // of the whole run
}

func measure(ctx context.Context, s service, batch, members int, span time.Duration) (r report, err error) {
	one, err := s.member(ctx)
	if err != nil {
		return r, err
	}
	data := make([]byte, taskBytes)
	for range lones {
		began := time.Now()
		if err := one.submit(ctx, [][]byte{data}); err != nil {
			return r, err
		}
		if _, err := one.work(ctx, 1); err != nil {
			return r, err
		}
		r.Lone = append(r.Lone, float64(time.Since(began).Nanoseconds())/1e3)
	}
	l := &load{s: s, batch: batch, room: make(chan struct{}, window/batch)}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	submitting, enough := context.WithCancel(ctx)
	defer enough()
	var submitters, workers sync.WaitGroup
	for range members {
		submitters.Go(func() { stopIf(stop, l.submits(ctx, submitting)) })
		workers.Go(func() { stopIf(stop, l.works(ctx)) })
	}
	sleep(ctx, span/4) // until it runs
	began, before := time.Now(), l.done.Load()
	sleep(ctx, span)
	r.PerSecond = float64(l.done.Load()-before) / time.Since(began).Seconds()
	enough()
	submitters.Wait()
	for range window / batch { // until all is done
		select {
		case l.room <- struct{}{}:
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
	}
	stop(nil)
	workers.Wait()
	r.Tasks = l.done.Load() + lones
	return r, nil
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func stopIf(stop context.CancelCauseFunc, err error) {
	if err != nil {
		stop(err)
	}
}

// load is the members at work.
type load struct {
	s     service
	batch int
	room  chan struct{} // holds one for each batch that is under way
	done  atomic.Int64
}

func (l *load) submits(ctx, until context.Context) error {
	m, err := l.s.member(ctx)
	if err != nil {
		return err
	}
	tasks := make([][]byte, l.batch)
	for i := range tasks {
		tasks[i] = make([]byte, taskBytes)
	}
	for {
		select {
		case l.room <- struct{}{}:
		case <-until.Done():
			return nil
		}
		if err := m.submit(ctx, tasks); err != nil {
			return unlessOver(ctx, err)
		}
	}
}

func (l *load) works(ctx context.Context) error {
	m, err := l.s.member(ctx)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		n, err := m.work(ctx, l.batch)
		if err != nil {
			return unlessOver(ctx, err)
		}
		before := int(l.done.Add(int64(n))) - n
		for range (before+n)/l.batch - before/l.batch {
			<-l.room
		}
	}
	return nil
}

func unlessOver(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// sigmaService is a queue of lib/queue.
type sigmaService struct {
	c   *sdk.Client
	dir string
}

func (s sigmaService) member(context.Context) (member, error) {
	return sigmaMember{queue.Open(s.c, s.dir)}, nil
}

type sigmaMember struct{ q *queue.Queue }

func (m sigmaMember) submit(ctx context.Context, tasks [][]byte) error {
	all := make([]queue.Task, len(tasks))
	for i, t := range tasks {
		all[i].Data = t
	}
	_, err := m.q.Submit(ctx, all...)
	return err
}

func (m sigmaMember) work(ctx context.Context, n int) (int, error) {
	held, err := m.q.Acquire(ctx, n)
	if err != nil {
		return 0, err
	}
	results := make([]queue.Result, len(held))
	for i, t := range held {
		results[i].Hold = t.Hold
	}
	return len(held), m.q.Done(ctx, results...)
}
