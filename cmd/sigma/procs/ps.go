package procs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// measureOrSay is measure for a list that is worth having also when the system cannot tell what
// procs use.
func (a *app) measureOrSay(ctx context.Context, c *sdk.Client, procs []sigma.ProcInfo) {
	if err := measure(ctx, c, procs); err != nil {
		a.Remark("sigma: what procs use now is not known: %v", err)
	}
}

// measure fills in what those of procs that run use now.
func measure(ctx context.Context, c *sdk.Client, procs []sigma.ProcInfo) error {
	var ids []sigma.ProcID
	for _, p := range procs {
		if p.State == sigma.ProcRunning {
			ids = append(ids, p.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	us, err := c.Usage(ctx, ids...)
	if err != nil {
		return err
	}
	for i := range procs {
		if len(ids) > 0 && procs[i].ID == ids[0] {
			if us[0] != (sigma.Usage{}) { // else it has just been forgotten
				procs[i].Usage = us[0]
			}
			ids, us = ids[1:], us[1:]
		}
	}
	return nil
}

func newPsCommand(a *app) *cobra.Command {
	var all, quiet bool
	cmd := &cobra.Command{
		Use:   "ps [-a] [-q]",
		Short: "List the realm's procs",
		Long: `List the realm's procs that have not ended, oldest first; with -a also those that have
ended and are still remembered. MACHINE is where a proc runs, or ran. Of one that waits
STATE has the main reason too; "sigma explain" says more.

CPU is the processor time used so far by all processes of a proc. MEMORY is what it uses
now, of one that has ended the most it used; LIMIT what it may use. TASKS are its
processes and threads.`,
		Example: `  sudo sigma ps -a
  sudo sigma kill $(sudo sigma ps -q)`,
		RunE: a.InRealm(func(ctx context.Context, c *sdk.Client, _ []string) error {
			return a.ps(ctx, c, all, quiet)
		}),
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also procs that have ended")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return cmd
}

func (a *app) ps(ctx context.Context, c *sdk.Client, all, quiet bool) error {
	procs, err := c.List(ctx, all)
	if err != nil {
		return err
	}
	if quiet {
		for _, p := range procs {
			fmt.Fprintln(a.Out, p.ID)
		}
		return nil
	}
	a.measureOrSay(ctx, c, procs)
	waits := a.waitReasons(ctx, c, procs)
	if a.JSON {
		list := make([]report.Proc, len(procs))
		for i, p := range procs {
			list[i] = report.OfProc(p)
			list[i].Reason = waits[p.ID]
		}
		return a.PrintJSON(list)
	}
	t := a.Table("PROC", "NAME", "MACHINE", "STATE", "AGE", "CPU", "MEMORY", "LIMIT", "TASKS", "COMMAND")
	for _, p := range procs {
		t.Row(p.ID, cli.Clip(p.Name, 24), cli.OrElse(string(p.Machine), "-"), stateWords(p)+waitWords(p, waits),
			term.Ago(p.Times.Spawned), cpuWords(p), memoryWords(p), p.Memory, tasksWords(p),
			cli.Clip(strings.Join(append([]string{p.Program}, p.Args...), " "), 48))
	}
	return t.Print()
}

// waitReasons is the main reason of each proc that waits; what is not known is left out.
func (a *app) waitReasons(ctx context.Context, c *sdk.Client, procs []sigma.ProcInfo) map[sigma.ProcID]string {
	if !slices.ContainsFunc(procs, func(p sigma.ProcInfo) bool { return p.State == sigma.ProcQueued }) {
		return nil
	}
	noted, err := decisions(ctx, c)
	if err != nil {
		a.Remark("sigma: why procs wait is not known: %v", err)
	}
	of := map[sigma.ProcID]string{}
	for _, r := range noted {
		of[sigma.ProcID(r.Proc)] = string(r.Reason)
	}
	for _, p := range procs {
		if p.State != sigma.ProcQueued {
			delete(of, p.ID)
		}
	}
	return of
}

// waitWords follows the state of a proc that waits.
func waitWords(p sigma.ProcInfo, reasons map[sigma.ProcID]string) string {
	if why := reasons[p.ID]; why != "" {
		return ": " + why
	}
	return ""
}

func stateWords(p sigma.ProcInfo) string {
	switch {
	case p.State == sigma.ProcEnded:
	case p.Frozen:
		return "frozen"
	default:
		return p.State.String()
	}
	s := p.Status
	if s.ExitCode != 0 && s.Code != sigma.StatusOK {
		return fmt.Sprintf("%s (%d)", s.Code, s.ExitCode)
	}
	return s.Code.String()
}

func cpuWords(p sigma.ProcInfo) string {
	if d := p.Usage.UserTime + p.Usage.SystemTime; d > 0 {
		return term.Short(d)
	}
	return "-"
}

func memoryWords(p sigma.ProcInfo) string {
	m := p.Usage.Memory
	if p.State == sigma.ProcEnded {
		m = p.Usage.MemoryPeak
	}
	if m == 0 {
		return "-"
	}
	return m.String()
}

// limitWords: services have no limit.
func limitWords(b sigma.Bytes) string {
	if b == 0 {
		return "-"
	}
	return b.String()
}

func tasksWords(p sigma.ProcInfo) string {
	if p.Usage.Tasks == 0 {
		return "-"
	}
	return fmt.Sprint(p.Usage.Tasks)
}

// findProc gives the id of the proc that a person means by word: an id, the start of one, or a
// name. Procs that run come before ones that have ended.
func findProc(procs []sigma.ProcInfo, word string) (sigma.ProcID, error) {
	const op = "sigma.findProc"
	if word == "" {
		return "", cli.UsageError(nil, "list procs with: sigma ps -a", "a proc's id is empty")
	}
	for _, p := range procs {
		if string(p.ID) == word {
			return p.ID, nil
		}
	}
	var matches []sigma.ProcInfo
	for _, p := range procs {
		if strings.HasPrefix(string(p.ID), word) || p.Name == word {
			matches = append(matches, p)
		}
	}
	live := slices.DeleteFunc(slices.Clone(matches), func(p sigma.ProcInfo) bool { return p.State == sigma.ProcEnded })
	switch {
	case len(live) == 1:
		return live[0].ID, nil
	case len(matches) == 1:
		return matches[0].ID, nil
	case len(matches) == 0:
		return "", &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: fmt.Sprintf("no proc has the id or name %.80q",
			word), Hint: "list procs with: sigma ps -a"}
	}
	if len(live) > 0 {
		matches = live
	}
	ids := make([]string, 0, 5)
	for _, p := range matches[max(0, len(matches)-5):] {
		ids = append(ids, string(p.ID))
	}
	return "", &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("%d procs match %.80q", len(matches),
		word),
		Hint: "give more of the id; the newest are " + strings.Join(ids, ", ")}
}

// findProcs is findProc for several words.
func findProcs(ctx context.Context, c sigma.Procs, words []string) ([]sigma.ProcID, error) {
	procs, err := c.List(ctx, true)
	if err != nil {
		return nil, err
	}
	ids := make([]sigma.ProcID, len(words))
	for i, w := range words {
		if ids[i], err = findProc(procs, w); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
