package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// goEvent is one line of go test -json (go doc cmd/test2json; the build events are those of go help
// buildjson).
type goEvent struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	Test        string
	Elapsed     float64 // seconds
	Output      string
	FailedBuild string // in a package's fail: whose build it was
}

// outputMax bounds what is kept of one test's output, in bytes; a test that prints without end must
// not fill memory.
const outputMax = 256 << 10

// goParser turns the events of one go test -json run into results of leaf tests: a test that has
// subtests counts only if it fails while none of them does.
type goParser struct {
	r      *recorder
	module string // trimmed from package names
	tests  map[string]*goTest
	builds map[string]*strings.Builder // output of compilers by import path
}

type goTest struct {
	output  strings.Builder
	parent  bool // has subtests
	failing bool // a subtest failed
	ran     int  // of a package: tests that ended
}

func newGoParser(r *recorder, module string) *goParser {
	return &goParser{r: r, module: module, tests: map[string]*goTest{}, builds: map[string]*strings.Builder{}}
}

// parse reads events until the end of in. Lines that are no events are failures of the go command
// itself and printed.
func (p *goParser) parse(in io.Reader) {
	lines := newLineReader(in)
	for {
		line, ok := lines.next()
		if !ok {
			return
		}
		var e goEvent
		if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
			if len(line) > 0 {
				p.r.say("%s", line)
			}
			continue
		}
		p.event(e)
	}
}

func (p *goParser) get(pkg, test string) *goTest {
	key := pkg + "\x00" + test
	t := p.tests[key]
	if t == nil {
		t = &goTest{}
		p.tests[key] = t
	}
	return t
}

// parents calls f for every test that e.Test is a subtest of, and for its package.
func (p *goParser) parents(e goEvent, f func(*goTest)) {
	for name := e.Test; name != ""; {
		i := strings.LastIndexByte(name, '/')
		if i < 0 {
			i = 0
		}
		name = name[:i]
		f(p.get(e.Package, name))
	}
}

func (p *goParser) event(e goEvent) {
	switch e.Action {
	case "build-output":
		b := p.builds[e.ImportPath]
		if b == nil {
			b = &strings.Builder{}
			p.builds[e.ImportPath] = b
		}
		appendBounded(b, e.Output)
	case "output":
		if strings.HasPrefix(e.Output, "attacks: ") ||
			strings.HasPrefix(e.Output, "isolation: ") { // what these suites promise to say
			p.r.say("%s", strings.TrimSpace(e.Output))
		}
		appendBounded(&p.get(e.Package, e.Test).output, e.Output)
	case "run":
		p.parents(e, func(t *goTest) { t.parent = true })
	case "pass", "fail", "skip":
		p.ended(e)
	}
}

func (p *goParser) ended(e goEvent) {
	t := p.get(e.Package, e.Test)
	if e.Test == "" {
		p.packageEnded(e, t)
		return
	}
	name := p.short(e.Package) + " " + e.Test
	elapsed := time.Duration(e.Elapsed * float64(time.Second))
	switch {
	case e.Action == "fail" && !t.failing:
		p.r.failAfter(name, t.output.String(), elapsed)
	case t.parent && e.Action != "skip":
		return // counted by its subtests
	case e.Action == "skip":
		p.r.skip(name, skipReason(t.output.String()))
	default:
		p.r.pass(name, elapsed)
	}
	failed := e.Action == "fail"
	p.parents(e, func(t *goTest) {
		t.failing = t.failing || failed
		t.ran++
	})
	delete(p.tests, e.Package+"\x00"+e.Test)
}

// packageEnded handles the event of a whole package: what failed outside any test (build, panic,
// TestMain, time limit) is one failure.
func (p *goParser) packageEnded(e goEvent, t *goTest) {
	name := p.short(e.Package)
	if e.Action == "fail" {
		defer p.r.say("FAILED %s (%d tests, %.1fs)", name, t.ran, e.Elapsed)
	}
	switch {
	case e.Action == "fail" && !t.failing:
		output := t.output.String()
		if b := p.builds[e.FailedBuild]; b != nil {
			output = b.String() + output
		}
		p.r.fail(name, output+p.unfinished(e.Package))
	case e.Action == "pass" && t.ran > 0:
		p.r.say("ok %s (%d tests, %.1fs)", name, t.ran, e.Elapsed)
	}
	for key := range p.tests {
		if strings.HasPrefix(key, e.Package+"\x00") {
			delete(p.tests, key)
		}
	}
}

// unfinished gives the output of tests that began and never ended, which a panic or a time limit
// leaves behind.
func (p *goParser) unfinished(pkg string) string {
	var b strings.Builder
	for key, t := range p.tests {
		if test, ok := strings.CutPrefix(key, pkg+"\x00"); ok && test != "" && !t.failing {
			fmt.Fprintf(&b, "did not end: %s\n%s", test, t.output.String())
		}
	}
	return b.String()
}

func (p *goParser) short(pkg string) string {
	if pkg == p.module {
		return "."
	}
	return strings.TrimPrefix(pkg, p.module+"/")
}

// skipReason finds the words a test gave to Skip in its output, where they look like "
// file_test.go:12: reason".
func skipReason(output string) string {
	var words []string
	for line := range strings.Lines(output) {
		text := strings.TrimSpace(line)
		if text == "" || strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") {
			continue
		}
		if _, rest, ok := strings.Cut(text, ".go:"); ok {
			if _, reason, ok := strings.Cut(rest, ": "); ok {
				text = reason
			}
		}
		words = append(words, text)
	}
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

func appendBounded(b *strings.Builder, s string) {
	switch room := outputMax - b.Len(); {
	case room > len(s):
		b.WriteString(s)
	case room > 0:
		b.WriteString(s[:room])
		b.WriteString("\n[more output was dropped]\n")
	}
}
