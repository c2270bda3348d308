// Package lite is SQLite for people who are not trusted: a driver of database/sql whose connections
// reach one file and nothing else, whatever the SQL says, and stop when they are told to.
//
// It promises that no statement opens another file (no ATTACH, VACUUM INTO, extension or temporary
// file), changes how the file is kept (PRAGMAs are an allow list), or makes it larger than
// Config.PagesMax, or has SQLite take more memory than Config.HeapMax; that a statement ends soon
// after its context, also while rows are read or a lock is waited for; and that values come out
// with the type they went in. One statement is run at a time; text after it is refused.
//
// It is a driver of its own on the C interface of modernc.org/sqlite, because that module's driver
// does not end a long step when a context does, hides whether a transaction is open and where in
// the text an error is, and converts values by guesses. User: db.
package lite

import (
	"context"
	"database/sql/driver"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// PageSize is the size of a page in bytes, SQLite's own default.
const PageSize = 4096

const (
	valueMax  = 16 << 20 // bytes of one text, blob or row: it is several times in memory
	textMax   = 1 << 20  // bytes of one statement
	cacheKiB  = 1024     // of pages, for each connection
	opsPerAsk = 1000     // steps of SQLite's machine between looks at the context: some ten microseconds
)

// Config says which file, and what bounds it.
type Config struct {
	Path     string
	PagesMax int64         // of the file
	HeapMax  int64         // bytes of memory that all connections of the process share
	BusyMax  time.Duration // how long a lock of another connection is waited for
}

// countMemory makes SQLite count the memory it has, without which its limit does not hold. It must
// be called before the first connection is opened.
var countMemory = sync.OnceFunc(func() {
	tls := libc.NewTLS()
	defer tls.Close()
	list := tls.Alloc(8)
	defer tls.Free(8)
	sqlite3.Xsqlite3_config(tls, sqlite3.SQLITE_CONFIG_MEMSTATUS, libc.VaList(list, int32(1)))
	sqlite3.Xsqlite3_initialize(tls)
})

// Connector makes connections to one file; the file is made if it is missing. It implements
// driver.Connector.
type Connector struct {
	cfg Config
	// preparing is held while a connection says how the file is kept. SQLite refuses a second
	// connection that turns a new file to its write-ahead log at the same time, and asks no busy
	// handler.
	preparing sync.Mutex
}

var _ driver.Connector = (*Connector)(nil)

// New makes a Connector. Nothing is opened.
func New(cfg Config) *Connector { return &Connector{cfg: cfg} }

// Driver implements driver.Connector.
func (c *Connector) Driver() driver.Driver { return noDriver{} }

// noDriver is a driver that cannot be used by name.
type noDriver struct{}

func (noDriver) Open(string) (driver.Conn, error) {
	return nil, fmt.Errorf("lite: connections are made by a Connector")
}

// Conn is one connection. Like every driver.Conn it serves one goroutine at a time.
type Conn struct {
	cfg  Config
	tls  *libc.TLS
	db   uintptr
	id   uintptr     // by which callbacks find it
	stop atomic.Bool // the statement that runs shall end
	busy time.Time   // when the wait for a lock began; of the goroutine that uses the connection
}

var (
	_ driver.Conn               = (*Conn)(nil)
	_ driver.QueryerContext     = (*Conn)(nil)
	_ driver.ExecerContext      = (*Conn)(nil)
	_ driver.ConnPrepareContext = (*Conn)(nil)
	_ driver.NamedValueChecker  = (*Conn)(nil)
)

// connections finds a Conn by its id, for SQLite's callbacks, which carry a number. It is written
// when connections open and close.
var connections struct {
	sync.Map
	last atomic.Uint64
}

// Connect implements driver.Connector.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn := &Conn{cfg: c.cfg, tls: libc.NewTLS(), id: uintptr(connections.last.Add(1))}
	if err := conn.open(); err != nil {
		conn.Close()
		return nil, err
	}
	c.preparing.Lock()
	err := conn.prepareFile(ctx)
	c.preparing.Unlock()
	if err != nil {
		conn.Close()
		return nil, err
	}
	conn.confine()
	return conn, nil
}

func (c *Conn) open() error {
	countMemory()
	path, err := libc.CString(c.cfg.Path)
	if err != nil {
		return err
	}
	defer libc.Xfree(c.tls, path)
	place := c.tls.Alloc(8)
	defer c.tls.Free(8)
	const flags = sqlite3.SQLITE_OPEN_READWRITE | sqlite3.SQLITE_OPEN_CREATE | sqlite3.SQLITE_OPEN_FULLMUTEX |
		sqlite3.SQLITE_OPEN_NOFOLLOW
	rc := sqlite3.Xsqlite3_open_v2(c.tls, path, place, flags, 0)
	c.db = pointerAt(place)
	if rc != sqlite3.SQLITE_OK {
		return c.failed(rc)
	}
	connections.Store(c.id, c)
	sqlite3.Xsqlite3_extended_result_codes(c.tls, c.db, 1)
	sqlite3.Xsqlite3_busy_handler(c.tls, c.db, callback(waitForLock), c.id)
	sqlite3.Xsqlite3_progress_handler(c.tls, c.db, opsPerAsk, callback(shallStop), c.id)
	return nil
}

