// Command shop counts sales in a database of its realm: it is a program of database/sql like any
// other, but for where its *sql.DB comes from.
//
//	sigma sql create shop
//	sigma run shop /db/shop apple 3
package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: shop DATABASE FRUIT NUMBER")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path, fruit, number string) error {
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return err
	}
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	db := database.Open(c, path)
	defer db.Close()
	if _,
		err := db.ExecContext(ctx,
		"create table if not exists sales (fruit text primary key, number integer not null)"); err != nil {
		return err
	}
	total, err := sell(ctx, db, fruit, n)
	if err != nil {
		return err
	}
	fmt.Printf("%d of %s sold\n", total, fruit)
	return nil
}

// sell adds to what was sold, all or nothing, and gives the sum.
func sell(ctx context.Context, db *sql.DB, fruit string, n int64) (total int64, err error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback() // does nothing after Commit
	add,
		err := tx.PrepareContext(ctx,
		"insert into sales values (?, ?) on conflict (fruit) do update set number = number + excluded.number")
	if err != nil {
		return 0, err
	}
	defer add.Close()
	if _, err := add.ExecContext(ctx, fruit, n); err != nil {
		return 0, err
	}
	if err := tx.QueryRowContext(ctx, "select number from sales where fruit = ?", fruit).Scan(&total); err != nil {
		return 0, err
	}
	return total, tx.Commit()
}
