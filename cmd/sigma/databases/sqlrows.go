package databases

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

type sqlOptions struct {
	csv     bool
	timeout time.Duration
}

// sqlSession runs statements and prints their rows.
type sqlSession struct {
	a    *app
	o    sqlOptions
	path string // of the database
	ask  *database.Session
	ran  int // statements of standard input
}

// statementMax bounds a statement of standard input, so that a file that is none ends somewhere.
const statementMax = 16 << 20

// batchBytes is from how many bytes on statements that have come are run without waiting for more.
const batchBytes = 256 << 10

// each runs the statements of in, as many at once as have come. At a terminal it asks for them, and
// an error does not end it.
func (s *sqlSession) each(ctx context.Context, in *bufio.Reader, terminal bool) error {
	var text strings.Builder
	var batch []string
	size := 0
	for {
		if terminal {
			fmt.Fprint(s.a.Err, map[bool]string{true: "sql> ", false: "...> "}[strings.TrimSpace(text.String()) == ""])
		}
		line, rerr := in.ReadString('\n')
		text.WriteString(line)
		if text.Len() > statementMax {
			return sigma.Errorf("sigma.sql", sigma.KindTooBig,
				"a statement has more than %d MiB; each ends with a semicolon at the end of a line", statementMax>>20)
		}
		if rerr != nil && rerr != io.EOF {
			return rerr
		}
		if complete(text.String()) || rerr == io.EOF {
			batch, size = append(batch, text.String()), size+text.Len()
			text.Reset()
		}
		if terminal || rerr == io.EOF || !lineCame(in) || len(batch) == query.BatchMax || size > batchBytes {
			err := s.run(ctx, batch...)
			if batch, size = nil, 0; terminal {
				s.ran = 0
			}
			if err != nil && (!terminal || ctx.Err() != nil) {
				return err
			} else if err != nil {
				s.a.PrintError(err)
			}
		}
		if rerr == io.EOF {
			return nil
		}
	}
}

// Complete says whether text ends with a statement's end: a semicolon at the end of a line that is
// in no quotes and no comment, and for a trigger, whose statements have semicolons, only after END.
func complete(text string) bool {
	trimmed := strings.TrimRight(text, " \t\r\n")
	if !strings.HasSuffix(trimmed, ";") || open(trimmed) {
		return false
	}
	words := strings.Fields(strings.ToUpper(strings.TrimSuffix(trimmed, ";")))
	trigger := len(words) > 2 && words[0] == "CREATE" && (words[1] == "TRIGGER" || words[2] == "TRIGGER")
	return !trigger || words[len(words)-1] == "END"
}

// open says whether text ends within quotes or a comment.
func open(text string) bool {
	for i := 0; i < len(text); i++ {
		end := ""
		switch rest := text[i:]; {
		case rest[0] == '\'', rest[0] == '"', rest[0] == '`':
			end = rest[:1]
		case strings.HasPrefix(rest, "--"):
			end = "\n"
		case strings.HasPrefix(rest, "/*"):
			end = "*/"
			i++
		default:
			continue
		}
		n := strings.Index(text[i+1:], end)
		if n < 0 {
			return true
		}
		i += n + len(end)
	}
	return false
}

// lineCame says whether a line can be read without waiting for it.
func lineCame(in *bufio.Reader) bool {
	came, _ := in.Peek(in.Buffered())
	return bytes.IndexByte(came, '\n') >= 0
}

