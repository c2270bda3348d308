// Package db serves the SQL databases of one realm as a tree. /NAME/session is a file each opening
// of which is a session with the database NAME; /NAME/info describes the database. A database is a
// SQLite file of this server, made by mkdir, or lies in a PostgreSQL, MySQL or MariaDB that the
// provider named by URL (000 §5.3: clients write queries to a file and read the results from one;
// 001 §3.3).
//
// Package query defines what is said in a session. A session has at most one statement at a time.
// Its rows are made as they are read, so an answer of a million rows takes the memory of a few. The
// end of a session, by its client, by its time limit or by the database's removal, rolls back its
// transaction. Nothing is sent to an engine twice.
//
// The package promises that each limit that ends something is named, and that a URL's password is
// in no listing, log or error. Package lite confines SQLite. One step of SQLite can take minutes
// (instr of two long strings), and nothing inside the process can interrupt it: a statement that
// has not ended Limits.Stuck after its context has Config.Stuck end the process. That harms no
// other realm, since each realm has a process of its own. The package assumes that Config.Dial
// connects to the server that the provider named, and to no other. User: cmd/dbd.
//
// Locks: Tree.mu guards the databases and is held for moments. A session's turn serialises its
// requests and is held while one is worked on; Tree.mu may be taken under it, never the other way
// round.
package db

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// Limits bound what realms take. The zero of each means the default.
type Limits struct {
	Databases   int           // of one realm
	Sessions    int           // of one realm that are open
	Connections int           // with one database
	Time        time.Duration // of a statement and its rows
	TxIdle      time.Duration // of a transaction in which nothing is asked
	Idle        time.Duration // of a session
	Stuck       time.Duration // of a statement after its context ended; then Config.Stuck is called
	Rows        int64         // of one answer
	Bytes       sigma.Bytes   // of one answer
	File        sigma.Bytes   // of one SQLite database; a realm has Databases of them at most
	Heap        sigma.Bytes   // of memory of all SQLite connections together
}

// DefaultLimits are what docs/reference/db.md says. They are for a machine that others share: a
// session holds a connection of about 3 MiB, or one of the few hundred that a PostgreSQL has.
var DefaultLimits = Limits{Databases: 32, Sessions: 64, Connections: 32, Time: time.Minute, TxIdle: 30 * time.Second,
	Idle: 10 * time.Minute, Stuck: 10 * time.Second, Rows: 1_000_000, Bytes: sigma.GiB, File: sigma.GiB,
	Heap: 128 * sigma.MiB}

func (l Limits) orDefaults() Limits {
	d := DefaultLimits
	for _, x := range []struct{ of, to *int }{{&l.Databases, &d.Databases}, {&l.Sessions, &d.Sessions},
		{&l.Connections, &d.Connections}} {
		if *x.of > 0 {
			*x.to = *x.of
		}
	}
	for _, x := range []struct{ of, to *time.Duration }{{&l.Time, &d.Time}, {&l.TxIdle, &d.TxIdle}, {&l.Idle, &d.Idle},
		{&l.Stuck, &d.Stuck}} {
		if *x.of > 0 {
			*x.to = *x.of
		}
	}
	for _, x := range []struct{ of, to *sigma.Bytes }{{&l.Bytes, &d.Bytes}, {&l.File, &d.File}, {&l.Heap, &d.Heap}} {
		if *x.of > 0 {
			*x.to = *x.of
		}
	}
	if l.Rows > 0 {
		d.Rows = l.Rows
	}
	return d
}

// Config says where the databases are and what bounds their use.
type Config struct {
	Realm sigma.RealmID // whose databases they are
	Dir   string        // of this server alone
	// Dial connects to the server of a realm's database of that name. nil = there are none but
	// SQLite's.
	Dial   func(ctx context.Context, realm sigma.RealmID, name string) (net.Conn, error)
	Limits Limits
	// Stuck is called when a statement has not ended Limits.Stuck after its context. It ends the
	// process. nil = nothing is done.
	Stuck func(database string)
	Log   *slog.Logger // nil = nowhere
}

// unusedMax is how long a Tree may have no session before Unused tells; removedMax the same after
// the realm was removed, within which the answer to the removal is sent.
const (
	unusedMax  = 10 * time.Minute
	removedMax = time.Second
)

// Tree serves databases. Safe for concurrent use.
type Tree struct {
	cfg  Config
	work sync.WaitGroup // of what ends sessions

	mu        sync.Mutex
	databases map[string]*database // mu
	sessions  int                  // mu; that are open
	nextID    uint64               // mu; of files
	closed    bool                 // mu

	idle   *time.Timer // closes unused; stopped while there are sessions
	unused chan struct{}
}

var _ sigma.Tree = (*Tree)(nil)

// New opens the databases of a directory, which is made if it is missing. No engine is started
// before it is needed.
func New(cfg Config) (*Tree, error) {
	const op = "db.New"
	if cfg.Dir == "" {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "databases need a directory")
	}
	cfg.Limits = cfg.Limits.orDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, sigma.Wrap(op, "", err)
	}
	t := &Tree{cfg: cfg, databases: map[string]*database{}, nextID: 1, unused: make(chan struct{})}
	if err := t.load(); err != nil {
		return nil, err
	}
	t.idle = time.AfterFunc(unusedMax, sync.OnceFunc(func() { close(t.unused) }))
	return t, nil
}

