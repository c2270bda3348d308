// Command walker is the proc that makes the walks of the test, and keeps count of the code of its
// own that runs in them.
//
//	walker listen DIR                  listens at the endpoint DIR/endpoint
//	walker spawn|open|dial DIR N       makes N acts at a time
//
// It begins a round R when there is the file DIR/R-go, which is empty. When the acts are made it
// makes DIR/R-acted, then is idle for as long, then leaves its counters in /s3/walks/NAME-R-acts
// and -idle, undoes the acts and makes DIR/R-over.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"runtime/coverage"
	"strconv"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, walk, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if walk == "listen" {
		return listen(ctx, c, dir+"/endpoint")
	}
	acts, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	act := map[string]func() (undo func(), err error){
		"spawn": func() (func(), error) { return spawn(ctx, c) },
		"open":  func() (func(), error) { return open(ctx, c) },
	}[walk]
	if walk == "dial" {
		text, err := c.ReadLink(ctx, path.Dir(dir)+"/endpoint")
		if err != nil {
			return err
		}
		e, err := sigma.ParseEndpoint(text)
		if err != nil {
			return err
		}
		act = func() (func(), error) { return dial(ctx, c, e) }
	}
	var meta bytes.Buffer
	if err := coverage.WriteMeta(&meta); err != nil {
		return err
	}
	if err := put(ctx, c, "/s3/walks/"+walk+"-meta", meta.Bytes()); err != nil {
		return err
	}
	for n := 0; ; n++ {
		name := path.Join(dir, strconv.Itoa(n))
		if err := c.WaitFor(ctx, name+"-go"); err != nil {
			return err
		}
		if err := round(ctx, c, aRound{act, acts, name, fmt.Sprintf("/s3/walks/%s-%d", walk, n)}); err != nil {
			return err
		}
	}
}

type aRound struct {
	act      func() (func(), error)
	acts     int
	name     string
	counters string
}

func round(ctx context.Context, c *sdk.Client, r aRound) error {
	var acts, idle bytes.Buffer
	var undo []func()
	coverage.ClearCounters()
	began := time.Now()
	for range r.acts {
		u, err := r.act()
		if err != nil {
			return err
		}
		undo = append(undo, u)
	}
	took := time.Since(began)
	if err := coverage.WriteCounters(&acts); err != nil {
		return err
	}
	if err := put(ctx, c, r.name+"-acted", nil); err != nil {
		return err
	}
	coverage.ClearCounters()
	time.Sleep(took)
	if err := coverage.WriteCounters(&idle); err != nil {
		return err
	}
	for _, u := range undo {
		u()
	}
	if err := put(ctx, c, r.counters+"-acts", acts.Bytes()); err != nil {
		return err
	}
	if err := put(ctx, c, r.counters+"-idle", idle.Bytes()); err != nil {
		return err
	}
	return put(ctx, c, r.name+"-over", nil)
}

func put(ctx context.Context, c *sdk.Client, path string, data []byte) error {
	_, err := c.Put(ctx, path, data, sigma.PutOptions{Perm: 0o644})
	return err
}

func spawn(ctx context.Context, c *sdk.Client) (func(), error) {
	ids, err := c.Spawn(ctx, sigma.Descriptor{Program: "/bin/idle", Memory: sigma.MemoryLeast})
	if err != nil {
		return nil, err
	}
	return func() {
		c.Kill(ctx, ids[0])
		c.WaitExit(ctx, ids[0])
	}, c.WaitStart(ctx, ids[0])
}

func open(ctx context.Context, c *sdk.Client) (func(), error) {
	h, err := c.Open(ctx, "/s3/walks/x", sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	return func() { h.Close() }, nil
}

func dial(ctx context.Context, c *sdk.Client, e sigma.Endpoint) (func(), error) {
	conn, err := c.Dial(ctx, e)
	if err != nil {
		return nil, err
	}
	return func() { conn.Close() }, nil
}

// listen accepts connections until it is killed; each ends with its other side.
func listen(ctx context.Context, c *sdk.Client, path string) error {
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	if err := c.Publish(ctx, path, l.Endpoint(), 0); err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			io.Copy(io.Discard, conn)
			conn.Close()
		}()
	}
}
