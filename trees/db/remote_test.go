package db

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// server is a program that keeps databases, started by the test on a port of its own.
type server struct {
	url, address string
	cmd          *exec.Cmd
	over         chan struct{}  // closed when it has ended
	crash        syscall.Signal // ends it at once
}

// freeAddress is one at which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// unprivileged makes commands run as nobody where the test is root, since neither server runs as
// root, and gives a directory of that user's.
func unprivileged(t *testing.T) (dir string, as func(*exec.Cmd)) {
	t.Helper()
	dir, err := os.MkdirTemp("", "db")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Getuid() != 0 {
		return dir, func(*exec.Cmd) {}
	}
	u, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
			Pdeathsig: syscall.SIGKILL}
		c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "LC_ALL=C.UTF-8"}
	}
}

func find(t *testing.T, program string, patterns ...string) string {
	t.Helper()
	for _, p := range patterns {
		if found, _ := filepath.Glob(p); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Skipf("%s is not installed; scripts/setup does", program)
	return ""
}

// start runs a server until the test ends and waits until it is there.
func start(t *testing.T, s *server, as func(*exec.Cmd)) {
	t.Helper()
	as(s.cmd)
	log := &strings.Builder{}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.over = make(chan struct{})
	go func() { s.cmd.Wait(); close(s.over) }()
	t.Cleanup(func() { s.cmd.Process.Signal(s.crash); <-s.over })
	wait := time.NewTicker(20 * time.Millisecond)
	defer wait.Stop()
	for deadline := time.After(time.Minute); ; {
		if c, err := net.Dial("tcp", s.address); err == nil {
			c.Close()
			return
		}
		select {
		case <-wait.C:
		case <-s.over:
			t.Fatalf("the server ended: %s", log)
		case <-deadline:
			t.Fatal("the server did not come")
		}
	}
}

func startPostgres(t *testing.T) *server {
	initdb := find(t, "postgresql", "/usr/lib/postgresql/*/bin/initdb")
	dir, as := unprivileged(t)
	data, words := filepath.Join(dir, "data"), filepath.Join(dir, "password")
	if err := os.WriteFile(words, []byte("geheim\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(initdb, "-D", data, "-U", "owner", "--auth=scram-sha-256", "--pwfile="+words, "--no-sync", "-E",
		"UTF8")
	as(c)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v: %s", err, out)
	}
	s := &server{address: freeAddress(t),
		crash: syscall.SIGQUIT} // its processes end too, which they do not when it is killed
	_, port, _ := net.SplitHostPort(s.address)
	s.url = "postgres://owner:geheim@" + s.address + "/postgres?sslmode=disable"
	s.cmd = exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", port, "-c",
		"listen_addresses=127.0.0.1", "-k", dir, "-c", "fsync=off")
	start(t, s, as)
	return s
}

