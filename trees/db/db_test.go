package db

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/trees/treetest"
	sessions "sigmaos.dev/wire/session"
)

// tenant is an ordinary principal of a realm.
func tenant(realm sigma.RealmID) sigma.Principal { return sigma.Principal{Realm: realm, Proc: "p"} }

func newTree(t *testing.T, l Limits) *Tree {
	t.Helper()
	return newTreeOf(t, t.TempDir(), "r", l)
}

// newTreeOf serves a realm's databases, which lie beside those of other realms below dir.
func newTreeOf(t *testing.T, dir string, realm sigma.RealmID, l Limits) *Tree {
	t.Helper()
	tree, err := New(Config{Realm: realm, Dir: filepath.Join(dir, string(realm)), Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	return tree
}

// rootOf attaches for a tenant.
func rootOf(t *testing.T, tree *Tree) sigma.File {
	t.Helper()
	root, err := tree.Attach(t.Context(), tenant(tree.cfg.Realm), "")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// talk is a session with what a test needs.
type talk struct {
	*testing.T
	f sigma.File
}

// sessionWith opens a session with a database.
func sessionWith(t *testing.T, root sigma.File, name string) *talk {
	t.Helper()
	f, _, err := root.Walk(t.Context(), []string{name, "session"})
	if err != nil || f == nil {
		t.Fatalf("no session with %s: %v", name, err)
	}
	if err := f.Open(t.Context(), sigma.OpenReadWrite); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return &talk{t, f}
}

// newSQLiteSession makes a database and a session with it.
func newSQLiteSession(t *testing.T, l Limits) *talk {
	t.Helper()
	root := rootOf(t, newTree(t, l))
	if err := root.Mkdir(t.Context(), "shop", 0o777); err != nil {
		t.Fatal(err)
	}
	return sessionWith(t, root, "shop")
}

// reader reads the session's answer.
type reader struct {
	ctx context.Context
	f   sigma.File
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.f.ReadAt(r.ctx, p, 0)
	if n == 0 && err == nil {
		return 0, fmt.Errorf("the answer ended")
	}
	return n, err
}

// try writes a request and reads its answer.
func (s *talk) try(ctx context.Context, request string) (rows [][]any, end *query.End, err error) {
	if _, err := s.f.WriteAt(s.Context(), []byte(request), 0); err != nil {
		return nil, nil, err
	}
	a, err := query.Read(reader{ctx, s.f})
	if err != nil {
		return nil, nil, err
	}
	for {
		row := make([]any, len(a.Columns()))
		if err := a.Next(row); a.End() != nil {
			return rows, a.End(), nil
		} else if err != nil {
			return rows, nil, err
		}
		rows = append(rows, row)
	}
}

// do is try that must succeed.
func (s *talk) do(request string) ([][]any, *query.End) {
	s.Helper()
	rows, end, err := s.try(s.Context(), request)
	if err != nil {
		s.Fatalf("%.200s: %v", request, err)
	}
	return rows, end
}

// fails is try that must not.
func (s *talk) fails(request string, want sigma.Kind, words ...string) {
	s.Helper()
	_, _, err := s.try(s.Context(), request)
	if err == nil || sigma.KindOf(err) != want {
		s.Errorf("%.200s: got %v (%v), want %v", request, err, sigma.KindOf(err), want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error()+sigma.HintOf(err), w) {
			s.Errorf("%.200s: %q does not say %q", request, err, w)
		}
	}
}

// A database made by mkdir answers SQL that is written to its session, with values of the type that
// went in.
func TestSession(t *testing.T) {
	s := newSQLiteSession(t, Limits{})
	s.do("create table t (id integer primary key, a, b text, made datetime, ok boolean)")
	_,
		end :=
		s.do(
			`{"sql": "insert into t (a, b, made, ok) values (?, ?, ?, ?)", "args": [9223372036854775807, "grüße\u0000<>", {"time": "2026-11-22T04:05:06.000000007+01:00"}, true]}`)
	if end.Changed != 1 || end.LastID != 1 {
		t.Errorf("got %+v, want one row changed, id 1", end)
	}
	s.do(
		`{"sql": "insert into t (a, b) values (?, ?), (?, null), (?, '')", "args": [{"bytes": "AP8="}, "", 1.0, -9223372036854775808]}`)
	rows, end := s.do("select a, b, made, ok from t order by id")
	if end.Rows != 4 {
		t.Fatalf("got %d rows, want 4", end.Rows)
	}
	created, _ := rows[0][2].(time.Time)
	if rows[0][0] != int64(9223372036854775807) || rows[0][1] != "grüße\x00<>" || rows[0][3] != true ||
		created.UnixNano() != time.Date(2026, 11, 22, 3, 5, 6, 7, time.UTC).UnixNano() {
		t.Errorf("got %#v", rows[0])
	}
	if b, _ := rows[1][0].([]byte); !bytes.Equal(b, []byte{0, 255}) || rows[1][1] != "" || rows[1][2] != nil {
		t.Errorf("got %#v", rows[1])
	}
	if rows[2][0] != 1.0 || rows[2][1] != nil || rows[3][0] != int64(-9223372036854775808) {
		t.Errorf("got %#v and %#v", rows[2], rows[3])
	}
	if rows, end := s.do("update t set b = 'x' where id < 3 returning id"); len(rows) != 2 || end.Rows != 2 {
		t.Errorf("returning gives %v", rows)
	}
}

// The statements of a batch are answered in order, also where an answer is larger than a read; the
// first that fails ends it.
func TestBatch(t *testing.T) {
	s := newSQLiteSession(t, Limits{})
	batch, err := json.Marshal(query.Request{Batch: []string{"create table t (a)", "insert into t values (1), (2)",
		"select a, zeroblob(100000) from t", "insert into t values (3)", "insert into missing values (4)",
		"insert into t values (5)"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.f.WriteAt(t.Context(), batch, 0); err != nil {
		t.Fatal(err)
	}
	a, err := query.Read(reader{t.Context(), s.f})
	for i, want := range []query.End{{}, {Changed: 2, LastID: 2}, {Rows: 2}, {Changed: 1, LastID: 3}} {
		if i > 0 {
			a, err = a.Following()
		}
		for err == nil && a.End() == nil {
			err = a.Next(make([]any, len(a.Columns())))
		}
		if a == nil || a.End() == nil || *a.End() != want {
			t.Fatalf("statement %d: %+v, %v, want %+v", i, a, err, want)
		}
		err = nil
	}
	if _, err = a.Following(); sigma.KindOf(err) != sigma.KindInvalid || !strings.Contains(err.Error(), "missing") {
		t.Errorf("a statement that fails: %v", err)
	}
	if rows, _ := s.do("select count(*) from t"); rows[0][0] != int64(3) {
		t.Errorf("%v rows, want 3: what comes after a failure is not run", rows[0][0])
	}
	s.fails(`{"batch": ["select 1", ""]}`, sigma.KindInvalid)
	s.fails(`{"batch": ["select ?"], "args": [1]}`, sigma.KindInvalid)
}

// What is wrong with a statement is said in the engine's words, with the place.
func TestErrors(t *testing.T) {
	s := newSQLiteSession(t, Limits{})
	s.do("create table t (id integer primary key, n integer not null check (n > 0))")
	s.do("insert into t values (1, 1)")
	s.fails("selec 1", sigma.KindInvalid, `near "selec": syntax error`)
	s.fails("select x from t", sigma.KindInvalid, "no such column: x")
	s.fails("insert into t values (1, 2)", sigma.KindExists, "UNIQUE constraint failed: t.id")
	s.fails("insert into t values (2, -1)", sigma.KindInvalid, "CHECK constraint failed")
	s.fails("select 1; select 2", sigma.KindInvalid, "one is run at a time")
	s.fails("", sigma.KindOther)
	s.fails(`{"sql": "select ?, ?", "args": [1]}`, sigma.KindInvalid, "takes 2 arguments")
	s.fails(`{"sql": "select ?", "args": [[1]]}`, sigma.KindInvalid)
	s.fails(`{"sql": "select ?", "args": [18446744073709551615]}`, sigma.KindInvalid, "no integer as large")
	s.fails(`{"sql": "select 1", "what": 2}`, sigma.KindInvalid, "what")
	s.fails(`{"statement": 7}`, sigma.KindNotFound)
	_, _, err := s.try(t.Context(), "select 1,\n  'ä' from t wher x y")
	var e *query.Error
	if !asError(err, &e) || e.Position == 0 {
		t.Errorf("got %v, want an error with a position", err)
	}
	if rows, _ := s.do("select count(*) from t"); rows[0][0] != int64(1) {
		t.Errorf("got %v rows after statements that failed, want 1", rows[0][0])
	}
}

func asError(err error, to **query.Error) bool {
	e, ok := err.(*query.Error)
	*to = e
	return ok
}

// A transaction is its session's: nobody sees it before its end, and it ends with the session.
func TestTransactions(t *testing.T) {
	root := rootOf(t, newTree(t, Limits{}))
	root.Mkdir(t.Context(), "shop", 0)
	a, b := sessionWith(t, root, "shop"), sessionWith(t, root, "shop")
	count := func(want int64) {
		t.Helper()
		if rows, _ := b.do("select count(*) from t"); rows[0][0] != want {
			t.Errorf("the other session sees %v rows, want %d", rows[0][0], want)
		}
	}
	a.do("create table t (n)")
	a.do(`{"transaction": "begin"}`)
	a.do("insert into t values (1)")
	count(0)
	a.do(`{"transaction": "rollback"}`)
	count(0)
	a.do("begin")
	a.do("insert into t values (1)")
	a.do("commit")
	count(1)
	a.do(`{"transaction": "begin"}`)
	a.do("insert into t values (2)")
	a.f.Close()
	b.do("insert into t values (3)") // waits for the lock, which the session's end frees
	count(2)
}

func TestPrepared(t *testing.T) {
	s := newSQLiteSession(t, Limits{})
	s.do("create table t (n)")
	_, end := s.do(`{"sql": "insert into t values (?)", "prepare": true}`)
	for i := range 10 {
		s.do(fmt.Sprintf(`{"statement": %d, "args": [%d]}`, end.Statement, i))
	}
	if rows, _ := s.do("select sum(n) from t"); rows[0][0] != int64(45) {
		t.Errorf("got %v, want 45", rows[0][0])
	}
	s.do(fmt.Sprintf(`{"release": %d}`, end.Statement))
	s.fails(fmt.Sprintf(`{"statement": %d}`, end.Statement), sigma.KindNotFound)
	for range preparedMax {
		s.do(`{"sql": "select 1", "prepare": true}`)
	}
	s.fails(`{"sql": "select 1", "prepare": true}`, sigma.KindBusy, "64 prepared statements")
}

// endless never ends, without and with rows.
const (
	endless     = "with recursive x(n) as (select 1 union all select n + 1 from x) select count(*) from x"
	endlessRows = "with recursive x(n) as (select 1 union all select n + 1 from x) select n, 'some text that takes room' from x"
)

// Each limit ends what exceeds it, and says which it is; the session goes on.
func TestLimits(t *testing.T) {
	s := newSQLiteSession(t, Limits{Time: 2 * time.Second, Rows: 1000, File: 1 << 20})
	s.fails(endless, sigma.KindTimeout, "2s, which is the limit")
	s.fails(`{"sql": "`+endless+`", "timeout_ms": 20}`, sigma.KindTimeout, "20ms that were asked for")
	s.fails(endlessRows, sigma.KindTooBig, "1000 rows, which is the limit")
	s.fails(`{"sql": "`+endlessRows+`", "rows_max": 5}`, sigma.KindTooBig, "5 rows")
	s.do("create table t (b)")
	s.fails(
		"with recursive x(n) as (select 1 union all select n + 1 from x where n < 2000) insert into t select "+
			"randomblob(1000) from x", sigma.KindNoSpace, "full")
	s.fails("select zeroblob(100000000)", sigma.KindTooBig)
	s.fails("select 1 "+strings.Repeat("-- and so on \n", 100000), sigma.KindTooBig)
	if rows, _ := s.do("select count(*) from t"); rows[0][0] != int64(0) {
		t.Errorf("got %v rows of a statement that failed, want none", rows[0][0])
	}
}

// An answer has as many bytes as the limit says, and what one session holds of it is a small part.
func TestAnswerBytes(t *testing.T) {
	s := newSQLiteSession(t, Limits{Bytes: 1 << 20})
	s.fails(endlessRows, sigma.KindTooBig, "1MiB, which is the limit")
	s.f.WriteAt(t.Context(), []byte(endlessRows), 0)
	if _, err := s.f.ReadAt(t.Context(), make([]byte, 100), 0); err != nil {
		t.Fatal(err)
	}
	if a := s.f.(*sessionFile).s.answer; len(a.out) > 4096 {
		t.Errorf("%d bytes of an answer wait, of which nobody asked for more than 100", len(a.out))
	}
}

// Who gives up ends the statement at once.
func TestCancel(t *testing.T) {
	s := newSQLiteSession(t, Limits{})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, _, err := s.try(ctx, endless); sigma.KindOf(err) != sigma.KindCanceled {
		t.Errorf("got %v, want canceled", err)
	}
	if rows, _ := s.do("select 1"); rows[0][0] != int64(1) {
		t.Errorf("got %v after a statement that was given up", rows)
	}
}

// Idle transactions are rolled back, and say so.
func TestIdle(t *testing.T) {
	root := rootOf(t, newTree(t, Limits{TxIdle: 50 * time.Millisecond}))
	root.Mkdir(t.Context(), "shop", 0)
	a, b := sessionWith(t, root, "shop"), sessionWith(t, root, "shop")
	a.do("create table t (n)")
	a.do("begin immediate")
	a.do("insert into t values (1)")
	b.do("insert into t values (2)") // waits until the other's time is up
	a.fails("commit", sigma.KindTimeout, "50ms, which is the limit; it was rolled back")
	if rows, _ := b.do("select sum(n) from t"); rows[0][0] != int64(2) {
		t.Errorf("got %v, want 2", rows[0][0])
	}
}

// Sessions and connections of a realm are counted, and given back.
func TestCounts(t *testing.T) {
	tree := newTree(t, Limits{Sessions: 5, Connections: 2, Databases: 2})
	root := rootOf(t, tree)
	for _, name := range []string{"a", "b"} {
		if err := root.Mkdir(t.Context(), name, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.Mkdir(t.Context(), "c", 0); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("a third database: got %v, want no space", err)
	}
	var all []*talk
	for range 5 {
		all = append(all, sessionWith(t, root, "a"))
	}
	f, _, _ := root.Walk(t.Context(), []string{"b", "session"})
	for range 1000 { // whoever tries again and again
		if err := f.Open(t.Context(), sigma.OpenReadWrite); sigma.KindOf(err) != sigma.KindBusy ||
			!strings.Contains(err.Error(), "5 sessions") {
			t.Fatalf("a sixth session: got %v, want busy", err)
		}
	}
	all[0].do("select 1")
	all[1].do("select 1")
	all[2].fails("select 1", sigma.KindBusy, "2 connections")
	for _, s := range all[:2] {
		s.f.Close()
	}
	tree.work.Wait()
	all[2].do("select 1")
	sessionWith(t, root, "b").do("select 1")
}

func create(t *testing.T, tree *Tree) string {
	t.Helper()
	if err := rootOf(t, tree).Mkdir(t.Context(), "db", 0); err != nil {
		t.Fatal(err)
	}
	return "db"
}

// A removed database ends its sessions; one of the same name is another.
func TestRemove(t *testing.T) {
	tree := newTree(t, Limits{})
	root := rootOf(t, tree)
	root.Mkdir(t.Context(), "shop", 0)
	s := sessionWith(t, root, "shop")
	s.do("create table t (n)")
	if err := root.Mkdir(t.Context(), "shop", 0); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("got %v, want exists", err)
	}
	if err := root.Remove(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	s.fails("select 1", sigma.KindLost, "was removed")
	if err := root.Remove(t.Context(), "shop"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("got %v, want not found", err)
	}
	root.Mkdir(t.Context(), "shop", 0)
	sessionWith(t, root, "shop").fails("select * from t", sigma.KindInvalid, "no such table")
	for _, name := range []string{"A", ".", "..", "a/b", "", "a b", "ä", "a\x00", strings.Repeat("a", 64), "-a",
		".new-a"} {
		if err := root.Mkdir(t.Context(), name, 0); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%q: got %v, want invalid", name, err)
		}
	}
}

// A realm's databases go with it; those of a realm that stays are there after a restart.
func TestRealms(t *testing.T) {
	dir := t.TempDir()
	for realm, goes := range map[sigma.RealmID]bool{"a": true, "b": false} {
		tree := newTreeOf(t, dir, realm, Limits{})
		sessionWith(t, rootOf(t, tree), create(t, tree)).do("create table u (n)")
		if goes {
			if err := tree.Remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-tree.Unused()
		}
		tree.Close()
		root := rootOf(t, newTreeOf(t, dir, realm, Limits{}))
		if f, _, err := root.Walk(t.Context(), []string{"db"}); goes && (sigma.KindOf(err) != sigma.KindNotFound ||
			f != nil) {
			t.Errorf("got %v, want not found", err)
		}
		if entries, err := os.ReadDir(filepath.Join(dir, string(realm))); err != nil || goes != (len(entries) == 0) {
			t.Errorf("realm %s has %v, %v", realm, entries, err)
		}
		if !goes {
			sessionWith(t, root, "db").do("insert into u values (1)")
		}
	}
}

// A statement that nothing can end has the process ended; one that ends in its time does not.
func TestStuck(t *testing.T) {
	stuck := make(chan string, 1)
	dir := t.TempDir()
	tree, err := New(Config{Realm: "r", Dir: dir, Limits: Limits{Time: 50 * time.Millisecond,
		Stuck: 100 * time.Millisecond}, Stuck: func(database string) {
		stuck <- database
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	s := sessionWith(t, rootOf(t, tree), create(t, tree))
	s.fails("with recursive c(x) as (select 1 union all select x+1 from c) select max(x) from c", sigma.KindTimeout)
	if len(stuck) != 0 {
		t.Error("a statement that was ended in time is stuck")
	}
	s.fails("select instr(printf('%.400000c', 'a'), printf('%.200000c', 'a') || 'b')", sigma.KindTimeout)
	if len(stuck) == 0 {
		t.Error("a statement that went on after its time is not stuck")
	}
}

// Who may not choose a realm, or make a database by URL, cannot.
func TestRights(t *testing.T) {
	tree := newTreeOf(t, t.TempDir(), "a", Limits{})
	for p, name := range map[sigma.Principal]string{tenant("b"): "", {Realm: "system", System: true}: "b"} {
		if _, err := tree.Attach(t.Context(), p, name); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("another realm's: got %v, want permission denied", err)
		}
	}
	if _, err := tree.Attach(t.Context(), tenant("a"), "b"); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("got %v, want permission denied", err)
	}
	payload := []byte(`{"name": "x", "url": "postgres://u:secret@h/d"}`)
	_, _, err := rootOf(t, tree).(sigma.Caller).Call(t.Context(), query.CallCreate, payload, nil)
	if sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("got %v, want permission denied", err)
	}
	provider, err := tree.Attach(t.Context(), sigma.Principal{Realm: "system", System: true}, "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err = provider.(sigma.Caller).Call(t.Context(), query.CallCreate, payload, nil); err != nil {
		t.Fatal(err)
	}
	if err := rootOf(t, tree).Remove(t.Context(), "x"); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("got %v, want permission denied", err)
	}
	f, _, _ := provider.Walk(t.Context(), []string{"x", "info"})
	f.Open(t.Context(), sigma.OpenRead)
	text := make([]byte, 1000)
	n, _ := f.ReadAt(t.Context(), text, 0)
	if !strings.Contains(string(text[:n]), `"postgresql"`) || strings.Contains(string(text[:n]), "secret") {
		t.Errorf("info says %s", text[:n])
	}
	sessionWith(t, provider, "x").fails("select 1", sigma.KindUnavailable)
}

// Nobody's words get out of the file that is the database, or change how it is kept. That the same
// words do reach another file where they may is the control.
func TestConfined(t *testing.T) {
	dir := t.TempDir()
	of := newTreeOf(t, dir, "victim", Limits{})
	victim := sessionWith(t, rootOf(t, of), create(t, of))
	victim.do("create table secret (word)")
	victim.do("insert into secret values ('hidden')")
	path := filepath.Join(dir, "victim", "db", dataFile)
	tree := newTreeOf(t, dir, "thief", Limits{})
	s := sessionWith(t, rootOf(t, tree), create(t, tree))
	outside := filepath.Join(t.TempDir(), "out")
	for _, words := range []string{
		"attach '" + path + "' as v", "attach database 'file:" + path + "?mode=ro' as v", "attach '' as v",
		"attach ':memory:' as v", "vacuum into '" + outside + "'", "vacuum",
		"select load_extension('" + outside + "')", "select writefile('" + outside + "', 'x')",
		"select readfile('" + path + "')", "select edit('x')",
		"create virtual table v using csv(filename='" + path + "')",
		"create virtual table v using dbstat", "create virtual table v using sqlite_dbpage",
		"select * from sqlite_dbpage", "pragma temp_store_directory = '" + filepath.Dir(outside) + "'",
		"pragma data_store_directory = '/'", "pragma journal_mode = off", "pragma journal_mode = memory",
		"pragma writable_schema = on",
		"pragma max_page_count = 1000000000", "pragma hard_heap_limit = 0", "pragma soft_heap_limit = 1000000000000",
		"pragma mmap_size = 1000000000", "pragma cache_size = 1000000000", "pragma database_list",
		"select file from pragma_database_list", "pragma wal_checkpoint(truncate)", "pragma wal_autocheckpoint = 0",
		"pragma threads = 64",
		"pragma trusted_schema = on", "pragma synchronous = off", "pragma locking_mode = exclusive",
		"pragma schema_version = 1", "pragma page_size(512)", "pragma key = 'x'", "detach main",
		"update sqlite_master set sql = 'x'", "delete from sqlite_schema",
		"select fts3_tokenizer('simple', x'00')", "insert into sqlite_schema values ('table', 'x', 'x', 1, 'x')",
	} {
		if _, _, err := s.try(t.Context(), words); err == nil {
			t.Errorf("%q: went through", words)
		}
	}
	if _, err := os.Stat(outside); !os.IsNotExist(err) {
		t.Errorf("a file was made: %v", err)
	}
	s.fails(fmt.Sprintf(`{"sql": "attach ? as v", "args": [%q]}`, path), sigma.KindPermission)
	if rows, _ := victim.do("select word from secret"); rows[0][0] != "hidden" {
		t.Errorf("the control reads %v", rows)
	}
	if rows, _ := s.do("pragma table_info(nosuch)"); len(rows) != 0 {
		t.Errorf("got %v", rows)
	}
}

// Many sessions at once, all of which come to their end.
func TestMany(t *testing.T) {
	root := rootOf(t, newTree(t, Limits{}))
	root.Mkdir(t.Context(), "shop", 0)
	first := sessionWith(t, root, "shop")
	first.do("create table t (n integer)")
	var all sync.WaitGroup
	for range 8 {
		s := sessionWith(t, root, "shop")
		all.Go(func() {
			for i := range 10 {
				s.do(fmt.Sprintf("insert into t values (%d)", i))
			}
		})
	}
	all.Wait()
	if rows, _ := first.do("select count(*), sum(n) from t"); rows[0][0] != int64(80) || rows[0][1] != int64(360) {
		t.Errorf("got %v, want 80 and 360", rows[0])
	}
}

// served is a tree as its clients have it: through a session.
type served struct {
	t    *testing.T
	tree sigma.Tree
}

func (s served) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	a, b := net.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		treeserver.Serve(context.Background(), sessions.NewStreamConn(b), treeserver.Config{Tree: s.tree, Principal: p})
	}()
	c, err := sessions.Dial(ctx, sessions.NewStreamConn(a))
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { c.Close(); <-over })
	return c.Attach(ctx, name)
}

func TestConformance(t *testing.T) {
	treetest.RunReadOnly(t, treetest.ReadOnlyConfig{
		New: func(t *testing.T) sigma.Tree {
			tree := newTree(t, Limits{})
			create(t, tree)
			return served{t, tree}
		},
		Principal: tenant("r"), Dir: []string{"db"}, File: []string{"db", "info"},
	})
}

// A client that dies in a transaction leaves nothing of it.
func TestClientDies(t *testing.T) {
	tree := newTree(t, Limits{})
	create(t, tree)
	s := served{t, tree}
	other := sessionWith(t, rootOf(t, tree), "db")
	other.do("create table t (n)")
	t.Run("client", func(t *testing.T) {
		root, err := s.Attach(t.Context(), tenant("r"), "")
		if err != nil {
			t.Fatal(err)
		}
		dying := sessionWith(t, root, "db")
		dying.do("begin immediate")
		dying.do("insert into t values (1)")
	})
	other.do("insert into t values (2)")
	if rows, _ := other.do("select sum(n) from t"); rows[0][0] != int64(2) {
		t.Errorf("got %v, want 2", rows[0][0])
	}
}

// Statements that are dear to compile end with an error or an answer in their time, and the
// database goes on. The control is that the same in moderation has an answer.
func TestDearStatements(t *testing.T) {
	s := newSQLiteSession(t, Limits{Time: 2 * time.Second})
	s.do("create table t (n)")
	for name, x := range map[string]struct {
		of        func(int) string
		few, many int
		answers   bool // many are work that is in proportion
	}{
		"nested": {func(n int) string {
			return "select " + strings.Repeat("(1+", n) + "1" + strings.Repeat(")", n)
		}, 10, 100_000, false},
		"chained": {func(n int) string { return "select 1" + strings.Repeat("+1", n) }, 10, 100_000, false},
		"values": {func(n int) string {
			return "select * from t where n in (0" + strings.Repeat(",1", n) + ")"
		}, 10, 100_000, true},
		"joins": {func(n int) string {
			return "select * from t" + strings.Repeat(" natural join (select n from t)", n)
		}, 3, 70, false},
		"expressions": {twice, 3, 40, false},
	} {
		s.do(x.of(x.few))
		if _, _, err := s.try(t.Context(), x.of(x.many)); (err == nil) != x.answers {
			t.Errorf("%s, %d of them: got %v", name, x.many, err)
		}
		s.do("select count(*) from t")
	}
}

// twice is a statement with n expressions, each of which has the one before twice.
func twice(n int) string {
	out := "with e0 as (select 1 n)"
	for i := range n {
		out += fmt.Sprintf(", e%d as (select a.n from e%d a, e%d b)", i+1, i, i)
	}
	return out + fmt.Sprintf(" select count(*) from e%d", n)
}

// The log of what was written is bounded, in one transaction and in many beside somebody who reads
// for long. Meanwhile others read, and afterwards all write.
func TestLog(t *testing.T) {
	const file, rewrite = sigma.MiB, "update t set b = randomblob(500000)"
	dir := t.TempDir()
	tree := newTreeOf(t, dir, "r", Limits{File: file})
	root := rootOf(t, tree)
	name := create(t, tree)
	writer, reader, other := sessionWith(t, root, name), sessionWith(t, root, name), sessionWith(t, root, name)
	grown := func() int64 {
		other.do("select length(b) from t")
		st, err := os.Stat(filepath.Join(dir, "r", name, dataFile+"-wal"))
		if err != nil {
			t.Fatal(err)
		}
		if st.Size() > 3*int64(file) {
			t.Fatalf("the log has %d bytes", st.Size())
		}
		return st.Size()
	}
	writer.do("create table t (b)")
	writer.do("insert into t values (randomblob(500000))")
	writer.do("begin")
	for range 20 {
		if _, _, err := writer.try(t.Context(), rewrite); err != nil && sigma.KindOf(err) != sigma.KindNoSpace {
			t.Fatal(err)
		}
		grown()
	}
	writer.do("rollback")
	reader.do("begin deferred")
	reader.do("select count(*) from t")
	for range 20 {
		if _, _, err := writer.try(t.Context(), rewrite); err != nil && sigma.KindOf(err) != sigma.KindNoSpace {
			t.Fatal(err)
		}
		grown()
	}
	writer.fails(rewrite, sigma.KindNoSpace, "the log of what was written", "end what reads for long")
	reader.do("rollback")
	for range 5 {
		writer.do(rewrite)
		grown()
	}
}
