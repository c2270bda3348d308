package proclog

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"sigmaos.dev/sigma"
)

func read(t *testing.T, f sigma.File, n int, offset uint64) string {
	t.Helper()
	b := make([]byte, n)
	n, err := f.ReadAt(t.Context(), b, offset)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestReadAndRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "a")
	budget := new(Budget)
	l := New(path, budget)
	f := l.File("stdout", 1)
	if got := read(t, f, 10, 0); got != "" {
		t.Errorf("got %q before anything was written", got)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log that nobody wrote has a file: %v", err)
	}
	l.Copy(bytes.NewReader([]byte("hello, world")))
	if got := read(t, f, 5, 7); got != "world" {
		t.Errorf("got %q", got)
	}
	if got := read(t, f, 5, 1<<63); got != "" {
		t.Errorf("got %q beyond the end", got)
	}
	st, err := f.Stat(t.Context())
	if err != nil || st.Size != 12 {
		t.Errorf("got %+v, %v", st, err)
	}
	if err := f.Open(t.Context(), sigma.OpenWrite); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a log can be opened for writing: %v", err)
	}
	l.Remove()
	if used := budget.used.Load(); used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
	if got := read(t, f, 5, 0); got != "" {
		t.Errorf("got %q of a removed log", got)
	}
}

// All that comes through a pipe is kept, in pieces of any size, until its end or until our end is
// closed.
func TestCopyOfPipe(t *testing.T) {
	for _, closing := range []string{"theirs", "ours"} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		l := New(filepath.Join(t.TempDir(), "a"), new(Budget))
		over := make(chan struct{})
		go func() { l.Copy(r); close(over) }()
		text := strings.Repeat("0123456789", 20_000)
		for _, piece := range []string{text[:1], text[1:100], text[100:]} {
			if _, err := w.WriteString(piece); err != nil {
				t.Fatal(err)
			}
		}
		f := l.File("a", 1)
		for v := sigma.Version(1); l.Written() < uint64(len(text)); {
			if v, err = f.(sigma.Watcher).Watch(t.Context(), v); err != nil {
				t.Fatal(err)
			}
		}
		if closing == "theirs" {
			w.Close()
		} else {
			r.Close()
		}
		<-over
		w.Close()
		r.Close()
		if got := read(t, f, len(text), 0); got != text {
			t.Errorf("%s end closed: got %d bytes, want %d", closing, len(got), len(text))
		}
	}
}

// A watcher that knows a version hears of every later one, of the end too, and can give up.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(filepath.Join(t.TempDir(), "a"), new(Budget))
		w := l.File("stdout", 1).(sigma.Watcher)
		ctx, cancel := context.WithCancel(t.Context())
		gaveUp := make(chan error)
		go func() { _, err := w.Watch(ctx, 1); gaveUp <- err }()
		synctest.Wait()
		cancel()
		if err := <-gaveUp; sigma.KindOf(err) != sigma.KindCanceled {
			t.Errorf("got %v", err)
		}
		heard := make(chan sigma.Version)
		go func() {
			v, _ := w.Watch(t.Context(), 1)
			heard <- v
		}()
		synctest.Wait()
		l.Copy(bytes.NewReader(nil))
		if v := <-heard; v != 2 {
			t.Errorf("got version %d, want 2", v)
		}
		if v, err := w.Watch(t.Context(), 1); v != 2 || err != nil {
			t.Errorf("got %d, %v: a change before the call was missed", v, err)
		}
	})
}

// A log that has ended holds no file open, and can be read.
func TestEndedLogIsClosed(t *testing.T) {
	l := New(filepath.Join(t.TempDir(), "log"), new(Budget))
	l.Copy(strings.NewReader("all of it"))
	if l.file != nil {
		t.Error("the file is still open")
	}
	p := make([]byte, 100)
	if n, err := l.File("stdout", 1).ReadAt(t.Context(), p, 4); err != nil || string(p[:n]) != "of it" {
		t.Errorf("got %q, %v", p[:n], err)
	}
	l.Remove()
	if _, err := os.Stat(l.path); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}
