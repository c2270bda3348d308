package figures

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/bench"
)

var rewrite = flag.Bool("rewrite", false, "write the page that the results make now")

// The page of four results, two of which are of one bench: the newer ran a part of it.
func TestPage(t *testing.T) {
	files, err := Files("testdata")
	if err != nil {
		t.Fatal(err)
	}
	results, err := Read(files)
	if err != nil {
		t.Fatal(err)
	}
	goals := []Goal{
		{"start", "warm_ms", "spawn", AtMost, 1.4}, {"start", "warm_ms", "wrap", AtLeast, 5},
		{"start", "cpu_ms", "", AtMost, 0.8}, {"start", "cpu_ms", "docker", AtLeast, 30},
		{"call", "per_s", AnyPeer, AtLeast, 0.9}, {"call", "bytes_per_s", "", AtLeast, 300e6},
		{"none", "ms", "", AtMost, 5},
	}
	got := Page(results, []bench.Bench{{Name: "start", Question: "how long?"}, {Name: "call", Question: "how many?"},
		{Name: "idle", Question: "without results?"}}, goals)
	const name = "testdata/page.txt"
	if *rewrite {
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got another page than %s (-rewrite writes it):\n%s", name, got)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Files(dir); err == nil {
		t.Error("no error of a directory without results")
	}
	for text, want := range map[string]string{"{": "no result", "{}": "names no bench",
		`{"bench":"start"}`: "no time"} {
		name := filepath.Join(dir, "result.json")
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Read([]string{name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// Each goal is of a bench that there is, and of a metric that it names; none stands twice.
func TestGoals(t *testing.T) {
	metrics := map[string][]string{}
	for _, b := range bench.List() {
		metrics[b.Name] = b.Metrics
	}
	seen := map[Goal]bool{}
	for _, g := range Goals() {
		if !slices.Contains(metrics[g.Bench], g.Metric) {
			t.Errorf("bench %s has no metric %s", g.Bench, g.Metric)
		}
		g.Value = 0
		if seen[g] {
			t.Errorf("%s %s has two goals for %q", g.Bench, g.Metric, g.Peer)
		}
		seen[g] = true
	}
}

func TestJudge(t *testing.T) {
	ratio := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		goal Goal
		line bench.Line
		want state
	}{
		{Goal{Bound: AtMost, Value: 0}, bench.Line{Ours: 0}, met},
		{Goal{Bound: AtMost, Value: 2}, bench.Line{Ours: 2.5}, missed},
		{Goal{Bound: AtLeast, Value: 2}, bench.Line{Ours: 2.5}, met},
		// Ours takes 1.25 times as long as the peer.
		{Goal{Peer: "p", Bound: AtMost, Value: 1.4}, bench.Line{Ours: 5, Ratio: ratio(0.8)}, met},
		{Goal{Peer: "p", Bound: AtMost, Value: 1.2}, bench.Line{Ours: 5, Ratio: ratio(0.8)}, missed},
		{Goal{Peer: "p", Bound: AtLeast, Value: 1}, bench.Line{Ours: 5, Ratio: ratio(0.8)}, missed},
		{Goal{Peer: "p", Bound: AtLeast, Value: 1}, bench.Line{Ours: 5}, open},
	} {
		if got := c.goal.judge(line{Line: c.line}); got != c.want {
			t.Errorf("%v, ours %v: got %v, want %v", c.goal, c.line.Ours, got, c.want)
		}
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 5: "5", 0.8: "0.8", 0.9 * 6.1: "5.49", 123.456: "123.5",
		1234.5: "1,234.5", 90830000: "90,830,000", -2000: "-2,000", 0.00001234: "0.00001234"} {
		if got := number(v); got != want {
			t.Errorf("%v: got %s, want %s", v, got, want)
		}
	}
}
