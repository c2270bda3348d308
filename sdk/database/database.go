// Package database makes sigmaOS's databases ordinary ones for Go: Open gives a *sql.DB of
// database/sql for a path like /db/shop, so that a program that uses that package runs as it is.
//
// Each connection of the pool is a session with the database (docs/reference/db.md); Context's end
// ends the statement at the server. Transactions, prepared statements and all of database/sql's
// types work, 64-bit integers exactly; arguments have places, not names: ? in SQLite and MySQL, $1
// in PostgreSQL.
//
// A statement is never sent twice. What was asked of a session that had ended before is asked again
// in another by database/sql, since the engine heard nothing of it; a connection that is lost while
// a statement runs is sigma.KindLost. errors.As finds *sigma.Error and *query.Error in what goes
// wrong, for its kind and the engine's code.
//
// It is beside package sdk, and not in it, so that procs that use no database do not carry it.
// Users: procs.
package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"io"
	"math"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Tree is what finds files by path: an *sdk.Client.
type Tree interface {
	// Handle returns a handle of the file at path.
	Handle(ctx context.Context, path string) (sigma.File, error)
}

// Open gives the database at path, whose sessions are opened when they are needed. Its pool keeps 2
// connections that nobody uses, and opens 16 at most: a realm's sessions are few (SetMaxOpenConns
// changes it).
func Open(tree Tree, path string) *sql.DB {
	pool := sql.OpenDB(Connector(tree, path))
	pool.SetMaxOpenConns(openMax)
	return pool
}

// openMax is a quarter of the sessions that a realm may have.
const openMax = 16

// Connector is what sql.OpenDB takes.
func Connector(tree Tree, path string) driver.Connector { return connector{tree, path} }

type connector struct {
	tree Tree
	path string
}

// Driver implements driver.Connector.
func (c connector) Driver() driver.Driver { return noDriver{} }

// noDriver cannot be used by name: a program's connection to sigmaOS is no name.
type noDriver struct{}

func (noDriver) Open(string) (driver.Conn, error) {
	return nil, sigma.Errorf("database.Open", sigma.KindUnsupported, "use database.Open with the program's client")
}

// Connect implements driver.Connector.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	f, err := c.tree.Handle(ctx, c.path+"/session")
	if err != nil {
		return nil, err
	}
	if err := f.Open(ctx, sigma.OpenReadWrite); err != nil {
		f.Close()
		return nil, sigma.Wrap("database.Connect", c.path, err)
	}
	return &conn{Session: Session{File: f}, path: c.path}, nil
}

// Session asks a database by an open session file.
type Session struct {
	File  sigma.File
	whole bool // all of the last answer has come
}

// Ask sends a request and gives its answer, whose rows come as they are read, all within ctx. An
// answer must be read to its end, or the next request made, before another is.
func (s *Session) Ask(ctx context.Context, r *query.Request) (*query.Answer, error) {
	payload, err := encode(r)
	if err != nil {
		return nil, err
	}
	call, ok := s.File.(sigma.Caller)
	if !ok {
		return nil, sigma.Errorf("database.Ask", sigma.KindUnsupported, "the file is no session with a database")
	}
	for len(payload) > sigmap.DataMax { // more than a message carries is written to the file first
		rest := payload
		for len(rest) > 0 {
			n, err := s.File.WriteAt(ctx, rest[:min(len(rest), sigmap.DataMax/2)], 0)
			if err != nil {
				return nil, err
			}
			rest = rest[n:]
		}
		payload = nil
	}
	first, files, err := call.Call(ctx, query.CallRun, payload, nil)
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return nil, err
	}
	s.whole = len(first) < sigmap.DataMax // else there may be more
	return query.Read(&stream{ctx: ctx, s: s, first: first})
}

// stream is the bytes of an answer.
type stream struct {
	ctx   context.Context
	s     *Session
	first []byte // that came with the call
}

