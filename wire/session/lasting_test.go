package session_test

import (
	"context"
	"errors"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// Goal: a session that may make another connection goes on with the next server, whether requests
// are in flight when a server dies or come while there is none: those get KindLost or wait, old
// handles get KindLost, the root goes on. The session ends when there is no other connection, when
// the next server refuses the root, and when it is closed, also while it waits for a connection.
func TestLasting(t *testing.T) {
	names := memfs.New(memfs.Config{})
	defer names.Close()
	x := &lives{t: t, tree: names, next: make(chan sigma.Tree)}
	c, err := session.DialLasting(t.Context(), x.serve(names), x.redial)
	if err != nil {
		t.Fatal(err)
	}
	root, err := c.Attach(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		dir, _, err := root.Walk(t.Context(), nil)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		st, err := root.Stat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		watched := make(chan error)
		watching, giveUp := context.WithCancel(t.Context())
		go func() {
			_, err := root.(sigma.Watcher).Watch(watching, st.ID.Version)
			watched <- err
		}()
		lost := c.Lost()
		x.stop()
		<-lost
		giveUp() // it may not have been sent yet, and waits for the next server
		if err := <-watched; err == nil {
			t.Errorf("round %d: a watch of the server that died ended well", round)
		}
		waits := make(chan error)
		go func() {
			waits <- root.Mkdir(t.Context(), "dir", 0o755)
		}()
		x.next <- names
		if err := <-waits; err != nil && (round == 0 || sigma.KindOf(err) != sigma.KindExists) {
			t.Errorf("round %d: what was asked while there was no server: %v", round, err)
		}
		if _, err := dir.Stat(t.Context()); sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("round %d: a handle of the server that died: %v", round, err)
		}
		dir.Close()
	}
	x.stop()
	x.next <- refusing{} // as a sigmad whose realm was removed meanwhile
	<-c.Done()
	if err := root.Mkdir(t.Context(), "other", 0o755); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("a session whose root was refused: %v", err)
	}
	x.stop()

	none := errors.New("nobody is there")
	for _, ends := range []error{none, nil} {
		c, err := session.DialLasting(t.Context(), x.serve(names), func(ctx context.Context) (session.Conn, error) {
			if ends == nil {
				<-ctx.Done()
			}
			return nil, errors.Join(ends, ctx.Err())
		})
		if err != nil {
			t.Fatal(err)
		}
		lost := c.Lost()
		x.stop()
		<-lost
		if ends == nil {
			c.Close()
		}
		<-c.Done()
		if _, err := c.Attach(t.Context(), ""); sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("a session that has ended: %v", err)
		}
	}
}

// lives are servers of a tree, one after another.
type lives struct {
	t    *testing.T
	tree sigma.Tree
	next chan sigma.Tree
	stop func()
}

// serve begins a life and gives a connection to it.
func (x *lives) serve(tree sigma.Tree) session.Conn {
	a, b, err := session.Pair()
	if err != nil {
		x.t.Error(err)
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		treeserver.Serve(ctx, b, treeserver.Config{Tree: tree})
	}()
	x.stop = func() { cancel(); <-over }
	return a
}

func (x *lives) redial(ctx context.Context) (session.Conn, error) {
	select {
	case tree := <-x.next:
		return x.serve(tree), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// refusing is a tree that nobody may attach to.
type refusing struct{}

func (refusing) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return nil, sigma.Errorf("test", sigma.KindNotFound, "no such realm")
}
