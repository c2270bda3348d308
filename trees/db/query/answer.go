package query

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"sigmaos.dev/sigma"
)

// line is any line but a row.
type line struct {
	Columns []Column `json:"columns,omitempty"`
	End     *End     `json:"end,omitempty"`
	Error   *Failure `json:"error,omitempty"`
}

func appendLine(b []byte, l line) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(l) != nil { // of strings and numbers: it cannot
		return b
	}
	return append(b, out.Bytes()...)
}

// AppendColumns appends the line that comes before rows.
func AppendColumns(b []byte, cs []Column) []byte { return appendLine(b, line{Columns: cs}) }

// AppendRow appends a row.
func AppendRow(b []byte, row []any) []byte {
	b = append(b, '[')
	for i, v := range row {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendValue(b, v)
	}
	return append(b, "]\n"...)
}

// AppendEnd appends the last line of an answer.
func AppendEnd(b []byte, e End) []byte { return appendLine(b, line{End: &e}) }

// AppendFailure appends the last line of an answer that is an error.
func AppendFailure(b []byte, f Failure) []byte { return appendLine(b, line{Error: &f}) }

// Answer reads one answer.
type Answer struct {
	in      *bufio.Reader
	row     []byte
	columns []Column
	end     *End
	err     error
}

// Read begins to read an answer: what comes before the rows. An answer that is an error is one here
// too.
func Read(r io.Reader) (*Answer, error) {
	return read(bufio.NewReaderSize(r, 64<<10))
}

// Following is the answer of the next statement of a batch. This one must have been read to its
// end.
func (a *Answer) Following() (*Answer, error) { return read(a.in) }

func read(in *bufio.Reader) (*Answer, error) {
	a := &Answer{in: in}
	text, err := a.line()
	if err != nil {
		return nil, err
	}
	if len(text) > 0 && text[0] == '[' {
		return nil, garbled("it begins with a row")
	}
	if err := a.meta(text); err != nil {
		return nil, err
	}
	return a, nil
}

func garbled(why string) error {
	return sigma.Errorf("query.Answer", sigma.KindInvalid, "the database answers what is no answer: %s", why)
}

// line gives the next line, which is good until the next call.
func (a *Answer) line() ([]byte, error) {
	a.row = a.row[:0]
	for {
		part, err := a.in.ReadSlice('\n')
		a.row = append(a.row, part...)
		switch {
		case len(a.row) > LineMax:
			return nil, garbled("a line is too long")
		case err == nil:
			return bytes.TrimRight(a.row, "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil, &sigma.Error{Op: "query.Answer", Kind: sigma.KindLost, Msg: "the answer ends before its end"}
		default:
			return nil, err
		}
	}
}

func (a *Answer) meta(text []byte) error {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return garbled("a line is no JSON")
	}
	switch {
	case l.Error != nil:
		return l.Error.err()
	case l.End != nil:
		a.end = l.End
	case len(l.Columns) > columMax || l.Columns == nil || a.columns != nil:
		return garbled("a line says nothing")
	default:
		a.columns = l.Columns
	}
	return nil
}

// Columns are those of the rows; none if there are no rows.
func (a *Answer) Columns() []Column { return a.columns }

// End is what the answer ended with; nil before Next said io.EOF.
func (a *Answer) End() *End { return a.end }

// Next reads a row into dest, which has as many places as there are columns. io.EOF says that there
// are no more.
func (a *Answer) Next(dest []any) error {
	if a.err != nil {
		return a.err
	}
	if a.end != nil {
		return io.EOF
	}
	a.err = a.next(dest)
	return a.err
}

func (a *Answer) next(dest []any) error {
	text, err := a.line()
	if err != nil {
		return err
	}
	if len(text) == 0 || text[0] != '[' {
		if err := a.meta(text); err != nil {
			return err
		}
		if a.end == nil {
			return garbled("columns come twice")
		}
		return io.EOF
	}
	var vs []Value
	if err := json.Unmarshal(text, &vs); err != nil {
		return garbled("a row is no array of values")
	}
	if len(vs) != len(dest) {
		return garbled("a row has another number of values than there are columns")
	}
	for i, v := range vs {
		dest[i] = v.V
	}
	return nil
}
