// Command walker is the proc that makes the walks of the test, and keeps count of the code of its
// own that runs in them.
//
//	walker listen DIR                  listens at the endpoint DIR/endpoint
//	walker spawn|open|dial DIR N       makes N acts at a time
//
// In round R it makes the acts when there is the file DIR/R-act, and then DIR/R-acted. When there is
// DIR/R-rest it is idle for as long, and then makes DIR/R-rested. When there is DIR/R-undo it undoes
// the acts, leaves its counters in /s3/walks/NAME-R-acts and -idle, and makes DIR/R-over.
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
		r := round{ctx, c, path.Join(dir, strconv.Itoa(n)), fmt.Sprintf("/s3/walks/%s-%d", walk, n)}
		if err := r.run(act, acts); err != nil {
			return err
		}
	}
}

// round is one; its files begin with name, and its counters with counters.
type round struct {
	ctx            context.Context
	c              *sdk.Client
	name, counters string
}

func (r round) run(act func() (func(), error), acts int) error {
	var undo []func()
	var took time.Duration
	acted, err := r.phase("-act", "-acted", func() error {
		began := time.Now()
		for range acts {
			u, err := act()
			if err != nil {
				return err
			}
			undo = append(undo, u)
		}
		took = time.Since(began)
		return nil
	})
	if err != nil {
		return err
	}
	idle, err := r.phase("-rest", "-rested", func() error { time.Sleep(took); return nil })
	if err != nil {
		return err
	}
	if err := r.c.WaitFor(r.ctx, r.name+"-undo"); err != nil {
		return err
	}
	for _, u := range undo {
		u()
	}
	if err := put(r.ctx, r.c, r.counters+"-acts", acted); err != nil {
		return err
	}
	if err := put(r.ctx, r.c, r.counters+"-idle", idle); err != nil {
		return err
	}
	return put(r.ctx, r.c, r.name+"-over", nil)
}

// phase does something between two files, and gives the counters of it.
func (r round) phase(order, answer string, do func() error) ([]byte, error) {
	var counters bytes.Buffer
	if err := r.c.WaitFor(r.ctx, r.name+order); err != nil {
		return nil, err
	}
	if err := coverage.ClearCounters(); err != nil {
		return nil, err
	}
	if err := do(); err != nil {
		return nil, err
	}
	if err := coverage.WriteCounters(&counters); err != nil {
		return nil, err
	}
	return counters.Bytes(), put(r.ctx, r.c, r.name+answer, nil)
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
