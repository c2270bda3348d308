package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sigmaos.dev/cmd/sigma/cli"
)

var rewrite = flag.Bool("rewrite", false,
	"write the synopses of docs/reference/commands anew, and begin pages that are missing")

const pagesDir = "../../docs/reference/commands"

// What lies between these is made of the command tree; what lies outside is written by hand.
const (
	madeBegin = "<!-- made by: go test ./cmd/sigma -run TestPages -rewrite -->\n"
	madeEnd   = "<!-- end -->\n"
)

// Goal: every command has a page that says what the program's own help says of its usage and flags,
// and shows each of its commands. The examples are run by test/reference.
func TestPages(t *testing.T) {
	a := &cli.App{Groups: groups, Getenv: func(string) string { return "" }}
	root := a.Root()
	pages := map[string]bool{"README.md": true}
	var index strings.Builder
	index.WriteString(madeBegin + "| command | does |\n|---|---|\n")
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			continue
		}
		name := c.Name() + ".md"
		pages[name] = true
		fmt.Fprintf(&index, "| [%s](%s) | %s |\n", c.Name(), name, c.Short)
		text := checkPage(t, name, synopsis(c),
			"# sigma "+c.Name()+"\n\n"+madeBegin+madeEnd+"\n## DESCRIPTION\n\n## EXAMPLE\n\n```console\n$ sigma "+
				c.Name()+"\n```\n")
		if c.Name() == "completion" { // cobra's own, which are all alike
			continue
		}
		for _, leaf := range leaves(c) {
			if !strings.Contains(text, "sigma "+strings.TrimPrefix(leaf.CommandPath(), "sigma ")) ||
				!shows(text, leaf) {
				t.Errorf("%s: no line of a console block runs %q", name, leaf.CommandPath())
			}
		}
	}
	index.WriteString(madeEnd)
	checkPage(t, "README.md", index.String(), "# Commands\n\n"+madeBegin+madeEnd)
	files, err := filepath.Glob(filepath.Join(pagesDir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !pages[filepath.Base(f)] {
			t.Errorf("%s describes no command", f)
		}
	}
}

// checkPage compares, or writes, what is made of a page, and returns the page.
func checkPage(t *testing.T, name, created, fresh string) string {
	file := filepath.Join(pagesDir, name)
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) && *rewrite {
		b, err = []byte(fresh), nil
	}
	if err != nil {
		t.Errorf(
			"%v\nbegin it with: go test ./cmd/sigma -run TestPages -rewrite; then describe the command and show it",
			err)
		return ""
	}
	before, rest, ok := strings.Cut(string(b), madeBegin)
	_, after, ok2 := strings.Cut(rest, madeEnd)
	if !ok || !ok2 {
		t.Errorf("%s lacks the lines\n%s%s", file, madeBegin, madeEnd)
		return string(b)
	}
	want := before + created + after
	switch {
	case want == string(b) && !*rewrite:
	case *rewrite:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf(
			"%s does not say what the program says; write it anew with: go test ./cmd/sigma -run TestPages -rewrite",
			file)
	}
	if name != "README.md" && (!strings.Contains(want, "\n## DESCRIPTION\n\n") ||
		strings.Contains(want, "\n## DESCRIPTION\n\n## ")) {
		t.Errorf("%s has no description", file)
	}
	return want
}

// leaves are the commands below c that do something themselves.
func leaves(c *cobra.Command) []*cobra.Command {
	if !c.HasSubCommands() {
		return []*cobra.Command{c}
	}
	var all []*cobra.Command
	for _, sub := range c.Commands() {
		all = append(all, leaves(sub)...)
	}
	return all
}

// shows says whether the page runs the command.
func shows(text string, c *cobra.Command) bool {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "$ "); ok && strings.Contains(rest+" ", c.CommandPath()) {
			return true
		}
	}
	return false
}

// synopsis is the usage of a command, or of all that it consists of, and their flags.
func synopsis(c *cobra.Command) string {
	var b strings.Builder
	b.WriteString(madeBegin + "## SYNOPSIS\n\n")
	for _, leaf := range leaves(c) {
		fmt.Fprintf(&b, "    %s\n\n%s.", leaf.UseLine(), leaf.Short)
		if len(leaf.Aliases) > 0 {
			fmt.Fprintf(&b, " Another name: `%s`.", strings.Join(leaf.Aliases, "`, `"))
		}
		b.WriteString("\n\n")
		head := "| flag | meaning |\n|---|---|\n"
		leaf.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if f.Hidden || f.Name == "realm" || f.Name == "help" {
				return
			}
			value, usage := pflag.UnquoteUsage(f)
			if value != "" {
				value = " " + strings.ToUpper(value)
			}
			short := ""
			if f.Shorthand != "" {
				short = "`-" + f.Shorthand + "`, "
			}
			if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" &&
				f.DefValue != "[]" {
				usage += " (default " + f.DefValue + ")"
			}
			fmt.Fprintf(&b, "%s| %s`--%s%s` | %s |\n", head, short, f.Name, value, strings.ReplaceAll(usage, "|",
				"\\|"))
			head = ""
		})
		if head == "" {
			b.WriteString("\n")
		}
	}
	b.WriteString(madeEnd)
	return b.String()
}
