// Command flight puts descriptors in flight:
//
//	flight listen           listens at 16 endpoints whose sockets it never reads, and prints them
//	flight ask ENDPOINT...  asks for connections in advance to all of them, again and again, and
//	                        says that it used what it got
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// listeners is how many of one proc have sockets.
const listeners = 16

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	conn, err := session.FromFile(os.NewFile(3, "sigmad"))
	if err != nil {
		return err
	}
	c, err := session.Dial(ctx, conn)
	if err != nil {
		return err
	}
	root, err := c.Attach(ctx, "")
	if err != nil {
		return err
	}
	file, _, err := root.Walk(ctx, []string{sigma.NameSys, sigmap.FileEndpoints})
	if err != nil {
		return err
	}
	endpoints := file.(sigma.Caller)
	if os.Args[1] == "listen" {
		return listen(ctx, endpoints)
	}
	var all []sigma.Endpoint
	for _, text := range os.Args[2:] {
		e, err := sigma.ParseEndpoint(text)
		if err != nil {
			return err
		}
		all = append(all, e)
	}
	for {
		for _, e := range all {
			ask := sigmap.PoolAsk{Endpoint: e, Count: 16}
			payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.PoolAsk(&ask) })
			if err != nil {
				return err
			}
			_, files, err := endpoints.Call(ctx, sigmap.CallPool.Name, payload, nil)
			session.CloseFiles(files)
			if err != nil && sigma.KindOf(err) == sigma.KindLost {
				return err
			}
		}
	}
}

// listen keeps the sockets, and so what comes there.
func listen(ctx context.Context, endpoints sigma.Caller) error {
	var lines []string
	for range listeners {
		form, pushed := sigma.FormStream, true
		payload, err := sigmap.Payload(func(c *sigmap.Coder) { c.Str((*string)(&form)); c.Bool(&pushed) })
		if err != nil {
			return err
		}
		reply, files, err := endpoints.Call(ctx, sigmap.CallListen.Name, payload, nil)
		if err != nil || len(files) == 0 {
			return fmt.Errorf("listen: %d sockets: %w", len(files), err)
		}
		defer session.CloseFiles(files)
		var e sigma.Endpoint
		if err := sigmap.Parse(reply, func(c *sigmap.Coder) { c.Endpoint(&e) }); err != nil {
			return err
		}
		lines = append(lines, e.String())
	}
	fmt.Println(strings.Join(lines, "\n"))
	<-ctx.Done()
	return nil
}
