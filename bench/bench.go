// Package bench measures sigmaOS side by side with what people use instead, in one run on one
// machine (goals.md, Method). A Bench boots its own system in a temporary directory, runs its arms
// interleaved, prints JSON lines in which ratio > 1 always means that ours is better, and keeps the
// raw samples.
//
// It assumes root, and that the programs of sigmaOS lie in one directory (Config.Bin). User:
// cmd/bench.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bench is one experiment.
type Bench struct {
	Name        string
	Question    string // that it answers, one line
	Metrics     []string
	AnyMachines bool     // Config.Machines counts
	Parts       []string // that Config.Only may name; nil = it is one whole
	run         func(ctx context.Context, r *Run) error
}

// List gives all benches, in the order in which `all` runs them.
func List() []Bench {
	return []Bench{startBench(), coldstartBench(), startRateBench(), densityBench(), mrBench(), sdkBench(),
		recoverBench(), placementBench(), burstBench(), endpointBench(), dialBench(), callBench(), namesBench(),
		filesBench(), lcbeBench(), fairBench(), neighbourBench(), fleetBench(), rollBench(), queueBench(),
		kvBench(), cacheBench()}
}

// Config says how to run a bench.
type Config struct {
	Bin      string    // directory of the programs
	Results  string    // directory for raw samples, made if missing; "" = keep none
	Quick    bool      // end within 50 s
	Machines int       // of benches that can have any number; 0 = their own choice
	Only     string    // one of Bench.Parts; "" = all of them
	Out      io.Writer // JSON lines
	Notes    io.Writer // for people: what happens, skipped peers
}

// Line is one result.
type Line struct {
	Bench  string   `json:"bench"`
	Metric string   `json:"metric"`
	Unit   string   `json:"unit"`
	Ours   float64  `json:"ours"`
	Peer   string   `json:"peer"`
	Theirs *float64 `json:"theirs"`
	Ratio  *float64 `json:"ratio"`               // median over blocks; > 1: ours is better
	Floor  *float64 `json:"floor"`               // what is possible on this machine, if it was measured
	Lowest *float64 `json:"ratio_min,omitempty"` // of the blocks' ratios
	Most   *float64 `json:"ratio_max,omitempty"`
	N      int      `json:"n"` // samples of ours
	Quick  bool     `json:"quick"`
}

// Result is a file of raw samples: what one run of a bench measured, with what is needed to read it
// later.
type Result struct {
	Bench   string               `json:"bench"`
	Time    time.Time            `json:"time"`
	Commit  string               `json:"commit"`
	Machine map[string]any       `json:"machine"`
	Quick   bool                 `json:"quick"`
	Lines   []Line               `json:"lines"`
	Samples map[string][]float64 `json:"samples"` // by arm and metric
}

// Run is one run of a bench: its system, and what it has measured so far.
type Run struct {
	Config
	bench   string
	dir     string // temporary
	lines   []Line
	samples map[string][]float64 // raw, by arm and metric
}

// A bench that hangs ends after these, far beyond what it takes, and keeps nobody else from the
// machine.
const (
	quickMax = 3 * time.Minute
	fullMax  = 30 * time.Minute
)

// Do runs a bench.
func (b Bench) Do(ctx context.Context, cfg Config) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("making procs needs root: run it as root, or with: sudo bin/bench %s", b.Name)
	}
	most := fullMax
	if cfg.Quick {
		most = quickMax
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("it takes longer than %v: something hangs", most))
	defer cancel()
	r := &Run{Config: cfg, bench: b.Name, samples: map[string][]float64{}}
	if r.dir, err = os.MkdirTemp("", "sigma-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	if err := os.Chmod(r.dir, 0o711); err != nil { // services reach their parts of DATA through it
		return err
	}
	if err := b.run(ctx, r); err != nil {
		if context.Cause(ctx) != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", b.Name, err)
	}
	return r.keep()
}

func (r *Run) note(format string, args ...any) { fmt.Fprintf(r.Notes, "# "+format+"\n", args...) }

// sample records a raw figure of an arm and returns it.
func (r *Run) sample(arm, metric string, v float64) float64 {
	key := arm + " " + metric
	r.samples[key] = append(r.samples[key], v)
	return v
}

// print puts out a result.
func (r *Run) print(l Line) error {
	l.Bench, l.Quick = r.bench, r.Quick
	l.Ours = round(l.Ours)
	for _, p := range []*float64{l.Theirs, l.Ratio, l.Floor, l.Lowest, l.Most} {
		if p != nil {
			*p = round(*p)
		}
	}
	r.lines = append(r.lines, l)
	b, err := json.Marshal(l)
	if err == nil {
		_, err = fmt.Fprintf(r.Out, "%s\n", b)
	}
	return err
}

// round keeps four digits; more are noise.
func round(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'e', 3, 64), 64)
	return v
}

// keep writes the raw samples with what is needed to read them later.
func (r *Run) keep() error {
	if r.Results == "" {
		return nil
	}
	if err := os.MkdirAll(r.Results, 0o755); err != nil {
		return err
	}
	now := time.Now().UTC()
	b, err := json.Marshal(Result{Bench: r.bench, Time: now.Truncate(time.Second), Commit: commit(r.Bin),
		Machine: machine(), Quick: r.Quick, Lines: r.lines, Samples: r.samples})
	if err != nil {
		return err
	}
	path := filepath.Join(r.Results, fmt.Sprintf("%s-%s.json", r.bench, now.Format("20060102-150405")))
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return err
	}
	r.note("raw samples: %s", path)
	return nil
}

// NoCommit is the commit of programs that were built outside of a repository.
const NoCommit = "unknown"

// commit tells which version is measured: the one that the compiler noted or else, as it does not
// in a worktree, the one that the repository around the programs in bin has.
func commit(bin string) string {
	revision, modified := "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				revision = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				modified = "-dirty"
			}
		}
	}
	if revision != "" {
		return revision + modified
	}
	out, err := exec.Command("git", "-C", bin, "describe", "--always", "--dirty", "--abbrev=12").Output()
	if text := strings.TrimSpace(string(out)); err == nil && text != "" {
		return text
	}
	return NoCommit
}

// machine describes where the figures come from.
func machine() map[string]any {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	return map[string]any{"cores": runtime.NumCPU(), "kernel": strings.TrimSpace(string(release)),
		"cpu":    procField("/proc/cpuinfo", "model name"),
		"memory": procField("/proc/meminfo", "MemTotal"), "load": strings.TrimSpace(string(load)),
		"go": runtime.Version()}
}

func procField(path, name string) string {
	data, _ := os.ReadFile(path)
	for line := range bytes.Lines(data) {
		if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// interleave runs arms in blocks A B B A A B ..., so that drift of the machine falls on all.
func interleave(blocks int, arms ...func() error) error {
	for i := range blocks {
		for j := range arms {
			if i%2 == 1 {
				j = len(arms) - 1 - j
			}
			if err := arms[j](); err != nil {
				return err
			}
		}
	}
	return nil
}

// quantile gives the q-th (0 to 1) of values, which it does not change.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(values))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// ratios divides block by block.
func ratios(over, under []float64) []float64 {
	out := make([]float64, min(len(over), len(under)))
	for i := range out {
		out[i] = over[i] / under[i]
	}
	return out
}

// between gives a line the median, least and greatest of the blocks' ratios.
func (l Line) between(ratios []float64) Line {
	l.Ratio, l.Lowest, l.Most = pointer(median(ratios)), pointer(quantile(ratios, 0)), pointer(quantile(ratios, 1))
	return l
}

func pointer(v float64) *float64 { return &v }
