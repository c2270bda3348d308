// Command app is a small application of sigmaOS, of which each proc has one role. Orders come by
// HTTP to any web member. It enters them by typed calls at any store member, which writes them to
// SQL and to a queue: a directory of names. The leader takes orders from the queue and notes in SQL
// that they are shipped. Each order has an id, which the client chose, and has its effect once,
// however often the client asks.
//
//	app web|store|ship
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"sigmaos.dev/examples/ledger"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

const (
	webs   = "/app/web"
	stores = "/app/store"
	queue  = "/app/queue"
	leader = "/app/leader"
	askMax = 5 * time.Second // for one attempt
	idle   = 10 * time.Millisecond
)

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err == nil {
		go func() { // whoever is told to go may go: clients retry
			if c.WaitEvict(ctx) == nil {
				os.Exit(0)
			}
		}()
		err = map[string]func(context.Context, *sdk.Client) error{"web": web, "store": store,
			"ship": ship}[os.Args[1]](ctx, c)
	}
	fmt.Fprintln(os.Stderr, err) // no role ends by itself
	os.Exit(1)
}

// join listens as a member of a directory.
func join(ctx context.Context, c *sdk.Client, dir string) (sigma.Listener, error) {
	l, err := c.Listen(ctx, sigma.FormStream)
	if err == nil {
		_, err = c.Join(ctx, dir, l.Endpoint())
	}
	return l, err
}

// web answers 200 when an order is entered, else what the client may retry.
func web(ctx context.Context, c *sdk.Client) error {
	servers := c.Dialer(stores)
	calls := call.NewClient(func(ctx context.Context) (net.Conn, error) { return servers.Dial(ctx, "") }, call.Config{})
	book := ledger.NewLedgerClient(calls)
	l, err := join(ctx, c, webs)
	if err != nil {
		return err
	}
	return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), askMax)
		defer cancel()
		if _, err := book.Enter(ctx, &ledger.Entry{Account: r.FormValue("id"), Cents: 1}); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}))
}

// shop is the service of typed calls.
type shop struct {
	ledger.Book
	c  *sdk.Client
	db *sql.DB
}

func store(ctx context.Context, c *sdk.Client) error {
	s := call.NewServer(call.Config{})
	if err := ledger.RegisterLedger(s, &shop{c: c, db: database.Open(c, "/db/app")}); err != nil {
		return err
	}
	l, err := join(ctx, c, stores)
	if err != nil {
		return err
	}
	return s.Serve(ctx, l)
}

// Enter enters an order, whose id is the account, and queues it.
func (s *shop) Enter(ctx context.Context, in *ledger.Entry) (*ledger.BalanceReply, error) {
	if err := once(ctx, s.db, "orders", in.Account); err != nil {
		return nil, err
	}
	_, err := s.c.Put(ctx, queue+"/"+in.Account, nil, sigma.PutOptions{})
	return &ledger.BalanceReply{}, err
}

// once notes an id in a table, and counts it when it is new.
func once(ctx context.Context, db *sql.DB, table, id string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
	done, err := tx.ExecContext(ctx, "insert into "+table+" values (?) on conflict do nothing", id)
	if err != nil {
		return err
	}
	if n, err := done.RowsAffected(); err != nil || n == 0 {
		return err
	}
	if _, err := tx.ExecContext(ctx, "update effects set number = number + 1 where name = ?", table); err != nil {
		return err
	}
	return tx.Commit()
}

// ship is the leader's work, while it leads.
func ship(ctx context.Context, c *sdk.Client) error {
	db := database.Open(c, "/db/app")
	for {
		l, err := c.Campaign(ctx, sdk.Election{Path: leader, Data: []byte(c.Info().Principal.Proc),
			Fenced: []string{queue}})
		if err != nil {
			return err
		}
		err = lead(ctx, c, db, l.Lost())
		fmt.Fprintln(os.Stderr, "leads no more:", err)
		if err := l.Resign(ctx); err != nil {
			return err
		}
	}
}

// lead ships what is queued until the proc may lead no more. What fails is done again with the next
// look at the queue.
func lead(ctx context.Context, c *sdk.Client, db *sql.DB, lost <-chan struct{}) error {
	for pause := time.NewTicker(idle); ; {
		select {
		case <-lost:
			return errors.New("another one may lead")
		case <-pause.C:
		}
		orders, err := c.ReadDir(ctx, queue)
		for _, o := range orders {
			within, cancel := context.WithTimeout(ctx, askMax)
			if err = once(within, db, "shipped", o.Name); err == nil {
				err = c.Remove(within, queue+"/"+o.Name)
			}
			cancel()
			if err != nil {
				break
			}
		}
		if sigma.KindOf(err) == sigma.KindStale && err != nil {
			return err
		}
	}
}
