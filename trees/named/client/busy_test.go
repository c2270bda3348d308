package client

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/client/cache"
)

// fullRoot is a root that refuses changes and reads, as named does where too many wait, as long as
// left is not 0, and answers lost once before.
type fullRoot struct {
	Root
	left *atomic.Int64
	lost *atomic.Bool
}

func (f fullRoot) refuse() error {
	switch {
	case f.lost.CompareAndSwap(true, false):
		return sigma.Errorf("test", sigma.KindLost, "lost")
	case f.left.Load() != 0:
		f.left.Add(-1)
		return sigma.Errorf("test", sigma.KindBusy, "too many wait")
	}
	return nil
}

func (f fullRoot) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	if err := f.refuse(); err != nil {
		return sigma.FileID{}, nil, err
	}
	return f.Root.Put(ctx, names, data, o)
}

func (f fullRoot) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if err := f.refuse(); err != nil {
		return sigma.GetResult{}, nil, err
	}
	return f.Root.Get(ctx, names, offset, count)
}

// Goal: what named refuses because too many wait is asked again for a while, and carried out once;
// then, or when who asks has no more patience, it is told; a change that may have been carried out
// before is not said to be refused.
func TestBusy(t *testing.T) {
	w := newWorld(t)
	var left atomic.Int64
	var lost atomic.Bool
	r := New(Config{Dial: func(ctx context.Context) (Session, error) {
		s, err := w.dial(ctx)
		if err == nil {
			s.Root = fullRoot{s.Root, &left, &lost}
		}
		return s, err
	}, Budget: &cache.Budget{}})
	t.Cleanup(r.Close)
	root, err := r.Root(t.Context())
	w.must(err)
	put := func(ctx context.Context, name string) error {
		_, _, err := root.Put(ctx, []string{name}, []byte("x"), sigma.PutOptions{MustMake: true})
		return err
	}
	left.Store(4)
	w.must(put(t.Context(), "a"))
	left.Store(4)
	if s, err := read(sigma.WithSync(t.Context()), root, "a"); s != "x" || err != nil {
		t.Errorf("read %q, %v", s, err)
	}
	if n := left.Load(); n != 0 {
		t.Errorf("%d refusals are left: it was not asked", n)
	}
	left.Store(-1) // for ever
	began := time.Now()
	if err := put(t.Context(), "b"); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("without an end: %v", err)
	}
	if took := time.Since(began); took < busyMax {
		t.Errorf("it was given up after %v", took)
	}
	lost.Store(true)
	if err := put(t.Context(), "b"); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("after a loss: %v", err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := put(soon, "b"); sigma.KindOf(err) != sigma.KindTimeout {
		t.Errorf("by a deadline: %v", err)
	}
}

// Goal: a request that was refused once because too many wait, and waited for hours afterwards, is
// asked again when it is refused after a loss.
func TestBusyLongAgo(t *testing.T) {
	w := newWorld(t)
	r := New(Config{Dial: w.dial, Budget: &cache.Budget{}})
	t.Cleanup(r.Close)
	root, err := r.Root(t.Context())
	w.must(err)
	a := attempts{f: root, once: sigma.Once{Client: 1, Seq: 1}}
	a.busy.until, a.busy.pause = time.Now().Add(-time.Hour), busyPauseMost
	answers := []error{sigma.Errorf("test", sigma.KindLost, "lost"), sigma.Errorf("test", sigma.KindBusy,
		"too many wait"), nil}
	asked := 0
	err = a.run(t.Context(), func(context.Context, *binding) error {
		asked++
		return answers[asked-1]
	})
	if err != nil || asked != len(answers) {
		t.Errorf("asked %d times: %v", asked, err)
	}
}
