package db

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/stdlib"

	"io"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// messageMax is the largest message of an engine that is taken, so that one value does not take all
// memory.
const messageMax = query.RowMax + 1<<20

// cancelMax is how long an engine may take to end a statement before its connection is given up.
const cancelMax = 5 * time.Second

// logHasRoom says whether a log of SQLite's may grow: it does while somebody reads for long and
// others write.
func logHasRoom(path string, most sigma.Bytes) error {
	if st, err := os.Stat(path); err == nil && st.Size() > int64(most) {
		return &sigma.Error{Op: "db.run", Kind: sigma.KindNoSpace,
			Msg:  limitMessage("the log of what was written has more than %v", most),
			Hint: "end what reads for long, and it is emptied"}
	}
	return nil
}

// badURL is the error of a URL that a driver does not take. The driver's own words may show it.
func badURL() error {
	return sigma.Errorf("db.open", sigma.KindInvalid, "the database's URL cannot be understood")
}

func newPostgres(d *database) (*engine, error) {
	cfg, err := pgx.ParseConfig(d.def.URL)
	if err != nil {
		return nil, badURL()
	}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx) }
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	cfg.RuntimeParams["statement_timeout"] = strconv.FormatInt((d.t.cfg.Limits.Time + cancelMax).Milliseconds(),
		10) // should this server die meanwhile
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: cancelMax}
	}
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		f := pgproto3.NewFrontend(r, w)
		f.SetMaxBodyLen(messageMax)
		return f
	}
	return &engine{
		pool:  open(stdlib.GetConnector(*cfg)),
		begin: beginPostgres,
		inTransaction: func(conn any) (bool, bool) {
			c, ok := conn.(*stdlib.Conn)
			return ok && c.Conn().PgConn().TxStatus() != 'I', ok
		},
		failure: failurePostgres,
	}, nil
}

func beginPostgres(r *query.Request) ([]string, error) {
	text := "BEGIN"
	if r.Isolation != "" {
		text += " ISOLATION LEVEL " + strings.ToUpper(r.Isolation)
	}
	if r.ReadOnly {
		text += " READ ONLY"
	}
	return []string{text}, nil
}

// kindsPostgres are by SQLSTATE or its class; the longer one counts.
var kindsPostgres = map[string]sigma.Kind{
	"08": sigma.KindLost, "0A": sigma.KindUnsupported, "21": sigma.KindInvalid, "22": sigma.KindInvalid,
	"23": sigma.KindInvalid, "23505": sigma.KindExists, "25": sigma.KindInvalid, "28": sigma.KindPermission,
	"3D": sigma.KindNotFound, "40": sigma.KindBusy,
	"42": sigma.KindInvalid, "42501": sigma.KindPermission, "53100": sigma.KindNoSpace, "53200": sigma.KindBusy,
	"53300": sigma.KindBusy, "54": sigma.KindTooBig, "55P03": sigma.KindBusy, "57014": sigma.KindCanceled,
	"57P": sigma.KindLost, "57P03": sigma.KindUnavailable,
}

func failurePostgres(err error) (query.Failure, bool) {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return query.Failure{}, false
	}
	kind := sigma.KindOther
	for n := 2; n <= len(e.Code); n++ {
		if k, ok := kindsPostgres[e.Code[:n]]; ok {
			kind = k
		}
	}
	f := query.Failure{Kind: kind.String(), Message: e.Message, Hint: e.Hint, Code: "SQLSTATE " + e.Code,
		Position: int(e.Position)}
	if e.Detail != "" {
		f.Message += ": " + e.Detail
	}
	return f, true
}

// mysqlConfig makes the driver's configuration of a URL.
func mysqlConfig(text string) (*mysql.Config, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, badURL()
	}
	cfg := mysql.NewConfig()
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.Trim(u.Path, "/")
	cfg.ParseTime, cfg.RejectReadOnly, cfg.AllowFallbackToPlaintext = true, false, false
	cfg.Logger = &mysql.NopLogger{}
	switch mode := u.Query().Get("tls"); mode {
	case "", "false":
	case "true":
		cfg.TLS = &tls.Config{ServerName: u.Hostname()}
	case "skip-verify":
		cfg.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // the operator says so by name
	default:
		return nil, badURL()
	}
	return cfg, nil
}

