package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigmaos.dev/cmd/sigma/term"
)

// Clip shortens s to n characters.
func Clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// What tenants named may hold any byte but / and NUL. On a terminal names are written so that a
// shell reads them back, as GNU ls does; elsewhere they are written as they are, unless they have
// control characters or are no text: a line stays a line, and nothing plays tricks on a terminal
// further on.

// Shown is how a name or path is printed.
func (a *App) Shown(name string) string {
	if term.Width(a.Out) > 0 && (term.NeedsQuotes(name) || strings.HasPrefix(name, "-")) || !term.Harmless(name) {
		return term.ShellQuoted(name)
	}
	return name
}

// Table begins a table with these heads.
func (a *App) Table(heads ...string) *term.Table {
	t := term.NewTable(a.Out)
	t.Row(term.Anys(heads)...)
	return t
}

// PrintList prints a list: as JSON, as a table, or, quietly, only the first cell of each row.
func PrintList[T any](a *App, list []T, quiet bool, row func(T) []any, heads ...string) error {
	if a.JSON && !quiet {
		return a.PrintJSON(list)
	}
	if quiet {
		for _, x := range list {
			fmt.Fprintln(a.Out, row(x)[0])
		}
		return nil
	}
	t := a.Table(heads...)
	for _, x := range list {
		t.Row(row(x)...)
	}
	return t.Print()
}

// Count is a number of things in words.
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Failed prints errors, but for one that is alone, which is returned. After a signal that is what
// ended the others.
func (a *App) Failed(errs []error) error {
	var ends error
	errs = slices.DeleteFunc(errs, func(err error) bool {
		if a.Signal.Load() != 0 && errors.Is(err, context.Canceled) {
			ends = err
			return true
		}
		return err == nil
	})
	switch {
	case ends != nil:
	case len(errs) == 0:
		return nil
	case len(errs) == 1:
		return errs[0]
	default:
		ends = ExitCode(CodeOf(errs[0]))
	}
	for _, err := range errs {
		a.PrintError(err)
	}
	return ends
}
