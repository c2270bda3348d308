package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A short run of all targets shares fuzzTotal among them, fuzzWorkers at a time, each within [fuzzLeast, fuzzMost]. Compiling comes on top.
const (
	fuzzTotal   = 60 * time.Second
	fuzzWorkers = 2
	fuzzLeast   = time.Second
	fuzzMost    = 5 * time.Second
)

// fuzzTarget is one func Fuzz of one package.
type fuzzTarget struct {
	dir  string // "./sigmap"
	name string
}

// fuzzTargets finds the fuzz targets below root, in order.
func fuzzTargets(root string) ([]fuzzTarget, error) {
	files, err := goFiles(root)
	if err != nil {
		return nil, err
	}
	var targets []fuzzTarget
	for _, file := range files {
		if !strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				targets = append(targets, fuzzTarget{"./" + filepath.Dir(file), fn.Name.Name})
			}
		}
	}
	slices.SortFunc(targets, func(a, b fuzzTarget) int { return strings.Compare(a.dir+" "+a.name, b.dir+" "+b.name) })
	return targets, nil
}

// fuzzShare is the time of each of n targets.
func fuzzShare(n int) time.Duration {
	return min(max(fuzzTotal*fuzzWorkers/time.Duration(max(n, 1)), fuzzLeast), fuzzMost).Truncate(100 * time.Millisecond)
}

// runFuzz runs each target for each, or for its share of a minute if each is 0.
func runFuzz(ctx context.Context, r *recorder, each time.Duration) {
	targets, err := fuzzTargets(".")
	if err != nil {
		r.fail("fuzz", err.Error())
		return
	}
	if each == 0 {
		each = fuzzShare(len(targets))
	}
	r.say("%d targets, %v each", len(targets), each)
	work := make(chan fuzzTarget)
	var workers sync.WaitGroup
	for range fuzzWorkers {
		workers.Go(func() {
			for t := range work {
				fuzzOne(ctx, r, t, each)
			}
		})
	}
	for _, t := range targets {
		work <- t
	}
	close(work)
	workers.Wait()
}

func fuzzOne(ctx context.Context, r *recorder, t fuzzTarget, each time.Duration) {
	name := strings.TrimPrefix(t.dir, "./") + " " + t.name
	if ctx.Err() != nil {
		return // run tells that the part did not end
	}
	c := command{argv: []string{"go", "test", "-run", "^$", "-fuzz", "^" + t.name + "$", "-fuzztime", each.String(), "-parallel", "1",
		"-timeout", (each + 5*time.Minute).String(), t.dir}}
	out, err := c.output(ctx)
	if err != nil && fuzzClockRace(out) {
		out, err = c.output(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		r.fail(name, out+fmt.Sprintf("%v\nif it wrote a file below testdata/fuzz, commit it with the repair", err))
		return
	}
	r.pass(name, 0) // its time was given, so it is not one of the slow ones
}

// fuzzClockRace reports whether a run failed only because the go command stopped it at its time while an input was in flight, a known fault of the
// fuzzing engine: no failing input was found.
func fuzzClockRace(output string) bool {
	return strings.Contains(output, "context deadline exceeded") && !strings.Contains(output, "Failing input written")
}
