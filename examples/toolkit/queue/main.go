// Command queue shows a work queue: two or more procs serve it, any number work, and one submits
// and reads the results.
//
//	sigma run queue serve /jobs
//	sigma run queue work /jobs
//	sigma run queue submit /jobs 100
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"sigmaos.dev/lib/queue"
	"sigmaos.dev/lib/queue/server"
	"sigmaos.dev/sdk"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: queue serve|work DIR, or queue submit DIR N")
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() { // evicted, it ends in good order
		if c.WaitEvict(ctx) == nil {
			stop()
		}
	}()
	q := queue.Open(c, args[1])
	defer q.Close()
	switch args[0] {
	case "serve":
		return serve(ctx, c, args[1])
	case "work":
		return work(ctx, q)
	}
	n, err := strconv.Atoi(args[len(args)-1])
	if err != nil {
		return err
	}
	return submit(ctx, q, n)
}

// serve is one of the queue's servers. One leads, the others stand by.
func serve(ctx context.Context, c *sdk.Client, dir string) error {
	return server.Serve(ctx, c, server.Config{Dir: dir, Lease: 2 * time.Second, Attempts: 100, Keep: 1_000_000}, nil)
}

// work does 16 tasks at a time. What it returns counts if the task is still this worker's.
func work(ctx context.Context, q *queue.Queue) error {
	return q.Work(ctx, 16, func(_ context.Context, t queue.Held) ([]byte, error) {
		n, err := strconv.Atoi(string(t.Data))
		if err != nil {
			return nil, err // another attempt, or dead after the last
		}
		return strconv.AppendInt(nil, int64(n*n), 10), nil
	})
}

// submit enters tasks and prints their results as they come.
func submit(ctx context.Context, q *queue.Queue, n int) error {
	tasks := make([]queue.Task, n)
	for i := range tasks {
		tasks[i] = queue.Task{Key: fmt.Sprint("square of ", i), Data: strconv.AppendInt(nil, int64(i), 10)}
	}
	if _, err := q.Submit(ctx, tasks...); err != nil {
		return err
	}
	for after := uint64(0); n > 0; {
		found, err := q.Results(ctx, after, 100)
		if err != nil {
			return err
		}
		for _, o := range found {
			fmt.Printf("%s: %s%s\n", o.Key, o.Data, o.Failed)
			after = o.Seq
		}
		n -= len(found)
	}
	return nil
}