// load reads which databases there are, and removes what a crash left of a making or a removal.
func (t *Tree) load() error {
	entries, err := os.ReadDir(t.cfg.Dir)
	if err != nil {
		return sigma.Wrap("db.New", "", err)
	}
	for _, e := range entries {
		if !goodName.MatchString(e.Name()) {
			if err := os.RemoveAll(filepath.Join(t.cfg.Dir, e.Name())); err != nil {
				return sigma.Wrap("db.New", "", err)
			}
			continue
		}
		d, err := t.newDatabaseLocked(e.Name())
		if err != nil {
			return err
		}
		t.databases[e.Name()] = d
	}
	return nil
}

// Unused is closed when the realm had no session for ten minutes, or was removed: the process may
// end.
func (t *Tree) Unused() <-chan struct{} { return t.unused }

// Attach returns the directory of the realm's databases; KindPermission for a principal of another
// realm. A System principal must name the realm, and is the provider there.
func (t *Tree) Attach(_ context.Context, p sigma.Principal, name string) (sigma.File, error) {
	id, err := p.RealmNamed("db.Attach", name)
	if err != nil {
		return nil, err
	}
	if id != t.cfg.Realm {
		return nil, sigma.Errorf("db.Attach", sigma.KindPermission, "the databases here are the realm %s's",
			t.cfg.Realm)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, sigma.Errorf("db.Attach", sigma.KindUnavailable, "the databases are being closed")
	}
	return &root{t: t, provider: p.System}, nil
}

// Remove ends the realm's sessions and removes its databases. Those that an engine of their own
// keeps stay there.
func (t *Tree) Remove(ctx context.Context) error {
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.databases))
	clear(t.databases)
	t.mu.Unlock()
	for _, d := range all {
		if err := d.end(ctx, removed(d.name)); err != nil {
			return err
		}
	}
	for _, d := range all {
		if err := os.RemoveAll(d.dir); err != nil {
			return inside("db.Remove", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sessions == 0 { // else a realm of the same name uses them already
		t.idle.Reset(removedMax)
	}
	return nil
}

// Close ends all sessions, whose transactions are rolled back.
func (t *Tree) Close() {
	t.mu.Lock()
	t.closed = true
	all := slices.Collect(maps.Values(t.databases))
	t.mu.Unlock()
	t.idle.Stop()
	for _, d := range all {
		d.end(context.Background(), sigma.Errorf("db.Close", sigma.KindLost, "the databases are being closed"))
	}
	t.work.Wait()
}

// goodName are the names of databases, which are names of directories too.
var goodName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

// watch has Config.Stuck called if over is not called within Limits.Stuck of the end of ctx. A
// commit of a large transaction to a slow disk takes seconds that nothing ends.
func (d *database) watch(ctx context.Context) (over func()) {
	if d.t.cfg.Stuck == nil || d.def.engine() != query.EngineSQLite {
		return func() {}
	}
	done := make(chan struct{})
	off := context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(d.t.cfg.Limits.Stuck):
			d.t.cfg.Stuck(d.name)
		}
	})
	return func() {
		off()
		close(done)
	}
}

func checkName(name string) error {
	if goodName.MatchString(name) {
		return nil
	}
	return &sigma.Error{Op: "db.checkName", Path: name, Kind: sigma.KindInvalid, Msg: "not a name of a database",
		Hint: "use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit"}
}

func removed(name string) error {
	return sigma.Errorf("db", sigma.KindLost, "the database %s was removed", name)
}

// inside is an error of this server's own files: where they lie is not for tenants.
func inside(op string, err error) error {
	if err == nil {
		return nil
	}
	kind := sigma.KindOf(err)
	if kind == sigma.KindNotFound || kind == sigma.KindPermission {
		kind = sigma.KindOther
	}
	return &sigma.Error{Op: op, Kind: kind, Msg: "the files of the databases cannot be used",
		Hint: "what went wrong is in the system's log", Err: err}
}

// create makes a database.
func (t *Tree) create(name string, def definition) error {
	const op = "db.create"
	if err := checkName(name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.databases[name] != nil:
		return sigma.PathError(op, sigma.KindExists, name)
	case len(t.databases) >= t.cfg.Limits.Databases:
		return &sigma.Error{Op: op, Path: name, Kind: sigma.KindNoSpace,
			Msg:  "the realm has as many databases as a realm may have",
			Hint: "remove one with: sigma sql rm NAME; or keep several tables in one"}
	}
	if err := def.write(t.cfg.Dir, name); err != nil {
		return inside(op, err)
	}
	d, err := t.newDatabaseLocked(name)
	if err != nil {
		return err
	}
	t.databases[name] = d
	return nil
}

// remove removes a database.
func (t *Tree) remove(ctx context.Context, name string, provider bool) error {
	const op = "db.remove"
	t.mu.Lock()
	d := t.databases[name]
	switch {
	case d == nil:
		t.mu.Unlock()
		return sigma.PathError(op, sigma.KindNotFound, name)
	case d.def.URL != "" && !provider:
		t.mu.Unlock()
		return &sigma.Error{Op: op, Path: name, Kind: sigma.KindPermission,
			Msg: "the provider made this database known, and removes it", Hint: "sigma sql rm " + name}
	}
	delete(t.databases, name)
	old := filepath.Join(t.cfg.Dir, ".old-"+name)
	err := os.RemoveAll(old)
	if err == nil {
		err = os.Rename(d.dir, old) // the name is free at once, and open files go on
	}
	t.mu.Unlock()
	if err != nil {
		return inside(op, err)
	}
	if err := d.end(ctx, removed(name)); err != nil {
		return err
	}
	return inside(op, os.RemoveAll(old))
}

// names lists a realm's databases in order.
func (t *Tree) names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.databases))
}

func (t *Tree) find(name string) *database {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.databases[name]
}
