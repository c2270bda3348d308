// Package db is SQL databases as a tree: /NAME/session is a file each opening of which is a session with the database NAME, /NAME/info tells of it. Each realm has its own databases: in SQLite files of this server, made by mkdir, or in a PostgreSQL, MySQL or
// MariaDB that the provider named by URL (000 §5.3: clients write queries to a file and read the results from one; 001 §3.3).
//
// What is said in a session is package query's. A session has at most one statement at a time; its rows are made as they are read, so that a million of them take the memory of one answer. The death of a session, by its client, by its
// time or by the database's removal, rolls back its transaction. Nothing is sent to an engine twice.
//
// It promises that no statement of one realm reaches another realm's database (SQLite is confined by package lite; a connection by URL is what its owner made it), that each limit that ends something is named, and that a URL's password is in no listing, log, or error. It assumes that Dial
// connects to where the provider said, and to nowhere else. Users: cmd/dbd.
//
// Locks: Tree.mu guards realms and their databases and is held for moments. A session's turn serialises its requests and is held while one is worked on; Tree.mu may be taken under it, never the other way round.
package db

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/db/lite"
	"sigmaos.dev/sigma"
)

// Limits bound what realms take. The zero of each means the default.
type Limits struct {
	Databases   int           // of one realm
	Sessions    int           // of one realm that are open
	Connections int           // with one database
	Time        time.Duration // of a statement and its rows
	TxIdle      time.Duration // of a transaction in which nothing is asked
	Idle        time.Duration // of a session
	Rows        int64         // of one answer
	Bytes       sigma.Bytes   // of one answer
	File        sigma.Bytes   // of one SQLite database; a realm has Databases of them at most
	Heap        sigma.Bytes   // of memory of all SQLite connections together
	RealmHeap   sigma.Bytes   // of memory of those of one realm
}

// DefaultLimits are what docs/reference/db.md says. They are for a machine that others share: a session holds a connection of about 3 MiB, or one of the few hundred that a PostgreSQL has.
var DefaultLimits = Limits{Databases: 32, Sessions: 64, Connections: 32, Time: time.Minute, TxIdle: 30 * time.Second, Idle: 10 * time.Minute, Rows: 1_000_000, Bytes: sigma.GiB, File: sigma.GiB, Heap: 512 * sigma.MiB, RealmHeap: 128 * sigma.MiB}

func (l Limits) orDefaults() Limits {
	d := DefaultLimits
	for _, x := range []struct{ of, to *int }{{&l.Databases, &d.Databases}, {&l.Sessions, &d.Sessions}, {&l.Connections, &d.Connections}} {
		if *x.of > 0 {
			*x.to = *x.of
		}
	}
	for _, x := range []struct{ of, to *time.Duration }{{&l.Time, &d.Time}, {&l.TxIdle, &d.TxIdle}, {&l.Idle, &d.Idle}} {
		if *x.of > 0 {
			*x.to = *x.of
		}
	}
	for _, x := range []struct{ of, to *sigma.Bytes }{{&l.Bytes, &d.Bytes}, {&l.File, &d.File}, {&l.Heap, &d.Heap}, {&l.RealmHeap, &d.RealmHeap}} {
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
	Dir string // of this server alone
	// Dial connects to the server of a realm's database of that name. nil = there are none but SQLite's.
	Dial   func(ctx context.Context, realm sigma.RealmID, name string) (net.Conn, error)
	Limits Limits
	Log    *slog.Logger // nil = nowhere
}

// Tree serves databases. Safe for concurrent use.
type Tree struct {
	cfg  Config
	work sync.WaitGroup // of what ends sessions

	mu     sync.Mutex
	realms map[sigma.RealmID]*realm // mu
	nextID uint64                   // mu; of files
	closed bool                     // mu
}

var _ sigma.Tree = (*Tree)(nil)

// realm is what one realm has.
type realm struct {
	id        sigma.RealmID
	databases map[string]*database // Tree.mu
	sessions  int                  // Tree.mu
	removed   bool                 // Tree.mu
	memory    *lite.Memory
}

// New opens the databases of a directory, which is made if it is missing. No engine is started before it is needed.
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
	return &Tree{cfg: cfg, realms: map[sigma.RealmID]*realm{}, nextID: 1}, nil
}

// Attach returns the directory of the databases of p's realm. A System principal may name another realm, and is the provider there.
func (t *Tree) Attach(_ context.Context, p sigma.Principal, name string) (sigma.File, error) {
	id, err := p.RealmNamed("db.Attach", name)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.realmLocked(id)
	if err != nil {
		return nil, err
	}
	return &root{t: t, r: r, provider: p.System}, nil
}

