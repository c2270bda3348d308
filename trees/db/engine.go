package db

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/lite"
	"sigmaos.dev/trees/db/query"
	"sigmaos.dev/trees/diskspace"
)

// engine is what differs between databases.
type engine struct {
	pool *sql.DB
	// begin is the SQL with which a transaction of a request begins.
	begin func(r *query.Request) ([]string, error)
	// inTransaction asks the driver's connection whether a transaction is open; known is false
	// where it does not say.
	inTransaction func(conn any) (is, known bool)
	// failure tells an engine's own error in our words; ok is false if it is none.
	failure func(err error) (f query.Failure, ok bool)
	// entered makes a new connection ready; stop, if not nil, has the server end what the
	// connection does. nil = nothing is to be done.
	entered func(ctx context.Context, c *sql.Conn) (stop func(), err error)
	// value changes what the driver gives for a column of that type, where drivers do not tell text
	// from bytes. nil = nothing.
	value func(typ string, v any) any
	// brittle says that a statement whose context ends takes the connection with it, so that rows
	// that nobody wants are read to their end.
	brittle bool
	// before looks whether a statement may run now. nil = it may.
	before func(conn *sql.Conn, text string) error
}

// brokenErrors are of connections that are gone.
var brokenErrors = []error{driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
	syscall.EPIPE, syscall.ECONNRESET, mysql.ErrInvalidConn}

// busyMax is how long SQLite waits for who writes.
const busyMax = 10 * time.Second

// newEngine makes the engine of d. Nothing is connected.
func (d *database) newEngine() (*engine, error) {
	switch d.def.engine() {
	case query.EnginePostgres:
		return newPostgres(d)
	case query.EngineMySQL:
		return newMySQL(d)
	}
	return newSQLite(d), nil
}

// open makes the pool of a connector. Connections are not kept for others: a session's state is its
// own.
func open(c driver.Connector) *sql.DB {
	pool := sql.OpenDB(c)
	pool.SetMaxIdleConns(-1)
	return pool
}

// connect makes a connection.
func (e *engine) connect(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	return e.pool.Conn(ctx)
}

func newSQLite(d *database) *engine {
	l := d.t.cfg.Limits
	path := filepath.Join(d.dir, dataFile)
	return &engine{
		pool: open(lite.New(lite.Config{Path: path, PagesMax: int64(l.File) / lite.PageSize, HeapMax: int64(l.Heap),
			BusyMax: busyMax})),
		begin: beginSQLite,
		inTransaction: func(conn any) (bool, bool) {
			c, ok := conn.(*lite.Conn)
			return ok && c.InTransaction(), ok
		},
		failure: failureSQLite,
		before: func(conn *sql.Conn, text string) error {
			if err := diskHasRoom(d.dir, l.File); err != nil && !addsNothing(text) {
				return err
			}
			err := logHasRoom(path+"-wal", l.File)
			if err == nil || addsNothing(text) || logIsCopied(conn) {
				return nil
			}
			return err
		},
	}
}

// diskHasRoom says whether a database may grow. One statement may make the file and its log as
// large as a file may be, so as much is left; of a small disk an eighth.
func diskHasRoom(dir string, most sigma.Bytes) error {
	disk, err := diskspace.Of(dir)
	if err != nil || diskspace.Left(disk) > min(2*most, disk.Total/8) {
		return nil
	}
	return &sigma.Error{Op: "db.run", Kind: sigma.KindNoSpace,
		Msg:  "the disk of the databases is full: what is left of it is kept for names and for what is being written",
		Hint: "remove a database (sigma sql rm) or objects, or ask the provider for room"}
}

func beginSQLite(r *query.Request) ([]string, error) {
	switch {
	case r.ReadOnly: // SQLite has no word for it that ends with the transaction
		return nil, sigma.Errorf("db.begin", sigma.KindUnsupported, "SQLite has no read-only transactions")
	case r.Isolation != "" && r.Isolation != "serializable":
		return nil, sigma.Errorf("db.begin", sigma.KindUnsupported, "transactions of SQLite are serializable")
	}
	return []string{"BEGIN IMMEDIATE"},
		nil // a transaction that began by reading could not go on to write after another did
}

// primary codes of SQLite, which do not change.
var kindsSQLite = map[int32]sigma.Kind{
	1: sigma.KindInvalid, 3: sigma.KindPermission, 4: sigma.KindCanceled, 5: sigma.KindBusy, 6: sigma.KindBusy,
	7: sigma.KindBusy, 8: sigma.KindPermission, 13: sigma.KindNoSpace, 17: sigma.KindBusy, 18: sigma.KindTooBig,
	19: sigma.KindInvalid, 20: sigma.KindInvalid,
	21: sigma.KindInvalid, 23: sigma.KindPermission, 25: sigma.KindInvalid,
}

func failureSQLite(err error) (query.Failure, bool) {
	var e *lite.Error
	if !errors.As(err, &e) {
		return query.Failure{}, false
	}
	f := query.Failure{Kind: kindsSQLite[e.Primary()].String(), Message: e.Message, Code: fmt.Sprintf("SQLITE %d",
		e.Code), Position: e.Position}
	switch e.Primary() {
	case 5:
		f.Hint = "another session writes; try again, or make transactions shorter"
	case 7:
		f.Hint =
			"the memory of the realm's SQLite databases is used up: sort or group less at a time, use fewer " +
				"sessions, or try again"
	case 13:
		f.Hint = "the database has its largest size, or the disk is full: delete something"
	case 23:
		f.Hint = "a database reaches no other file, and how it is kept is not for statements to say"
	case 19:
		if e.Code == 19|6<<8 || e.Code == 19|8<<8 { // a primary key, a unique index
			f.Kind = sigma.KindExists.String()
		}
	}
	return f, true
}

// wordOf is the first word of a statement, in capitals, comments left out.
func wordOf(text string) string {
	for {
		text = strings.TrimLeft(text, " \t\r\n;(")
		switch {
		case strings.HasPrefix(text, "--"), strings.HasPrefix(text, "#"):
			_, text, _ = strings.Cut(text, "\n")
		case strings.HasPrefix(text, "/*"):
			_, text, _ = strings.Cut(text, "*/")
		default:
			end := strings.IndexFunc(text, func(c rune) bool { return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') })
			if end < 0 {
				end = len(text)
			}
			return strings.ToUpper(text[:end])
		}
	}
}

// logIsCopied reports whether nobody needs the log of SQLite's any more, so that the next write
// begins it anew.
func logIsCopied(conn *sql.Conn) (copied bool) {
	conn.Raw(func(c any) error {
		l, ok := c.(*lite.Conn)
		copied = ok && l.CopyLog()
		return nil
	})
	return copied
}

// addsNothing reports whether a statement of SQLite's only reads, or ends a transaction: so it may
// run when the log is full, which it may help to empty.
func addsNothing(text string) bool {
	switch wordOf(text) {
	case "SELECT", "VALUES", "EXPLAIN", "COMMIT", "END", "ROLLBACK", "RELEASE":
		return true
	}
	return false
}

// hasRows guesses whether a statement has rows, for who did not say.
func hasRows(text string) bool {
	switch wordOf(text) {
	case "SELECT", "VALUES", "WITH", "SHOW", "EXPLAIN", "PRAGMA", "TABLE", "DESCRIBE", "DESC", "FETCH", "CALL", "CHECK",
		"ANALYZE":
		return true
	}
	return strings.Contains(strings.ToUpper(text), "RETURNING")
}