// Run runs statements to the first that fails, and prints what each answers.
func (s *sqlSession) run(ctx context.Context, texts ...string) error {
	texts = slices.DeleteFunc(texts, func(text string) bool { return strings.Trim(text, " \t\r\n;") == "" })
	if len(texts) == 0 {
		return nil
	}
	r := &query.Request{TimeoutMS: s.o.timeout.Milliseconds()}
	if len(texts) == 1 {
		r.SQL = strings.TrimSpace(texts[0])
	}
	for i := 0; len(texts) > 1 && i < len(texts); i++ {
		r.Batch = append(r.Batch, strings.TrimSpace(texts[i]))
	}
	answer, err := s.ask.Ask(ctx, r)
	for i := range texts {
		if i > 0 {
			answer, err = answer.Following()
		}
		s.ran++
		if err == nil {
			err = s.print(answer)
		}
		var said *query.Error
		if errors.As(err, &said) {
			return s.explain(texts[i], said)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// explain adds to an error what the engine said of it.
func (s *sqlSession) explain(text string, e *query.Error) error {
	out := *e.Err
	if out.Path == "" {
		out.Path = s.path
	}
	if e.Position > 0 && e.Position <= len([]rune(text))+1 {
		before := string([]rune(strings.TrimLeft(text, " \t\r\n") + " ")[:e.Position-1])
		out.Msg += fmt.Sprintf(" (line %d, character %d)", strings.Count(before, "\n")+1,
			len([]rune(before[strings.LastIndexByte(before, '\n')+1:]))+1)
	}
	if s.ran > 1 {
		out.Msg += fmt.Sprintf("; it is statement %d", s.ran)
	}
	return &out
}

// Print prints an answer.
func (s *sqlSession) print(answer *query.Answer) error {
	names := make([]string, len(answer.Columns()))
	for i, c := range answer.Columns() {
		names[i] = c.Name
	}
	put, flush := s.printer(names)
	row := make([]any, len(names))
	for {
		if err := answer.Next(row); answer.End() != nil {
			break
		} else if err != nil {
			flush()
			return err
		}
		if err := put(row); err != nil {
			return err
		}
	}
	if err := flush(); err != nil || len(names) > 0 {
		return err
	}
	if end := answer.End(); end.Changed > 0 && !s.a.JSON && !s.o.csv {
		s.a.Remark("%s changed", cli.Count(int(end.Changed), "row"))
	}
	return nil
}

// tableRows are printed as one table: columns are as wide as what is in so many rows.
const tableRows = 1000

// printer prints rows in the form that was asked for.
func (s *sqlSession) printer(names []string) (put func([]any) error, flush func() error) {
	switch {
	case len(names) == 0:
		return func([]any) error { return nil }, func() error { return nil }
	case s.a.JSON:
		return func(row []any) error { return s.printObject(names, row) }, func() error { return nil }
	case s.o.csv:
		w, terminal := csv.NewWriter(term.Raw(s.a.Out)), term.Width(s.a.Out) > 0 // a program gets values as they are
		if terminal {
			names = slices.Clone(names)
			for i := range names {
				names[i] = term.Printable(names[i])
			}
		}
		w.Write(names)
		return func(row []any) error {
				cells := make([]string, len(row))
				for i, v := range row {
					if v != nil {
						cells[i] = cell(v)
					}
					if terminal {
						cells[i] = term.Printable(cells[i])
					}
				}
				return w.Write(cells)
			}, func() error {
				w.Flush()
				return w.Error()
			}
	}
	t, n := s.a.Table(names...), 0
	return func(row []any) error {
		cells := make([]any, len(row))
		for i, v := range row {
			cells[i] = cell(v)
		}
		if t.Row(cells...); n%tableRows == tableRows-1 {
			t.Print()
		}
		n++
		return nil
	}, t.Print
}

func (s *sqlSession) printObject(names []string, row []any) error {
	b := []byte{'{'}
	for i, v := range row {
		if i > 0 {
			b = append(b, ',')
		}
		name, err := json.Marshal(names[i])
		if err != nil {
			return err
		}
		b = query.AppendValue(append(append(b, name...), ':'), v)
	}
	_, err := s.a.Out.Write(append(b, "}\n"...))
	return err
}

// cell is a value as people read it.
func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case []byte:
		return "x'" + hex.EncodeToString(v) + "'"
	case time.Time:
		return v.Format(time.RFC3339Nano)
	case string:
		return v
	}
	return string(query.AppendValue(nil, v))
}
