package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// table prints columns for people. What tenants named is printed without control characters, which
// could play tricks on the terminal.
type table struct {
	out *tabwriter.Writer
}

func (a *app) table(heads ...string) *table {
	t := newTable(a.out)
	t.row(anys(heads)...)
	return t
}

// printList prints a list: as JSON, as a table, or, quietly, only the first cell of each row.
func printList[T any](a *app, list []T, quiet bool, row func(T) []any, heads ...string) error {
	if a.json && !quiet {
		return a.printJSON(list)
	}
	if quiet {
		for _, x := range list {
			fmt.Fprintln(a.out, row(x)[0])
		}
		return nil
	}
	t := a.table(heads...)
	for _, x := range list {
		t.row(row(x)...)
	}
	return t.print()
}

func newTable(out io.Writer) *table {
	return &table{out: tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)}
}

func anys(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

func (t *table) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.out, "\t")
		}
		fmt.Fprint(t.out, printable(fmt.Sprint(c)))
	}
	fmt.Fprintln(t.out)
}

func (t *table) print() error { return t.out.Flush() }

// ago prints the time since t as people say it: "3s", "12m", "5h", "4d".
func ago(t time.Time) string {
	if t.IsZero() || t.Unix() <= 0 {
		return "-"
	}
	return short(time.Since(t))
}

// short prints a duration with one unit, two digits or so.
func short(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Millisecond:
		return fmt.Sprintf("%dµs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
