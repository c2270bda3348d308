package server

import (
	"cmp"
	"context"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// Config is a queue as its servers keep it. All servers of a queue have the same.
type Config struct {
	// Dir is the queue's directory, kept by named. Nothing else is in it.
	Dir string
	// Lease is how long a worker holds a task without a sign of life. 0 = 10 s
	Lease time.Duration
	// Attempts is how often a task is given out before it is dead. 0 = 5
	Attempts int
	// Keep is how many outcomes are kept that nobody forgot; more, and the oldest go. 0 = 10,000
	Keep int
	// Bytes bounds what the queue holds in memory, 200 bytes for each task included; Submit is
	// KindNoSpace beyond. Names hold up to four times as much. 0 = 32 MiB
	Bytes int
	// TTL is that of the election (sdk.Election). 0 = 2 s
	TTL time.Duration
}

func (c *Config) fill() error {
	c.Lease, c.TTL = cmp.Or(c.Lease, 10*time.Second), cmp.Or(c.TTL, 2*time.Second)
	c.Attempts, c.Keep, c.Bytes = cmp.Or(c.Attempts, 5), cmp.Or(c.Keep, 10_000), cmp.Or(c.Bytes, 32<<20)
	if c.Lease < 10*time.Millisecond || c.Attempts < 0 || c.Keep < 0 || c.Bytes < 0 {
		return &sigma.Error{Op: "queue.Serve", Path: c.Dir, Kind: sigma.KindInvalid,
			Msg: "a bound of the queue is negative, or the lease is below 10 ms", Hint: "leave what you do not need at 0"}
	}
	_, err := sigma.ParsePath(c.Dir)
	return err
}

// againPause is the time before a server stands for election again.
const againPause = 20 * time.Millisecond

// Serve is one of a queue's servers until ctx ends: it stands by while another one leads, and
// serves while it leads itself. ready, if not nil, is called each time it begins to.
func Serve(ctx context.Context, c *sdk.Client, cfg Config, ready func()) error {
	err := cfg.fill()
	if err == nil {
		err = c.MkdirAll(ctx, cfg.Dir, 0o755)
	}
	for err == nil {
		err = serveOnce(ctx, c, cfg, ready)
		kind := sigma.KindOf(err)
		if err != nil && ctx.Err() == nil && (kind == sigma.KindStale || kind == sigma.KindLost || kind.Retryable()) {
			retry.Pause(ctx, againPause)
			err = ctx.Err()
		}
	}
	return sigma.Wrap("queue.Serve", cfg.Dir, err)
}

// serveOnce leads once.
func serveOnce(ctx context.Context, c *sdk.Client, cfg Config, ready func()) error {
	l, err := c.Listen(ctx, sigma.FormStream)
	if err != nil {
		return err
	}
	defer l.Close()
	lead, err := c.Campaign(ctx, sdk.Election{Path: cfg.Dir + "/leader", Kind: sigma.KindEndpoint,
		Data: []byte(l.Endpoint().String()), TTL: cfg.TTL, Fenced: []string{cfg.Dir}})
	if err != nil {
		return err
	}
	defer lead.Resign(context.WithoutCancel(ctx))
	ctx, cancel := lead.Term(ctx)
	defer cancel()
	s, err := newServer(ctx, c, cfg, uint64(lead.Fence().Epoch))
	if err != nil {
		return err
	}
	if ready != nil {
		ready()
	}
	return s.run(ctx, func(ctx context.Context, calls *call.Server) error { return calls.Serve(ctx, l) })
}