func (s *stream) Read(p []byte) (int, error) {
	if len(s.first) > 0 {
		n := copy(p, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	n, err := s.s.File.ReadAt(s.ctx, p[:min(len(p), sigmap.DataMax)],
		0) // one message: its parts would come in any order
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// conn is a connection of the pool.
type conn struct {
	Session
	path   string // of the database, for errors
	broken bool   // it is of no use any more
	begun  bool   // a transaction
}

var (
	_ driver.Conn               = (*conn)(nil)
	_ driver.ConnBeginTx        = (*conn)(nil)
	_ driver.ConnPrepareContext = (*conn)(nil)
	_ driver.ExecerContext      = (*conn)(nil)
	_ driver.QueryerContext     = (*conn)(nil)
	_ driver.Pinger             = (*conn)(nil)
	_ driver.Validator          = (*conn)(nil)
	_ driver.NamedValueChecker  = (*conn)(nil)
)

// ask is Ask that notes what becomes of the connection.
func (c *conn) ask(ctx context.Context, r *query.Request) (*query.Answer, error) {
	a, err := c.Ask(ctx, r)
	return a, c.note(err)
}

// note takes an error for what it says about the connection, and has it name the database.
func (c *conn) note(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	var said *query.Error
	switch is := errors.As(err, &said); {
	case session.Unsent(err), is && said.Code == query.CodeOver:
		if c.broken = true; !c.begun {
			return driver.ErrBadConn // the engine heard nothing: another connection will do
		}
	case !is, said.Err.Kind == sigma.KindLost: // the session itself failed, or its database's connection
		c.broken = true
	}
	if said == nil {
		return sigma.Wrap("database", c.path, err)
	}
	named := *said
	named.Err = sigma.Wrap("database", c.path, said.Err).(*sigma.Error)
	return &named
}

// all asks what has no rows.
func (c *conn) all(ctx context.Context, r *query.Request) (query.End, error) {
	a, err := c.ask(ctx, r)
	if err != nil {
		return query.End{}, err
	}
	for {
		if err := a.Next(make([]any, len(a.Columns()))); a.End() != nil {
			return *a.End(), nil
		} else if err != nil {
			return query.End{}, c.note(err)
		}
	}
}

// IsValid implements driver.Validator.
func (c *conn) IsValid() bool { return !c.broken }

// Ping implements driver.Pinger.
func (c *conn) Ping(ctx context.Context) error {
	_, err := c.all(ctx, &query.Request{SQL: "SELECT 1"})
	return err
}

// Close implements driver.Conn.
func (c *conn) Close() error {
	c.File.Close()
	return nil
}

// Begin implements driver.Conn.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	r := &query.Request{Transaction: query.Begin, ReadOnly: o.ReadOnly}
	switch sql.IsolationLevel(o.Isolation) {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted:
		r.Isolation = "read uncommitted"
	case sql.LevelReadCommitted:
		r.Isolation = "read committed"
	case sql.LevelRepeatableRead:
		r.Isolation = "repeatable read"
	case sql.LevelSerializable:
		r.Isolation = "serializable"
	default:
		return nil, sigma.Errorf("database.BeginTx", sigma.KindUnsupported, "no database here has the isolation %v",
			sql.IsolationLevel(o.Isolation))
	}
	if _, err := c.all(ctx, r); err != nil {
		return nil, err
	}
	c.begun = true
	return tx{c}, nil
}

type tx struct{ c *conn }

func (t tx) end(how string) error {
	_, err := t.c.all(context.Background(), &query.Request{Transaction: how})
	t.c.begun = false
	return err
}

// Commit implements driver.Tx.
func (t tx) Commit() error { return t.end(query.Commit) }

// Rollback implements driver.Tx.
func (t tx) Rollback() error { return t.end(query.Rollback) }

// Prepare implements driver.Conn.
func (c *conn) Prepare(text string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), text)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *conn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	end, err := c.all(ctx, &query.Request{SQL: text, Prepare: true})
	if err != nil {
		return nil, err
	}
	return &stmt{c: c, number: end.Statement}, nil
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	return c.exec(ctx, &query.Request{SQL: text, Args: values(args)})
}

func (c *conn) exec(ctx context.Context, r *query.Request) (driver.Result, error) {
	r.Want = query.WantCount
	end, err := c.all(ctx, r)
	return result(end), err
}

type result query.End

// LastInsertId implements driver.Result.
func (r result) LastInsertId() (int64, error) { return r.LastID, nil }

// RowsAffected implements driver.Result.
func (r result) RowsAffected() (int64, error) { return r.Changed, nil }

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	return c.query(ctx, &query.Request{SQL: text, Args: values(args)})
}

func (c *conn) query(ctx context.Context, r *query.Request) (driver.Rows, error) {
	r.Want = query.WantRows
	a, err := c.ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return &rows{c: c, a: a}, nil
}

// CheckNamedValue implements driver.NamedValueChecker.
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if v.Name != "" {
		return sigma.Errorf("database", sigma.KindUnsupported, "arguments have places, not names")
	}
	if n, ok := v.Value.(uint64); ok && n > math.MaxInt64 {
		return nil // the engine says whether it has it
	}
	return driver.ErrSkip
}

func values(args []driver.NamedValue) []query.Value {
	out := make([]query.Value, len(args))
	for i, a := range args {
		out[i].V = a.Value
	}
	return out
}

// stmt is a prepared statement.
type stmt struct {
	c      *conn
	number uint32
}

var (
	_ driver.StmtExecContext  = (*stmt)(nil)
	_ driver.StmtQueryContext = (*stmt)(nil)
)

// Close implements driver.Stmt.
func (s *stmt) Close() error {
	if s.c.broken {
		return nil
	}
	_, err := s.c.all(context.Background(), &query.Request{Release: s.number})
	return err
}

// NumInput implements driver.Stmt: the engine counts.
func (s *stmt) NumInput() int { return -1 }

// Exec implements driver.Stmt.
func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }

// Query implements driver.Stmt.
func (s *stmt) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.c.exec(ctx, &query.Request{Statement: s.number, Args: values(args)})
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.c.query(ctx, &query.Request{Statement: s.number, Args: values(args)})
}

// rows are the rows of an answer.
type rows struct {
	c *conn
	a *query.Answer
}

var _ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)

// Columns implements driver.Rows.
func (r *rows) Columns() []string {
	out := make([]string, len(r.a.Columns()))
	for i, c := range r.a.Columns() {
		out[i] = c.Name
	}
	return out
}

// ColumnTypeDatabaseTypeName implements driver.RowsColumnTypeDatabaseTypeName.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string { return r.a.Columns()[i].Type }

// Close implements driver.Rows. It has the server drop the rows that were not read, which would
// keep the connection busy.
func (r *rows) Close() error {
	if r.c.whole || r.c.broken || r.a.End() != nil {
		return nil
	}
	_, err := r.c.all(context.Background(), &query.Request{Release: math.MaxUint32}) // a number that is no statement's
	return err
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error {
	row := make([]any, len(dest))
	if err := r.a.Next(row); err != nil {
		return r.c.note(err)
	}
	for i, v := range row {
		dest[i] = v
	}
	return nil
}

func encode(r *query.Request) ([]byte, error) {
	payload, err := json.Marshal(r)
	return payload, sigma.Wrap("database.Ask", "", err)
}
