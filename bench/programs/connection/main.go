// Command connection is both sides of the benches dial and endpoint, over an endpoint as a proc,
// and over a UNIX or TCP socket as an ordinary process:
//
//	connection serve sigma|socket|ring|unix|tcp|tls ADDRESS
//	connection dial|echo|first|stream|many sigma|socket|ring|unix|tcp|tls ADDRESS COUNT [PLACED]
//	connection serve-revoked|revoked sigma ADDRESS [COUNT]
//
// socket and ring are sigma with a transport forced. The address of all three is a path. With a
// last word, by which the bench finds it, a client waits until it has been placed on a processor. A
// server prints where it listens. A client prints nanoseconds: one figure for each dial or round
// trip; of first those from dialling until each of the first COUNT answers was there, the medians
// of some connections; of a stream those that COUNT blocks took; of many those of each round of a
// message on each of COUNT connections. At last it prints the processor time of both sides.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/ring"
)

const (
	messageBytes = 64
	blockBytes   = 64 << 10
	rounds       = 20                   // of many
	settle       = 2 * time.Millisecond // between connections of first, until what the last one leaves to do is done
)

// firsts are the connections of first, with how many messages each has at most: many short ones,
// since one sample says nothing of 64 messages.
func firsts(count int) []int {
	if count > 1024 {
		return []int{count}
	}
	return slices.Concat(slices.Repeat([]int{256}, 10), slices.Repeat([]int{count}, 3))
}

// What a connection is for, as its first byte says.
const (
	opEcho   = 'e'
	opStream = 's'
	opTime   = 't' // how much processor time has the server used?
)

// transports are the networks that are endpoints.
var transports = map[string]ring.Transport{"sigma": ring.Automatic, "socket": ring.Socket, "ring": ring.Shared}

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		panic(err)
	}
}

func run(ctx context.Context, what, network, address string) error {
	switch what {
	case "serve":
		return serve(ctx, network, address)
	case "serve-revoked":
		return serveRevoked(ctx, address)
	}
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		return err
	}
	if what == "revoked" {
		return revoked(ctx, address, count)
	}
	c := &client{count: count, out: bufio.NewWriter(os.Stdout), dial: func() (net.Conn, error) {
		return net.Dial(network, address)
	}}
	defer c.out.Flush()
	if network == "tls" {
		c.dial = func() (net.Conn, error) { return dialTLS(address) }
	}
	if transport, ours := transports[network]; ours {
		sys, err := sdk.Open(ctx)
		if err != nil {
			return err
		}
		sys.UseTransport(transport)
		text, err := sys.ReadLink(ctx, address)
		if err != nil {
			return err
		}
		e, err := sigma.ParseEndpoint(text)
		if err != nil {
			return err
		}
		c.dial = func() (net.Conn, error) { return sys.Dial(ctx, e) }
	}
	if len(os.Args) > 5 {
		if err := awaitPlace(); err != nil {
			return err
		}
	}
	began, err := c.time()
	if err != nil {
		return err
	}
	switch what {
	case "dial":
		err = c.dials()
	case "echo":
		err = c.echo()
	case "first":
		err = c.first()
	case "stream":
		err = c.stream()
	case "many":
		err = c.many()
	default:
		err = fmt.Errorf("no such word: %s", what)
	}
	if err != nil {
		return err
	}
	ended, err := c.time()
	used := ended - began
	if c.created > 0 {
		used = used * time.Duration(c.count) / time.Duration(c.created)
	}
	fmt.Fprintln(c.out, used.Nanoseconds())
	return err
}

// client measures.
type client struct {
	dial    func() (net.Conn, error)
	count   int
	created int // messages, if other than count
	out     *bufio.Writer
}

// connect dials and waits until the server has accepted.
func (c *client) connect() (net.Conn, error) {
	conn, err := c.dial()
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// time is the processor time that both sides have used.
func (c *client) time() (time.Duration, error) {
	conn, err := c.connect()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte{opTime}); err != nil {
		return 0, err
	}
	var answer [8]byte
	_, err = io.ReadFull(conn, answer[:])
	return used() + time.Duration(binary.LittleEndian.Uint64(answer[:])), err
}

func (c *client) dials() error {
	for range c.count {
		began := time.Now()
		conn, err := c.connect()
		if err != nil {
			return err
		}
		fmt.Fprintln(c.out, time.Since(began).Nanoseconds())
		conn.Close()
	}
	return nil
}

// trip is one round trip.
func trip(conn net.Conn, message []byte) error {
	if _, err := conn.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, message)
	return err
}

func message() []byte {
	m := make([]byte, messageBytes)
	m[0] = opEcho
	return m
}

func (c *client) echo() error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	message := message()
	for range c.count {
		began := time.Now()
		if err := trip(conn, message); err != nil {
			return err
		}
		fmt.Fprintln(c.out, time.Since(began).Nanoseconds())
	}
	return nil
}

// first begins connections one after another, and gives the median of each message's time.
func (c *client) first() error {
	took := make([][]time.Duration, c.count)
	for _, n := range firsts(c.count) {
		n = min(n, c.count)
		times := make([]time.Duration, n)
		clear(times) // its pages are there
		began := time.Now()
		conn, err := c.connect()
		if err != nil {
			return err
		}
		message := message()
		for at := range n {
			if err := trip(conn, message); err != nil {
				conn.Close()
				return err
			}
			times[at] = time.Since(began)
		}
		conn.Close()
		c.created += n
		for at, d := range times {
			took[at] = append(took[at], d)
		}
		time.Sleep(settle)
	}
	for _, ds := range took {
		slices.Sort(ds)
		fmt.Fprintln(c.out, ds[len(ds)/2].Nanoseconds())
	}
	return nil
}

func (c *client) many() error {
	conns := make([]net.Conn, c.count)
	for i := range conns {
		conn, err := c.connect()
		if err != nil {
			return err
		}
		defer conn.Close()
		conns[i] = conn
	}
	message := message()
	for range rounds {
		began := time.Now()
		for _, conn := range conns {
			if _, err := conn.Write(message); err != nil {
				return err
			}
		}
		for _, conn := range conns {
			if _, err := io.ReadFull(conn, message); err != nil {
				return err
			}
		}
		fmt.Fprintln(c.out, time.Since(began).Nanoseconds())
	}
	return nil
}

func (c *client) stream() error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	block := make([]byte, blockBytes)
	block[0] = opStream
	began := time.Now()
	for range c.count {
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
	_, err = fmt.Fprintln(c.out, time.Since(began).Nanoseconds())
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
	} else if network == "tls" {
		l, err = listenTLS(address)
	} else {
		l, err = net.Listen(network, address)
	}
	if err != nil {
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
	block := make([]byte, 4*messageBytes)
	n, err := conn.Read(block)
	if err != nil {
		return
	}
	switch block[0] {
	case opTime:
		conn.Write(binary.LittleEndian.AppendUint64(nil, uint64(used())))
	case opStream:
		block = make([]byte, blockBytes)
		for err == nil {
			_, err = conn.Read(block)
		}
		conn.Write([]byte{'k'})
	default:
		for ; err == nil; n, err = conn.Read(block) {
			if _, err := conn.Write(block[:n]); err != nil {
				return
			}
		}
	}
}
