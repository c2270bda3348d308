package treeserver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/ux"
	"sigmaos.dev/wire/filestream"
	"sigmaos.dev/wire/session"
)

// attach serves a tree to a client.
func attach(t *testing.T, tree sigma.Tree, cfg treeserver.Config) sigma.File {
	t.Helper()
	ours, theirs, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Tree, cfg.Principal = tree, sigma.Principal{Realm: "r"}
	over := make(chan struct{})
	go func() {
		defer close(over)
		treeserver.Serve(t.Context(), ours, cfg)
	}()
	c, err := session.Dial(t.Context(), theirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); <-over })
	root, err := c.Attach(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

func streamOf(t *testing.T, f sigma.File) (*filestream.Client, error) {
	file, err := f.(sigma.BulkPasser).PassBulk(t.Context())
	if err != nil {
		return nil, err
	}
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	c := filestream.New(conn)
	t.Cleanup(c.Close)
	return c, nil
}

// TestBulk: the bytes of a file go by a stream of it, which ends with the handle; what is written
// by it is published with the rest.
func TestBulk(t *testing.T) {
	ctx := t.Context()
	tree, err := ux.New(ux.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	turns := treeserver.NewTurns()
	root := attach(t, tree, treeserver.Config{Turns: turns})
	data := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	f, err := root.Create(ctx, "f", sigma.OpenHidden|sigma.OpenWrite, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	w, err := streamOf(t, f)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.WriteAt(data, 0, true); n != len(data) || err != nil {
		t.Fatal(n, err)
	}
	if err := w.Settle(); err != nil {
		t.Fatal(err)
	}
	if err := f.(sigma.Publisher).Publish(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteAt(data, 0, false); !errors.Is(err, filestream.ErrBroken) {
		t.Errorf("a stream of what is published: %v", err)
	}
	open := func(name string, flags sigma.OpenFlags) sigma.File {
		t.Helper()
		f, _, err := root.Walk(ctx, []string{name})
		if err == nil && f != nil {
			err = f.Open(ctx, flags)
		}
		if err != nil || f == nil {
			t.Fatal(f, err)
		}
		return f
	}
	r := open("f", sigma.OpenRead)
	c, err := streamOf(t, r)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	if n, err := c.ReadAt(got, 0); n != len(data) || err != nil || !bytes.Equal(got, data) {
		t.Errorf("other bytes are read than were written: %d, %v", n, err)
	}
	in, out := 0, 0
	for deadline := time.Now().Add(10 * time.Second); in < len(data) ||
		out < len(data); { // a piece is counted after it was sent
		for _, w := range turns.Work() {
			if in, out = in+int(w.In), out+int(w.Out); w.Realm != "r" {
				t.Fatalf("the work is of realm %s", w.Realm)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d bytes each way the work has %d in and %d out", len(data), in, out)
		}
		runtime.Gosched()
	}
	if _, err := c.WriteAt(data[:9], 0, false); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a write by what was opened for reading: %v", err)
	}
	r.Close()
	for err = nil; err == nil ||
		sigma.KindOf(err) == sigma.KindCanceled; { // the clunk is not waited for; a read that is under way is told so
		_, err = c.ReadAt(got[:9], 0)
	}
	if !errors.Is(err, filestream.ErrBroken) {
		t.Errorf("a stream of a handle that is closed: %v", err)
	}
	if _, err := streamOf(t, root); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("of what is not open: %v", err)
	}
	if _, err := streamOf(t, open("f", sigma.OpenWrite|sigma.OpenAppend)); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("of what is appended to: %v", err)
	}
	most := open("f", sigma.OpenRead) // more than there may be are of no use, and those that are go on
	for range 80 {
		if c, err = streamOf(t, most); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.ReadAt(got[:9], 0); !errors.Is(err, filestream.ErrBroken) {
		t.Errorf("the last of too many: %v", err)
	}
	root = attach(t, memfs.New(memfs.Config{}), treeserver.Config{})
	if f, err = root.Create(ctx, "f", sigma.OpenReadWrite, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := streamOf(t, f); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("of a server that passes no files: %v", err)
	}
}

// few lets so many handles be had, in all sessions.
type few struct{ left atomic.Int64 }

func (f *few) Take() error {
	if f.left.Add(-1) >= 0 {
		return nil
	}
	f.left.Add(1)
	return sigma.Errorf("few.Take", sigma.KindNoSpace, "no more")
}

func (f *few) Give(n int) { f.left.Add(int64(n)) }

// Streams that nobody reads count as handles, so that a realm has no more of them than its limit
// says, in however many sessions; what they took is given back.
func TestStreamsAreHandles(t *testing.T) {
	tree, err := ux.New(ux.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	handles := &few{}
	handles.left.Store(10)
	left := func(want int64) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); handles.left.Load() != want; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d handles are left, want %d", handles.left.Load(), want)
			}
		}
	}
	var files []sigma.File
	for range 2 {
		f, err := attach(t, tree, treeserver.Config{Handles: handles}).Create(t.Context(), fmt.Sprint(len(files)),
			sigma.OpenReadWrite, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	held := 10 - handles.left.Load()
	for n := range 10 {
		c, err := streamOf(t, files[n%2])
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.ReadAt(make([]byte, 1), 0)
		if broken := errors.Is(err, filestream.ErrBroken); broken != (int64(n) >= 10-held) {
			t.Errorf("stream %d beside %d handles: %v", n, held, err)
		}
	}
	left(0)
	for _, f := range files {
		f.Close()
	}
	left(10 - held + 2)
}

// TestBulkTicket: where no sockets are passed a ticket leads to the file.
func TestBulkTicket(t *testing.T) {
	tree, err := ux.New(ux.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	created := make(chan func(net.Conn), 2)
	root := attach(t, tree, treeserver.Config{BulkTicket: func(_ context.Context, s func(net.Conn)) ([]byte, error) {
		created <- s
		return []byte("ticket"), nil
	}})
	f, err := root.Create(t.Context(), "f", sigma.OpenReadWrite, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := streamOf(t, f); sigma.KindOf(err) != sigma.KindUnsupported {
		t.Errorf("PassBulk: %v", err)
	}
	a, err := treeserver.Do(t.Context(), f, sigma.Request{Op: sigma.OpPassBulk})
	if err != nil || string(a.Data) != "ticket" {
		t.Fatalf("%q, %v", a.Data, err)
	}
	serve := <-created
	near, b := net.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		serve(b)
	}()
	c := filestream.New(near)
	if n, err := c.WriteAt([]byte("hello"), 0, false); n != 5 || err != nil {
		t.Error(n, err)
	}
	c.Close()
	<-over
	f.Close()
	near, b = net.Pipe() // a ticket that is shown too late
	for {                // the clunk is not waited for
		go serve(b)
		if _, err := filestream.New(near).ReadAt(make([]byte, 1), 0); errors.Is(err, filestream.ErrBroken) {
			break
		}
		near, b = net.Pipe()
	}
}
