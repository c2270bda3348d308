package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
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

// EachDone does something with things, in their order, and prints those with which it was done.
func EachDone[T any](a *App, things []T, do func(T) error) error {
	for _, x := range things {
		if err := do(x); err != nil {
			return err
		}
		fmt.Fprintln(a.Out, x)
	}
	return nil
}

// Listing makes cmd print the list that read gives. If its usage has [-q] it has that flag.
func Listing[T any](a *App, cmd *cobra.Command, read func(ctx context.Context, args []string) ([]T, error),
	row func(T) []any, heads ...string) *cobra.Command {
	quiet := false
	if strings.Contains(cmd.Use, "[-q]") {
		cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all, err := read(cmd.Context(), args)
		if err != nil {
			return err
		}
		return PrintList(a, all, quiet, row, heads...)
	}
	return cmd
}

// FileOf reads, for Listing, a file of the realm that has a JSON value in each line.
func FileOf[T any](a *App, path string) func(context.Context, []string) ([]T, error) {
	return func(ctx context.Context, _ []string) ([]T, error) {
		c, err := a.Client(ctx)
		if err != nil {
			return nil, err
		}
		return Lines[T](ctx, c, path)
	}
}

// KnownLines is Lines of a file in which a machine that does not answer has a line that says so.
func KnownLines[T any](ctx context.Context, c *sdk.Client, path string) (all []T, missing []report.UsageMissing,
	err error) {
	lines, err := Lines[json.RawMessage](ctx, c, path)
	for _, line := range lines {
		var one T
		var m report.UsageMissing
		switch bad := cmp.Or(json.Unmarshal(line, &m), json.Unmarshal(line, &one)); {
		case bad != nil:
			return nil, nil, sigma.Wrap("sigma.lines", path, bad)
		case m.Missing != "":
			missing = append(missing, m)
		default:
			all = append(all, one)
		}
	}
	return all, missing, err
}

// Value reads a file of the realm that has one JSON value.
func Value[T any](ctx context.Context, c *sdk.Client, path string) (v T, err error) {
	text, _, err := c.Get(ctx, path)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	return v, err
}

// Mapped gives what of makes of each.
func Mapped[S, T any](from []S, of func(S) T) []T {
	to := make([]T, len(from))
	for i, x := range from {
		to[i] = of(x)
	}
	return to
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

// Lines reads a file of the realm that has a JSON value in each line.
func Lines[T any](ctx context.Context, c *sdk.Client, path string) ([]T, error) {
	var text bytes.Buffer
	if err := files.OfRealm(c).Content(ctx, path, &text); err != nil {
		return nil, err
	}
	return LinesOf[T](path, text.Bytes())
}

// LinesOf reads the JSON value in each line of what is from.
func LinesOf[T any](from string, text []byte) ([]T, error) {
	all := []T{}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var one T
		if err := d.Decode(&one); err != nil {
			return nil, sigma.Wrap("sigma.lines", from, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func Hours(d time.Duration) string { return fmt.Sprintf("%dh", int(d.Hours())) }

// Progress starts showing how much of total (0 = not known) is done: a bar on a terminal, elsewhere
// a line every few seconds, nothing for what is over sooner and nothing with --json.
func (a *App) Progress(title string, total int64) term.Progress {
	return a.newProgress(title, total, func(n int64) string { return fmt.Sprint(n) })
}

// ProgressBytes is progress for amounts of data.
func (a *App) ProgressBytes(title string, total int64) term.Progress {
	return a.newProgress(title, total, func(n int64) string { return sigma.Bytes(n).String() })
}

func (a *App) newProgress(title string, total int64, unit func(int64) string) term.Progress {
	out := a.Err
	if a.JSON {
		out = io.Discard
	}
	return term.NewProgress(out, title, total, unit)
}
