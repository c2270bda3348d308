// Command chooser is a client that chooses a member of a directory every millisecond until it is
// asked to go, and connects to every sixteenth that it chose:
//
//	chooser DIRECTORY
//
// Each time it begins to choose another member it prints, as a JSON line, when it last chose the
// one before and when it first chose the new one, in ns. At the end it prints how many connections
// failed.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		panic(err)
	}
}

// turn is a line.
type turn struct {
	From   string `json:"from"`
	To     string `json:"to"`
	Last   int64  `json:"last"`
	First  int64  `json:"first"`
	Failed int    `json:"failed,omitempty"`
}

func run(ctx context.Context, dir string) error {
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	choosing, stop := context.WithCancel(ctx)
	go func() {
		c.WaitEvict(ctx)
		stop()
	}()
	if err := c.Started(ctx); err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	d := c.Dialer(dir)
	var now turn
	for n := 0; choosing.Err() == nil; n++ {
		began := time.Now().UnixNano()
		p, err := d.Pin(ctx, "")
		if err != nil {
			return err
		}
		if m := p.Member(); m != now.To {
			now.From, now.To, now.First = now.To, m, began
			if err := out.Encode(now); err != nil {
				return err
			}
		}
		now.Last = began
		if n%16 == 0 {
			if conn, err := p.DialContext(ctx, "", ""); err != nil {
				now.Failed++
			} else {
				conn.Close()
			}
		}
		<-time.After(time.Millisecond)
	}
	if err := out.Encode(now); err != nil {
		return err
	}
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}
