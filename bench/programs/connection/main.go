// Command connection is both sides of the benches dial and endpoint, over an endpoint as a proc, and over a UNIX or TCP socket as an ordinary process:
//
//	connection serve sigma|socket|ring|unix|tcp ADDRESS
//	connection dial|echo|first|stream sigma|socket|ring|unix|tcp ADDRESS COUNT
//
// socket and ring are sigma with a transport forced. The address of all three is a path; first prints the nanoseconds from dialling until each of the first COUNT answers was there. A server prints where it listens. A client prints one figure for each dial or round trip in nanoseconds, or for a stream the nanoseconds that COUNT blocks took.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"sigmaos.dev/ring"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	messageBytes = 64
	blockBytes   = 64 << 10
)

// transports are the networks that are endpoints.
var transports = map[string]ring.Transport{"sigma": ring.Automatic, "socket": ring.Socket, "ring": ring.Shared}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, what, network, address string) error {
	if what == "serve" {
		return serve(ctx, network, address)
	}
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		return err
	}
	dial := func() (net.Conn, error) { return net.Dial(network, address) }
	if transport, ours := transports[network]; ours {
		c, err := sdk.Open(ctx)
		if err != nil {
			return err
		}
		c.UseTransport(transport)
		text, err := c.ReadLink(ctx, address)
		if err != nil {
			return err
		}
		e, err := sigma.ParseEndpoint(text)
		if err != nil {
			return err
		}
		dial = func() (net.Conn, error) { return c.Dial(ctx, e) }
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	switch what {
	case "dial":
		for range count {
			d, conn, err := connect(dial)
			if err != nil {
				return err
			}
			conn.Close()
			fmt.Fprintln(out, d.Nanoseconds())
		}
		return nil
	case "echo":
		return echo(dial, count, out)
	case "first":
		return first(dial, count, out)
	case "stream":
		return stream(dial, count, out)
	}
	return fmt.Errorf("no such word: %s", what)
}

// connect dials and waits until the server has accepted.
func connect(dial func() (net.Conn, error)) (time.Duration, net.Conn, error) {
	began := time.Now()
	conn, err := dial()
	if err != nil {
		return 0, nil, err
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		conn.Close()
		return 0, nil, err
	}
	return time.Since(began), conn, nil
}

func echo(dial func() (net.Conn, error), count int, out io.Writer) error {
	_, conn, err := connect(dial)
	if err != nil {
		return err
	}
	defer conn.Close()
	message := make([]byte, messageBytes)
	message[0] = 'e'
	for range count {
		began := time.Now()
		if _, err := conn.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		fmt.Fprintln(out, time.Since(began).Nanoseconds())
	}
	return nil
}

func first(dial func() (net.Conn, error), count int, out io.Writer) error {
	began := time.Now()
	_, conn, err := connect(dial)
	if err != nil {
		return err
	}
	defer conn.Close()
	message := make([]byte, messageBytes)
	message[0] = 'e'
	at := make([]time.Duration, count)
	for i := range at {
		if _, err := conn.Write(message); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, message); err != nil {
			return err
		}
		at[i] = time.Since(began)
	}
	for _, d := range at {
		fmt.Fprintln(out, d.Nanoseconds())
	}
	return nil
}

func stream(dial func() (net.Conn, error), count int, out io.Writer) error {
	_, conn, err := connect(dial)
	if err != nil {
		return err
	}
	defer conn.Close()
	block := make([]byte, blockBytes)
	block[0] = 's'
	began := time.Now()
	for range count {
		if _, err := conn.Write(block); err != nil {
			return err
		}
	}
	if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, block[:1]); err != nil { // the server has read all
		return err
	}
	_, err = fmt.Fprintln(out, time.Since(began).Nanoseconds())
	return err
}

func serve(ctx context.Context, network, address string) error {
	var l net.Listener
	var err error
	if transport, ours := transports[network]; ours {
		c, err := sdk.Open(ctx)
		if err != nil {
			return err
		}
		c.UseTransport(transport)
		own, err := c.Listen(ctx, sigma.FormStream)
		if err != nil {
			return err
		}
		if err := c.Publish(ctx, address, own.Endpoint(), 0); err != nil {
			return err
		}
		if err := c.Started(ctx); err != nil {
			return err
		}
		l = own
	} else if l, err = net.Listen(network, address); err != nil {
		return err
	}
	fmt.Println(l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if _, err := conn.Write([]byte{'k'}); err == nil {
			go answer(conn)
		}
	}
}

// answer does what the first byte asks for.
func answer(conn net.Conn) {
	defer conn.Close()
	block := make([]byte, blockBytes)
	n, err := conn.Read(block)
	if err != nil {
		return
	}
	if block[0] == 's' {
		for err == nil {
			_, err = conn.Read(block)
		}
		conn.Write([]byte{'k'})
		return
	}
	for ; err == nil; n, err = conn.Read(block) {
		if _, err := conn.Write(block[:n]); err != nil {
			return
		}
	}
}
