// Command ledgerload is a proc that calls the ledgers in a directory by generated code, with a few
// calls at a time, until a file exists:
//
//	ledgerload DIRECTORY FILE
//
// Servers may come and go meanwhile. It tells how many calls were answered, and which were not.
// Calls of Balance, which may be made again, never fail for a server that dies; a call of Enter is
// lost if it was under way there.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"sigmaos.dev/examples/ledger"
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

// atOnce is how many calls are made at a time.
const atOnce = 4

func run(ctx context.Context, dir, until string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	servers := c.Dialer(dir)
	calls := call.NewClient(func(ctx context.Context) (net.Conn, error) { return servers.Dial(ctx, "") }, call.Config{})
	defer calls.Close()
	book := ledger.NewLedgerClient(calls)
	asking, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	var mu sync.Mutex
	answered, lost, failed := 0, 0, 0 // mu
	for worker := range atOnce {
		workers.Go(func() {
			for asking.Err() == nil {
				var err error
				if worker%2 == 0 {
					_, err = book.Enter(ctx, &ledger.Entry{Account: "load", Cents: 1})
				} else if _, err = book.Balance(ctx,
					&ledger.BalanceRequest{Account: "load"}); sigma.KindOf(err) == sigma.KindNotFound {
					err = nil // a server that has just come says so
				}
				mu.Lock()
				switch {
				case err == nil:
					answered++
				case worker%2 == 0 && sigma.KindOf(err) == sigma.KindLost:
					lost++
				default:
					if failed++; failed <= 100 {
						fmt.Printf("failed at nobody: %v\n", err)
					}
				}
				mu.Unlock()
			}
		})
	}
	err = c.WaitFor(ctx, until)
	stop()
	workers.Wait()
	fmt.Printf("%d answered, %d failed, %d lost\n", answered, failed, lost)
	return err
}
