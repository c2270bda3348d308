package realms

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

type usageOptions struct{ hours, machines, procs bool }

func newUsageCommand(a *app) *cobra.Command {
	var o usageOptions
	cmd := &cobra.Command{
		Use:   "usage [--hours] [--machines] [--procs] [REALM...]",
		Short: "Show what realms have used of all machines",
		Long: `Show what the procs of each realm, or of those named, have used of all machines: starts,
ends, processor time, memory over time, which is what procs had a right to for as long as
they had it, and what they sent to other machines; and what sigmad, and the services named,
s3d and dbd, did for the realm: their processor time, divided by what requests cost.
--hours shows each hour of the last 31 days in which there was something, --machines each
machine, --procs single procs: those that run, and of each realm the latest that ended.
What runs counts until some seconds ago. A realm that is removed takes its usage along.`,
		Example: `  sudo sigma usage
  sudo sigma usage --hours default
  sudo sigma usage --procs --json`,
		Args: cli.Between(0, 1000),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.procs && (o.hours || o.machines) {
				return cli.UsageError(cmd, "procs have their machine in their line",
					"--procs goes with neither --hours nor --machines")
			}
			if cli.RealmGiven(cmd) && !slices.Contains(args, a.Realm) {
				args = append(args, a.Realm)
			}
			if err := CheckRealmsExist(cmd.Context(), a.App, args); err != nil {
				return err
			}
			if o.procs {
				return a.usageProcs(cmd.Context(), args)
			}
			return a.usage(cmd.Context(), args, o)
		},
	}
	cmd.Flags().BoolVar(&o.hours, "hours", false, "show each hour")
	cmd.Flags().BoolVar(&o.machines, "machines", false, "show each machine")
	cmd.Flags().BoolVar(&o.procs, "procs", false, "show procs")
	return cmd
}

// realmsWithin is how long the name service has to say which realms there are, before usage is
// shown without knowing.
const realmsWithin = 3 * time.Second

// CheckRealmsExist says which of them does not, if the name service knows; usage is told without
// it.
func CheckRealmsExist(ctx context.Context, base *cli.App, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if err := checkRealms(names); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, realmsWithin)
	defer cancel()
	all, err := (&app{base}).realms(within, nil)
	if kind := sigma.KindOf(err); err != nil && ctx.Err() == nil && (kind == sigma.KindUnavailable ||
		kind == sigma.KindTimeout) {
		return nil
	}
	for _, n := range names {
		if err == nil && n != string(sigma.SystemRealm) && !slices.ContainsFunc(all, func(r report.Realm) bool {
			return string(r.ID) == n
		}) {
			err = cli.NoRealm(sigma.RealmID(n))
		}
	}
	return err
}

// usageLines reads a file of usage; what is missing is remarked upon.
func usageLines[T any](ctx context.Context, a *app, file string) ([]T, error) {
	c, err := a.ClientOf(ctx, a.Whole())
	if err != nil {
		return nil, err
	}
	all, missing, err := cli.KnownLines[T](ctx, c, file)
	for _, m := range missing {
		a.Remark("warning: without machine %s: %s", m.Machine, m.Missing)
	}
	return all, err
}

func (a *app) usage(ctx context.Context, only []string, o usageOptions) error {
	all, err := usageLines[report.RealmUsage](ctx, a, "/sys/usage")
	if err != nil {
		return err
	}
	told := map[string]time.Time{} // of machines that do not answer
	for _, u := range all {
		if u.Told != nil {
			told[u.Machine] = *u.Told
		}
	}
	for _, m := range slices.Sorted(maps.Keys(told)) {
		a.Remark("warning: machine %s does not answer; what it used counts until %s, when it told last", m,
			told[m].Local().Format("2006-01-02 15:04:05"))
	}
	out := sumUsage(all, only, o)
	if a.JSON {
		return a.PrintJSON(out)
	}
	head := []any{"REALM", "FROM", "STARTS", "ENDED", "CPU", "MEMORY", "EGRESS", "REQUESTS", "SERVED", "SERVICES"}
	if o.machines {
		head = slices.Insert(head, 1, any("MACHINE"))
	}
	t := term.NewTable(a.Out)
	t.Row(head...)
	for _, u := range out {
		cells := []any{u.Realm, u.From.Local().Format("2006-01-02 15:04"), u.Starts, u.Ended, secondsWords(u.CPU),
			memoryHours(u.Memory), sigma.Bytes(u.Egress), u.Requests, secondsWords(u.Served),
			secondsWords(u.Services.CPU())}
		if o.machines {
			cells = slices.Insert(cells, 1, any(u.Machine))
		}
		t.Row(cells...)
	}
	return t.Print()
}

// sumUsage adds up what differs only in what is not asked for.
func sumUsage(all []report.RealmUsage, only []string, o usageOptions) []report.RealmUsage {
	type key struct {
		realm, machine string
		hour           int64
	}
	sums := map[key]*report.RealmUsage{}
	for _, u := range all {
		if len(only) > 0 && !slices.Contains(only, u.Realm) {
			continue
		}
		k := key{realm: u.Realm}
		if o.hours {
			k.hour = u.From.Unix()
		}
		if o.machines {
			k.machine = u.Machine
		}
		s := sums[k]
		if s == nil {
			s = &report.RealmUsage{Realm: u.Realm, Machine: k.machine, From: u.From}
			sums[k] = s
		}
		*s = s.Plus(u)
	}
	out := make([]report.RealmUsage, 0, len(sums))
	for _, k := range slices.SortedFunc(maps.Keys(sums), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.realm, b.realm), cmp.Compare(a.hour, b.hour), cmp.Compare(a.machine, b.machine))
	}) {
		out = append(out, *sums[k])
	}
	return out
}

func (a *app) usageProcs(ctx context.Context, only []string) error {
	all, err := usageLines[report.ProcSpent](ctx, a, "/sys/usage-procs")
	if err != nil {
		return err
	}
	out := []report.ProcSpent{}
	for _, p := range all {
		if len(only) == 0 || slices.Contains(only, p.Realm) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b report.ProcSpent) int {
		return cmp.Or(cmp.Compare(a.Realm, b.Realm), a.Began.Compare(b.Began))
	})
	return cli.PrintList(a.App, out, false, func(p report.ProcSpent) []any {
		ended := "-"
		if p.Ended != nil {
			ended = p.Ended.Local().Format("15:04:05")
		}
		return []any{p.Realm, p.Proc, cli.Clip(p.Name, 24), p.Machine, p.Began.Local().Format("2006-01-02 15:04:05"),
			ended,
			secondsWords(p.CPU), memoryHours(p.Memory), sigma.Bytes(p.Egress)}
	}, "REALM", "PROC", "NAME", "MACHINE", "BEGAN", "ENDED", "CPU", "MEMORY", "EGRESS")
}

func secondsWords(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

func memoryHours(byteSeconds float64) string {
	return fmt.Sprintf("%.3g GiB h", byteSeconds/float64(sigma.GiB)/3600)
}
