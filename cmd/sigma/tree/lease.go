package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// How long a lease lives without its holder: the least, and unless the user says otherwise.
const (
	leaseLeast   = time.Second
	leaseDefault = 10 * time.Second
)

// endGrace is what a command gets to end in good order when its lease is lost.
const endGrace = 5 * time.Second

func newLeaseCommand(a *app) *cobra.Command {
	return cli.Parent("lease", "Hold leases in the realm",
		`A lease lives as long as its holder renews it, and a file made with it goes when it does:
who sees the file knows that its maker lives.`, newLeaseHoldCommand(a))
}

type holdOptions struct {
	ttl, patience time.Duration
	nonblock      bool
	data          string
}

func newLeaseHoldCommand(a *app) *cobra.Command {
	var o holdOptions
	cmd := &cobra.Command{
		Use:     "hold [--ttl TIME] [-n | --timeout TIME] [--data TEXT] PATH [-- COMMAND [ARG...]]",
		Aliases: []string{"keep"},
		Short:   "Hold a lock while a command runs",
		Long: `Make the file PATH, which vanishes with its holder, run COMMAND on this host, and remove the
file when it has ended. While there is such a file already, wait: of all who hold the same
PATH one has it at a time. With -n or --timeout give up at once, or then: exit code 1.

The holder renews a lease; if it dies, or is cut off, the file is gone after --ttl at most. A
COMMAND whose lease is lost gets SIGTERM, and SIGKILL 5 s later; the exit code is 1 then.
Otherwise it is COMMAND's, or 128+n if signal n ended it; 126 if it cannot be run, 127 if
there is none. SIGMA_LEASE_PATH is in its environment. Without a COMMAND, print PATH and hold
it until ^C.`,
		Example: `  sudo sigma lease hold /locks/backup -- ./backup
  sudo sigma lease hold -n --ttl 5s /leader -- ./serve`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, command := args[0], args[1:]
			switch n := cmd.ArgsLenAtDash(); {
			case n > 1 || n < 0 && len(args) > 1:
				return cli.UsageError(cmd, "write -- before the command", "lease hold: unexpected argument %.80q",
					args[1])
			case n == 0:
				return cli.UsageError(cmd, "", "lease hold: a PATH is missing")
			case o.ttl < leaseLeast || o.ttl > time.Hour:
				return cli.UsageError(cmd, "", "--ttl is 1s to 1h, not %v", o.ttl)
			case o.nonblock && o.patience > 0 || o.patience < 0:
				return cli.UsageError(cmd, "", "-n and --timeout do not go together")
			}
			return a.hold(cmd.Context(), path, command, o)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.ttl, "ttl", leaseDefault, "how long the file stays if its holder dies")
	f.DurationVar(&o.patience, "timeout", 0, "how long to wait for another holder (default: without end)")
	f.BoolVarP(&o.nonblock, "nonblock", "n", false, "do not wait for another holder")
	f.StringVar(&o.data, "data", "", "`TEXT` in the file (default: who holds it)")
	cmd.ValidArgsFunction = a.Complete
	return cmd
}

// errLost is why a held lease's context ends early.
var errLost = errors.New("lost")

func (a *app) hold(ctx context.Context, path string, command []string, o holdOptions) (err error) {
	if path, err = cli.PlainPath(path); err != nil {
		return err
	}
	if len(command) > 0 {
		if _, err := exec.LookPath(command[0]); err != nil {
			return commandError(command[0], err)
		}
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	lease, revoke, err := c.Lease(ctx, o.ttl)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.ttl)
		defer cancel()
		if e := revoke(ctx); err == nil && sigma.KindOf(e) != sigma.KindNotFound {
			err = e
		}
	}()
	if o.data == "" {
		host, _ := os.Hostname()
		o.data = fmt.Sprintf("%s pid %d\n", host, os.Getpid())
	}
	id, err := acquire(ctx, c, path, []byte(o.data), lease, o)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		guard(held, c, path, id, o.ttl)
		cancel(errLost)
	}()
	defer func() { cancel(nil); <-ended }()
	if len(command) == 0 {
		fmt.Fprintln(a.Out, a.Shown(path))
		<-held.Done()
	} else {
		err = a.runHeld(held, path, command)
	}
	if context.Cause(held) == errLost && ctx.Err() == nil {
		return &sigma.Error{Op: "sigma.hold", Path: path, Kind: sigma.KindLost,
			Msg: "the lease was lost; another may hold it now"}
	}
	if len(command) == 0 {
		return cli.ExitCode(cli.ExitInterrupted)
	}
	return err
}

// acquire makes the file, waiting in turn while another has it.
func acquire(ctx context.Context, c *sdk.Client, path string, data []byte, lease sigma.LeaseID,
	o holdOptions) (sigma.FileID, error) {
	until := ctx
	if o.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.patience)
		defer cancel()
	}
	id, err := c.Put(ctx, path, data, sigma.PutOptions{MustMake: true, Wait: !o.nonblock, Lease: lease, Perm: 0o644})
	if err != nil && (sigma.KindOf(err) == sigma.KindExists || until.Err() == nil && ctx.Err() != nil) {
		return id, busy(path)
	}
	return id, err
}

func busy(path string) error {
	return &sigma.Error{Op: "sigma.hold", Path: path, Kind: sigma.KindBusy, Msg: "another holds it",
		Hint: "who that is, is in the file: sigma cat " + path}
}

// waitGone returns when nothing is at path.
func waitGone(ctx context.Context, c *sdk.Client, path string) error {
	w := Watcher{Tree: c, Path: path, single: true}
	defer w.Close()
	for {
		if err := w.Look(ctx); err != nil || w.file == nil {
			return err
		}
		if err := w.wait(ctx); err != nil {
			return err
		}
	}
}

// guard returns when the file of the lease is gone, when nothing was heard of it for longer than it
// lives, or when ctx ends.
func guard(ctx context.Context, c *sdk.Client, path string, id sigma.FileID, ttl time.Duration) {
	for heard := time.Now(); ctx.Err() == nil && time.Since(heard) < ttl; {
		st, err := c.Lstat(ctx, path)
		if files.Gone(err) || err == nil && st.ID.Path != id.Path {
			return
		}
		if err != nil {
			datadir.Pause(ctx, lookEvery)
			continue
		}
		heard = time.Now()
		// Silence is no news: what lives on is asked for again well before it could have ended.
		look, cancel := context.WithTimeout(ctx, ttl/3)
		waitGone(look, c, path)
		cancel()
	}
}

// runHeld runs a command of this host until it ends, or ctx does.
func (a *app) runHeld(ctx context.Context, path string, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, term.Raw(a.Out), term.Raw(a.Err)
	cmd.Env = append(os.Environ(), "SIGMA_LEASE_PATH="+path)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // with us the lease goes
	signals := make(chan os.Signal,
		1) // a second ^C, which has reached the command too, is not the end of who holds its lease
	signal.Notify(signals, syscall.SIGINT)
	defer signal.Stop(signals)
	err := cmd.Run()
	var ended *exec.ExitError
	switch {
	case cmd.ProcessState == nil:
		return commandError(command[0], err)
	case err == nil:
		return nil
	case errors.As(err, &ended):
		if st := ended.Sys().(syscall.WaitStatus); st.Signaled() {
			return cli.ExitCode(cli.ExitBySignal + int(st.Signal()))
		}
		return cli.ExitCode(ended.ExitCode())
	}
	return cli.ExitCode(cli.ExitInterrupted)
}
