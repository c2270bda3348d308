//go:build system

package reference

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// A console block shows commands, on lines that begin with "$ " (and "> " where they go on), each
// followed by what it prints. In that, ... stands for any text of a line, and a line of only ...
// for any lines; and an id, a time or a duration for any other (samples).

type step struct{ command, output string }

var fence = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

// consoles gives the blocks of a page.
func consoles(page string) (blocks [][]step) {
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		blocks = append(blocks, parseConsole(m[1]))
	}
	return blocks
}

func parseConsole(text string) (steps []step) {
	for line := range strings.Lines(text) {
		switch last := len(steps) - 1; {
		case strings.HasPrefix(line, "$ "):
			steps = append(steps, step{command: line[2:]})
		case last < 0:
		case strings.HasPrefix(line, "> ") && steps[last].output == "":
			steps[last].command += line[2:]
		default:
			steps[last].output += line
		}
	}
	return steps
}

// samples are what differs from one run to the next. Pages show it as it was once.
var samples = []struct{ what, as string }{
	{`\b\d{4}-\d\d-\d\dT[0-9:.]+Z`, "<time>"}, {`\b\d{4}-\d\d-\d\d \d\d:\d\d\b`, "<time>"},
	{`\b\d\d:\d\d:\d\d\.\d{3}\b`, "<time>"},
	{`sigma-token-1-[\w-]+`, "<token>"}, {`\b[a-z2-7]{16}\b`, "<id>"}, {`\b[0-9a-f]{16}\b`, "<id>"},
	{`hello-[0-9a-f]{12}`, "<hello>"}, {`pid \d+`, "<pid>"}, {`"version":\d+`, "<version>"},
	{`\d+(\.\d+)?([KMG]i)?B/s`, "<rate>"}, {`\d+(\.\d+)?(h\d+m\d+s|ns|µs|ms|s|m|h|d)\b`, "<duration>"}, {` +\n`, "\n"},
	{`  +`, " "},
}

func normal(s string) string {
	for _, x := range samples {
		s = regexp.MustCompile(x.what).ReplaceAllString(s, x.as)
	}
	return s
}

// matches says whether output is what a page shows.
func matches(shown, output string) bool {
	return pattern(normal(shown)).MatchString(normal(output))
}

// pattern makes of what is shown what it matches.
func pattern(output string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)\A`)
	for line := range strings.Lines(output) {
		if line == "...\n" {
			b.WriteString(`(.*\n)?`)
			continue
		}
		for i, part := range strings.Split(strings.TrimSuffix(line, "\n"), "...") {
			if i > 0 {
				b.WriteString(`[^\n]*`)
			}
			b.WriteString(regexp.QuoteMeta(part))
		}
		b.WriteString(`\n`)
	}
	return regexp.MustCompile(b.String() + `\z`)
}

// mark stands in the output before that of each command.
const mark = "\x01"

// runConsole runs a block in one shell and gives what each command printed.
func runConsole(ctx context.Context, t *testing.T, steps []step, dir string, env []string) []string {
	t.Helper()
	script := "sudo() { \"$@\"; }\n"
	for _, s := range steps {
		script += fmt.Sprintf("printf '%s'\n%s", `\001`, s.command)
	}
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("the commands do not end; they printed:\n%s", out.String())
	}
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	outputs := strings.Split(out.String(), mark)[1:]
	if len(outputs) != len(steps) {
		t.Fatalf("%d of %d commands were run:\n%s", len(outputs), len(steps), out.String())
	}
	return outputs
}

// check compares what was printed with what the page shows.
func check(t *testing.T, steps []step, outputs []string) {
	t.Helper()
	for i, s := range steps {
		if !matches(s.output, outputs[i]) {
			t.Errorf("$ %sprinted\n%sand not\n%s", s.command, outputs[i], s.output)
		}
	}
}

// rewritten is a page with what was printed in place of what it shows, where that does not match.
func rewritten(page string, outputs [][]string) string {
	at := -1
	return fence.ReplaceAllStringFunc(page, func(block string) string {
		at++
		text := "```console\n"
		for i, s := range parseConsole(fence.FindStringSubmatch(block)[1]) {
			text += "$ " + strings.ReplaceAll(strings.TrimSuffix(s.command, "\n"), "\n", "\n> ") + "\n"
			if out := outputs[at][i]; matches(s.output, out) {
				text += s.output
			} else {
				text += out
			}
		}
		return text + "```"
	})
}
