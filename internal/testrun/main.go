// Command testrun runs every test of sigmaOS and counts them: format, vet, Go unit tests, the
// launcher's Rust tests, the system tests, which need root, a short run of each fuzz target, and,
// by themselves, the system tests that compare times or shares of processors. Where one of two
// parts mostly waits they run at the same time. `make test` calls testrun after a build. The part
// vm, which runs only if it is named, repeats the tests of containers on a stock kernel in a
// virtual machine.
//
// It promises that its last line is "N passed, N failed, N skipped", that it exits with 1 if a test
// failed, if a part could not run or ran nothing, that no part runs longer than its bound, and that
// nothing it started outlives it. It runs in the root of the repository.
//
//	go run ./internal/testrun [-fuzztime D] [part ...]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	fuzzTime := flag.Duration("fuzztime", 0, "time for each fuzz target; 0 shares 40 s of two processors among all")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: testrun [-fuzztime D] [part ...]\nparts: %s\n",
			strings.Join(partNames(allParts(0)), " "))
		flag.PrintDefaults()
	}
	flag.Parse()
	if _, err := os.Stat("go.mod"); err != nil {
		fmt.Fprintln(os.Stderr, "testrun: run me in the root of the repository")
		os.Exit(2)
	}
	parts, err := choose(allParts(*fuzzTime), flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	tally, begin, idle := &Tally{}, time.Now(), idleTime()
	run(ctx, parts, tally)
	took := time.Since(begin)
	fmt.Printf("== all parts in %s; the host's %d processors were idle for %s\n", took.Round(time.Second),
		runtime.NumCPU(), (idleTime() - idle).Round(time.Second))
	tally.Report(os.Stdout)
	if !tally.OK() {
		os.Exit(1)
	}
}

// part is one stage of the whole.
type part struct {
	name  string
	bound time.Duration // longer is a failure
	run   func(ctx context.Context, r *recorder)
	// ahead compiles what the part needs, beside the parts before it. run reports what was wrong
	// with that. nil = nothing
	ahead func(ctx context.Context)
	// beside is true of a part that runs at the same time as the part before it, because one of the
	// two mostly waits.
	beside bool
}

// allParts lists the stages, cheap ones first, so that a typing mistake is told at once. The bounds
// are several times what the stage takes on a machine of two slow cores with empty build caches.
func allParts(fuzzTime time.Duration) []part {
	fuzz := &fuzzer{each: fuzzTime}
	return []part{
		{name: "gofmt", bound: time.Minute, run: runGofmt},
		{name: "vet", bound: 10 * time.Minute, run: runVet},
		{name: "unit", bound: 20 * time.Minute, run: runUnit},
		{name: "rust", bound: 15 * time.Minute, run: runRust, ahead: buildRust, beside: true},
		{name: "system", bound: 30 * time.Minute, run: runSystem},
		{name: "fuzz", bound: 30*time.Minute + 100*fuzzTime, run: fuzz.run, beside: true},
		{name: "alone", bound: 10 * time.Minute, run: runAlone},
		{name: vmPart, bound: 2 * time.Hour, run: runVM},
	}
}

func partNames(parts []part) []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// choose picks the named parts in their own order; none named means all but the one in a virtual
// machine.
func choose(all []part, names []string) ([]part, error) {
	for _, n := range names {
		if !slices.Contains(partNames(all), n) {
			return nil, fmt.Errorf("there is no part %q; parts are %s", n, strings.Join(partNames(all), " "))
		}
	}
	if len(names) == 0 {
		return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return p.name == vmPart }), nil
	}
	return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return !slices.Contains(names, p.name) }), nil
}

// run runs the parts in order, each with those that run beside it. A failure does not stop it, an
// interrupt does.
func run(ctx context.Context, parts []part, t *Tally) {
	var ahead sync.WaitGroup
	defer ahead.Wait()
	for _, p := range parts {
		if p.ahead != nil {
			ahead.Go(func() { p.ahead(ctx) })
		}
	}
	for len(parts) > 0 {
		n := 1
		for n < len(parts) && parts[n].beside {
			n++
		}
		var stage sync.WaitGroup
		for _, p := range parts[:n] {
			stage.Go(func() { runPart(ctx, p, &recorder{part: p.name, tally: t, out: os.Stdout}) })
		}
		stage.Wait()
		parts = parts[n:]
	}
}

func runPart(ctx context.Context, p part, r *recorder) {
	if ctx.Err() != nil {
		r.fail("interrupted", "was not run")
		return
	}
	fmt.Fprintf(r.out, "== %s\n", p.name)
	begin := time.Now()
	bounded, cancel := context.WithTimeout(ctx, p.bound)
	defer cancel()
	p.run(bounded, r)
	if bounded.Err() != nil {
		name, why := "interrupted", "did not end"
		if ctx.Err() == nil {
			name, why = "timeout", "took longer than "+p.bound.String()
		}
		r.fail(name, why)
	}
	if n := r.count(); n.Passed+n.Failed == 0 {
		r.fail("nothing", "no test ran")
	}
	fmt.Fprintf(r.out, "== %s: %v in %s; %s of processor time\n", p.name, r.count(),
		time.Since(begin).Round(100*time.Millisecond), r.processorTime().Round(time.Second))
}
