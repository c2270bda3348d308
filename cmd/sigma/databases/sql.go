// Package databases makes, lists and asks the databases of a realm.
package databases

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newSQLCommand(a),
	}
}

// databasesDir holds the realm's databases.
const databasesDir = "/db"

// urlMax bounds a URL that is read from standard input.
const urlMax = 64 << 10

func newSQLCommand(a *app) *cobra.Command {
	var o sqlOptions
	cmd := &cobra.Command{
		Use:   "sql NAME [STATEMENT]",
		Short: "Run SQL in a database of the realm, and make and remove databases",
		Long: `Run a statement in a database of the realm and print its rows, or, without one, the
statements of standard input, each of which ends with a semicolon at the end of a line.
All are run in one session: a transaction is what BEGIN and COMMIT say. The first error
ends it, and what was not committed is rolled back.

Rows are printed as a table; with --json each is an object on a line of its own, and
with --csv they are CSV, in which NULL is empty. What a database can, and its limits, is
in docs/reference/db.md; programs use databases by Go's database/sql.`,
		Example: `  sudo sigma sql create shop
  sudo sigma sql shop 'create table fruit (name text, price integer)'
  sudo sigma sql shop "insert into fruit values ('apple', 30), ('pear', 45)"
  sudo sigma sql shop 'select * from fruit order by price'
  sudo sigma sql --json shop < statements.sql`,
		Args: cli.Between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return a.sql(cmd.Context(), args[0], strings.NewReader(args[1]), true, o)
			}
			return a.sql(cmd.Context(), args[0], a.In, false, o)
		},
	}
	cmd.Flags().BoolVar(&o.csv, "csv", false, "print rows as CSV")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0,
		"end a statement that takes longer than `TIME` (default: the database's limit)")
	cmd.AddCommand(newSQLCreateCommand(a), newSQLLsCommand(a), newSQLRmCommand(a))
	return cmd
}

func newSQLCreateCommand(a *app) *cobra.Command {
	url := ""
	cmd := &cobra.Command{
		Use:   "create [--url URL] NAME",
		Short: "Make a database",
		Long: `Make a database of SQLite, which sigmaOS keeps, or, with --url, make one known that
PostgreSQL, MySQL or MariaDB keeps: postgres://USER:PASSWORD@HOST:PORT/DATABASE or
mysql://USER:PASSWORD@HOST:PORT/DATABASE. "--url -" reads it from standard input, so that
the password is in no list of processes. It is told to nobody again. HOST is looked up
now: make the database anew if its address changes.

A name is 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit.`,
		Example: `  sudo sigma sql create shop
  sudo sigma sql create --url - orders < url-of-orders`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.sqlCreate(cmd.Context(), args[0], url, cmd.Flags().Changed("url"))
		},
	}
	cmd.Flags().StringVar(&url, "url", "", "`URL` of a database that another server keeps, or - (default: SQLite)")
	return cmd
}

// checkDatabase refuses what cannot be a database's name, and would be another path.
func checkDatabase(name string) error {
	if sigma.CheckName(name) == nil {
		return nil
	}
	return cli.UsageError(nil, "use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit",
		"%.80q is not a name of a database", name)
}

