// Command testrun runs every test of sigmaOS, one part after the other, and counts them: format, vet, Go unit tests, the launcher's Rust tests,
// a short run of each fuzz target, and the system tests, which need root. `make test` calls it after a build. The part vm, which runs only if it is named,
// repeats the tests of containers on a stock kernel in a virtual machine.
//
// It promises that its last line is "N passed, N failed, N skipped", that it exits with 1 if a test failed, if a part could not run or
// ran nothing, that no part runs longer than its bound, and that nothing it started outlives it. It runs in the root of the repository.
//
//	go run ./internal/testrun [-fuzztime D] [part ...]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	fuzzTime := flag.Duration("fuzztime", 0, "time for each fuzz target; 0 shares a minute among all")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: testrun [-fuzztime D] [part ...]\nparts: %s\n", strings.Join(partNames(allParts(0)), " "))
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
	tally := &Tally{}
	run(ctx, parts, tally)
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
	ahead func(ctx context.Context) // compiles what it needs, beside the parts before it, some of whose tests mostly wait; nil = nothing. run says what was wrong with it
}

// allParts lists the stages, cheap ones first, so that a typing mistake is told at once. The bounds are several times what the stage takes on a
// machine of two slow cores with empty build caches.
func allParts(fuzzTime time.Duration) []part {
	fuzz := &fuzzer{each: fuzzTime}
	return []part{
		{"gofmt", time.Minute, runGofmt, nil},
		{"vet", 10 * time.Minute, runVet, nil},
		{"unit", 20 * time.Minute, runUnit, nil},
		{"rust", 15 * time.Minute, runRust, buildRust},
		{"fuzz", 15*time.Minute + 100*fuzzTime, fuzz.run, fuzz.ahead},
		{"system", 30 * time.Minute, runSystem, nil},
		{vmPart, 2 * time.Hour, runVM, nil},
	}
}

func partNames(parts []part) []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// choose picks the named parts in their own order; none named means all but the one in a virtual machine.
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

// run runs the parts in order. A failure does not stop it, an interrupt does.
func run(ctx context.Context, parts []part, t *Tally) {
	var ahead sync.WaitGroup
	defer ahead.Wait()
	for _, p := range parts {
		if p.ahead != nil {
			ahead.Go(func() { p.ahead(ctx) })
		}
	}
	for _, p := range parts {
		r := &recorder{part: p.name, tally: t, out: os.Stdout}
		if ctx.Err() != nil {
			r.fail("interrupted", "was not run")
			continue
		}
		fmt.Printf("== %s\n", p.name)
		before, begin := t.count(), time.Now()
		bounded, cancel := context.WithTimeout(ctx, p.bound)
		p.run(bounded, r)
		if bounded.Err() != nil {
			name, why := "interrupted", "did not end"
			if ctx.Err() == nil {
				name, why = "timeout", "took longer than "+p.bound.String()
			}
			r.fail(name, why)
		}
		cancel()
		if n := t.count().minus(before); n.Passed+n.Failed == 0 {
			r.fail("nothing", "no test ran")
		}
		fmt.Printf("   %s: %v in %s\n", p.name, t.count().minus(before), time.Since(begin).Round(100*time.Millisecond))
	}
}