func newMySQL(d *database) (*engine, error) {
	cfg, err := mysqlConfig(d.def.URL)
	if err != nil {
		return nil, err
	}
	cfg.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return d.dial(ctx) }
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, badURL()
	}
	e := &engine{pool: open(c), begin: beginMySQL, inTransaction: func(any) (bool, bool) {
		return false, false
	}, failure: failureMySQL, value: valueMySQL, brittle: true}
	e.entered = func(ctx context.Context, c *sql.Conn) (func(), error) { return e.enteredMySQL(ctx, c, d) }
	return e, nil
}

// enteredMySQL bounds statements at the server too, and learns how to end one: the protocol has no
// word for it, so another connection must say it.
func (e *engine) enteredMySQL(ctx context.Context, c *sql.Conn, d *database) (stop func(), err error) {
	limit := d.t.cfg.Limits.Time + cancelMax
	if _, err := c.ExecContext(ctx, fmt.Sprintf("SET SESSION max_statement_time = %d",
		int(limit.Seconds()))); err != nil { // MariaDB's word; MySQL's is another, and for SELECT only
		if _, err := c.ExecContext(ctx, fmt.Sprintf("SET SESSION max_execution_time = %d",
			limit.Milliseconds())); err != nil {
			return nil, err
		}
	}
	var id int64
	if err := c.QueryRowContext(ctx, "SELECT CONNECTION_ID()").Scan(&id); err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), cancelMax)
		defer cancel()
		if _, err := e.pool.ExecContext(ctx, fmt.Sprintf("KILL %d", id)); err != nil {
			d.t.cfg.Log.Warn("a statement could not be ended at its server", "database", d.name, "err",
				d.def.redacted(err))
		}
	}, nil
}

func beginMySQL(r *query.Request) ([]string, error) {
	var texts []string
	if r.Isolation != "" {
		texts = append(texts, "SET TRANSACTION ISOLATION LEVEL "+strings.ToUpper(r.Isolation))
	}
	text := "START TRANSACTION"
	if r.ReadOnly {
		text += " READ ONLY"
	}
	return append(texts, text), nil
}

// kindsMySQL are by the engine's numbers.
var kindsMySQL = map[uint16]sigma.Kind{
	1022: sigma.KindExists, 1062: sigma.KindExists, 1586: sigma.KindExists, 1040: sigma.KindBusy, 1203: sigma.KindBusy,
	1205: sigma.KindBusy, 1213: sigma.KindBusy, 1021: sigma.KindNoSpace, 1114: sigma.KindNoSpace,
	1044: sigma.KindPermission, 1045: sigma.KindPermission, 1142: sigma.KindPermission,
	1143: sigma.KindPermission, 1227: sigma.KindPermission, 1049: sigma.KindNotFound, 1053: sigma.KindLost,
	1927: sigma.KindLost, 1317: sigma.KindCanceled, 1153: sigma.KindTooBig, 1969: sigma.KindTimeout,
	3024: sigma.KindTimeout, 1792: sigma.KindPermission,
}

func failureMySQL(err error) (query.Failure, bool) {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return query.Failure{}, false
	}
	kind, ok := kindsMySQL[e.Number]
	if !ok {
		kind = sigma.KindInvalid // nearly all of the thousand others are about the statement
	}
	return query.Failure{Kind: kind.String(), Message: e.Message, Code: fmt.Sprintf("MySQL %d", e.Number)}, true
}

// valueMySQL tells text from bytes: the driver gives bytes for both.
func valueMySQL(typ string, v any) any {
	b, ok := v.([]byte)
	if !ok || strings.Contains(typ, "BLOB") || strings.Contains(typ, "BINARY") || typ == "BIT" || typ == "GEOMETRY" ||
		!utf8.Valid(b) {
		return v
	}
	return string(b)
}
