package tree

import (
	"context"
	"errors"
	"io"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/tail"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

func newCatCommand(a *app) *cobra.Command {
	follow := false
	cmd := &cobra.Command{
		Use:   "cat [-f] [--stale] PATH...",
		Short: "Print files of the realm",
		Long: `Print files of the realm to standard output, one after the other. With -f go on printing
what is added to them, until ^C; a file that is replaced by a shorter one is printed from
its beginning. One that does not exist is waited for then.`,
		Example: `  sudo sigma cat /s3/in/a.txt | head
  sudo sigma cat '/s3/in/*.txt' | wc
  sudo sigma cat -f /ux/~local/log`,
		Args: cli.Between(1, -1),
	}
	a.Reading(cmd, func(ctx context.Context, args []string, _ *sigma.Age) error { return a.cat(ctx, args, follow) })
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what is added")
	return cmd
}

func (a *app) cat(ctx context.Context, paths []string, follow bool) error {
	c, paths, err := a.connectFor(ctx, paths)
	if err != nil {
		return err
	}
	if follow {
		return a.catOn(ctx, c, paths)
	}
	var errs []error
	for _, p := range paths {
		err := files.OfRealm(c).Content(ctx, p, term.Raw(a.Out))
		if errors.Is(err, syscall.EPIPE) || err != nil && ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return a.Failed(errs)
}

// catOn prints files and what is added to them until ctx ends.
func (a *app) catOn(ctx context.Context, c sigma.Namespace, paths []string) error {
	until := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	to := &inTurn{to: term.Raw(a.Out)}
	var wg sync.WaitGroup
	for _, p := range paths {
		if st, err := c.Stat(ctx, p); err == nil && (st.ID.Kind == sigma.KindDir || st.ID.Kind == sigma.KindCallable) {
			return files.OfRealm(c).Content(ctx, p, to) // which says why not
		}
		t := tail.Tail{Tree: c, Path: p, To: to, Again: true}
		wg.Go(func() {
			if err := t.Follow(ctx, nil, t.Copy); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	var broken tail.WriteError
	switch err := context.Cause(ctx); {
	case until.Err() != nil:
		return cli.ExitCode(cli.ExitInterrupted)
	case errors.As(err, &broken):
		return broken.Err
	default:
		return err
	}
}

// inTurn is a writer for several.
type inTurn struct {
	mu sync.Mutex
	to io.Writer // mu
}

func (w *inTurn) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}
