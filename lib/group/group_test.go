package group

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/internal/inprocess"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

// member is a running one.
type member struct {
	terms chan *Term
	stop  context.CancelFunc
	leave chan error // what lead returns
	ended chan error
}

func start(t *testing.T, realm *inprocess.Realm, name string) *member {
	ctx, stop := context.WithCancel(t.Context())
	m := &member{make(chan *Term, 1), stop, make(chan error, 1), make(chan error, 1)}
	c := realm.Connect(t)
	go func() {
		m.ended <- Run(ctx, c, Config{Dir: "/g", TTL: time.Second}, name, func(ctx context.Context, term *Term) error {
			m.terms <- term
			select {
			case err := <-m.leave:
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	return m
}

// Goal: one member leads at a time; the document survives it, is changed at its version only, and
// by nobody who leads no more; readers follow it; a member that leaves is replaced by the next.
func TestGroup(t *testing.T) {
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	ctx, realm := t.Context(), inprocess.Serve(t, tree)
	reader := realm.Connect(t)
	told := make(chan string, 100)
	following, stopFollowing := context.WithCancel(ctx)
	go func() {
		for d, err := range Follow(following, reader, "/g") {
			if err != nil {
				break
			}
			told <- string(d.Data)
		}
		close(told)
	}()
	a := start(t, realm, "a")
	first := <-a.terms
	d, err := first.Document(ctx)
	if err != nil || d.Version != 0 {
		t.Fatal(d, err)
	}
	v, err := first.Change(ctx, 0, []byte("one"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Change(ctx, 0, nil); sigma.KindOf(err) != sigma.KindVersion || sigma.HintOf(err) == "" {
		t.Errorf("a document that is there: %v", err)
	}
	if _, err := first.Change(ctx, v, make([]byte, DocumentMax+1)); sigma.KindOf(err) != sigma.KindTooBig {
		t.Error(err)
	}
	if got := <-told; got != "one" {
		t.Errorf("told %q", got)
	}
	b := start(t, realm, "b")
	await(t, func() error {
		names, err := Members(ctx, reader, "/g")
		leader, lerr := Leader(ctx, reader, "/g")
		if !slices.Equal(names, []string{"a", "b"}) || leader != "a" {
			return fmt.Errorf("members %v, leader %q: %w", names, leader, errors.Join(err, lerr))
		}
		return nil
	})
	if err := Run(ctx, realm.Connect(t), Config{Dir: "/g"}, "b", nil); sigma.KindOf(err) != sigma.KindExists ||
		sigma.HintOf(err) == "" {
		t.Errorf("a second member of a name: %v", err)
	}
	a.leave <- nil
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
	second := <-b.terms
	d, err = second.Document(ctx)
	if err != nil || string(d.Data) != "one" || d.Version != v || second.Fence().Epoch != first.Fence().Epoch+1 {
		t.Errorf("%+v %v", d, err)
	}
	if v, err = second.Change(ctx, v, []byte("two")); err != nil {
		t.Error(err)
	}
	if _, err := first.Change(ctx, v, []byte("late")); sigma.KindOf(err) != sigma.KindStale {
		t.Errorf("a former leader changed the document: %v", err)
	}
	if got := <-told; got != "two" {
		t.Errorf("told %q", got)
	}
	// as when the leader's lease ends: it is told, and stands by again
	if err := reader.Remove(ctx, "/g/leader"); err != nil {
		t.Error(err)
	}
	b.stop()
	if err := <-b.ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	stopFollowing()
	for range told {
	}
}

func await(t *testing.T, check func() error) {
	t.Helper()
	var err error
	for range 500 {
		if err = check(); err == nil {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatal(err)
}
