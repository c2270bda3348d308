package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A short run of all targets shares fuzzTotal among them, fuzzWorkers at a time, each within
// [fuzzLeast, fuzzMost]. Compiling comes on top.
const (
	fuzzTotal   = 40 * time.Second
	fuzzWorkers = 2
	fuzzLeast   = time.Second
	fuzzMost    = 5 * time.Second
)

// fuzzTarget is one func Fuzz of one package.
type fuzzTarget struct {
	dir  string // "./wire/sigmap"
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
	return min(max(fuzzTotal*fuzzWorkers/time.Duration(max(n, 1)), fuzzLeast),
		fuzzMost).Truncate(100 * time.Millisecond)
}

// fuzzFlags compile the tests of a package for fuzzing. They instrument the packages of this module
// only, where `go test -fuzz` also instruments what they import: coverage of our decoders is what
// guides the engine. So nothing else is compiled again, and a target runs two to three times as
// many inputs in its time. Fuzzing needs no debug information.
var fuzzFlags = []string{"-vet=off", "-gcflags=" + goModule + "/...=-d=libfuzzer", "-ldflags=-s -w"}

// fuzzer runs targets. A package is compiled once for all its targets: to have the go command do it
// for each takes as long as the targets do. run removes the programs.
type fuzzer struct {
	each  time.Duration // for each target; 0 = its share of fuzzTotal
	dir   string        // of the programs; absolute
	cache string        // where the go command keeps inputs that it found, one directory for each package

	mu       sync.Mutex
	programs map[string]func() (string, error) // mu; by the package's directory: compiles it when it is called first
}

// run runs each target.
func (f *fuzzer) run(ctx context.Context, r *recorder) {
	targets, err := fuzzTargets(".")
	if err == nil {
		err = f.prepare(ctx)
	}
	if err != nil {
		r.fail("fuzz", err.Error())
		return
	}
	defer os.RemoveAll(f.dir)
	each := f.each
	if each == 0 {
		each = fuzzShare(len(targets))
	}
	r.say("%d targets, %v each", len(targets), each)
	work := make(chan fuzzTarget)
	var workers sync.WaitGroup
	for range fuzzWorkers {
		workers.Go(func() {
			for t := range work {
				f.one(ctx, r, t, each)
			}
		})
	}
	for _, t := range spread(targets) {
		work <- t
	}
	close(work)
	workers.Wait()
}

// spread orders targets so that neighbours are of different packages while there are such, and no
// worker waits for what another compiles.
func spread(targets []fuzzTarget) []fuzzTarget {
	nth, seen := map[fuzzTarget]int{}, map[string]int{}
	for _, t := range targets {
		nth[t] = seen[t.dir]
		seen[t.dir]++
	}
	out := slices.Clone(targets)
	slices.SortStableFunc(out, func(a, b fuzzTarget) int { return cmp.Compare(nth[a], nth[b]) })
	return out
}

func (f *fuzzer) prepare(ctx context.Context) error {
	cache, err := command{argv: []string{"go", "env", "GOCACHE"}}.output(ctx)
	if err != nil {
		return fmt.Errorf("go env GOCACHE: %s%w", cache, err)
	}
	f.cache, f.programs = filepath.Join(strings.TrimSpace(cache), "fuzz"), map[string]func() (string, error){}
	f.dir, err = os.MkdirTemp("", "testrun-fuzz-")
	return err
}

// program compiles the tests of a package, for fuzzing, and returns the program's path.
func (f *fuzzer) program(ctx context.Context, r *recorder, dir string) (string, error) {
	f.mu.Lock()
	compile := f.programs[dir]
	if compile == nil {
		compile = sync.OnceValues(func() (string, error) {
			path := filepath.Join(f.dir, strings.ReplaceAll(strings.TrimPrefix(dir, "./"), "/", "-")+".test")
			argv := slices.Concat([]string{"go", "test", "-c"}, goFlags, fuzzFlags, []string{"-o", path, dir})
			out, err := command{argv: argv, env: goEnv, charge: r.charge}.output(ctx)
			if err != nil {
				err = fmt.Errorf("%s%w", out, err)
			}
			return path, err
		})
		f.programs[dir] = compile
	}
	f.mu.Unlock()
	return compile()
}

func (f *fuzzer) one(ctx context.Context, r *recorder, t fuzzTarget, each time.Duration) {
	pkg := strings.TrimPrefix(t.dir, "./")
	name := pkg + " " + t.name
	if ctx.Err() != nil {
		return // run tells that the part did not end
	}
	program, err := f.program(ctx, r, t.dir)
	if err != nil {
		r.fail(name, err.Error())
		return
	}
	// Without a bound each input of interest is made smaller for up to a minute, which is all of
	// the time there is. As go test starts it, in the package's directory, where testdata is.
	c := command{dir: t.dir, charge: r.charge, argv: []string{program, "-test.paniconexit0", "-test.run", "^$",
		"-test.fuzz", "^" + t.name + "$", "-test.fuzzminimizetime", "10x", "-test.parallel", "1",
		"-test.fuzzcachedir", filepath.Join(f.cache, goModule, pkg), "-test.timeout", (each + 5*time.Minute).String(),
		"-test.fuzztime", each.String()}}
	out, err := c.output(ctx)
	if err != nil && fuzzClockRace(out) { // by number there is no clock to race with, and what hangs is found
		c.argv[len(c.argv)-1] = "200x"
		out, err = c.output(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		err = fuzzIdle(out)
	}
	if err != nil {
		r.fail(name, out+fmt.Sprintf("%v\nif it wrote a file below %s/testdata/fuzz, commit it with the repair", err,
			pkg))
		return
	}
	r.pass(name, 0) // its time was given, so it is not one of the slow ones
}

// fuzzIdle says why a run that found nothing has not looked for anything.
func fuzzIdle(output string) error {
	switch {
	case strings.Contains(output, "not built with coverage"):
		return errors.New("it ran without guidance by coverage")
	case strings.Contains(output, "no fuzz tests to fuzz"):
		return errors.New(
			"its package's tests have no such target as they are built here: is it in a file that a build tag, or a " +
				"name like x_windows_test.go, leaves out?")
	}
	return nil
}

// fuzzClockRace reports whether a run failed only because its time was over while an input was in
// flight, a known fault of the fuzzing engine: inputs were run, and no failing one was found.
func fuzzClockRace(output string) bool {
	over := strings.Contains(output, "\n    context deadline exceeded\n")
	found := strings.Contains(output, "Failing input written") || strings.Contains(output, "panic:")
	return over && !found && strings.Contains(output, "gathering baseline coverage")
}
