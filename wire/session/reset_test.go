package session_test

import (
	"context"
	"os"
	"syscall"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// Goal: when another server takes over the connection, requests in flight and old handles get
// KindLost, the root goes on, and nothing that was meant for the dead server reaches the new one.
// Also when that dies before it has said a word, or the client has not begun yet; whether or not
// the session is one whose records may hold several messages.
func TestReset(t *testing.T) {
	t.Run("not begun", func(t *testing.T) { testReset(t, true) })
	t.Run("begun", func(t *testing.T) { testReset(t, false) })
}

func testReset(t *testing.T, early bool) {
	mine, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	serve := func(reset bool) (stop func()) { // on a copy of the socket, so that its end is not the connection's
		fd, err := syscall.Dup(int(theirs.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		conn, err := session.FromFile(os.NewFile(uintptr(fd), "copy"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			treeserver.Serve(ctx, conn, treeserver.Config{Tree: tree, Reset: reset})
		}()
		return func() { cancel(); <-over }
	}
	if early {
		serve(true)() // dies at once; its word may be there or not
	}
	stop := serve(early)
	conn, err := session.FromFile(mine)
	if err != nil {
		t.Fatal(err)
	}
	c, err := session.DialSystem(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	root, err := c.Attach(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		if err := root.Mkdir(t.Context(), "dir", 0o755); err != nil && sigma.KindOf(err) != sigma.KindExists {
			t.Fatalf("round %d: %v", round, err)
		}
		dir, _, err := root.Walk(t.Context(), []string{"dir"})
		if err != nil {
			t.Fatal(err)
		}
		st, err := root.Stat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		watching := make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := root.(sigma.Watcher).Watch(ctx, st.ID.Version)
			watching <- err
		}()
		lost := make(chan error)
		go func() { // in flight, or between the servers
			err := error(nil)
			for err == nil ||
				sigma.KindOf(err) == sigma.KindCanceled {
				// which is the last that a server says which the test, and no SIGKILL, ends
				_, err = dir.Stat(t.Context())
			}
			lost <- err
		}()
		stop()
		stop = serve(true)
		if err := <-lost; sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("round %d: a handle of the dead server's: %v", round, err)
		}
		if _, err := dir.Stat(t.Context()); sigma.KindOf(err) != sigma.KindLost || !session.Unsent(err) {
			t.Errorf("round %d: a handle of a server that is known to be dead: %v", round, err)
		}
		cancel() // if it began only at the new server
		if err := <-watching; err == nil {
			t.Errorf("round %d: the watch ended well", round)
		}
		dir.Close()
		if _, err := dir.Stat(t.Context()); err == nil {
			t.Error("a closed handle works")
		}
	}
	if _, err := root.Stat(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	theirs.Close()
	<-c.Done()
}

// A server that is not sigmad cannot make a client begin anew.
func TestResetOfOthers(t *testing.T) {
	a, b, err := session.Pair()
	if err != nil {
		t.Fatal(err)
	}
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	go treeserver.Serve(t.Context(), b, treeserver.Config{Tree: tree, Reset: true})
	if c, err := session.Dial(t.Context(), a); err == nil {
		c.Close()
		t.Error("it did")
	}
}
