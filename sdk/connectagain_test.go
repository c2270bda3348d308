package sdk

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// office is a sigmad of which there is as much as a program outside connects to and waits for.
type office struct {
	names *memfs.Tree
	asked chan struct{} // takes one for each wait that began
	ended chan struct{} // closed when the proc that is waited for has ended
}

func (o *office) Attach(ctx context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	root, err := o.names.Attach(ctx, p, "")
	return &desk{root, o}, err
}

// desk is a file of an office.
type desk struct {
	sigma.File
	o *office
}

func (d *desk) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 2 && names[0] == "sys" {
		return &treeserver.Callable{Name: names[1], ID: 1 << 40, Handle: d.o.call}, make([]sigma.FileID, 2), nil
	}
	return d.File.Walk(ctx, names)
}

func (o *office) call(ctx context.Context, method string, _ []byte) ([]byte, []*os.File, error) {
	if method == sigmap.CallInfo.Name {
		info := sigmap.Info{Principal: sigma.Principal{Realm: "r", Machine: "m"}}
		reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.Info(&info) })
		return reply, nil, err
	}
	o.asked <- struct{}{}
	select {
	case <-o.ended:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	st := sigma.Status{Code: sigma.StatusOK}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) {
		if method == sigmap.CallWaitExit.Name {
			c.Status(&st)
		}
	})
	return reply, nil, err
}

// open serves at a socket until stop, which leaves the socket's file as a sigmad does that is
// killed, unless it is a stop in good order.
func (o *office) open(t *testing.T, addr string) (stop func(inOrder bool)) {
	t.Helper()
	os.Remove(addr)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: addr, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			all.Go(func() { treeserver.Serve(ctx, session.NewPacketConn(c, false), treeserver.Config{Tree: o}) })
		}
	})
	return func(inOrder bool) {
		l.SetUnlinkOnClose(inOrder)
		l.Close()
		cancel()
		all.Wait()
	}
}

// Goal: the Client of a program outside goes on when sigmad dies, and so do its waits and watches,
// more than once; it ends when sigmad was stopped in good order, and when it is closed while sigmad
// is away.
func TestConnectAgain(t *testing.T) {
	names := memfs.New(memfs.Config{})
	defer names.Close()
	o := &office{names: names, asked: make(chan struct{}, 10), ended: make(chan struct{})}
	addr := filepath.Join(t.TempDir(), "s")
	stop := o.open(t, addr)
	c, err := Connect(t.Context(), addr, "r")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	id, err := c.Put(t.Context(), "/f", nil, sigma.PutOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waits := map[string]func(context.Context) error{
		"WaitStart": func(ctx context.Context) error { return c.WaitStart(ctx, "abcdefghijklmnop") },
		"WaitEvict": c.WaitEvict,
		"WaitExit": func(ctx context.Context) error {
			st, err := c.WaitExit(ctx, "abcdefghijklmnop")
			if err == nil && !st.OK() {
				t.Errorf("the proc ended with %+v", st)
			}
			return err
		},
	}
	over := make(chan string, 10)
	for what, wait := range waits {
		go func() {
			if err := wait(t.Context()); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			over <- what
		}()
	}
	go func() {
		if v, err := c.Watch(t.Context(), "/f", id.Version); err != nil || v == id.Version {
			t.Errorf("the watch ended with %d, %v", v, err)
		}
		over <- "watch"
	}()
	for range 2 {
		for range waits {
			<-o.asked
		}
		lost := c.Lost()
		stop(false)
		<-lost
		read := make(chan error)
		go func() { _, _, err := c.Get(t.Context(), "/f"); read <- err }()
		stop = o.open(t, addr)
		if err := <-read; err != nil {
			t.Errorf("a read while sigmad was away: %v", err)
		}
	}
	for range waits {
		<-o.asked
	}
	close(o.ended)
	if _, err := c.Put(t.Context(), "/f", []byte("x"), sigma.PutOptions{}); err != nil {
		t.Error(err)
	}
	for range len(waits) + 1 {
		<-over
	}
	away, err := Connect(t.Context(), addr, "r")
	if err != nil {
		t.Fatal(err)
	}
	lost := away.Lost()
	stop(false)
	<-lost
	away.Close()
	os.Remove(addr)
	began := time.Now()
	<-c.Done()
	if took := time.Since(began); took < goneMost/2 {
		t.Errorf("the client ended %v after its socket had gone", took)
	}
}