func (a *app) sqlCreate(ctx context.Context, name, url string, byURL bool) error {
	if err := checkDatabase(name); err != nil {
		return err
	}
	if url == "-" {
		text, err := io.ReadAll(io.LimitReader(a.In, urlMax))
		if err != nil {
			return sigma.Wrap("sigma.sqlCreate", "", err)
		}
		url = strings.TrimSpace(string(text))
	}
	address := ""
	if byURL {
		server, err := query.CheckURL(url)
		if err != nil {
			return cli.WithCode(cli.ExitUsage, err)
		}
		at, err := cli.Reachable(ctx, "--url", server)
		if err != nil {
			return err
		}
		address = at.String()
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if !byURL {
		err = c.Mkdir(ctx, databasesDir+"/"+name, 0o777)
	} else {
		err = a.sqlRegister(ctx, c, name, url, address)
	}
	if sigma.KindOf(err) == sigma.KindExists && err != nil {
		return &sigma.Error{Op: "sigma.sqlCreate", Kind: sigma.KindExists,
			Msg: fmt.Sprintf("there is a database %q already", name), Hint: "list databases with: sigma sql ls"}
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(a.Out, name)
	return nil
}

// registrar is what sqlRegister needs of a connection.
type registrar interface {
	Stat(ctx context.Context, path string) (sigma.Stat, error)
	Call(ctx context.Context, path, method string, payload []byte) ([]byte, error)
	SetServer(ctx context.Context, realm sigma.RealmID, name, address string) error
}

// sqlRegister makes a database known, and to the machine where its server is: it is the machine
// that connects, and only to there.
func (a *app) sqlRegister(ctx context.Context, c registrar, name, url, address string) error {
	if _, err := c.Stat(ctx, databasesDir+"/"+name); err == nil {
		return sigma.PathError("sigma.sqlCreate", sigma.KindExists, name)
	}
	if err := c.SetServer(ctx, sigma.RealmID(a.Realm), name, address); err != nil {
		return err
	}
	payload, err := json.Marshal(query.CreateRequest{Name: name, URL: url})
	if err == nil {
		_, err = c.Call(ctx, databasesDir, query.CallCreate, payload)
	}
	if err != nil {
		c.SetServer(ctx, sigma.RealmID(a.Realm), name, "") // the error that counts is the first
	}
	return err
}

func newSQLLsCommand(a *app) *cobra.Command {
	return cli.Listing(a.App, &cobra.Command{
		Use:   "ls [-q]",
		Short: "List the databases of the realm",
		Long: `List the databases of the realm: who keeps them, how large they are as far as sigmaOS
knows, and how many sessions are open.`,
		Example: `  sudo sigma sql ls
  sudo sigma sql ls --json`,
	}, a.databases, func(i query.Info) []any {
		size := "-"
		if i.Bytes != nil {
			size = sigma.Bytes(*i.Bytes).String()
		}
		return []any{i.Name, i.Engine, size, i.Sessions}
	}, "DATABASE", "ENGINE", "SIZE", "SESSIONS")
}

func (a *app) databases(ctx context.Context, _ []string) ([]query.Info, error) {
	c, err := a.Client(ctx)
	if err != nil {
		return nil, err
	}
	entries, err := c.ReadDir(ctx, databasesDir)
	list := []query.Info{}
	for _, e := range entries {
		i, err := infoOf(ctx, c, e.Name)
		switch {
		case err == nil:
			list = append(list, i)
		case sigma.KindOf(err) != sigma.KindNotFound: // else it was removed just now
			return nil, err
		}
	}
	return list, err
}

func infoOf(ctx context.Context, c *sdk.Client, name string) (query.Info, error) {
	return cli.Value[query.Info](ctx, c, databasesDir+"/"+name+"/"+query.InfoFile)
}

// missing is the error err, or a better one if it says that there is no database of that name.
func missing(err error, name, hint string) error {
	if err != nil && sigma.KindOf(err) == sigma.KindNotFound {
		return &sigma.Error{Op: "sigma.sql", Kind: sigma.KindNotFound, Hint: "list databases with: sigma sql ls" + hint,
			Msg: fmt.Sprintf("there is no database %q", name)}
	}
	return err
}

func newSQLRmCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove databases",
		Long: `Remove databases of the realm, with all that is in them, and end their sessions. One
that another server keeps is only forgotten: what is in it stays there.`,
		Example: `  sudo sigma sql rm shop`,
		Args:    cli.Between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.sqlRm(cmd.Context(), args) },
	}
}

func (a *app) sqlRm(ctx context.Context, names []string) error {
	for _, n := range names {
		if err := checkDatabase(n); err != nil {
			return err
		}
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	return cli.EachDone(a.App, names, func(n string) error {
		i, err := infoOf(ctx, c, n)
		if err != nil {
			return missing(err, n, "")
		}
		if err := c.Remove(ctx, databasesDir+"/"+n); err != nil {
			return err
		}
		if i.Bytes == nil { // another server's
			if err := c.SetServer(ctx, sigma.RealmID(a.Realm), n, ""); err != nil &&
				sigma.KindOf(err) != sigma.KindUnsupported {
				return err
			}
		}
		return nil
	})
}

// sql runs the statements of in; whole says that all of it is one.
func (a *app) sql(ctx context.Context, name string, in io.Reader, whole bool, o sqlOptions) error {
	if err := checkDatabase(name); err != nil {
		return err
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	f, err := c.Handle(ctx, databasesDir+"/"+name+"/"+query.SessionFile)
	if err != nil {
		return missing(err, name, "; make one with: sigma sql create NAME")
	}
	defer f.Close()
	if err := f.Open(ctx, sigma.OpenReadWrite); err != nil {
		return err
	}
	s := &sqlSession{a: a, o: o, path: databasesDir + "/" + name, ask: &database.Session{File: f}}
	if whole {
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		return s.run(ctx, string(text))
	}
	terminal := false
	if file, ok := a.In.(*os.File); ok {
		st, err := file.Stat()
		terminal = err == nil && st.Mode()&os.ModeCharDevice != 0
	}
	return s.each(ctx, bufio.NewReaderSize(in, batchBytes), terminal)
}
