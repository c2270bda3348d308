package lite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// timeForm is how times are kept: SQLite has no type for them, and its functions understand this.
const timeForm = "2006-01-02 15:04:05.999999999-07:00"

// stmt is a compiled statement.
type stmt struct {
	c    *Conn
	p    uintptr
	once bool // it ends with its rows
}

var (
	_ driver.Stmt             = (*stmt)(nil)
	_ driver.StmtQueryContext = (*stmt)(nil)
	_ driver.StmtExecContext  = (*stmt)(nil)
)

// compile makes a statement of a text that has one.
func (c *Conn) compile(ctx context.Context, text string) (*stmt, error) {
	defer c.watch(ctx)()
	in, err := libc.CString(text)
	if err != nil {
		return nil, &Error{Code: sqlite3.SQLITE_NOMEM, Message: "out of memory"}
	}
	defer libc.Xfree(c.tls, in)
	places := c.tls.Alloc(16)
	defer c.tls.Free(16)
	rc := sqlite3.Xsqlite3_prepare_v2(c.tls, c.db, in, int32(len(text)+1), places, places+8)
	if rc != sqlite3.SQLITE_OK {
		return nil, c.ended(ctx, rc, text)
	}
	s := &stmt{c: c, p: pointerAt(places)}
	rest := text[pointerAt(places+8)-in:]
	switch {
	case s.p == 0:
		err = &Error{Code: sqlite3.SQLITE_MISUSE, Message: "there is no statement"}
	case !c.isBlank(rest):
		err = &Error{Code: sqlite3.SQLITE_MISUSE,
			Message: "there is more after the first statement: one is run at a time"}
	default:
		return s, nil
	}
	s.Close()
	return nil, err
}

// isBlank says whether text has no statement: SQLite itself knows what a comment is.
func (c *Conn) isBlank(text string) bool {
	text = strings.Trim(text, " \t\r\n;")
	if text == "" {
		return true
	}
	if !strings.HasPrefix(text, "--") && !strings.HasPrefix(text, "/*") {
		return false
	}
	in, err := libc.CString(text)
	if err != nil {
		return false
	}
	defer libc.Xfree(c.tls, in)
	place := c.tls.Alloc(8)
	defer c.tls.Free(8)
	rc := sqlite3.Xsqlite3_prepare_v2(c.tls, c.db, in, int32(len(text)+1), place, 0)
	p := pointerAt(place)
	sqlite3.Xsqlite3_finalize(c.tls, p)
	return rc == sqlite3.SQLITE_OK && p == 0
}

// Close implements driver.Stmt.
func (s *stmt) Close() error {
	if s.c.db != 0 {
		sqlite3.Xsqlite3_finalize(s.c.tls, s.p)
	}
	s.p = 0
	return nil
}

// NumInput implements driver.Stmt.
func (s *stmt) NumInput() int { return int(sqlite3.Xsqlite3_bind_parameter_count(s.c.tls, s.p)) }

// Exec implements driver.Stmt.
func (s *stmt) Exec([]driver.Value) (driver.Result, error) {
	return nil, fmt.Errorf("lite: a context is needed")
}

// Query implements driver.Stmt.
func (s *stmt) Query([]driver.Value) (driver.Rows, error) {
	return nil, fmt.Errorf("lite: a context is needed")
}

func (s *stmt) bind(args []driver.NamedValue) error {
	c := s.c
	sqlite3.Xsqlite3_reset(c.tls, s.p)
	sqlite3.Xsqlite3_clear_bindings(c.tls, s.p)
	if n := s.NumInput(); n != len(args) {
		return &Error{Code: sqlite3.SQLITE_RANGE,
			Message: fmt.Sprintf("the statement takes %d arguments, and %d were given", n, len(args))}
	}
	for _, a := range args {
		at := int32(a.Ordinal)
		var rc int32
		switch v := a.Value.(type) {
		case nil:
			rc = sqlite3.Xsqlite3_bind_null(c.tls, s.p, at)
		case bool:
			n := int64(0)
			if v {
				n = 1
			}
			rc = sqlite3.Xsqlite3_bind_int64(c.tls, s.p, at, n)
		case int64:
			rc = sqlite3.Xsqlite3_bind_int64(c.tls, s.p, at, v)
		case float64:
			rc = sqlite3.Xsqlite3_bind_double(c.tls, s.p, at, v)
		case time.Time:
			rc = s.bindBytes(at, v.Format(timeForm), sqlite3.Xsqlite3_bind_text)
		case string:
			rc = s.bindBytes(at, v, sqlite3.Xsqlite3_bind_text)
		case []byte:
			if rc = sqlite3.Xsqlite3_bind_zeroblob(c.tls, s.p, at, 0); len(v) > 0 {
				rc = s.bindBytes(at, string(v), sqlite3.Xsqlite3_bind_blob)
			}
		default:
			return &Error{Code: sqlite3.SQLITE_MISMATCH, Message: fmt.Sprintf("SQLite has no %T", v)}
		}
		if rc != sqlite3.SQLITE_OK {
			return c.failed(rc)
		}
	}
	return nil
}

