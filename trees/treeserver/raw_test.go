package treeserver_test

import (
	"context"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// pairs makes connected Conns of each kind.
var pairs = map[string]func(t *testing.T) (client, server session.Conn){
	"packet": func(t *testing.T) (session.Conn, session.Conn) {
		a, b, err := session.Pair()
		if err != nil {
			t.Fatal(err)
		}
		return a, b
	},
	"stream": func(t *testing.T) (session.Conn, session.Conn) {
		x, y, err := session.FilePair(syscall.SOCK_STREAM)
		if err != nil {
			t.Fatal(err)
		}
		a, err := session.UnixConn(x)
		if err != nil {
			t.Fatal(err)
		}
		b, err := session.UnixConn(y)
		if err != nil {
			t.Fatal(err)
		}
		return session.NewStreamConn(a), session.NewStreamConn(b)
	},
}

// pipe makes Conns without a file descriptor or buffer, which work in a synctest bubble.
func pipe(*testing.T) (client, server session.Conn) {
	a, b := net.Pipe()
	return session.NewStreamConn(a), session.NewStreamConn(b)
}

// eachConn runs test with each kind of Conn.
func eachConn(t *testing.T, test func(t *testing.T, pair func(*testing.T) (client, server session.Conn))) {
	for kind, pair := range pairs {
		t.Run(kind, func(t *testing.T) { test(t, pair) })
	}
}

// raw is a client that sends what it likes.
type raw struct {
	*testing.T
	conn  session.Conn
	ended chan struct{} // closed when Serve has returned
	err   error         // what it returned
	stop  context.CancelFunc
}

// serve starts Serve and a raw client of it; both end with the test, which fails if Serve does not.
func serve(t *testing.T, pair func(*testing.T) (client, server session.Conn), cfg treeserver.Config) *raw {
	t.Helper()
	client, server := pair(t)
	ctx, stop := context.WithCancel(context.Background())
	r := &raw{T: t, conn: client, ended: make(chan struct{}), stop: stop}
	go func() {
		defer close(r.ended)
		r.err = treeserver.Serve(ctx, server, cfg)
	}()
	t.Cleanup(func() {
		stop()
		r.waitEnd()
		client.Close()
	})
	return r
}

func (r *raw) waitEnd() {
	r.Helper()
	select {
	case <-r.ended:
	case <-time.After(20 * time.Second):
		buf := make([]byte, 1<<20)
		r.Fatalf("Serve does not return:\n%s", buf[:runtime.Stack(buf, true)])
	}
}

func (r *raw) send(tag uint16, m sigmap.Message) {
	r.Helper()
	buf, err := sigmap.Encode(nil, tag, m)
	if err == nil {
		err = r.conn.Send(buf, nil)
	}
	if err != nil {
		r.Fatalf("send %T: %v", m, err)
	}
}

func (r *raw) recv() (uint16, sigmap.Message) {
	r.Helper()
	buf, _, err := r.conn.Recv()
	if err != nil {
		r.Fatalf("recv: %v (Serve: %v)", err, r.err)
	}
	tag, m, err := sigmap.Decode(buf)
	if err != nil {
		r.Fatalf("decode: %v", err)
	}
	return tag, m
}

// ask sends m and wants a reply of type R to it.
func ask[R sigmap.Message](r *raw, tag uint16, m sigmap.Message) R {
	r.Helper()
	r.send(tag, m)
	return want[R](r, tag)
}

// want receives a reply of type R to tag.
func want[R sigmap.Message](r *raw, tag uint16) R {
	r.Helper()
	got, m := r.recv()
	reply, ok := m.(R)
	if !ok || got != tag {
		r.Fatalf("got %T %+v to tag %d, want %T to %d", m, m, got, *new(R), tag)
	}
	return reply
}

// fails wants an error of a kind to tag.
func (r *raw) fails(tag uint16, kind sigma.Kind) *sigmap.Rfail {
	r.Helper()
	f := want[*sigmap.Rfail](r, tag)
	if f.Kind != kind {
		r.Fatalf("got %v (%s), want %v", f.Kind, f.Msg, kind)
	}
	return f
}

// start negotiates and attaches fid 1.
func (r *raw) start(version string) *raw {
	r.Helper()
	ask[*sigmap.Rversion](r, sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: version})
	ask[*sigmap.Rattach](r, 1, &sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid})
	return r
}

// dial makes a proper client of a new session with tree.
func dial(t *testing.T, pair func(*testing.T) (client, server session.Conn), cfg treeserver.Config) (*session.Client,
	sigma.File) {
	t.Helper()
	r := serve(t, pair, cfg)
	c, err := session.Dial(t.Context(), r.conn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	root, err := c.Attach(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return c, root
}

func newMemfs(t *testing.T) *memfs.Tree {
	tree := memfs.New(memfs.Config{})
	t.Cleanup(tree.Close)
	return tree
}

// counting is a tree that knows how many of its handles are open.
type counting struct {
	sigma.Tree
	open atomic.Int64
}

func (c *counting) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	f, err := c.Tree.Attach(ctx, p, name)
	return c.counted(f), err
}

func (c *counting) counted(f sigma.File) sigma.File {
	if f == nil {
		return nil
	}
	c.open.Add(1)
	return &countedFile{whole: f.(whole), of: c}
}

type whole interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
}

type countedFile struct {
	whole
	of *counting
}

func (f *countedFile) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	g, ids, err := f.whole.Walk(ctx, names)
	return f.of.counted(g), ids, err
}

func (f *countedFile) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (sigma.File, error) {
	g, err := f.whole.Create(ctx, name, flags, perm)
	return f.of.counted(g), err
}

func (f *countedFile) Rename(ctx context.Context, name string, dir sigma.File, newName string) error {
	return f.whole.Rename(ctx, name, dir.(*countedFile).whole, newName)
}

func (f *countedFile) Close() {
	f.of.open.Add(-1)
	f.whole.Close()
}

// checkHandles fails if a handle is open when all sessions have ended.
func (c *counting) checkHandles(t *testing.T) {
	t.Helper()
	if n := c.open.Load(); n != 0 {
		t.Errorf("%d handles are open after the session", n)
	}
}

// checkGoroutines fails if there are more goroutines at the end of the test than now. It is to be
// called before what makes them is cleaned up.
func checkGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		deadline := time.Now().Add(5 * time.Second)
		for runtime.NumGoroutine() > before {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<20)
				t.Errorf("%d goroutines before, %d after:\n%s", before, runtime.NumGoroutine(),
					strings.TrimSpace(string(buf[:runtime.Stack(buf, true)])))
				return
			}
			runtime.Gosched()
		}
	})
}
