package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// Outcome is how one test ended.
type Outcome int

// The outcomes.
const (
	Passed Outcome = iota
	Failed
	Skipped
)

// Result is one finished leaf test.
type Result struct {
	Part    string
	Name    string // package and test
	Outcome Outcome
	Elapsed time.Duration // 0 where the tool does not tell
	Reason  string        // why it was skipped
}

// Counts is what the last line says.
type Counts struct{ Passed, Failed, Skipped int }

func (c Counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

// Tally collects the results of all parts. Safe for concurrent use.
type Tally struct {
	mu      sync.Mutex
	results []Result // guarded by mu
}

func (t *Tally) add(r Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.results = append(t.results, r)
}

// count counts the results of a part; of all parts if it is "".
func (t *Tally) count(part string) Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	var c Counts
	for _, r := range t.results {
		if part != "" && r.Part != part {
			continue
		}
		switch r.Outcome {
		case Passed:
			c.Passed++
		case Failed:
			c.Failed++
		case Skipped:
			c.Skipped++
		}
	}
	return c
}

// OK reports whether something passed and nothing failed.
func (t *Tally) OK() bool {
	c := t.count("")
	return c.Failed == 0 && c.Passed > 0
}

// slowestShown is how many of the slowest tests the report names.
const slowestShown = 10

// Report prints what was skipped and why, what failed, the slowest tests, and the line of counts
// last.
func (t *Tally) Report(w io.Writer) {
	c := t.count("")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reportSkippedLocked(w)
	if c.Failed > 0 {
		fmt.Fprintln(w, "\nfailed:")
		for _, r := range t.results {
			if r.Outcome == Failed {
				fmt.Fprintf(w, "  %s: %s\n", r.Part, r.Name)
			}
		}
	}
	timed := slices.DeleteFunc(slices.Clone(t.results), func(r Result) bool { return r.Elapsed == 0 })
	slices.SortStableFunc(timed, func(a, b Result) int { return int(b.Elapsed - a.Elapsed) })
	fmt.Fprintf(w, "\nthe ten slowest tests:\n")
	for _, r := range timed[:min(slowestShown, len(timed))] {
		fmt.Fprintf(w, "  %8.2fs  %s: %s\n", r.Elapsed.Seconds(), r.Part, r.Name)
	}
	fmt.Fprintf(w, "\n%v\n", c)
}

// reportSkippedLocked prints each reason once, with the tests it stopped.
func (t *Tally) reportSkippedLocked(w io.Writer) {
	byReason := map[string][]string{}
	var reasons []string
	for _, r := range t.results {
		if r.Outcome != Skipped {
			continue
		}
		if _, seen := byReason[r.Reason]; !seen {
			reasons = append(reasons, r.Reason)
		}
		byReason[r.Reason] = append(byReason[r.Reason], r.Part+": "+r.Name)
	}
	if len(reasons) > 0 {
		fmt.Fprintln(w, "\nskipped:")
	}
	for _, reason := range reasons {
		fmt.Fprintf(w, "  %s\n    %s\n", reason, strings.Join(byReason[reason], "\n    "))
	}
}

// recorder is how a part tells what happened. Safe for concurrent use. Each message is one write,
// so that those of parts that run at the same time do not mix.
type recorder struct {
	part  string
	tally *Tally
	mu    sync.Mutex
	out   io.Writer     // guarded by mu
	used  time.Duration // guarded by mu; processor time of the part's commands
}

// charge adds processor time of a command that ended.
func (r *recorder) charge(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used += d
}

func (r *recorder) processorTime() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used
}

func (r *recorder) count() Counts { return r.tally.count(r.part) }

func (r *recorder) pass(name string, elapsed time.Duration) {
	r.tally.add(Result{Part: r.part, Name: name, Elapsed: elapsed})
}

// fail counts a failure and prints what is known of it.
func (r *recorder) fail(name, output string) { r.failAfter(name, output, 0) }

func (r *recorder) failAfter(name, output string, elapsed time.Duration) {
	r.tally.add(Result{Part: r.part, Name: name, Outcome: Failed, Elapsed: elapsed})
	text := fmt.Sprintf("-- FAIL %s: %s\n", r.part, name)
	if output = strings.TrimRight(output, "\n"); output != "" {
		text += output + "\n"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	io.WriteString(r.out, text)
}

func (r *recorder) skip(name, reason string) {
	if reason == "" {
		reason = "no reason given"
	}
	r.tally.add(Result{Part: r.part, Name: name, Outcome: Skipped, Reason: reason})
}

// say prints a line of progress.
func (r *recorder) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "   "+format+"\n", args...)
}
