// Command grpcclient is a proc that calls the gRPC servers in a directory, with a few calls at a
// time, until a file exists:
//
//	grpcclient DIRECTORY FILE
//
// Servers may come and go meanwhile. It tells how many calls were answered, and which were not,
// with the proc they were sent to.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"sigmaos.dev/sdk"
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
	// The connection is a realm's own and goes through nobody else, so it needs no TLS. The name in
	// the target means nothing to the dialer.
	conn, err := grpc.NewClient("passthrough:///greeter", grpc.WithContextDialer(c.Dialer(dir).Dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	asking, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	var mu sync.Mutex
	answered, failed := 0, 0 // mu
	for range atOnce {
		workers.Go(func() {
			for asking.Err() == nil {
				to, err := ask(ctx, conn)
				mu.Lock()
				if err == nil {
					answered++
				} else if failed++; failed <= 100 {
					fmt.Printf("failed at %s: %v\n", to, err)
				}
				mu.Unlock()
			}
		})
	}
	err = c.WaitFor(ctx, until)
	stop()
	workers.Wait()
	fmt.Printf("%d answered, %d failed\n", answered, failed)
	return err
}

// ask makes a call, and says to which address it went. WaitForReady lets it wait while a server is
// being looked for.
func ask(ctx context.Context, conn *grpc.ClientConn) (to string, err error) {
	var at peer.Peer
	var answer wrapperspb.StringValue
	err = conn.Invoke(ctx, "/example.Greeter/Greet", wrapperspb.String("hello"), &answer, grpc.WaitForReady(true),
		grpc.Peer(&at))
	if err == nil && !strings.HasPrefix(answer.Value, "hello, ") {
		err = fmt.Errorf("answered %q", answer.Value)
	}
	if at.Addr == nil {
		return "nobody", err
	}
	return at.Addr.String(), err
}
