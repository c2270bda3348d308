// Command history is a proc that puts and gets registers of a fleet for some time, and prints what
// it asked and was told as a history. The fleet's program is examples/register. Each run has keys
// of its own, since a history begins with keys that are not there.
//
//	history FLEET CLIENTS TIME
package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/lib/history"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: history FLEET CLIENTS TIME")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

const (
	keys    = 3
	callMax = 2 * time.Second      // what takes longer has an unknown result
	pause   = 3 * time.Millisecond // between a client's operations
)

var (
	get = &call.Method{Name: "register/Get", Idempotent: true}
	put = &call.Method{Name: "register/Put"}
)

func run(ctx context.Context, name, clients, long string) error {
	n, err := strconv.Atoi(clients)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(long)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	members := c.Dialer(fleet.Members(name))
	dial := func(ctx context.Context) (net.Conn, error) { return members.Dial(ctx, "") }
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	rec := history.NewRecorder(out)
	prefix := strconv.FormatInt(time.Now().UnixNano()%1e9, 36) + "-"
	until := time.Now().Add(d)
	var all sync.WaitGroup
	for id := range n {
		all.Go(func() {
			calls := call.NewClient(dial, call.Config{})
			defer calls.Close()
			for i := 0; time.Now().Before(until); i++ {
				key := history.Text(prefix + strconv.Itoa(rand.IntN(keys)))
				one(ctx, rec, calls, history.Op{Client: id, Key: key}, fmt.Sprintf("%d-%d", id, i))
				time.Sleep(pause)
			}
		})
	}
	all.Wait()
	_, err = rec.Close()
	return err
}

// one puts a value that nobody else puts, or gets one, and records it.
func one(ctx context.Context, rec *history.Recorder, calls *call.Client, op history.Op, value string) {
	ctx, cancel := context.WithTimeout(ctx, callMax)
	defer cancel()
	op.Kind = history.Get
	if rand.IntN(4) == 0 {
		op.Kind, op.In = history.Put, history.Text(value)
	}
	// The error becomes the result: what was refused did not happen, what was lost may have.
	_ = rec.Do(op, func(op *history.Op) error {
		if op.Kind == history.Put {
			_, err := calls.Call(ctx, put, []byte(op.Key+" "+op.In), nil)
			return err
		}
		answer, err := calls.Call(ctx, get, []byte(op.Key), nil)
		op.Out = history.Text(answer)
		return err
	})
}
