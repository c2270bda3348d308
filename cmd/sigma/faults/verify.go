package faults

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/lib/history"
	"sigmaos.dev/sigma"
)

// Exit codes of verify.
const (
	exitViolated  = 1
	exitUndecided = 3
)

func newVerifyCommand(a *app) *cobra.Command {
	var model, html string
	most := time.Minute
	cmd := &cobra.Command{
		Use:   "verify [--model NAME] [--html FILE] [--timeout TIME] HISTORY...",
		Short: "Check that a history of a store has one order",
		Long: `Check that clients of a store were told what a store tells that does one operation after the
other, each between its call and its answer (linearizability). HISTORY is a file of JSON lines, one
for each operation (docs/reference/toolkit/history.md), as the Go package lib/history writes them; -
is the standard input. Several files are one history, if their times are of one clock; lines of "sigma
chaos" may be among them. Keys are checked one by one.

A violation is explained: the first answer that cannot be, what it could have been, and what went
before. The exit code is 0 if the history has one order, 1 if it has none, 3 if that was not found out
in time, and 2 if it could not be read.`,
		Example: `  sigma verify history.jsonl
  sigma verify --model register --html picture.html history.jsonl faults.jsonl`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := history.ModelOf(model)
			if err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			if most < 0 {
				return cli.UsageError(cmd, "write for example: --timeout 2m", "the time is negative")
			}
			return a.verify(cmd.Context(), args, m, most, html)
		},
	}
	cmd.Flags().StringVar(&model, "model", "kv", "`NAME` of what the store does: kv or register")
	cmd.Flags().StringVar(&html, "html", "", "write a picture of the first violation to `FILE`, for a browser")
	cmd.Flags().DurationVar(&most, "timeout", most, "give up after `TIME`; 0 = never")
	return cmd
}

func (a *app) verify(ctx context.Context, files []string, m history.Model, most time.Duration, html string) error {
	whole := &history.History{}
	for _, name := range files {
		h, err := a.readHistory(name)
		if err != nil {
			return cli.WithCode(cli.ExitUsage, inFile(name, err))
		}
		whole.Ops, whole.Faults = append(whole.Ops, h.Ops...), append(whole.Faults, h.Faults...)
	}
	r, err := checkHistory(ctx, whole, m, most)
	if err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	if a.JSON {
		err = a.PrintJSON(r)
	} else {
		_, err = io.WriteString(a.Out, r.Text())
	}
	if err == nil && html != "" {
		err = a.picture(r, html)
	}
	switch {
	case err != nil:
		return cli.WithCode(cli.ExitUsage, err)
	case r.Verdict == history.Violated:
		return cli.ExitCode(exitViolated)
	case r.Verdict == history.Undecided:
		return cli.ExitCode(exitUndecided)
	}
	return nil
}

// inFile adds the file's name to an error whose path is a line of it.
func inFile(name string, err error) error {
	var open *os.PathError
	if errors.As(err, &open) {
		return sigma.Wrap("sigma.verify", name, open.Err)
	}
	return &sigma.Error{Op: "sigma.verify", Path: name, Kind: sigma.KindOf(err), Msg: err.Error(),
		Hint: sigma.HintOf(err)}
}

// readHistory reads a file, or the standard input.
func (a *app) readHistory(name string) (*history.History, error) {
	if name == "-" {
		return history.Decode(a.In)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return history.Decode(f)
}

// checkHistory is history.Check, which a signal ends.
func checkHistory(ctx context.Context, h *history.History, m history.Model, most time.Duration) (r *history.Report,
	err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, err = history.Check(h, m, most)
	}()
	select {
	case <-done:
		return r, err
	case <-ctx.Done(): // the program ends, and the check with it
		return nil, ctx.Err()
	}
}

// picture writes the first violation as HTML.
func (a *app) picture(r *history.Report, name string) error {
	if len(r.Violations) == 0 {
		a.Remark("there is no violation, so %s is not written", name)
		return nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return sigma.Wrap("sigma.verify", name, err)
	}
	err = r.Violations[0].WriteHTML(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return sigma.Wrap("sigma.verify", name, err)
}
