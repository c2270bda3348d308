// Package query is what is said in a session with a database (docs/reference/db.md): a Request is
// one object of JSON, and what it is answered is lines of JSON: a Columns line if there are rows,
// each row as an array, and last an End or a Failure. It is text, so that a person with a 9P client
// can speak it, and it is exact: integers of 64 bits, floats, text, bytes and times come out as
// they went in.
//
// It holds no connection and knows no engine. Users: db, which answers, and sdk/database and
// cmd/sigma, which ask. What it decodes is hostile on either side; bounds are the caller's, but for
// those named here.
package query

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// CallRun is the method of a session file: Request, or nothing for what was written to the file ->
// the first bytes of the answer, of which the rest is read from the file.
const CallRun = "run"

// Limits of what is decoded.
const (
	BatchMax = 1024  // statements of one request
	ArgsMax  = 32766 // of one statement: what SQLite takes; the others take as many or more
	// bytes of one line of an answer: a row of RowMax bytes, of which those that are no text grow
	// by a third
	LineMax  = 64 << 20
	RowMax   = 32 << 20 // bytes of one row's values
	columMax = 4096     // columns; the engines have fewer
)

// Wants of a Request.
const (
	WantAny   = ""      // rows if the statement looks as if it had some
	WantRows  = "rows"  // the rows
	WantCount = "count" // how many rows were changed, and the last id
)

// Request is what to do. One of SQL, Statement, Release and Transaction says what.
type Request struct {
	SQL  string  `json:"sql,omitempty"`
	Args []Value `json:"args,omitempty"`
	// run these instead of SQL, in order, to the first that fails; each is answered as if it had
	// been asked alone
	Batch     []string `json:"batch,omitempty"`
	Prepare   bool     `json:"prepare,omitempty"`    // prepare SQL, and tell the statement's number
	Statement uint32   `json:"statement,omitempty"`  // run a prepared statement
	Release   uint32   `json:"release,omitempty"`    // forget a prepared statement
	Want      string   `json:"want,omitempty"`       // WantAny, WantRows or WantCount
	RowsMax   int64    `json:"rows_max,omitempty"`   // more rows are an error; 0 = the database's limit
	TimeoutMS int64    `json:"timeout_ms,omitempty"` // for the statement and its rows; 0 = the database's limit

	Transaction string `json:"transaction,omitempty"` // Begin, Commit or Rollback
	// with Begin: in SQL's words, as "serializable"; "" = the engine's default
	Isolation string `json:"isolation,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"` // with Begin
}

// What a Request may say of a transaction.
const (
	Begin    = "begin"
	Commit   = "commit"
	Rollback = "rollback"
)

// isolations are what may follow ISOLATION LEVEL.
var isolations = []string{"read uncommitted", "read committed", "repeatable read", "serializable"}

// Parse reads a request: an object of JSON, or else plain SQL.
func Parse(text []byte) (*Request, error) {
	r := &Request{}
	trimmed := strings.TrimSpace(string(text))
	if !strings.HasPrefix(trimmed, "{") {
		r.SQL = trimmed
		return r, r.check()
	}
	d := json.NewDecoder(strings.NewReader(trimmed))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, invalid("the request is no object of JSON that can be understood: %.200v", err)
	}
	if d.More() {
		return nil, invalid("there is more after the request")
	}
	return r, r.check()
}

func (r *Request) check() error {
	routes := 0
	for _, is := range []bool{r.SQL != "", len(r.Batch) > 0, r.Statement != 0, r.Release != 0, r.Transaction != ""} {
		if is {
			routes++
		}
	}
	switch {
	case routes != 1:
		return invalid("a request has one of sql, batch, statement, release and transaction")
	case strings.IndexByte(r.SQL, 0) >= 0:
		return invalid("the statement has a NUL byte")
	case slices.ContainsFunc(r.Batch, func(text string) bool { return text == "" || strings.IndexByte(text, 0) >= 0 }):
		return invalid("a statement of the batch is empty or has a NUL byte")
	case len(r.Batch) > BatchMax:
		return &sigma.Error{Op: "query.Parse", Kind: sigma.KindTooBig,
			Msg: fmt.Sprintf("a batch has %d statements at most", BatchMax)}
	case len(r.Batch) > 0 && (len(r.Args) > 0 || r.Prepare):
		return invalid("a batch takes no arguments, and is not prepared")
	case len(r.Args) > ArgsMax:
		return &sigma.Error{Op: "query.Parse", Kind: sigma.KindTooBig, Msg: "a statement takes 32766 arguments"}
	case r.Want != WantAny && r.Want != WantRows && r.Want != WantCount:
		return invalid("want is %q or %q, not %.40q", WantRows, WantCount, r.Want)
	case r.RowsMax < 0 || r.TimeoutMS < 0 || r.TimeoutMS > int64(24*time.Hour/time.Millisecond):
		return invalid("a limit is negative or too large")
	case r.Transaction != "" && r.Transaction != Begin && r.Transaction != Commit && r.Transaction != Rollback:
		return invalid("transaction is begin, commit or rollback, not %.40q", r.Transaction)
	case r.Isolation != "" && !isIsolation(r.Isolation):
		return invalid("no isolation of SQL is called %.40q", r.Isolation)
	}
	return nil
}

func isIsolation(s string) bool {
	for _, i := range isolations {
		if s == i {
			return true
		}
	}
	return false
}

func invalid(format string, args ...any) error {
	return sigma.Errorf("query.Parse", sigma.KindInvalid, format, args...)
}

// Column describes one of a result.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty"` // the engine's word; "" = it does not say
}

// End is the last line of an answer without error.
type End struct {
	Rows      int64  `json:"rows"`                // that came
	Changed   int64  `json:"changed,omitempty"`   // rows that were changed, where the engine says so
	LastID    int64  `json:"last_id,omitempty"`   // of the row that was inserted last, where the engine says so
	Statement uint32 `json:"statement,omitempty"` // that was prepared
}

// Failure is the last line of an answer with an error.
type Failure struct {
	Kind     string `json:"kind"` // sigma.Kind's word
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
	Code     string `json:"code,omitempty"`     // the engine's own, as SQLSTATE 42601
	Position int    `json:"position,omitempty"` // in the statement, in characters from 1; 0 = the engine does not say
}

// CodeOver is the Code of a failure of which the engine heard nothing, because the session was over
// before. The request can be made again in another session, unless it was part of a transaction.
const CodeOver = "session over"

// Error is a Failure as programs get it: a sigma.Error, with what the engine said besides.
type Error struct {
	Err      *sigma.Error
	Code     string
	Position int
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap gives the sigma.Error.
func (e *Error) Unwrap() error { return e.Err }

// err is the failure as an error.
func (f *Failure) err() error {
	kind := sigma.KindOther
	for k := range sigma.KindBusy + 64 {
		if k.String() == f.Kind {
			kind = k
			break
		}
	}
	return &Error{Err: &sigma.Error{Op: "query.Answer", Kind: kind, Hint: f.Hint, Msg: f.Message}, Code: f.Code,
		Position: f.Position}
}
