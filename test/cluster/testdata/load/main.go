// Command load is a proc of the chaos test. It says that it was started, in a way that a second
// start of the same proc cannot overlook, and then does what it is told.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// nameMax bounds what a proc waits for names, which it cannot reach while its machine is cut off.
const nameMax = 2 * time.Second

func main() {
	ctx := context.Background()
	c, err := sdk.Open(ctx)
	if err == nil {
		err = say(ctx, c)
	}
	if err == nil {
		err = act(ctx, c, os.Args[1], os.Args[2])
	}
	if err != nil {
		if c != nil {
			c.Exited(ctx, sigma.Status{Code: sigma.StatusError, Msg: err.Error()})
		}
		os.Exit(99)
	}
}

// say writes the proc's id on its machine's disk, which the test reads at the end, and among the
// names, by exclusive creation each.
func say(ctx context.Context, c *sdk.Client) error {
	const here = "/ux/~local/started"
	id, start := string(c.Info().Principal.Proc), rand.Text()
	if err := c.MkdirAll(ctx, here, 0o755); err != nil {
		return err
	}
	if err := claim(ctx, c, here+"/"+id, start); err != nil {
		if _, err := c.Put(ctx, here+"/twice-"+id+"-"+start, nil, sigma.PutOptions{}); err != nil {
			return err
		}
		return fmt.Errorf("started twice: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, nameMax)
	defer cancel()
	if err := claim(ctx, c, "/started/"+id, start); sigma.KindOf(err) == sigma.KindExists {
		if _, err := c.Put(context.WithoutCancel(ctx), here+"/twice-"+id+"-"+start, nil,
			sigma.PutOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// claim makes a file that only one start can make. One that was made by this start, whose answer
// was lost, is its own.
func claim(ctx context.Context, c *sdk.Client, path, start string) error {
	_, err := c.Put(ctx, path, []byte(start), sigma.PutOptions{MustMake: true})
	for sigma.KindOf(err) == sigma.KindLost { // its sigmad was killed, so it may be made or not, as the next one knows
		_, err = c.Put(ctx, path, []byte(start), sigma.PutOptions{MustMake: true})
	}
	if sigma.KindOf(err) == sigma.KindExists {
		if text, _, gerr := c.Get(ctx, path); gerr == nil && string(text) == start {
			return nil
		}
	}
	return err
}

func act(ctx context.Context, c *sdk.Client, what, much string) error {
	n, err := strconv.Atoi(much)
	if err != nil {
		return err
	}
	switch what {
	case "exit":
		os.Exit(n)
	case "doze":
		<-time.After(time.Duration(n) * time.Millisecond)
	case "spin":
		for end := time.Now().Add(time.Duration(n) * time.Millisecond); time.Now().Before(end); {
		}
	case "stay":
		return c.WaitEvict(ctx)
	default:
		return fmt.Errorf("no act %q", what)
	}
	return nil
}
