package main

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func newTestRecorder() (*recorder, *bytes.Buffer) {
	var out bytes.Buffer
	return &recorder{part: "unit", tally: &Tally{}, out: &out}, &out
}

// The recorded stream has a table with one bad row, a parent that fails by itself, a skip, an
// example, a package that does not compile, one that exits in the middle of a test, and one without
// tests.
func TestGoParserCountsLeaves(t *testing.T) {
	f, err := os.Open("testdata/gotest.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, out := newTestRecorder()
	newGoParser(r, goModule).parse(f)
	if got, want := r.count(), (Counts{Passed: 6, Failed: 4, Skipped: 1}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, want := range []string{
		"-- FAIL unit: a TestTable/two\n", "got 1, want 2",
		"-- FAIL unit: a TestOwn\n", "parent itself",
		"-- FAIL unit: b\n", "did not end: TestDies", "last words",
		"-- FAIL unit: broken\n", "undefined: undefined",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out.String(), "some print") {
		t.Error("the output of a test that passed was printed")
	}
	for _, res := range r.tally.results {
		if res.Outcome == Skipped && res.Reason != "needs root: run as root" {
			t.Errorf("got reason %q", res.Reason)
		}
	}
}

// What the attack suite counts is shown although its test passed.
func TestGoParserShowsAttacks(t *testing.T) {
	r, out := newTestRecorder()
	newGoParser(r,
		goModule).parse(strings.NewReader(
		`{"Action":"output","Package":"p","Test":"T","Output":"attacks: 3 tried, 0 succeeded, 0 daemons harmed\n"}` +
			"\n" +
			`{"Action":"output","Package":"p","Test":"U","Output":"isolation: 4 tried, 0 succeeded\n"}` + "\n" +
			`{"Action":"output","Package":"p","Test":"T","Output":"other\n"}` + "\n" +
			`{"Action":"pass","Package":"p","Test":"T"}` + "\n"))
	if got, want := out.String(),
		"   attacks: 3 tried, 0 succeeded, 0 daemons harmed\n   isolation: 4 tried, 0 succeeded\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestGoParserKeepsGoingAfterOtherText(t *testing.T) {
	r, out := newTestRecorder()
	newGoParser(r,
		goModule).parse(strings.NewReader(
		"go: downloading x\n{\"Action\":\"pass\",\"Package\":\"p\",\"Test\":\"T\"}\n"))
	if r.count().Passed != 1 || !strings.Contains(out.String(), "go: downloading x") {
		t.Errorf("got %v and output %q", r.count(), out)
	}
}

func TestParseCargo(t *testing.T) {
	const text = `   Compiling launcher v0.1.0
running 4 tests
test tests::dies - should panic ... ok
test tests::bad ... FAILED
test tests::later ... ignored, needs root
test src/lib.rs - f (line 1) ... ok
test tests::loud ... it wrote this ok

failures:
---- tests::bad stdout ----
test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.11s
`
	r, _ := newTestRecorder()
	output, failed := parseCargo(r, strings.NewReader(text))
	if got, want := r.count(), (Counts{Passed: 3, Failed: 1, Skipped: 1}); got != want || failed != 1 {
		t.Errorf("got %v and %d failed, want %v", got, failed, want)
	}
	if output != text {
		t.Errorf("output was changed: %q", output)
	}
}

func TestParseVM(t *testing.T) {
	const mark = "\x16"
	sections := map[string]Counts{
		"@@ rust launcher\ntest a ... ok\ntest b ... FAILED\n@@ end " +
			"101\n": {Passed: 1, Failed: 1},
		"@@ go test/x\n" + mark + "=== RUN   TestA\n" + mark + "--- PASS: TestA (0.00s)\n" + mark +
			"PASS\n@@ end 0\n": {Passed: 1},
		"@@ go test/x\npanic: no\n@@ end " +
			"2\n": {Failed: 1},
		"@@ rust launcher\ntest a ... ok\n": {Passed: 1, Failed: 1}, // it stopped there
		"@@ go test/x\n" + mark + "=== RUN   TestA\n" + mark + "=== NAME  TestA\n    a.go:1: no\n" + mark +
			"--- FAIL: TestA (0.00s)\n" + mark + "FAIL\n@@ end 1\n": {Failed: 1},
	}
	for text, want := range sections {
		r, _ := newTestRecorder()
		done := parseVM(r, strings.NewReader("booting\n"+text+"@@ done\n"))
		if got := r.count(); got != want || done != strings.Contains(text, "@@ end") {
			t.Errorf("%q: got %v, done: %v; want %v", text, got, done, want)
		}
	}
	r, _ := newTestRecorder()
	if parseVM(r, strings.NewReader("booting\n")) {
		t.Error("a machine that told nothing is done")
	}
}

func TestReportEndsWithTheCounts(t *testing.T) {
	r, _ := newTestRecorder()
	for i := range 20 {
		r.pass("slow"+strconv.Itoa(i), time.Duration(i)*time.Second)
	}
	r.fail("bad", "reason")
	r.skip("later", "")
	var out bytes.Buffer
	r.tally.Report(&out)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if got, want := lines[len(lines)-1], "20 passed, 1 failed, 1 skipped"; got != want {
		t.Errorf("last line is %q, want %q", got, want)
	}
	if got := strings.Count(out.String(), "unit: slow"); got != slowestShown {
		t.Errorf("%d slow tests are named", got)
	}
	for _, want := range []string{"slow19", "slow10", "no reason given", "unit: bad"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report lacks %q", want)
		}
	}
}

// A run in which nothing failed is good only if something passed.
func TestTallyOK(t *testing.T) {
	r, _ := newTestRecorder()
	r.skip("a", "b")
	if r.tally.OK() {
		t.Error("only skips count as good")
	}
	r.pass("c", 0)
	if !r.tally.OK() {
		t.Error("a pass is not good")
	}
	r.fail("d", "")
	if r.tally.OK() {
		t.Error("a failure is good")
	}
}

func TestRunFailsPartsThatRanNothing(t *testing.T) {
	tally := &Tally{}
	run(t.Context(), []part{{name: "empty", bound: time.Minute, run: func(context.Context, *recorder) {}}}, tally)
	if got, want := tally.count(""), (Counts{Failed: 1}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRunFailsPartsBeyondTheirBound(t *testing.T) {
	tally := &Tally{}
	slow := func(ctx context.Context, r *recorder) { r.pass("x", 0); <-ctx.Done() }
	run(t.Context(), []part{{name: "slow", bound: time.Millisecond, run: slow}}, tally)
	if got, want := tally.count(""), (Counts{Passed: 1, Failed: 1}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestRunCountsInterruptedPartsAsFailed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tally := &Tally{}
	run(ctx, []part{{name: "a", bound: time.Minute}, {name: "b", bound: time.Minute}}, tally)
	if got, want := tally.count(""), (Counts{Failed: 2}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestChoose(t *testing.T) {
	all := allParts(0)
	got, err := choose(all, []string{"unit", "gofmt"})
	if err != nil || strings.Join(partNames(got), " ") != "gofmt unit" {
		t.Errorf("got %v, %v", partNames(got), err)
	}
	if got, err := choose(all, nil); err != nil || len(got) != len(all)-1 || slices.Contains(partNames(got), vmPart) {
		t.Errorf("no names: got %v, %v", partNames(got), err)
	}
	if _, err := choose(all, []string{"units"}); err == nil {
		t.Error("an unknown part is accepted")
	}
}

func TestFuzzTargets(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "p", "p_test.go"),
		"package p\nfunc FuzzB(f *testing.F) {}\nfunc FuzzA(f *testing.F) {}\nfunc (x) FuzzNot() {}\n")
	write(t, filepath.Join(dir, "p", "testdata", "q_test.go"), "package q\nfunc FuzzHidden(f *testing.F) {}\n")
	t.Chdir(dir)
	got, err := fuzzTargets(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != (fuzzTarget{"./p", "FuzzA"}) || got[1] != (fuzzTarget{"./p", "FuzzB"}) {
		t.Errorf("got %v", got)
	}
}

// Each test that is to run alone is there: one with a new name would run beside others, and nothing
// would tell.
func TestAloneExist(t *testing.T) {
	t.Chdir("../..")
	declared := map[string]bool{}
	for _, dir := range packagesAlone {
		files, err := goFiles(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					declared[fn.Name.Name] = true
				}
			}
		}
	}
	for _, name := range testsAlone {
		if !declared[name] {
			t.Errorf("no file of %v declares %s", packagesAlone, name)
		}
	}
}

func TestSpread(t *testing.T) {
	got := spread([]fuzzTarget{{"./p", "A"}, {"./p", "B"}, {"./q", "A"}, {"./q", "B"}, {"./q", "C"}, {"./r", "A"}})
	if want := []fuzzTarget{{"./p", "A"}, {"./q", "A"}, {"./r", "A"}, {"./p", "B"}, {"./q", "B"},
		{"./q", "C"}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What a part compiles ahead begins with the first part, and is over before run returns.
func TestAhead(t *testing.T) {
	begun, over := make(chan struct{}), false
	parts := []part{
		{name: "first", bound: time.Minute, run: func(_ context.Context, r *recorder) { <-begun; r.pass("a", 0) }},
		{name: "second", bound: time.Minute, run: func(_ context.Context, r *recorder) {
			r.pass("b", 0)
		}, ahead: func(context.Context) { close(begun); over = true }},
	}
	tally := &Tally{}
	run(t.Context(), parts, tally)
	if !tally.OK() || !over {
		t.Errorf("got %v, over %v", tally.count(""), over)
	}
}

// A part that is to run beside another does, each counts its own tests, and the part after them
// waits for both.
func TestBeside(t *testing.T) {
	first, second := make(chan struct{}), make(chan struct{})
	var over atomic.Int32
	parts := []part{
		{name: "first", bound: time.Minute, run: func(_ context.Context, r *recorder) {
			close(first)
			<-second
			r.pass("a", 0)
			over.Add(1)
		}},
		{name: "second", bound: time.Minute, beside: true, run: func(_ context.Context, r *recorder) {
			<-first
			close(second)
			over.Add(1)
		}},
		{name: "third", bound: time.Minute, run: func(_ context.Context, r *recorder) {
			if over.Load() == 2 {
				r.pass("b", 0)
			}
		}},
	}
	tally := &Tally{}
	run(t.Context(), parts, tally)
	for name, want := range map[string]Counts{"first": {Passed: 1}, "second": {Failed: 1}, "third": {Passed: 1}} {
		if got := tally.count(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestFuzzIdle(t *testing.T) {
	for output, idle := range map[string]bool{
		"fuzz: elapsed: 3s, execs: 1000 (333/sec)\nPASS\n":       false,
		"testing: warning: no fuzz tests to fuzz\nPASS\n":        true,
		"warning: the test binary was not built with coverage\n": true,
	} {
		if err := fuzzIdle(output); (err != nil) != idle {
			t.Errorf("%q: %v", output, err)
		}
	}
}

func TestFuzzShare(t *testing.T) {
	for _, c := range []struct {
		targets int
		want    time.Duration
	}{{0, fuzzMost}, {1, fuzzMost}, {16, 5 * time.Second}, {40, 2 * time.Second}, {1000, fuzzLeast}} {
		if got := fuzzShare(c.targets); got != c.want {
			t.Errorf("%d targets: got %v, want %v", c.targets, got, c.want)
		}
	}
}

// Goal: a part is charged for the processor time of its commands and of what they waited for.
func TestCharge(t *testing.T) {
	r := &recorder{part: "x", tally: &Tally{}, out: io.Discard}
	c := command{argv: []string{"sh", "-c", "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; true"},
		charge: r.charge}
	for range 2 {
		before := r.processorTime()
		if _, err := c.output(t.Context()); err != nil || r.processorTime() < before+10*time.Millisecond {
			t.Errorf("%v after %v, %v", r.processorTime(), before, err)
		}
	}
	if idleTime() == 0 {
		t.Error("/proc does not tell for how long the processors were idle")
	}
}

// Goal: whatever a command starts in its group is dead when run returns, whether it ended by itself
// or by the context. Method: the command leaves a sleeper behind and tells its pid.
func TestCommandLeavesNothingBehind(t *testing.T) {
	for _, c := range []struct {
		name, script string
		cancel       bool
	}{
		{"ended", "sleep 1000 >/dev/null 2>&1 & echo $!", false},
		{"canceled", "sleep 1000 & echo $!; wait", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var pid int
			err := command{argv: []string{"sh", "-c", c.script}}.run(ctx, func(in io.Reader) {
				line, _ := newLineReader(in).next()
				pid, _ = strconv.Atoi(string(line))
				if c.cancel {
					cancel()
				}
			})
			if c.cancel != errors.Is(err, context.Canceled) {
				t.Errorf("got error %v", err)
			}
			if pid <= 1 {
				t.Fatalf("got pid %d", pid)
			}
			// The orphan is dead at once, but seen until it is reaped.
			for deadline := time.Now().Add(10 * time.Second); alive(pid); {
				if time.Now().After(deadline) {
					t.Fatal("the sleeper lives")
				}
			}
		})
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil || syscall.Kill(pid, 0) != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

func TestCommandTellsAMissingProgram(t *testing.T) {
	if _, err := (command{argv: []string{"there-is-no-such-program"}}).output(t.Context()); err == nil {
		t.Error("no error")
	}
}

// A line without end must neither stop the count nor fill memory.
func TestLineReaderCutsLongLines(t *testing.T) {
	lines := newLineReader(io.MultiReader(strings.NewReader(strings.Repeat("x", 3*lineMax)),
		strings.NewReader("\nnext\nlast")))
	for i, want := range []int{lineMax, 4, 4} {
		line, ok := lines.next()
		if !ok || len(line) != want {
			t.Errorf("line %d: got %d bytes, %v; want %d", i, len(line), ok, want)
		}
	}
	if _, ok := lines.next(); ok {
		t.Error("there is a line after the last")
	}
}

func TestGoFilesLeavesOutTestdata(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.go", "b/c.go", "testdata/d.go", ".hidden/e.go", "bin/f.go", "launcher/target/g.go",
		"b/text.txt"} {
		write(t, filepath.Join(dir, name), "package x\n")
	}
	t.Chdir(dir)
	got, err := goFiles(".")
	if err != nil || strings.Join(got, " ") != "a.go b/c.go" {
		t.Errorf("got %v, %v", got, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A target whose time was over while an input was in flight has failed at nothing.
func TestFuzzClockRace(t *testing.T) {
	const run = "fuzz: elapsed: 1s, gathering baseline coverage: 77/77 completed, now fuzzing with 1 workers\n"
	const begun = "fuzz: elapsed: 0s, gathering baseline coverage: 0/77 completed\n"
	const over = "--- FAIL: FuzzX (1.80s)\n    context deadline exceeded\nFAIL\n"
	for output, want := range map[string]bool{run + over: true, begun + over: true, over: false, run: false,
		run + "    Failing input written to testdata/fuzz/FuzzX/1\n" + over: false} {
		if got := fuzzClockRace(output); got != want {
			t.Errorf("%q: %v", output, got)
		}
	}
}