// prepareFile says how the file is kept, before statements are watched. Temporary tables are in
// memory, so that there are no other files; what they and sorting take is bounded by HeapMax.
func (c *Conn) prepareFile(ctx context.Context) error {
	pragmas := []string{"synchronous=full", "temp_store=memory", "trusted_schema=off", "foreign_keys=on",
		"journal_size_limit=16777216", fmt.Sprintf("cache_size=-%d", cacheKiB),
		fmt.Sprintf("max_page_count=%d", c.cfg.PagesMax), fmt.Sprintf("hard_heap_limit=%d", c.cfg.HeapMax)}
	mode, err := c.tell(ctx, "PRAGMA journal_mode")
	if err != nil {
		return err
	}
	if mode != "wal" { // the file is new; else these would wait for whoever writes
		pragmas = append([]string{"auto_vacuum=full", "journal_mode=wal"},
			pragmas...) // the former since VACUUM needs ATTACH
	}
	for _, p := range pragmas {
		if _, err := c.ExecContext(ctx, "PRAGMA "+p, nil); err != nil {
			return err
		}
	}
	return nil
}

// tell gives the text that a statement has as its first value.
func (c *Conn) tell(ctx context.Context, text string) (string, error) {
	r, err := c.QueryContext(ctx, text, nil)
	if err != nil {
		return "", err
	}
	defer r.Close()
	row := make([]driver.Value, len(r.Columns()))
	if err := r.Next(row); err != nil || len(row) == 0 {
		return "", err
	}
	told, _ := row[0].(string)
	return told, nil
}

// Close implements driver.Conn. It rolls back what was not committed.
func (c *Conn) Close() error {
	if c.db != 0 {
		sqlite3.Xsqlite3_close_v2(c.tls, c.db)
		c.db = 0
	}
	connections.Delete(c.id)
	if c.tls != nil {
		c.tls.Close()
		c.tls = nil
	}
	return nil
}

// CopyLog copies what the log has into the file, as far as nobody reads what was before. It waits
// for nobody, and reports whether that is all of the log.
func (c *Conn) CopyLog() bool {
	counts := c.tls.Alloc(8) // of the log's pages, and of those that are copied, 32 bits each
	defer c.tls.Free(8)
	rc := sqlite3.Xsqlite3_wal_checkpoint_v2(c.tls, c.db, 0, sqlite3.SQLITE_CHECKPOINT_PASSIVE, counts, counts+4)
	n := uint64(pointerAt(counts))
	return rc == sqlite3.SQLITE_OK && uint32(n) == uint32(n>>32)
}

// InTransaction says whether a transaction was begun and not ended, whatever words did it.
func (c *Conn) InTransaction() bool {
	return sqlite3.Xsqlite3_get_autocommit(c.tls, c.db) == 0
}

// Begin implements driver.Conn; transactions are SQL here.
func (c *Conn) Begin() (driver.Tx, error) {
	return nil, fmt.Errorf("lite: begin a transaction with SQL")
}

// Prepare implements driver.Conn.
func (c *Conn) Prepare(text string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), text)
}

// PrepareContext implements driver.ConnPrepareContext.
func (c *Conn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	s, err := c.compile(ctx, text)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// QueryContext implements driver.QueryerContext.
func (c *Conn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	s, err := c.compile(ctx, text)
	if err != nil {
		return nil, err
	}
	s.once = true
	r, err := s.QueryContext(ctx, args)
	if err != nil {
		s.Close()
	}
	return r, err
}

// ExecContext implements driver.ExecerContext.
func (c *Conn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	s, err := c.compile(ctx, text)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return s.ExecContext(ctx, args)
}

// CheckNamedValue implements driver.NamedValueChecker.
func (c *Conn) CheckNamedValue(v *driver.NamedValue) error {
	if v.Name != "" {
		return &Error{Code: sqlite3.SQLITE_MISUSE, Message: "arguments have places, not names"}
	}
	switch x := v.Value.(type) {
	case uint64: // beyond the largest int64, or it would have come as one
		return &Error{Code: sqlite3.SQLITE_MISMATCH, Message: fmt.Sprintf("SQLite has no integer as large as %d", x)}
	case nil, bool, int64, float64, string, []byte, time.Time:
		return nil
	}
	return driver.ErrSkip
}

// watch has the statement that runs end when ctx does; the function it returns ends that.
func (c *Conn) watch(ctx context.Context) (unwatch func()) {
	c.busy = time.Time{}
	c.stop.Store(ctx.Err() != nil)
	off := context.AfterFunc(ctx, func() { c.stop.Store(true) })
	return func() { off() }
}

// shallStop is SQLite's progress handler.
func shallStop(_ *libc.TLS, id uintptr) int32 {
	if c, ok := connections.Load(id); ok && !c.(*Conn).stop.Load() {
		return 0
	}
	return 1
}

// waitForLock is SQLite's busy handler: it waits a while and says whether to try again.
func waitForLock(_ *libc.TLS, id uintptr, count int32) int32 {
	found, ok := connections.Load(id)
	if !ok {
		return 0
	}
	c := found.(*Conn)
	if count == 0 {
		c.busy = time.Now()
	}
	if c.stop.Load() || time.Since(c.busy) > c.cfg.BusyMax {
		return 0
	}
	time.Sleep(min(time.Millisecond<<min(count, 8), 20*time.Millisecond))
	return 1
}
