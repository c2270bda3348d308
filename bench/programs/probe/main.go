// Command probe reads a name and starts procs, one after the other, for the bench neighbour, and prints how long each took:
//
//	probe TIME PROGRAM
//
// It prints a JSON object with the lists get_ms and spawn_ms.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// getsEach is how many reads there are for each start.
const getsEach = 20

// name is what is read.
const name = "/probed"

func main() {
	if len(os.Args) != 3 {
		panic("usage: probe TIME PROGRAM")
	}
	window, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	took := map[string][]float64{}
	if err := probe(context.Background(), window, os.Args[2], took); err != nil {
		panic(err)
	}
	json.NewEncoder(os.Stdout).Encode(took)
}

func probe(ctx context.Context, window time.Duration, program string, took map[string][]float64) error {
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
	for end := time.Now().Add(window); time.Now().Before(end) && err == nil; {
		for range getsEach {
			timed("get_ms", func() error { _, _, err := c.Get(ctx, name); return err })
		}
		var ids []sigma.ProcID
		timed("spawn_ms", func() (err error) {
			ids, err = c.Spawn(ctx, sigma.Descriptor{Program: program, Args: []string{"work", "0"}, Memory: sigma.MemoryLeast})
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
