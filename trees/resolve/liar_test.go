package resolve_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
	"sigmaos.dev/wire/session"
)

// lying serves connections that lie.
func lying(t *testing.T, how string) (sigma.File, <-chan struct{}, error) {
	ours, theirs, err := session.Pair()
	if err != nil {
		return nil, nil, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		treetest.Lie(how, theirs)
	}()
	c, err := session.Dial(context.Background(), ours)
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { c.Close(); <-over })
	root, err := c.Attach(context.Background(), "")
	return root, c.Done(), err
}

// TestLiars does everything that paths can be used for at servers that lie: each call ends when its
// caller's patience does, at the latest, with an error of ours or an answer; an honest server is
// reached all the while.
func TestLiars(t *testing.T) {
	calls := map[string]func(ctx context.Context, w *world, p string) error{
		"Get": func(ctx context.Context, w *world, p string) error { _, _, err := w.Get(ctx, p); return err },
		"Put": func(ctx context.Context, w *world, p string) error {
			_, err := w.Put(ctx, p, []byte("x"), sigma.PutOptions{})
			return err
		},
		"large Put": func(ctx context.Context, w *world, p string) error {
			_, err := w.Put(ctx, p, make([]byte, 1<<20), sigma.PutOptions{})
			return err
		},
		"Stat":      func(ctx context.Context, w *world, p string) error { _, err := w.Stat(ctx, p); return err },
		"Lstat":     func(ctx context.Context, w *world, p string) error { _, err := w.Lstat(ctx, p); return err },
		"ReadDir":   func(ctx context.Context, w *world, p string) error { _, err := w.ReadDir(ctx, p); return err },
		"ReadLink":  func(ctx context.Context, w *world, p string) error { _, err := w.ReadLink(ctx, p); return err },
		"MkdirAll":  func(ctx context.Context, w *world, p string) error { return w.MkdirAll(ctx, p, 0o777) },
		"Symlink":   func(ctx context.Context, w *world, p string) error { return w.Symlink(ctx, "x", p) },
		"RemoveAll": func(ctx context.Context, w *world, p string) error { return w.RemoveAll(ctx, p) },
		"Rename":    func(ctx context.Context, w *world, p string) error { return w.Rename(ctx, p, p+"x") },
		"Watch":     func(ctx context.Context, w *world, p string) error { _, err := w.Watch(ctx, p, 1); return err },
		"WaitFor":   func(ctx context.Context, w *world, p string) error { return w.WaitFor(ctx, p) },
		"Call": func(ctx context.Context, w *world, p string) error {
			_, err := w.Call(ctx, p, "m", nil)
			return err
		},
		"AbsPath": func(ctx context.Context, w *world, p string) error { _, err := w.AbsPath(ctx, p); return err },
		"any": func(ctx context.Context, w *world, p string) error {
			_, _, err := w.Get(ctx, p+"/~any/x")
			return err
		},
		"Handle": func(ctx context.Context, w *world, p string) error {
			f, err := w.Handle(ctx, p)
			if err != nil {
				return err
			}
			defer f.Close()
			if err = f.Open(ctx, sigma.OpenReadWrite); err == nil {
				_, err = f.ReadAt(ctx, make([]byte, 200<<10), 0)
			}
			if err == nil {
				_, err = f.WriteAt(ctx, make([]byte, 200<<10), 0)
			}
			return err
		},
	}
	w := newWorld(t, nil)
	w.mkdir("/liar")
	w.serve("/good", "m2", treeWith(t, "f", "true"))
	w.holds("/good/f", "true")
	var all sync.WaitGroup
	for _, how := range treetest.Lies() {
		s := w.serve("/liar/"+how, "m2", nil)
		s.lies = how
		for name, call := range calls {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				for range 3 { // a session that ended is made anew
					err := call(ctx, w, "/liar/"+how+"/a/b")
					var se *sigma.Error
					if err != nil && !errors.As(err, &se) && !errors.Is(err, io.EOF) {
						t.Errorf("%s: %s: got %T %v", how, name, err, err)
					}
					if err != nil && len(err.Error()) > 10_000 {
						t.Errorf("%s: %s: an error of %d bytes", how, name, len(err.Error()))
					}
				}
			})
		}
		w.holds("/good/f", "true")
	}
	all.Wait()
	w.holds("/good/f", "true")
}

// TestEndlessDirectory: a listing that never ends is given up, before its names fill the program's
// memory; ~any takes of the first.
func TestEndlessDirectory(t *testing.T) {
	for _, how := range []string{"endless-dir", "huge-names", "same-entries"} {
		w := newWorld(t, nil)
		w.serve("/liar", "m2", nil).lies = how
		if how == "huge-names" {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := w.ReadDir(t.Context(), "/liar/d")
			w.fails("ReadDir", err, sigma.KindTooBig, "/liar/d")
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 300<<20 {
				t.Errorf("a listing took %d MiB", grown>>20)
			}
		}
		_, _, err := w.Get(t.Context(), "/liar/d/~any/f")
		if err == nil || strings.Contains(err.Error(), "entries") {
			t.Errorf("%s: Get by ~any: %v", how, err)
		}
	}
}