func (s *stmt) bindBytes(at int32, text string, bind func(*libc.TLS, uintptr, int32, uintptr, int32,
	uintptr) int32) int32 {
	if len(text) > valueMax {
		return sqlite3.SQLITE_TOOBIG
	}
	p, err := libc.CString(text)
	if err != nil {
		return sqlite3.SQLITE_NOMEM
	}
	defer libc.Xfree(s.c.tls, p)
	return bind(s.c.tls, s.p, at, p, int32(len(text)), sqlite3.SQLITE_TRANSIENT)
}

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.bind(args); err != nil {
		return nil, err
	}
	c := s.c
	defer c.watch(ctx)()
	before := sqlite3.Xsqlite3_total_changes64(c.tls, c.db)
	for {
		switch rc := sqlite3.Xsqlite3_step(c.tls, s.p); rc {
		case sqlite3.SQLITE_ROW:
			continue
		case sqlite3.SQLITE_DONE:
			r := result{id: sqlite3.Xsqlite3_last_insert_rowid(c.tls, c.db)}
			if sqlite3.Xsqlite3_total_changes64(c.tls, c.db) != before { // else it tells of an earlier statement
				r.changed = sqlite3.Xsqlite3_changes64(c.tls, c.db)
			}
			sqlite3.Xsqlite3_reset(c.tls, s.p)
			return r, nil
		default:
			err := c.ended(ctx, rc, "")
			sqlite3.Xsqlite3_reset(c.tls, s.p)
			return nil, err
		}
	}
}

type result struct{ id, changed int64 }

func (r result) LastInsertId() (int64, error) { return r.id, nil }
func (r result) RowsAffected() (int64, error) { return r.changed, nil }

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.bind(args); err != nil {
		return nil, err
	}
	r := &rows{s: s, ctx: ctx}
	for i := range sqlite3.Xsqlite3_column_count(s.c.tls, s.p) {
		r.names = append(r.names, libc.GoString(sqlite3.Xsqlite3_column_name(s.c.tls, s.p, i)))
		declared := ""
		if p := sqlite3.Xsqlite3_column_decltype(s.c.tls, s.p, i); p != 0 {
			declared = strings.ToUpper(libc.GoString(p))
		}
		r.types = append(r.types, declared)
	}
	return r, nil
}

// rows are the rows of a statement that runs.
type rows struct {
	s     *stmt
	ctx   context.Context
	names []string
	types []string // as declared
}

var _ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)

// Columns implements driver.Rows.
func (r *rows) Columns() []string { return r.names }

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string { return r.types[i] }

// Close implements driver.Rows.
func (r *rows) Close() error {
	if r.s.p != 0 && r.s.c.db != 0 {
		sqlite3.Xsqlite3_reset(r.s.c.tls, r.s.p)
	}
	if r.s.once {
		return r.s.Close()
	}
	return nil
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	c := r.s.c
	defer c.watch(r.ctx)()
	switch rc := sqlite3.Xsqlite3_step(c.tls, r.s.p); rc {
	case sqlite3.SQLITE_ROW:
		for i := range dest {
			dest[i] = r.value(int32(i))
		}
		return nil
	case sqlite3.SQLITE_DONE:
		return io.EOF
	default:
		return c.ended(r.ctx, rc, "")
	}
}

func (r *rows) value(i int32) any {
	tls, p := r.s.c.tls, r.s.p
	switch sqlite3.Xsqlite3_column_type(tls, p, i) {
	case sqlite3.SQLITE_INTEGER:
		n := sqlite3.Xsqlite3_column_int64(tls, p, i)
		if t := r.types[i]; (t == "BOOLEAN" || t == "BOOL") && (n == 0 || n == 1) {
			return n == 1
		}
		return n
	case sqlite3.SQLITE_FLOAT:
		return sqlite3.Xsqlite3_column_double(tls, p, i)
	case sqlite3.SQLITE_TEXT:
		at := sqlite3.Xsqlite3_column_text(tls, p, i)
		b := bytesAt(at, sqlite3.Xsqlite3_column_bytes(tls, p, i))
		if !utf8.Valid(b) {
			return b
		}
		switch text := string(b); r.types[i] {
		case "DATE", "DATETIME", "TIMESTAMP":
			for _, form := range []string{timeForm, time.RFC3339Nano, "2006-01-02 15:04:05.999999999", "2006-01-02"} {
				if t, err := time.Parse(form, text); err == nil {
					return t
				}
			}
			return text
		default:
			return text
		}
	case sqlite3.SQLITE_BLOB:
		at := sqlite3.Xsqlite3_column_blob(tls, p, i)
		return bytesAt(at, sqlite3.Xsqlite3_column_bytes(tls, p, i))
	}
	return nil
}
