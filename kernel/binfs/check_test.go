package binfs

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// staticProgram is one that can run here: a Go test binary is static without cgo, so this very test
// is built once more.
func staticProgram(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"),
		0o644); err != nil {
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
	library := bytes.Clone(good)
	binary.LittleEndian.PutUint16(library[16:], 3) // ET_DYN
	binary.LittleEndian.PutUint64(library[24:], 0)
	for _, c := range []struct {
		name string
		data []byte
		says string
	}{
		{"good", good, ""}, {"empty", nil, "0 bytes"}, {"short", []byte("\x7fE"), "2 bytes"},
		{"script", []byte("#!/bin/sh\n"), "script"}, {"text", []byte("hello"), "not an ELF"},
		{"only magic", []byte("\x7fELF"), "truncated"}, {"cut header", good[:60], "truncated"},
		{"another architecture", other, "built for"}, {"relocatable", relocatable, "not an executable"},
		{"dynamic", dynamic, "dynamically linked"}, {"library", library, "shared library"},
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
