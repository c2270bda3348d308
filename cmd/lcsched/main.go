// Command lcsched places latency-critical procs, and is initd: it keeps registered procs running.
// It runs in the boot set of control machines; one of them leads. It keeps nothing on disk.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/initd"
	"sigmaos.dev/sched/lcsched"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
	"sigmaos.dev/trees/resolve"
)

// Where the election is. The directory is of the system realm, to which no tenant has access.
const (
	electionDir = "/lcsched"
	leaderFile  = electionDir + "/leader"
)

// namesPause is between attempts to stand, while the names cannot be reached.
const namesPause = 200 * time.Millisecond

// leaseTTL is how long after its last sign of life a leader is replaced, when its machine is not
// known to be lost before.
const leaseTTL = 3 * time.Second

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("daemon", "lcsched")
	if err := run(log); err != nil {
		log.Error("lcsched ends", "err", err)
		os.Exit(1)
	}
}

func run(log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	s, decided := lcsched.NewService(), decision.NewSender()
	s.Decided = decided.Note
	var leading sync.WaitGroup
	defer leading.Wait()
	defer stop() // before that, if serving ends by itself
	return sdk.ServeClient(ctx, func(_ context.Context, c *sdk.Client) (sigma.Tree, error) {
		go decided.Run(ctx, c.Tree)
		leading.Go(func() { lead(ctx, c, s, decided, log) })
		return s, nil
	})
}

// lead stands for election again and again, and leads while it is elected.
func lead(ctx context.Context, c *sdk.Client, s *lcsched.Service, decided *decision.Sender, log *slog.Logger) {
	for said := ""; ctx.Err() == nil; {
		free := resolve.WithoutFence(ctx) // it may have led before
		err := c.MkdirAll(free, electionDir, 0o700)
		if err == nil {
			err = initd.Prepare(free, c.Tree)
		}
		var l *sdk.Leadership
		if err == nil {
			l, err = c.Campaign(ctx, sdk.Election{Path: leaderFile, Data: []byte(c.Info().Principal.Machine),
				TTL: leaseTTL, Fenced: []string{initd.Dir},
				Succeeds: true}) // a machine has one lcsched at a time, and this one does not lead
		}
		if err != nil {
			if text := err.Error(); text != said && ctx.Err() == nil {
				said = text
				log.Warn("cannot stand for election yet", "err", err)
			}
			retry.Pause(ctx, namesPause)
			continue
		}
		said = ""
		log.Info("this lcsched leads", "machine", c.Info().Principal.Machine)
		s.Lead(true)
		keepRunning(ctx, c, l, decided, log)
		if ctx.Err() == nil {
			log.Warn("this lcsched leads no more")
		}
		s.Lead(false)
		resign, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		l.Resign(resign)
		cancel()
	}
}

// keepRunning is initd, as long as this one leads.
func keepRunning(ctx context.Context, c *sdk.Client, l *sdk.Leadership, decided *decision.Sender, log *slog.Logger) {
	ctx, cancel := l.Term(ctx)
	defer cancel()
	for ctx.Err() == nil {
		r := initd.NewRunner(c.Info().Principal.Machine, &initd.Client{Tree: c.Tree, Epoch: l.Fence().Epoch}, log)
		r.Decided = decided.Note
		if err := r.Run(ctx); err != nil && ctx.Err() == nil {
			log.Warn("registered procs are not looked after", "err", err)
		}
		retry.Pause(ctx, namesPause) // somebody says that another one leads, so the lease should be lost soon
	}
}
