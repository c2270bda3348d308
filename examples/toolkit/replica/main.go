// Command replica is one of three members that keep a counter together. The one that leads counts.
//
//	for i in 1 2 3; do sigma run -d replica $i; done
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"sigmaos.dev/lib/replica"
	"sigmaos.dev/lib/replica/peer"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

const dir = "/counter"

var members = map[uint64]string{1: "m1", 2: "m2", 3: "m3"}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: replica MEMBER")
	}
	id, err := strconv.ParseUint(os.Args[1], 10, 64)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	return member(ctx, c, replica.Peer{ID: id, Name: members[id]})
}

// counter is the state. Its methods are called one at a time.
type counter struct{ n atomic.Uint64 }

// Apply adds the command's number.
func (x *counter) Apply(_ uint64, command []byte) []byte {
	n, _ := strconv.ParseUint(string(command), 10, 64)
	return strconv.AppendUint(nil, x.n.Add(n), 10)
}

// Snapshot takes the state as it is now, and writes it later.
func (x *counter) Snapshot() (func(io.Writer) error, error) {
	n := x.n.Load()
	return func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, n) }, nil
}

// Restore reads what Snapshot's function wrote.
func (x *counter) Restore(r io.Reader) error {
	var n uint64
	err := binary.Read(r, binary.LittleEndian, &n)
	x.n.Store(n)
	return err
}

// member serves one member's messages under its name, and counts while it leads.
func member(ctx context.Context, c *sdk.Client, self replica.Peer) error {
	t, err := peer.New(peer.Config{Group: dir, Self: self, Realm: c.Info().Principal.Realm,
		Dial: func(ctx context.Context, name string) (net.Conn, error) { return c.DialPath(ctx, dir+"/"+name) }})
	if err != nil {
		return err
	}
	defer t.Close()
	r, err := replica.Open(ctx, replica.Config{ID: self.ID, Peers: members, Machine: &counter{}, Transport: t})
	if err != nil {
		return err
	}
	defer r.Close()
	server := call.NewServer(call.Config{})
	if err := t.Register(server, r); err != nil {
		return err
	}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	defer l.Close()
	go server.Serve(ctx, l)
	if err := publish(ctx, c, self.Name, l.Endpoint()); err != nil {
		return err
	}
	go count(ctx, r)
	return r.Run(ctx)
}

// count adds one each second while this member leads.
func count(ctx context.Context, r *replica.Replica) {
	for ; ctx.Err() == nil; time.Sleep(time.Second) {
		if !r.Leads() {
			continue
		}
		n, err := r.Propose(ctx, replica.Session{}, []byte("1"))
		fmt.Println(string(n), err)
	}
}

// publish tells where this member is, as long as its proc lives.
func publish(ctx context.Context, c *sdk.Client, name string, e sigma.Endpoint) error {
	if err := c.MkdirAll(ctx, dir, 0o755); err != nil {
		return err
	}
	lease, _, err := c.Lease(ctx, 5*time.Second)
	if err != nil {
		return err
	}
	return c.Publish(ctx, dir+"/"+name, e, lease)
}
