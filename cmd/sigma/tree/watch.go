package tree

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

type watchOptions struct {
	count   int
	command []string
}

func newWatchCommand(a *app) *cobra.Command {
	var o watchOptions
	cmd := &cobra.Command{
		Use:   "watch [-n COUNT] PATH... [-- COMMAND [ARG...]]",
		Short: "Print changes of files and directories of the realm",
		Long: `Print a line for each change of a file, or of the entries of a directory and the files in
it (if there are at most 128; of more, only what is made, renamed and removed), until ^C, or
until COUNT changes were printed. A PATH that does not exist is waited for. What was there
before is not printed; several changes at once may be printed as one. With --json each
change is one line of JSON.

With a COMMAND, run it for each change, with SIGMA_WATCH_EVENT, SIGMA_WATCH_PATH and
SIGMA_WATCH_VERSION in its environment, one at a time.`,
		Example: `  sudo sigma watch /s3/in
  sudo sigma watch -n 1 /config -- ./reload
  sudo sigma watch --json /s3/in | jq .path`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			paths := args
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				paths, o.command = args[:n], args[n:]
			}
			switch {
			case len(paths) == 0:
				return cli.UsageError(cmd, "", "watch: a PATH is missing")
			case o.count < 0:
				return cli.UsageError(cmd, "", "-n takes a number of changes")
			}
			return a.watch(cmd.Context(), paths, o)
		},
	}
	cmd.Flags().IntVarP(&o.count, "count", "n", 0, "end after `COUNT` changes")
	return cmd
}

// Events of a watch.
const (
	eventPresent = "present" // was there before: ls -w --json only
	Created      = "created"
	Changed      = "changed"
	Removed      = "removed"
	Renamed      = "renamed"
)

// Event is one change.
type Event struct {
	Time    time.Time `json:"time"`
	Event   string    `json:"event"`
	Path    string    `json:"path"`
	From    string    `json:"from,omitempty"` // of what was renamed
	Kind    string    `json:"kind,omitempty"`
	Size    uint64    `json:"size"`
	Version uint64    `json:"version,omitempty"`
}

// ErrEnough ends a watch that has printed what it should.
var ErrEnough = errors.New("enough changes")

// changes prints events of several watchers.
type changes struct {
	a *app
	o watchOptions
	// ctx ends commands.
	ctx context.Context

	mu sync.Mutex
	n  int // mu; events so far
}

func (x *changes) print(e Event) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.o.count > 0 && x.n == x.o.count {
		return ErrEnough
	}
	x.n++
	var err error
	switch {
	case len(x.o.command) > 0:
		err = x.run(e)
	case x.a.JSON:
		var line []byte
		if line, err = json.Marshal(e); err == nil {
			_, err = x.a.Out.Write(append(line, '\n'))
		}
	default:
		what := x.a.Shown(e.Path)
		if e.From != "" {
			what = x.a.Shown(e.From) + " -> " + what
		}
		_, err = fmt.Fprintf(x.a.Out, "%s %s %s\n", e.Time.Local().Format("15:04:05.000"), e.Event, what)
	}
	if err == nil && x.o.count > 0 && x.n == x.o.count {
		return ErrEnough
	}
	return err
}

// Run runs the command for one event. How it ends is its own affair; that it cannot be run is ours.
func (x *changes) run(e Event) error {
	cmd := exec.CommandContext(x.ctx, x.o.command[0], x.o.command[1:]...)
	cmd.Env = append(os.Environ(), "SIGMA_WATCH_EVENT="+e.Event, "SIGMA_WATCH_PATH="+e.Path,
		fmt.Sprint("SIGMA_WATCH_VERSION=", e.Version))
	cmd.Stdout, cmd.Stderr = term.Raw(x.a.Out), term.Raw(x.a.Err)
	err := cmd.Run()
	var ended *exec.ExitError
	if err == nil || errors.As(err, &ended) {
		return nil
	}
	return commandError(x.o.command[0], err)
}

// commandError is about a command of this host that cannot be run.
func commandError(name string, err error) error {
	code := cli.ExitNoExec
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = cli.ExitNoProgram
	}
	var ee *exec.Error
	if errors.As(err, &ee) {
		err = ee.Err
	}
	return cli.WithCode(code, &sigma.Error{Op: "sigma.command", Path: name, Kind: sigma.KindNoExec,
		Msg: "cannot be run on this host", Err: err})
}

func (a *app) watch(ctx context.Context, paths []string, o watchOptions) error {
	paths, err := cli.PlainPaths(paths)
	if err != nil {
		return err
	}
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	ws := make([]*Watcher, len(paths))
	for i, p := range paths {
		ws[i] = &Watcher{Tree: c, Path: p}
		if err := ws[i].Look(ctx); err != nil {
			return err
		}
		if ws[i].file == nil {
			a.Remark("%s does not exist yet; waiting for it", a.Shown(p))
		}
	}
	return untilLost(ctx, c, func(ctx context.Context) error { return a.watchAll(ctx, ws, o) })
}

// untilLost runs what would look on without an end, until it ends or the session does for good.
func untilLost(ctx context.Context, c *sdk.Client, run func(context.Context) error) error {
	lost := &sigma.Error{Op: "sigma.watch", Kind: sigma.KindLost, Msg: "the session with sigmaOS has ended",
		Hint: "sigmaOS was stopped, or the credential is no longer good"}
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-c.Done():
			cancel(lost)
		case <-over:
		}
	}()
	err := run(running)
	if ctx.Err() == nil && context.Cause(running) == error(lost) {
		return lost
	}
	return err
}

// watchAll prints what changes from what the watchers saw last.
func (a *app) watchAll(ctx context.Context, ws []*Watcher, o watchOptions) error {
	until := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := &changes{a: a, o: o, ctx: ctx}
	var wg sync.WaitGroup
	for _, w := range ws {
		w.Emit = x.print
		wg.Go(func() {
			defer w.Close()
			if err := w.Run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	switch err := context.Cause(ctx); {
	case errors.Is(err, ErrEnough):
		return nil
	case until.Err() != nil:
		return cli.ExitCode(cli.ExitInterrupted)
	default:
		return err
	}
}

// lsAndWatch is ls -w.
func (a *app) lsAndWatch(ctx context.Context, c watched, paths []string, o lsOptions) error {
	ws := make([]*Watcher, len(paths))
	var lists []listed
	for i, p := range paths {
		ws[i] = &Watcher{Tree: c, Path: p, single: o.itself}
		if err := ws[i].Look(ctx); err != nil {
			return err
		}
		l := ws[i].listed()
		if o.long {
			if err := describeAll(ctx, c, l.files); err != nil {
				return err
			}
		}
		lists = append(lists, l)
	}
	if !a.JSON {
		if err := a.printLists(lists, o.long); err != nil {
			return err
		}
		return a.watchAll(ctx, ws, watchOptions{})
	}
	x := &changes{a: a}
	for _, l := range lists {
		for _, f := range l.files {
			if err := x.print(Event{Time: time.Now(), Event: eventPresent, Path: f.Path, Kind: f.Kind, Size: f.Size,
				Version: f.Version}); err != nil {
				return err
			}
		}
	}
	return a.watchAll(ctx, ws, watchOptions{})
}
