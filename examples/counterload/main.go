// Command counterload is a proc that counts at the members of a directory, by several keys at a
// time, until a file exists:
//
//	counterload DIRECTORY FILE
//
// Members may come and go meanwhile. It checks that each key counts every call once, as long as the
// key's range did not begin anew, and tells what it saw as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"sigmaos.dev/examples/counter"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	// keys is how many are counted, each by a goroutine of its own.
	keys = 64
	// callMax is how long a call may take while its range moves.
	callMax = 20 * time.Second
	// wrongMax bounds what is told of what went wrong.
	wrongMax = 20
)

// report is what the program prints.
type report struct {
	Calls      uint64   `json:"calls"`
	Redirected uint64   `json:"redirected"`
	Forwarded  uint64   `json:"forwarded"`
	Lost       int      `json:"lost"`  // calls of which nobody knows whether they were counted
	Anew       int      `json:"anew"`  // ranges that began anew, each time
	Wrong      []string `json:"wrong"` // what must not be
}

// load is the client.
type load struct {
	members *call.Router

	mu   sync.Mutex
	seen report          // mu
	anew map[string]bool // mu; by range and epoch
}

func run(ctx context.Context, dir, until string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	x := &load{members: call.NewRouter(c.Dialer(dir).Find, call.Config{}), anew: map[string]bool{}}
	defer x.members.Close()
	asking, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for i := range keys {
		workers.Go(func() { x.work(asking, fmt.Sprintf("%s-%d", until, i)) })
	}
	err = c.WaitFor(ctx, until)
	stop()
	workers.Wait()
	for _, m := range x.members.Stats() {
		x.seen.Calls += m.Calls
		x.seen.Redirected += m.Redirected
		x.seen.Forwarded += m.Forwarded
	}
	x.seen.Anew = len(x.anew)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(x.seen)
}

// work counts by one key until asking ends.
func (x *load) work(asking context.Context, key string) {
	var last int64 // the count that was answered last
	var began sigma.Epoch
	lost := int64(0) // calls since then that may have been counted
	for n := 0; asking.Err() == nil; n++ {
		m, more := counter.Add, int64(1)
		if n%8 == 7 {
			m, more = counter.Get, 0
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(asking), callMax)
		answer, err := x.members.Call(ctx, m, counter.RangeOf(key), []byte(key), nil)
		cancel()
		if err != nil && sigma.KindOf(err) == sigma.KindLost && m == counter.Add {
			lost++
			x.note(func() { x.seen.Lost++ })
			continue
		}
		var count int64
		var since sigma.Epoch
		if err == nil {
			count, since, err = counter.Parse(answer)
		}
		least := last + more
		if err == nil && since != began && began != 0 { // the member that had the range was killed
			least = 0
			x.note(func() { x.anew[fmt.Sprint(counter.RangeOf(key), " ", since)] = true })
		}
		most := least + lost
		if since != began {
			most = more + lost
		}
		if err != nil || since < began || count < least || count > most {
			x.note(func() {
				if len(x.seen.Wrong) < wrongMax {
					x.seen.Wrong = append(x.seen.Wrong, fmt.Sprintf("%s: %d since %d after %d since %d, %d lost: %v",
						key, count, since, last, began, lost, err))
				}
			})
			if err != nil {
				continue
			}
		}
		last, began, lost = count, since, 0
	}
}

func (x *load) note(what func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	what()
}