func startMariaDB(t *testing.T) *server {
	daemon := find(t, "mariadb-server-core", "/usr/sbin/mariadbd")
	dir, as := unprivileged(t)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o777); err != nil { // the umask may say less
		t.Fatal(err)
	}
	text := "CREATE DATABASE mysql;\nUSE mysql;\n"
	for _, part := range []string{"mysql_system_tables.sql",
		"mysql_system_tables_data.sql"} { // what mariadb-install-db does, which is of a larger package
		one, err := os.ReadFile("/usr/share/mysql/" + part)
		if os.IsNotExist(err) {
			one, err = os.ReadFile("/usr/share/mysql/" + strings.Replace(part, "mysql", "mariadb", 1))
		}
		if err != nil {
			t.Fatal(err)
		}
		text += string(one)
	}
	c := exec.Command(daemon, "--no-defaults", "--bootstrap", "--datadir="+data, "--skip-log-bin",
		"--innodb-flush-log-at-trx-commit=0")
	as(c)
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("mariadbd --bootstrap: %v: %s", err, out)
	}
	words := filepath.Join(dir, "init.sql")
	if err := os.WriteFile(words,
		[]byte(
			"CREATE DATABASE shop;\nCREATE USER owner@'%' IDENTIFIED BY 'geheim';\nGRANT ALL ON shop.* TO "+
				"owner@'%';\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &server{address: freeAddress(t), crash: syscall.SIGKILL}
	_, port, _ := net.SplitHostPort(s.address)
	s.url = "mysql://owner:geheim@" + s.address + "/shop"
	s.cmd = exec.Command(daemon, "--no-defaults", "--datadir="+data, "--port="+port, "--bind-address=127.0.0.1",
		"--socket="+filepath.Join(dir, "s"), "--init-file="+words, "--innodb-flush-log-at-trx-commit=0",
		"--pid-file="+filepath.Join(dir, "pid"), "--skip-name-resolve")
	start(t, s, as)
	return s
}

// makeKnown makes a server's database one of a realm and gives the realm's root.
func (s *server) makeKnown(t *testing.T, l Limits) sigma.File {
	t.Helper()
	tree, err := New(Config{Realm: "r", Dir: t.TempDir(), Limits: l, Dial: func(ctx context.Context, _ sigma.RealmID,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.address)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tree.Close)
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r", System: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := root.(sigma.Caller).Call(t.Context(), query.CallCreate,
		fmt.Appendf(nil, `{"name": "shop", "url": %q}`, s.url), nil); err != nil {
		t.Fatal(err)
	}
	return root
}

// What a session does, it does with a real server.
func TestServers(t *testing.T) {
	for _, c := range []struct {
		name                   string
		start                  func(*testing.T) *server
		types, place, endless  string
		rows, running, unknown string
	}{
		{"postgresql", startPostgres,
			"id serial primary key, n bigint, f double precision, b bytea, s text, d timestamptz, ok boolean",
			"$1, $2, $3, $4, $5, $6", "select pg_sleep(600)",
			"select generate_series(1, 1000000)",
			"select count(*) from pg_stat_activity where query = 'select pg_sleep(600)' and state = 'active'",
			"SQLSTATE 42601"},
		{"mariadb", startMariaDB,
			"id integer auto_increment primary key, n bigint, f double, b blob, s text, d datetime(6), ok boolean",
			"?, ?, ?, ?, ?, ?", "select sleep(600)",
			"select seq from seq_1_to_1000000",
			"select count(*) from information_schema.processlist where info = 'select sleep(600)'", "MySQL 1064"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := c.start(t)
			root := srv.makeKnown(t, Limits{TxIdle: 200 * time.Millisecond})
			s, other := sessionWith(t, root, "shop"), sessionWith(t, root, "shop")
			for ready, cancel := context.WithTimeout(t.Context(), time.Minute); ; { // it listens before it answers
				defer cancel()
				if _, _, err := s.try(ready, "select 1"); sigma.KindOf(err) != sigma.KindUnavailable || err == nil {
					break
				}
			}
			s.do("create table t (" + c.types + ")")
			_, end := s.do(`{"sql": "insert into t (n, f, b, s, d, ok) values (` + c.place +
				`)", "args": [9223372036854775807, 0.1, {"bytes": "AP8="}, "grüße", {"time": "2026-11-22T04:05:06Z"}, true]}`)
			if end.Changed != 1 {
				t.Errorf("got %+v, want one row changed", end)
			}
			_, st := s.do(`{"sql": "insert into t (n, f, b, s, d, ok) values (` + c.place + `)", "prepare": true}`)
			s.do(fmt.Sprintf(`{"statement": %d, "args": [-1, null, null, null, null, null]}`, st.Statement))
			rows, _ := s.do("select n, f, b, s, d from t order by id")
			if len(rows) != 2 || rows[0][0] != int64(9223372036854775807) || rows[0][1] != 0.1 ||
				fmt.Sprint(rows[0][2]) != "[0 255]" || rows[0][3] != "grüße" || rows[1][3] != nil {
				t.Fatalf("got %#v", rows)
			}
			if d, ok := rows[0][4].(time.Time); !ok || !d.Equal(time.Date(2026, 11, 22, 4, 5, 6, 0, time.UTC)) {
				t.Errorf("got %#v for a time", rows[0][4])
			}
			_, _, err := s.try(t.Context(), "selec 1")
			if e := (*query.Error)(nil); !asError(err, &e) || e.Code != c.unknown || e.Err.Kind != sigma.KindInvalid {
				t.Errorf("got %v, want %s", err, c.unknown)
			}
			if rows, _ := s.do(c.rows); len(rows) != 1000000 {
				t.Errorf("got %d rows, want a million", len(rows))
			}
			s.fails(fmt.Sprintf(`{"sql": %q, "rows_max": 10}`, c.rows), sigma.KindTooBig, "10 rows")

			s.do(`{"transaction": "begin"}`)
			s.do("insert into t (n) values (7)")
			if rows, _ := other.do("select count(*) from t where n = 7"); rows[0][0] != int64(0) {
				t.Errorf("an open transaction is seen by others")
			}
			quiet, stop := context.WithTimeout(t.Context(), time.Minute)
			defer stop()
			for err = nil; err == nil && quiet.Err() == nil; { // it is not asked for anything meanwhile
				<-time.After(300 * time.Millisecond)
				_, _, err = s.try(quiet, "select 1")
			}
			if sigma.KindOf(err) != sigma.KindTimeout || !strings.Contains(err.Error(), "rolled back") {
				t.Errorf("got %v, want that the transaction was idle for too long", err)
			}

			s = sessionWith(t, root, "shop")
			s.fails(fmt.Sprintf(`{"sql": %q, "timeout_ms": 100}`, c.endless), sigma.KindTimeout, "100ms")
			gone := time.NewTicker(20 * time.Millisecond)
			defer gone.Stop()
			for ctx, cancel := context.WithTimeout(t.Context(), time.Minute); ; <-gone.C { // it ends at the server too
				rows, _, err := other.try(ctx, c.running)
				if err == nil && rows[0][0] == int64(0) {
					cancel()
					break
				} else if err != nil {
					t.Fatalf("the statement goes on at the server: %v", err)
				}
			}
			s = sessionWith(t, root, "shop")
			s.do(`{"transaction": "begin"}`)
			s.do("insert into t (n) values (8)")
			srv.cmd.Process.Signal(srv.crash)
			<-srv.over
			failsAfterDeath(t, s)
			_, _, err = sessionWith(t, root, "shop").try(t.Context(), "select 1")
			if sigma.KindOf(err) != sigma.KindUnavailable || strings.Contains(err.Error()+sigma.HintOf(err),
				"geheim") || strings.Contains(err.Error(), "owner") {
				t.Errorf("got %v, want unavailable and no part of the URL", err)
			}
		})
	}
}

// failsAfterDeath checks that a transaction whose server died takes nothing more. A server that
// takes long to die lets the time pass that a transaction may be idle.
func failsAfterDeath(t *testing.T, s *talk) {
	t.Helper()
	for range 2 {
		if _, _, err := s.try(t.Context(), "insert into t (n) values (9)"); err == nil ||
			sigma.KindOf(err) != sigma.KindLost && sigma.KindOf(err) != sigma.KindTimeout {
			t.Errorf("an insert after the server's death: %v", err)
		}
	}
}
