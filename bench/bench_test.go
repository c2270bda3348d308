package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// The peer counts what the definition says, also where a word crosses the blocks that are read.
func TestCountFiles(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 3<<20)
	for name, text := range map[string]string{"a": "one two,One2three", "b": long + " end", "c": "",
		"d": strings.Repeat("word ", 500_000)} {
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

func TestBetween(t *testing.T) {
	l := Line{}.between([]float64{3, 1, 2})
	if *l.Ratio != 2 || *l.Lowest != 1 || *l.Most != 3 {
		t.Errorf("got %v, %v, %v", *l.Ratio, *l.Lowest, *l.Most)
	}
}

// Only cgroups that are made for one proc are counted: those of groups stay with their realm.
func TestIsLeaf(t *testing.T) {
	for name, want := range map[string]bool{"12": true, "spare-7": true, "be": false, "default": false, "spare-": false,
		"": false, "sigma-a6b0f8ef": false} {
		if got := isLeaf(name); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}

func TestLeaks(t *testing.T) {
	booted, warm := footprint{processes: 5, leaves: 4, mounts: 3, namespaces: 9, files: 50},
		footprint{processes: 9, files: 60}
	if got := (footprint{processes: 6, leaves: 4, mounts: 3, namespaces: 11, files: 60}).leaks(booted,
		warm); got != [...]int{1, 0, 0, 2, 0} {
		t.Errorf("got %v of %v", got, leakMetrics)
	}
}

// Each phase has a name and a meaning, and each is a metric of the bench.
func TestPhases(t *testing.T) {
	metrics := startBench().Metrics
	for i, name := range phases() {
		if meaning(sigma.Phase(i)) == "" || !slices.Contains(metrics, "phase_"+name+"_p50_ms") {
			t.Errorf("phase %s: meaning %q, metrics %q", name, meaning(sigma.Phase(i)), metrics)
		}
	}
}

// What stands side by side is of the same blocks.
func TestSeries(t *testing.T) {
	all, some := series{0: 1, 1: 2, 2: 9}, series{0: 4, 2: 6, 3: 7}
	if a, b := all.with(some), some.with(all); len(a) != 2 || len(b) != 2 || a.median() != 9 || b.median() != 6 ||
		len(all) != 3 {
		t.Errorf("got %v and %v of %v", a, b, all)
	}
	if got := all.with(some, nil); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}
