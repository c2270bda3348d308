package proclog

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/poller"
)

func newCollector(t *testing.T) *Collector {
	t.Helper()
	set, err := poller.New()
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(set.Run)
	t.Cleanup(func() { set.Close(); running.Wait() })
	return NewCollector(set)
}

// Goal: a proc that prints little is read at its end, all of it, without a file; one that prints
// more than its pipe holds is never left waiting, whether or not somebody looks.
func TestCollect(t *testing.T) {
	for name, size := range map[string]int{"nothing": 0, "a line": 10, "what memory holds": memoryMax - 1,
		"more than memory holds": memoryMax + 1, "more than a pipe holds": 10 * pieceMax} {
		t.Run(name, func(t *testing.T) {
			c, budget := newCollector(t), new(Budget)
			path := filepath.Join(t.TempDir(), "log")
			l := New(path, budget)
			s, fd, err := c.Open(l)
			if err != nil {
				t.Fatal(err)
			}
			c.Begin(s)
			w := os.NewFile(uintptr(fd), "stdout")
			text := bytes.Repeat([]byte("x"), size)
			if _, err := w.Write(text); err != nil {
				t.Fatal(err)
			}
			w.Close()
			if !s.End() {
				s.Drain()
			}
			s.Drain() // once is enough
			f := l.File("stdout", 1)
			if got := read(t, f, size+1, 0); got != string(text) {
				t.Errorf("got %d bytes, want %d", len(got), size)
			}
			if v, err := f.(sigma.Watcher).Watch(t.Context(), 1); err != nil || v < 2 {
				t.Errorf("the end was not told: %d, %v", v, err)
			}
			if _, err := os.Stat(path); (err == nil) != (size > memoryMax) {
				t.Errorf("with %d bytes there is a file: %t", size, err == nil)
			}
			l.Remove()
			if used, memory := budget.used.Load(), budget.memory.Load(); used != 0 || memory != 0 {
				t.Errorf("%d bytes are still counted, %d in memory", used, memory)
			}
		})
	}
}

// Goal: what a proc printed is seen soon after, while it runs and goes on printing.
func TestFollow(t *testing.T) {
	c := newCollector(t)
	l := New(filepath.Join(t.TempDir(), "log"), new(Budget))
	s, fd, err := c.Open(l)
	if err != nil {
		t.Fatal(err)
	}
	c.Begin(s)
	w := os.NewFile(uintptr(fd), "stdout")
	defer w.Close()
	f := l.File("stdout", 1)
	if err := f.Open(t.Context(), sigma.OpenRead); err != nil {
		t.Fatal(err)
	}
	seen, version := "", sigma.Version(1)
	for _, text := range []string{"one", "two", "three"} {
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if version, err = f.(sigma.Watcher).Watch(t.Context(), version); err != nil {
			t.Fatal(err)
		}
		seen += text
		if got := read(t, f, 100, 0); got != seen {
			t.Errorf("got %q, want %q", got, seen)
		}
	}
	s.Drain()
}

// A realm whose logs have used up its memory writes files from then on.
func TestMemoryIsBounded(t *testing.T) {
	budget := new(Budget)
	budget.memory.Store(realmMemoryMax)
	path := filepath.Join(t.TempDir(), "log")
	l := New(path, budget)
	l.Copy(bytes.NewReader([]byte("short")))
	if st, err := os.Stat(path); err != nil || st.Size() != 5 {
		t.Errorf("got %v, %v; want a file of 5 bytes", st, err)
	}
	if got := read(t, l.File("stdout", 1), 10, 0); got != "short" {
		t.Errorf("got %q", got)
	}
}
