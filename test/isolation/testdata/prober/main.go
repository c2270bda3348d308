// Command prober is the program of the procs of the isolation suite:
//
//	prober hold             listens, says what it has, tells callers whom it takes them for, stays
//	prober client ENDPOINT  is connected to ENDPOINT, says by what ticket, and stays
//	prober eager            listens, writes on all that it gets at once, and stays
//	prober try              tries to reach what is another realm's, as the environment's WORLD
//	                        tells it, and says how each attempt and its control went
//	prober socket [FD]      misuses a socket that was passed to it, or as a control its own
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "prober:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if args[0] == "socket" {
		return socket(ctx)
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if at := os.Getenv("MACHINE"); at != "" && at != string(c.Info().Principal.Machine) {
		os.Exit(elsewhere)
	}
	switch args[0] {
	case "hold":
		return hold(ctx, c)
	case "client":
		return client(ctx, c, args[1])
	case "eager":
		return eager(ctx, c)
	case "try":
		return try(ctx, c)
	}
	return errors.New("what to do?")
}

// elsewhere tells that this proc is not on the machine it is for.
const elsewhere = 77

// World is what the attackers know about procs: to know it must not be enough.
type World struct {
	Realm   sigma.RealmID
	Proc    sigma.ProcID
	Machine sigma.MachineID
	Stream  string // endpoints
	Tree    string
	Closed  string
	Ticket  []byte // of a connection between two others
}

func say(v any) error { return json.NewEncoder(os.Stdout).Encode(v) }

func hold(ctx context.Context, c *sdk.Client) error {
	p := c.Info().Principal
	w := World{Realm: p.Realm, Proc: p.Proc, Machine: p.Machine}
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	w.Stream = l.Endpoint().String()
	trees, err := c.Listen(ctx, sigma.FormTree)
	if err != nil {
		return err
	}
	w.Tree = trees.Endpoint().String()
	closed, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	w.Closed = closed.Endpoint().String()
	if err := closed.Close(); err != nil {
		return err
	}
	go c.ServeTree(ctx, trees, memfs.New(memfs.Config{}))
	if err := say(w); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	for {
		conn, from, err := l.AcceptFrom(ctx)
		if err != nil {
			return err
		}
		go func() { // until the caller goes
			fmt.Fprintf(conn, "%s %s %t\n", from.Realm, from.Proc, from.System)
			conn.Read(make([]byte, 1))
			conn.Close()
		}()
	}
}

// eager takes what sigmad sends, as the SDK does, but writes on every socket at once.
func eager(ctx context.Context, c *sdk.Client) error {
	f, _, err := c.Root().Walk(ctx, []string{"sys", "endpoints"})
	if err != nil {
		return err
	}
	form, pushed := sigma.FormStream, true
	payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.Str((*string)(&form)); c.Bool(&pushed) })
	if err != nil {
		return err
	}
	reply, files, err := f.(sigma.Caller).Call(ctx, sigmap.CallListen.Name, payload, nil)
	if err != nil {
		return err
	}
	var e sigma.Endpoint
	if err := sigmap.Parse(reply, func(c *sigmap.Coder) { c.Endpoint(&e) }); err != nil {
		return err
	}
	arrivals, err := session.FromFile(files[0])
	if err != nil {
		return err
	}
	p := c.Info().Principal
	if err := say(World{Realm: p.Realm, Proc: p.Proc, Machine: p.Machine, Stream: e.String()}); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	var kept []*os.File
	for {
		_, files, err := arrivals.Recv()
		if err != nil {
			return err
		}
		for _, f := range files {
			f.Write([]byte("E"))
		}
		kept = append(kept, files...)
	}
}

// ticketOf dials and gives the ticket of the connection, which ends at once.
func ticketOf(ctx context.Context, c *sdk.Client, endpoint string) (ticket string, err error) {
	e, err := sigma.ParseEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	rings := true
	reply, err := call(ctx, c, sigmap.CallDial.Name, func(c *sigmap.Coder) { c.Endpoint(&e); c.Bool(&rings) })
	if err == nil {
		err = sigmap.Parse(reply, func(d *sigmap.Coder) { d.Str(&ticket) })
	}
	if err == nil && ticket == "" {
		err = errors.New("there is no ticket")
	}
	return ticket, err
}

func client(ctx context.Context, c *sdk.Client, endpoint string) error {
	ticket, err := ticketOf(ctx, c, endpoint)
	if e, _ := sigma.ParseEndpoint(endpoint); err != nil &&
		e.Machine == c.Info().Principal.Machine { // from another machine there is none
		return err
	}
	if err := say(World{Machine: c.Info().Principal.Machine, Ticket: []byte(ticket)}); err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	select {}
}

// call calls a method of /sys/endpoints.
func call(ctx context.Context, c *sdk.Client, method string, payload func(*sigmap.Coder)) ([]byte, error) {
	b, err := sigmap.Payload(payload)
	if err != nil {
		return nil, err
	}
	return c.Call(ctx, "/sys/endpoints", method, b)
}