// realmLocked finds a realm, or reads what it has.
func (t *Tree) realmLocked(id sigma.RealmID) (*realm, error) {
	if t.closed {
		return nil, sigma.Errorf("db.Attach", sigma.KindUnavailable, "the databases are being closed")
	}
	if r := t.realms[id]; r != nil {
		return r, nil
	}
	r := &realm{id: id, databases: map[string]*database{}, memory: lite.NewMemory(int64(t.cfg.Limits.RealmHeap))}
	loaded := false
	defer func() {
		if !loaded {
			r.memory.Close()
		}
	}()
	entries, err := os.ReadDir(t.realmDir(id))
	if err != nil && !os.IsNotExist(err) {
		return nil, inside("db.Attach", err)
	}
	for _, e := range entries {
		if !goodName.MatchString(e.Name()) { // what a crash left of a making or a removal
			if err := os.RemoveAll(filepath.Join(t.realmDir(id), e.Name())); err != nil {
				return nil, inside("db.Attach", err)
			}
			continue
		}
		d, err := t.newDatabaseLocked(r, e.Name())
		if err != nil {
			return nil, err
		}
		r.databases[e.Name()] = d
	}
	t.realms[id], loaded = r, true
	return r, nil
}

func (t *Tree) realmDir(id sigma.RealmID) string { return filepath.Join(t.cfg.Dir, string(id)) }

// RemoveRealm ends a realm's sessions and removes its databases. Those that are kept by an engine of their own stay there.
func (t *Tree) RemoveRealm(ctx context.Context, id sigma.RealmID) error {
	t.mu.Lock()
	r := t.realms[id]
	var all []*database
	if r != nil {
		r.removed = true
		for _, d := range r.databases {
			all = append(all, d)
		}
		delete(t.realms, id)
	}
	t.mu.Unlock()
	for _, d := range all {
		if err := d.end(ctx, removed(d.name)); err != nil {
			return err
		}
	}
	if r != nil {
		r.memory.Close()
	}
	return inside("db.RemoveRealm", os.RemoveAll(t.realmDir(id)))
}

// Close ends all sessions, whose transactions are rolled back.
func (t *Tree) Close() {
	t.mu.Lock()
	t.closed = true
	var all []*database
	for _, r := range t.realms {
		for _, d := range r.databases {
			all = append(all, d)
		}
	}
	t.mu.Unlock()
	for _, d := range all {
		d.end(context.Background(), sigma.Errorf("db.Close", sigma.KindLost, "the databases are being closed"))
	}
	t.work.Wait()
}

// goodName are the names of databases, which are names of directories too.
var goodName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,62}$`)

func checkName(name string) error {
	if goodName.MatchString(name) {
		return nil
	}
	return &sigma.Error{Op: "db.checkName", Path: name, Kind: sigma.KindInvalid, Msg: "not a name of a database", Hint: "use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit"}
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
	return &sigma.Error{Op: op, Kind: kind, Msg: "the files of the databases cannot be used", Hint: "what went wrong is in the system's log", Err: err}
}

// create makes a database.
func (t *Tree) create(r *realm, name string, def definition) error {
	const op = "db.create"
	if err := checkName(name); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case r.removed:
		return sigma.Errorf(op, sigma.KindStale, "the realm was removed")
	case r.databases[name] != nil:
		return sigma.PathError(op, sigma.KindExists, name)
	case len(r.databases) >= t.cfg.Limits.Databases:
		return &sigma.Error{Op: op, Path: name, Kind: sigma.KindNoSpace, Msg: "the realm has as many databases as a realm may have", Hint: "remove one with: sigma sql rm NAME; or keep several tables in one"}
	}
	if err := def.write(t.realmDir(r.id), name); err != nil {
		return inside(op, err)
	}
	d, err := t.newDatabaseLocked(r, name)
	if err != nil {
		return err
	}
	r.databases[name] = d
	return nil
}

// remove removes a database.
func (t *Tree) remove(ctx context.Context, r *realm, name string, provider bool) error {
	const op = "db.remove"
	t.mu.Lock()
	d := r.databases[name]
	switch {
	case d == nil:
		t.mu.Unlock()
		return sigma.PathError(op, sigma.KindNotFound, name)
	case d.def.URL != "" && !provider:
		t.mu.Unlock()
		return &sigma.Error{Op: op, Path: name, Kind: sigma.KindPermission, Msg: "the provider made this database known, and removes it", Hint: "sigma sql rm " + name}
	}
	delete(r.databases, name)
	old := filepath.Join(t.realmDir(r.id), ".old-"+name)
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
func (t *Tree) names(r *realm) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for name := range r.databases {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (t *Tree) find(r *realm, name string) *database {
	t.mu.Lock()
	defer t.mu.Unlock()
	return r.databases[name]
}
