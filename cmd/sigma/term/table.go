package term

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Table prints columns for people. What tenants named is printed without control characters, which
// could play tricks on the terminal.
type Table struct {
	out *tabwriter.Writer
}

// NewTable begins a table without heads.
func NewTable(out io.Writer) *Table {
	return &Table{out: tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)}
}

// Anys makes cells of words.
func Anys(in []string) []any {
	out := make([]any, len(in))
	for i, s := range in {
		out[i] = s
	}
	return out
}

// Row adds a row.
func (t *Table) Row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.out, "\t")
		}
		fmt.Fprint(t.out, Printable(fmt.Sprint(c)))
	}
	fmt.Fprintln(t.out)
}

// Pairs adds a row for each two cells of which the second is not empty.
func (t *Table) Pairs(cells ...any) {
	for i := 0; i < len(cells); i += 2 {
		if s := fmt.Sprint(cells[i+1]); s != "" {
			t.Row(cells[i], s)
		}
	}
}

// RowsOf adds a row of two cells for each value.
func RowsOf[T any](t *Table, head string, values []T) {
	for _, v := range values {
		t.Row(head, v)
	}
}

// Print writes the table.
func (t *Table) Print() error { return t.out.Flush() }

// Ago prints the time since t as people say it: "3s", "12m", "5h", "4d".
func Ago(t time.Time) string {
	if t.IsZero() || t.Unix() <= 0 {
		return "-"
	}
	return Short(time.Since(t))
}

// Short prints a duration with one unit, two digits or so.
func Short(d time.Duration) string {
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
