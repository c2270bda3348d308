// Command calls is both sides of the bench call: package call over an endpoint as a proc, grpc-go
// and net/http over a UNIX or TCP socket as ordinary processes:
//
//	calls serve sigma|socket|ring|plain|grpc-go|nethttp ADDRESS
//	calls call  sigma|socket|ring|plain|grpc-go|nethttp ADDRESS BYTES IN_FLIGHT MILLISECONDS
//
// socket and ring are sigma with a transport forced; the address of all three is a path, that of
// the others "unix:PATH" or "tcp:HOST:PORT". plain is package call over such, for profiles. All of
// them make protobuf messages of the bytes but net/http, whose bodies they are, and all of them
// have one connection but net/http, which has one for each request in flight. A server prints a
// line when it listens. A client prints how many calls were answered, in how many nanoseconds, and
// how many of the processors' both sides used meanwhile.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sdk/call"
	"sigmaos.dev/wire/ring"
)

// transports are the kinds that are endpoints.
var transports = map[string]ring.Transport{"sigma": ring.Automatic, "socket": ring.Socket, "ring": ring.Shared}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "serve" {
		return serve(ctx, args[1], args[2])
	}
	if len(args) != 6 || args[0] != "call" {
		return errors.New("calls serve KIND ADDRESS | calls call KIND ADDRESS BYTES IN_FLIGHT MILLISECONDS")
	}
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(args[3+i]); err != nil {
			return err
		}
	}
	c, err := connect(ctx, args[1], args[2], n[1])
	if err != nil {
		return err
	}
	return measure(ctx, c, n[0], n[1], time.Duration(n[2])*time.Millisecond)
}

// caller is the client's side of one kind.
type caller interface {
	// worker gives a function that makes a call with that argument and checks the answer, for one
	// goroutine.
	worker(arg []byte) func(ctx context.Context) error
	// used is what the server has used of the processors.
	used(ctx context.Context) (time.Duration, error)
}

// warm is how long calls are made before they count: connections are made, and find their
// transport.
const warm = 150 * time.Millisecond

// patience is how long the first call may take.
const patience = 10 * time.Second

func measure(ctx context.Context, c caller, size, flight int, span time.Duration) error {
	var calls atomic.Int64
	var failed atomic.Pointer[error]
	var stop atomic.Bool
	var workers sync.WaitGroup
	for range flight {
		workers.Go(func() {
			ask := c.worker(make([]byte, size))
			n := int64(0)
			for !stop.Load() {
				if err := ask(ctx); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				if n++; n == 8 || flight > 1 { // one who is alone does not share the counter's line with anybody
					calls.Add(n)
					n = 0
				}
			}
			calls.Add(n)
		})
	}
	time.Sleep(warm)
	before, err := c.used(ctx)
	if err != nil {
		return err
	}
	own, first, began := used(), calls.Load(), time.Now()
	time.Sleep(span)
	for calls.Load() == first && failed.Load() == nil && time.Since(began) < patience { // the host is that busy
		time.Sleep(span)
	}
	took, created := time.Since(began), calls.Load()-first
	cpu := used() - own
	after, err := c.used(ctx)
	stop.Store(true)
	workers.Wait()
	if e := failed.Load(); e != nil {
		err = *e
	}
	if err == nil && created == 0 {
		err = errors.New("not one call was answered")
	}
	if err != nil {
		return err
	}
	_, err = fmt.Println(created, took.Nanoseconds(), (cpu + after - before).Nanoseconds())
	return err
}

// used is what this process has used of the processors.
func used() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// appendUsed is what servers answer.
func appendUsed(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(b, uint64(used()))
}

func readUsed(b []byte, err error) (time.Duration, error) {
	if err == nil && len(b) != 8 {
		err = fmt.Errorf("%d bytes instead of 8", len(b))
	}
	if err != nil {
		return 0, err
	}
	return time.Duration(binary.LittleEndian.Uint64(b)), nil
}

func check(answer, arg int, err error) error {
	if err == nil && answer != arg {
		err = fmt.Errorf("%d bytes came back of %d", answer, arg)
	}
	return err
}

// plain splits the address of an ordinary socket.
func plain(address string) (network, at string) {
	network, at, _ = strings.Cut(address, ":")
	return network, at
}

func serve(ctx context.Context, kind, address string) error {
	if transport, ours := transports[kind]; ours {
		return serveSigma(ctx, transport, address)
	}
	l, err := net.Listen(plain(address))
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	switch kind {
	case "plain":
		s, err := newServer()
		if err != nil {
			return err
		}
		return s.ServeNet(ctx, l)
	case "grpc-go":
		return serveGRPC(l)
	}
	return serveHTTP(l)
}

func connect(ctx context.Context, kind, address string, flight int) (caller, error) {
	if transport, ours := transports[kind]; ours {
		return newSigma(ctx, transport, address)
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		network, at := plain(address)
		return (&net.Dialer{}).DialContext(ctx, network, at)
	}
	switch kind {
	case "plain":
		return sigmaCaller{call.NewClient(dial, call.Config{})}, nil
	case "grpc-go":
		return newGRPC(dial)
	}
	return newHTTP(dial, flight), nil
}
