// Command ledgerclient is a proc that calls ledger.Ledger at the servers in the directory that it
// is given, with calls of every kind, and then all of them at once.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"sigmaos.dev/examples/ledger"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err, sigma.HintOf(err))
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	servers := c.Dialer(dir)
	calls := call.NewClient(func(ctx context.Context) (net.Conn, error) { return servers.Dial(ctx, "") }, call.Config{})
	defer calls.Close()
	book := ledger.NewLedgerClient(calls)

	_, err = book.Balance(ctx, &ledger.BalanceRequest{Account: "till"})
	fmt.Println(sigma.KindOf(err))

	balance, err := book.Enter(ctx, &ledger.Entry{Account: "till", Cents: 250, Reason: ledger.Reason_REASON_SALE})
	if err != nil {
		return err
	}
	fmt.Println("after a sale", balance.Cents)

	entries, err := book.Import(ctx)
	if err != nil {
		return err
	}
	for range 100 {
		if err := entries.Send(&ledger.Entry{Account: "till", Cents: 1}); err != nil {
			break // Finish tells why
		}
	}
	imported, err := entries.Finish()
	if err != nil {
		return err
	}
	fmt.Println("imported", imported.Entries)

	till, err := book.Follow(ctx, &ledger.BalanceRequest{Account: "till"})
	if err != nil {
		return err
	}
	defer till.Close()
	if _, err := till.Recv(); err != nil { // it has begun
		return err
	}
	teller, err := book.Teller(ctx)
	if err != nil {
		return err
	}
	defer teller.Close()
	if err := teller.Send(&ledger.Entry{Account: "till", Cents: -50, Reason: ledger.Reason_REASON_REFUND}); err != nil {
		return err
	}
	if balance, err = teller.Recv(); err != nil {
		return err
	}
	entry, err := till.Recv()
	if err != nil {
		return err
	}
	fmt.Println("after", entry.Cents, "for", entry.Reason, balance.Cents)

	group := call.NewGroup(servers.Members, call.Config{})
	defer group.Close()
	tills, err := ledger.NewLedgerGroup(group).Balance(ctx, &ledger.BalanceRequest{Account: "till"})
	if err != nil {
		return err
	}
	for _, a := range tills {
		fmt.Println("a ledger has", a.Message.GetCents(), a.Err)
	}
	return nil
}
