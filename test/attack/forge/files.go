package forge

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// Database is where a World keeps its secret in SQL, in the column text of a table that is called
// as it.
const (
	Database = "/db/held"
	table    = "secret"
)

// KeepInDatabase puts a secret into the realm's database.
func KeepInDatabase(ctx context.Context, c *sdk.Client, secret string) error {
	if err := c.Mkdir(ctx, Database, 0o777); err != nil && sigma.KindOf(err) != sigma.KindExists {
		return err
	}
	pool := database.Open(c, Database)
	defer pool.Close()
	for _, text := range []string{"create table if not exists " + table + " (text)", "delete from " + table} {
		if _, err := pool.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	_, err := pool.ExecContext(ctx, "insert into "+table+" values (?)", secret)
	return err
}

// selects asks a database, and is nil if the other's secret came out.
func selects(ctx context.Context, e *Env, path string, texts ...string) error {
	pool := database.Open(e.C, path)
	defer pool.Close()
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, text := range texts[:len(texts)-1] {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	found := ""
	if err := conn.QueryRowContext(ctx, texts[len(texts)-1]).Scan(&found); err != nil {
		return err
	}
	if !strings.Contains(found, e.Other.Secret) {
		return errNothing
	}
	return nil
}

// ownSelects shows that one's own database answers.
func ownSelects(ctx context.Context, e *Env) error {
	pool := database.Open(e.C, Database)
	defer pool.Close()
	n := 0
	return pool.QueryRowContext(ctx, "select count(*) from "+table).Scan(&n)
}

// databases asks for what another realm keeps in SQL.
func databases() []Attempt {
	const read = "select text from " + table
	out := []Attempt{
		{Name: "another realm's database by its path", Try: func(ctx context.Context, e *Env) error {
			return selects(ctx, e, Database, read)
		}},
		{Name: "make a database that another server keeps", Try: func(ctx context.Context, e *Env) error {
			payload, err := json.Marshal(query.CreateRequest{Name: "conquered", URL: "postgres://u:p@127.0.0.1:1/d"})
			if err == nil {
				_, err = e.C.Call(ctx, "/db", query.CallCreate, payload)
			}
			return err
		}},
	}
	for _, path := range []string{"/db/../%s/held", "/db/held/../../%s/held", "/db/%s/held", "/db/%s"} {
		out = append(out, Attempt{Name: "another realm's database by " + fmt.Sprintf(path, "REALM"), Own: ownSelects,
			Try: func(ctx context.Context, e *Env) error {
				return selects(ctx, e, fmt.Sprintf(path, e.Other.Realm), read)
			}})
	}
	for _, file := range []string{"../../%s/held/data.sqlite", "/data/realms/%s/held/data.sqlite",
		"file:/data/realms/%s/held/data.sqlite?mode=ro&immutable=1"} {
		for how, texts := range map[string][]string{
			"attaching":    {"attach '%s' as other", "select text from other." + table},
			"a vacuum to":  {"vacuum into '%s'", read},
			"a table over": {"create virtual table temp.o using csv(filename='%s')", "select * from temp.o"},
		} {
			out = append(out, Attempt{Name: "another realm's database by " + how + " " + fmt.Sprintf(file, "REALM"),
				Own: ownSelects, Try: func(ctx context.Context, e *Env) error {
					return selects(ctx, e, Database, fmt.Sprintf(texts[0], fmt.Sprintf(file, e.Other.Realm)), texts[1])
				}})
		}
	}
	return out
}

// scratch goes for scratch files by the names of machines, and by descriptors that are kept.
func scratch() []Attempt {
	var out []Attempt
	for _, machine := range []string{sigma.AnyName, "", "~local/../~any", "../ux/~local"} {
		out = append(out, Attempt{Name: fmt.Sprintf("another realm's secret by the machine %q", machine),
			Own: func(ctx context.Context, e *Env) error {
				_, _, err := e.C.Get(ctx, UX+"/secret")
				return err
			},
			Try: func(ctx context.Context, e *Env) error {
				if machine == "" {
					machine = string(e.C.Info().Principal.Machine)
				}
				return isSecret(ctx, e, "/ux/"+machine+"/held/secret")
			}})
	}
	publish := func(name string, keep func(*os.File) (letGo func(), err error)) func(context.Context, *Env) error {
		return func(ctx context.Context, e *Env) error {
			h, err := e.C.Create(ctx, UX+"/"+name, sigma.OpenReadWrite|sigma.OpenHidden, 0o644)
			if err != nil {
				return err
			}
			f, err := h.File()
			if err != nil {
				h.Discard()
				return err
			}
			if _, err := f.Write([]byte("published")); err != nil {
				return err
			}
			letGo, err := keep(f)
			if err != nil {
				return err
			}
			defer letGo()
			return h.Close()
		}
	}
	own := publish("let-go", func(f *os.File) (func(), error) { return func() {}, f.Close() })
	return append(out,
		Attempt{Name: "publish a scratch file and keep its descriptor", Own: own,
			Try: publish("kept", func(f *os.File) (func(), error) {
				return func() { f.Close() }, nil
			})},
		Attempt{Name: "publish a scratch file and keep a copy of its descriptor", Own: own,
			Try: publish("copied", func(f *os.File) (func(), error) {
				fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
				f.Close()
				return func() { unix.Close(fd) }, err
			})},
		Attempt{Name: "publish a scratch file and keep it mapped", Own: own,
			Try: publish("mapped", func(f *os.File) (func(), error) {
				b, err := unix.Mmap(int(f.Fd()), 0, 9, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				f.Close()
				return func() { unix.Munmap(b) }, err
			})})
}
