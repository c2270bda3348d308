//go:build system

package examples

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

// Goal: a program of database/sql runs as it is; procs share a database, another realm has none of
// it, dbd's death loses no sale, and a realm's end takes its databases.
func TestShop(t *testing.T) {
	s := shared.Get(t)
	ctx := testContext(t)
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	path := s.Install(ctx, t, c, example(t, "shop"))
	if err := c.Mkdir(ctx, "/db/shop", 0o777); err != nil {
		t.Fatal(err)
	}
	defer c.Remove(context.WithoutCancel(ctx), "/db/shop")
	var ds []sigma.Descriptor
	for range 5 {
		ds = append(ds, sigma.Descriptor{Program: path, Args: []string{"/db/shop", "pear", "3"}})
	}
	ids, err := c.Spawn(ctx, ds...)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		if st, err := c.WaitExit(ctx, id); err != nil || st.Code != sigma.StatusOK {
			said, _, _ := c.Get(ctx, "/proc/"+string(id)+"/stderr")
			t.Errorf("got %+v, %v: %s", st, err, said)
		}
	}
	pool := database.Open(c, "/db/shop")
	defer pool.Close()
	count := func() (n int64) {
		t.Helper()
		if err := pool.QueryRowContext(ctx, "select number from sales where fruit = ?", "pear").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 15 {
		t.Errorf("got %d pears, want 15", n)
	}

	if _, err := pool.ExecContext(ctx, "selct 1"); err == nil || !strings.HasPrefix(err.Error(), "/db/shop: ") {
		t.Errorf("an error that names no database: %v", err)
	}

	// A statement ends with its context.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	var n int64
	err = pool.QueryRowContext(short,
		"with recursive x(n) as (select 1 union all select n + 1 from x) select count(*) from x").Scan(&n)
	if err == nil || short.Err() == nil {
		t.Errorf("an endless statement: got %d, %v", n, err)
	}

	if err := killDBD(ctx, t, s, pool); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 15 {
		t.Errorf("got %d pears after dbd was killed, want 15", n)
	}

	if _, err := c.Call(ctx, "/db", "create",
		[]byte(`{"name": "x", "url": "postgres://u:p@127.0.0.1/d"}`)); err != nil {
		t.Fatal(err)
	}
	if err := database.Open(c,
		"/db/x").PingContext(ctx); sigma.KindOf(err) != sigma.KindUnavailable { // sigmad was not told of its server
		t.Errorf("got %v, want unavailable", err)
	}
	c.Remove(ctx, "/db/x")

	system := s.Connect(ctx, t, sigma.SystemRealm)
	if err := system.Realms().Create(ctx, "grocer"); err != nil {
		t.Fatal(err)
	}
	other := s.Connect(ctx, t, "grocer")
	if _, err := other.Stat(ctx, "/db/shop"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("another realm sees the database: %v", err)
	}
	if err := other.Mkdir(ctx, "/db/own", 0o777); err != nil {
		t.Fatal(err)
	}
	if err := system.Realms().Remove(ctx, "grocer"); err != nil {
		t.Fatal(err)
	}
	if err := system.Realms().Create(ctx, "grocer"); err != nil {
		t.Fatal(err)
	}
	defer system.Realms().Remove(context.WithoutCancel(ctx), "grocer")
	again := s.Connect(ctx, t, "grocer")
	if es, err := again.ReadDir(ctx, "/db"); len(es) > 0 || err != nil {
		t.Errorf("a new realm has %v, %v of one of its name before", es, err)
	}
	if err := pool.QueryRowContext(ctx, "select number from sales where fruit = 'none'").Scan(&n); !errors.Is(err,
		sql.ErrNoRows) {
		t.Errorf("got %v, want no rows", err)
	}
}

// killDBD kills dbd in a transaction: it is lost, and nothing of it counts. The pool's other
// session was idle, and nobody notices that it has ended.
func killDBD(ctx context.Context, t *testing.T, s *testenv.System, pool *sql.DB) error {
	t.Helper()
	idle, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	idle.Close()
	if _, err := tx.ExecContext(ctx, "update sales set number = 1000"); err != nil {
		return err
	}
	s.Kill9(t, "dbd")
	if _, err := tx.ExecContext(ctx, "update sales set number = 2000"); err == nil {
		return errors.New("a transaction went on at a dbd that is dead")
	}
	if err := tx.Commit(); err == nil {
		return errors.New("a transaction was committed at a dbd that is dead")
	}
	return nil
}
