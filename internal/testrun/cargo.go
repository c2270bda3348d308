package main

import (
	"io"
	"regexp"
	"strings"
)

// cargoLine is one result line of Rust's test harness: "test plan::tests::order ... ok", with
// "ignored, reason" for skipped ones. A test that writes to the terminal itself may put text
// between the dots and the word.
var cargoLine = regexp.MustCompile(`^test (.+?) \.\.\. .*?\b(ok|FAILED|ignored)(?:, (.*))?(?: <[0-9.]+s>)?$`)

// parseCargo reads the output of cargo test, records each test and returns the whole (bounded)
// output and how many failed. What failed is explained after the list, so the caller prints the
// output if anything did.
func parseCargo(r *recorder, in io.Reader) (output string, failed int) {
	var all strings.Builder
	lines := newLineReader(in)
	for {
		line, ok := lines.next()
		if !ok {
			return all.String(), failed
		}
		text := string(line)
		appendBounded(&all, text+"\n")
		m := cargoLine.FindStringSubmatch(text)
		switch {
		case m == nil:
		case m[2] == "ok":
			r.pass(m[1], 0)
		case m[2] == "ignored":
			r.skip(m[1], m[3])
		default:
			failed++
			r.fail(m[1], "")
		}
	}
}
