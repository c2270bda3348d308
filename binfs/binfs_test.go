package binfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"sigmaos.dev/memfs"
	"sigmaos.dev/namespace"
	"sigmaos.dev/sigma"
)

// staticProgram is one that can run here: a Go test binary is static without cgo, so this very test is built once more.
func staticProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", "program", "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(dir, "program"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What is no program for this machine is refused with a sentence that says why.
func TestCheck(t *testing.T) {
	good := staticProgram(t)
	other := bytes.Clone(good)
	binary.LittleEndian.PutUint16(other[18:], 243) // EM_RISCV
	relocatable := bytes.Clone(good)
	binary.LittleEndian.PutUint16(relocatable[16:], 1) // ET_REL
	dynamic := bytes.Clone(good)
	phoff := binary.LittleEndian.Uint64(dynamic[32:])
	binary.LittleEndian.PutUint32(dynamic[phoff:], 3) // PT_INTERP
	for _, c := range []struct {
		name string
		data []byte
		says string
	}{
		{"good", good, ""}, {"empty", nil, "0 bytes"}, {"short", []byte("\x7fE"), "2 bytes"}, {"script", []byte("#!/bin/sh\n"), "script"}, {"text", []byte("hello"), "no ELF"},
		{"only magic", []byte("\x7fELF"), "truncated"}, {"cut header", good[:60], "truncated"}, {"another architecture", other, "built for"}, {"relocatable", relocatable, "not an executable"},
		{"dynamic", dynamic, "dynamically linked"},
	} {
		err := Check(bytes.NewReader(c.data), int64(len(c.data)))
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.says != "" && (sigma.KindOf(err) != sigma.KindNoExec || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.says)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := Check(bytes.NewReader(b), int64(len(b))); err != nil && sigma.KindOf(err) != sigma.KindNoExec {
			t.Errorf("got %v", err)
		}
	})
}

// counting is a name space that counts how often a file was opened.
type counting struct {
	sigma.Namespace
	opened atomic.Int32
}

func (c *counting) Open(ctx context.Context, path string, f sigma.OpenFlags) (sigma.Handle, error) {
	c.opened.Add(1)
	return c.Namespace.Open(ctx, path, f)
}

func newTree(t *testing.T) *counting {
	t.Helper()
	fs := memfs.New(memfs.Config{SizeMax: 64 * sigma.MiB})
	root, err := fs.Attach(t.Context(), sigma.Principal{Realm: "a"}, "")
	if err != nil {
		t.Fatal(err)
	}
	return &counting{Namespace: namespace.New(namespace.Config{Root: root})}
}

// Goal: starts of one program at once fetch it once; a replaced program is fetched again, and what was handed out before stays what it was.
func TestOpen(t *testing.T) {
	tree := newTree(t)
	ctx := t.Context()
	good := staticProgram(t)
	if _, err := tree.Put(ctx, "/p", good, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	c, err := New(filepath.Join(t.TempDir(), "bin"))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			f, release, err := c.Open(ctx, "a", tree, "/p")
			if err != nil {
				t.Error(err)
				return
			}
			defer release()
			if got, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30)); err != nil || !bytes.Equal(got, good) {
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	all.Wait()
	if n := tree.opened.Load(); n != 1 {
		t.Errorf("fetched %d times, want once", n)
	}
	old, release, err := c.Open(ctx, "a", tree, "/p")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	changed := append(bytes.Clone(good), "another version"...)
	if _, err := tree.Put(ctx, "/p", changed, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	f, release2, err := c.Open(ctx, "a", tree, "/p")
	if err != nil {
		t.Fatal(err)
	}
	defer release2()
	for _, x := range []struct {
		f    *os.File
		want []byte
	}{{old, good}, {f, changed}} {
		if got, err := io.ReadAll(io.NewSectionReader(x.f, 0, 1<<30)); err != nil || !bytes.Equal(got, x.want) {
			t.Errorf("got %d bytes, %v, want %d", len(got), err, len(x.want))
		}
	}
}

// A failure is told to all who wait, leaves nothing in the cache, and is not remembered.
func TestOpenFails(t *testing.T) {
	tree := newTree(t)
	ctx := t.Context()
	dir := filepath.Join(t.TempDir(), "bin")
	c, err := New(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Open(ctx, "a", tree, "/none"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v", err)
	}
	if _, _, err := c.Open(ctx, "a", tree, "/"); sigma.KindOf(err) != sigma.KindNoExec {
		t.Errorf("got %v", err)
	}
	if _, err := tree.Put(ctx, "/p", []byte("no program"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, _, err := c.Open(ctx, "a", tree, "/p"); sigma.KindOf(err) != sigma.KindNoExec {
			t.Errorf("got %v", err)
		}
	}
	if n := tree.opened.Load(); n != 2 {
		t.Errorf("fetched %d times, want each time", n)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left in the cache: %v, %v", left, err)
	}
	if len(c.known) != 0 || c.order.Len() != 0 {
		t.Errorf("%d entries are known", len(c.known))
	}
}
