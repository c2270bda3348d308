package treeserver_test

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// TestEndingIsLost: who waits for a server that ends is told that it is lost, not that he has given
// up himself.
func TestEndingIsLost(t *testing.T) {
	for range 100 {
		ours, theirs, err := session.Pair()
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- treeserver.Serve(ctx, theirs, treeserver.Config{Tree: newMemfs(t)}) }()
		c, err := session.Dial(t.Context(), ours)
		if err != nil {
			t.Fatal(err)
		}
		root, err := c.Attach(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		st, err := root.Stat(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var waits [4]chan error
		for i := range waits {
			waits[i] = make(chan error, 1)
			go func() {
				_, err := root.(sigma.Watcher).Watch(t.Context(), st.ID.Version)
				waits[i] <- err
			}()
		}
		if _, err := root.Stat(t.Context()); err != nil { // some of the waits are there by now
			t.Fatal(err)
		}
		end()
		for _, w := range waits {
			if err := <-w; sigma.KindOf(err) != sigma.KindLost {
				t.Fatalf("got %v (%v), want lost", err, sigma.KindOf(err))
			}
		}
		if err := <-over; err != nil {
			t.Error(err)
		}
		c.Close()
	}
}
