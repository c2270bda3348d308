package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The peer counts what the definition says, also where a word crosses the blocks that are read.
func TestCountFiles(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 3<<20)
	for name, text := range map[string]string{"a": "one two,One2three", "b": long + " end", "c": "", "d": strings.Repeat("word ", 500_000)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in, err := newInput("", dir, "/s3/in")
	if err != nil {
		t.Fatal(err)
	}
	got, err := countFiles(in.files)
	if err != nil || got != 4+2+500_000 {
		t.Fatalf("got %d, %v, want %d", got, err, 4+2+500_000)
	}
}

func TestInterleave(t *testing.T) {
	order := ""
	arm := func(name string) func() error { return func() error { order += name; return nil } }
	if err := interleave(3, arm("A"), arm("B")); err != nil || order != "ABBAAB" {
		t.Errorf("got %q, %v, want ABBAAB", order, err)
	}
	broken := errors.New("broken")
	if err := interleave(3, func() error { return broken }, arm("B")); err != broken {
		t.Errorf("got %v, want %v", err, broken)
	}
}

func TestFigures(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	if got := median(values); got != 3 {
		t.Errorf("median: got %v, want 3", got)
	}
	if got := quantile(values, 0.99); got != 5 {
		t.Errorf("p99: got %v, want 5", got)
	}
	if !slices.Equal(values, []float64{5, 1, 4, 2, 3}) {
		t.Error("quantile changed its argument")
	}
	for in, want := range map[float64]float64{0: 0, 123456: 123500, 0.00123456: 0.001235, -2.00004: -2} {
		if got := round(in); got != want {
			t.Errorf("round(%v): got %v, want %v", in, got, want)
		}
	}
}
