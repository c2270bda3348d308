// Command probe reads a name and starts procs, one after the other, for the bench neighbour, and
// prints how long each took:
//
//	probe TIME PROGRAM [DATABASE]
//
// It prints a JSON object with the lists get_ms and spawn_ms, and select_ms if it is given a
// database.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

// getsEach is how many reads there are for each start.
const getsEach = 20

// name is what is read.
const name = "/probed"

func main() {
	if len(os.Args) < 3 || len(os.Args) > 4 {
		panic("usage: probe TIME PROGRAM [DATABASE]")
	}
	window, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	took := map[string][]float64{}
	if err := probe(context.Background(), window, os.Args[2], append(os.Args, "")[3], took); err != nil {
		panic(err)
	}
	json.NewEncoder(os.Stdout).Encode(took)
}

func probe(ctx context.Context, window time.Duration, program, of string, took map[string][]float64) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Put(ctx, name, []byte("value"), sigma.PutOptions{Perm: 0o644}); err != nil {
		return err
	}
	timed := func(metric string, f func() error) {
		began := time.Now()
		if err == nil {
			err = f()
		}
		took[metric] = append(took[metric], time.Since(began).Seconds()*1e3)
	}
	var db *sql.DB
	if of != "" {
		db = database.Open(c, of)
		defer db.Close()
		if _, err := db.ExecContext(ctx, "create table if not exists t (n)"); err != nil {
			return err
		}
	}
	for end := time.Now().Add(window); time.Now().Before(end) && err == nil; {
		for range getsEach {
			timed("get_ms", func() error { _, _, err := c.Get(ctx, name); return err })
		}
		for i := 0; db != nil && i < getsEach; i++ {
			timed("select_ms", func() error {
				var n int
				return db.QueryRowContext(ctx, "select count(*) from t").Scan(&n)
			})
		}
		var ids []sigma.ProcID
		timed("spawn_ms", func() (err error) {
			ids, err = c.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"work", "0"},
				Memory: sigma.MemoryLeast})
			if err == nil {
				err = c.WaitStart(ctx, ids[0])
			}
			return err
		})
		if err == nil {
			_, err = c.WaitExit(ctx, ids[0])
		}
	}
	return err
}
