package main

import (
	"context"
	"io"
	"os/exec"
	"strings"
)

// vmPart is run only if it is named: it emulates a machine, which takes half an hour.
const vmPart = "vm"

// runVM runs the container tests on a stock kernel in a virtual machine and records its tests.
func runVM(ctx context.Context, r *recorder) {
	before := r.count()
	done := false
	err := command{argv: []string{"scripts/test-vm"}}.run(ctx, func(in io.Reader) { done = parseVM(r, in) })
	switch n := r.count(); {
	case ctx.Err() != nil:
	case err != nil && n.Failed == before.Failed:
		r.fail("scripts/test-vm", err.Error())
	case !done && n.Failed == before.Failed:
		r.fail("scripts/test-vm", "the machine stopped before all tests had run")
	}
}

// parseVM reads what scripts/vm/run prints: the output of a test program between the lines "@@ go
// NAME" or "@@ rust NAME" and "@@ end CODE", and "@@ done" last, which it reports. Lines outside
// are for whoever watches.
func parseVM(r *recorder, in io.Reader) (done bool) {
	lines := newLineReader(in)
	for {
		line, ok := lines.next()
		if !ok {
			return done
		}
		kind, name, _ := strings.Cut(strings.TrimPrefix(string(line), "@@ "), " ")
		switch {
		case !strings.HasPrefix(string(line), "@@ "):
			r.say("%s", line)
		case kind == "go" || kind == "rust":
			r.say("%s in the machine", name)
			parseVMSection(r, kind, name, lines)
		case kind == "done":
			done = true
		default:
			r.say("%s", strings.TrimPrefix(string(line), "@@ "))
		}
	}
}

// parseVMSection reads one test program's output up to its end. A program that failed without a
// failed test is a failure itself.
func parseVMSection(r *recorder, kind, name string, lines *lineReader) {
	before := r.count()
	section, write := io.Pipe()
	code := make(chan string, 1)
	go func() {
		defer write.Close()
		for {
			line, ok := lines.next()
			if rest, end := strings.CutPrefix(string(line), "@@ end "); end || !ok {
				code <- rest
				return
			}
			write.Write(append(line, '\n'))
		}
	}()
	var output string
	if kind == "rust" {
		output, _ = parseCargo(r, section)
	} else {
		parseGoText(r, name, section)
	}
	io.Copy(io.Discard, section)
	n, ended := r.count(), <-code
	switch {
	case ended != "0" && n.Failed == before.Failed:
		r.fail(name, output+"exit code "+ended+" (none: the machine stopped)")
	case ended != "0" && output != "":
		r.say("output of %s:\n%s", name, output)
	}
}

// parseGoText reads what a Go test program prints with -test.v=test2json.
func parseGoText(r *recorder, name string, in io.Reader) {
	cmd := exec.Command("go", "tool", "test2json", "-p", goModule+"/"+name)
	cmd.Stdin = in
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		r.fail("test2json", err.Error())
		return
	}
	newGoParser(r, goModule).parse(out)
	if err := cmd.Wait(); err != nil {
		r.fail("test2json", err.Error())
	}
}
