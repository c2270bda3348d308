// Package realms makes realms, limits them and shows what they used; and makes the credentials
// with which programs outside work in one.
package realms

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newRealmCommand(a),
	}
}

// Usage is the command that shows what realms used.
func Usage(base *cli.App) *cobra.Command { return newUsageCommand(&app{base}) }

func newRealmCommand(a *app) *cobra.Command {
	return cli.Parent("realm", "Make, list, change and remove realms (tenants)",
		`A realm is a tenant: one tree of names, one set of procs, separated from all others.
The realm "default" exists as soon as the system is up.`,
		newRealmCreateCommand(a), newRealmLsCommand(a), newRealmInspectCommand(a), newRealmSetCommand(a),
		newRealmRmCommand(a), newCredentialCommand(a))
}

func newRealmCreateCommand(a *app) *cobra.Command {
	shares := uint32(1)
	cmd := &cobra.Command{
		Use:   "create [--shares N] NAME...",
		Short: "Make realms",
		Long: `Make realms with the well-known places in their trees. A name is 1 to 32 of a-z, 0-9
and -, starting with a letter. While realms compete, their best-effort procs are given
CPU and memory in the ratio of their shares.`,
		Example: `  sudo sigma realm create team-a
  sudo sigma realm create --shares 4 team-b`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.realmCreate(cmd.Context(), args, shares) },
	}
	cmd.Flags().Uint32Var(&shares, "shares", shares, "`N` of what realms share; 1 to 10000")
	return cmd
}

func newRealmSetCommand(a *app) *cobra.Command {
	shares := uint32(0)
	limits := map[string]*string{}
	cmd := &cobra.Command{
		Use: "set [--shares N] [--limit-names N] [--limit-bytes N] [--limit-watches N] [--limit-leases N] " +
			"[--limit-sessions N] [--limit-handles N] [--limit-scratch N] [--max-cpu CORES] [--max-memory SIZE] " +
			"[--min-cpu CORES] [--min-memory SIZE] [--limit-reserve-cpu CORES] [--limit-reserve-memory SIZE] NAME...",
		Short: "Change the shares and the limits of realms",
		Long: `Change the shares of realms, which takes effect within about a second, or how much their
trees of names may hold, which takes effect at once: how many names and leases, bytes of
small files' data (K, M, G), and watches that wait at one time. Of each machine, how many
sessions its procs may have (one each), handles of files in these, and bytes of scratch
files: within seconds.

--max-cpu and --max-memory are what its procs may have of each machine, whatever else there
is; --min-cpu and --min-memory what its latency-critical procs can always reserve, of all
machines together; --limit-reserve-cpu and -memory what they may reserve.
"default" gives a limit back its default. What a realm has already stays. "sigma realm
inspect" shows limits and what is used of them.`,
		Example: `  sudo sigma realm set --shares 2 team-a
  sudo sigma realm set --limit-names 5000000 --limit-bytes 1G team-a
  sudo sigma realm set --max-cpu 1.5 --max-memory 4G team-a
  sudo sigma realm set --min-cpu 2 --min-memory 1G team-b`,
		Args: cli.Between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := parseLimits(limits)
			if err != nil {
				return err
			}
			return a.realmSet(cmd.Context(), args, shares, cmd.Flags().Changed("shares"), l)
		},
	}
	cmd.Flags().Uint32Var(&shares, "shares", shares, "`N` of what realms share; 1 to 10000")
	for _, l := range limitFlags {
		limits[l.name] = cmd.Flags().String(l.name, "", l.use+", or default")
	}
	return cmd
}

// checkShares says what is wrong with a number of shares, or nil.
func checkShares(n uint32) error {
	if n < 1 || n > sigma.SharesMax {
		return cli.UsageError(nil, "name them with: --shares N", "a realm has 1 to %d shares, not %d", sigma.SharesMax,
			n)
	}
	return nil
}

func (a *app) realmSet(ctx context.Context, names []string, shares uint32, setShares bool,
	limits sigma.RealmLimits) error {
	switch {
	case !setShares && limits == sigma.RealmLimits{}:
		return cli.UsageError(nil,
			"say what: --shares N, or a limit such as --limit-names N or --max-cpu CORES; all of them: sigma realm "+
				"set --help", "nothing to set")
	case !setShares:
		shares = 1 // for the check; it is not set
	}
	return a.eachRealm(ctx, names, shares, func(rs sigma.Realms, id sigma.RealmID) error {
		if setShares {
			if err := rs.SetShares(ctx, id, shares); err != nil {
				return err
			}
		}
		if limits == (sigma.RealmLimits{}) {
			return nil
		}
		return rs.SetLimits(ctx, id, limits)
	})
}

// limitKind is what a limit is a number of.
type limitKind struct {
	what, like string
	beyond     uint64 // more than there can be
	parse      func(text string) (uint64, error)
}

var (
	number = limitKind{"limit", "a number from 1 on", sigma.LimitDefault,
		func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) }}
	size = limitKind{"size", "a size such as 512M", sigma.LimitDefault, func(text string) (uint64, error) {
		n, err := sigma.ParseBytes(text)
		return uint64(n), err
	}}
	cores = limitKind{"number of cores", "a number such as 1.5", uint64(sigma.LimitCPUMax) + 1,
		func(text string) (uint64, error) {
			n, err := strconv.ParseFloat(text, 64)
			if !(n >= 0.001 && n <= float64(sigma.LimitCPUMax)/1000) { // as NaN is
				n = 0
			}
			return uint64(math.Round(n * 1000)), err
		}}
)

// limitFlags are the flags of limits, and how each is read into them.
var limitFlags = []struct {
	name, use string
	kind      limitKind
	set       func(l *sigma.RealmLimits, n uint64)
}{
	{"limit-names", "`N` names at most", number, func(l *sigma.RealmLimits, n uint64) { l.Names = n }},
	{"limit-bytes", "`N` bytes at most", size, func(l *sigma.RealmLimits, n uint64) { l.Bytes = sigma.Bytes(n) }},
	{"limit-watches", "`N` watches at most", number, func(l *sigma.RealmLimits, n uint64) { l.Watches = n }},
	{"limit-leases", "`N` leases at most", number, func(l *sigma.RealmLimits, n uint64) { l.Leases = n }},
	{"limit-sessions", "`N` sessions at most", number, func(l *sigma.RealmLimits, n uint64) { l.Sessions = n }},
	{"limit-handles", "`N` handles at most", number, func(l *sigma.RealmLimits, n uint64) { l.Handles = n }},
	{"limit-scratch", "`N` bytes of scratch files at most", size,
		func(l *sigma.RealmLimits, n uint64) { l.Scratch = sigma.Bytes(n) }},
	{"max-cpu", "`CORES` at each machine at most", cores,
		func(l *sigma.RealmLimits, n uint64) { l.MaxCPU = sigma.MilliCPU(n) }},
	{"max-memory", "`SIZE` of memory at each machine at most", size,
		func(l *sigma.RealmLimits, n uint64) { l.MaxMemory = sigma.Bytes(n) }},
	{"min-cpu", "`CORES` that latency-critical procs can always reserve", cores,
		func(l *sigma.RealmLimits, n uint64) { l.MinCPU = sigma.MilliCPU(n) }},
	{"min-memory", "`SIZE` of memory that they can always reserve", size,
		func(l *sigma.RealmLimits, n uint64) { l.MinMemory = sigma.Bytes(n) }},
	{"limit-reserve-cpu", "`CORES` that they may reserve at most", cores,
		func(l *sigma.RealmLimits, n uint64) { l.ReserveCPU = sigma.MilliCPU(n) }},
	{"limit-reserve-memory", "`SIZE` of memory that they may reserve at most", size,
		func(l *sigma.RealmLimits, n uint64) { l.ReserveMemory = sigma.Bytes(n) }},
}

// parseLimits reads what the flags say, each a value or "default"; what is empty is left as it is.
func parseLimits(flags map[string]*string) (l sigma.RealmLimits, err error) {
	for _, f := range limitFlags {
		if text := *flags[f.name]; text != "" {
			n, err := f.kind.parse(text)
			switch {
			case text == "default":
				n = sigma.LimitDefault // its lower half is LimitCPUDefault
			case err != nil || n == 0 || n >= f.kind.beyond:
				return l, cli.UsageError(nil, f.kind.like+", or default", "--%s %.80q is no %s", f.name, text,
					f.kind.what)
			}
			f.set(&l, n)
		}
	}
	return l, cli.WithCode(cli.ExitUsage, l.Check())
}
func (a *app) realmCreate(ctx context.Context, names []string, shares uint32) error {
	return a.eachRealm(ctx, names, shares, func(rs sigma.Realms, id sigma.RealmID) error {
		err := rs.Create(ctx, id)
		if err != nil && sigma.KindOf(err) == sigma.KindExists {
			return &sigma.Error{Op: "sigma.realmCreate", Kind: sigma.KindExists,
				Msg: fmt.Sprintf("there is a realm %q already", id), Hint: "list realms with: sigma realm ls"}
		}
		if err == nil && shares != 1 {
			err = rs.SetShares(ctx, id, shares)
		}
		return err
	})
}

// eachRealm checks all that was asked for, does it for one realm after the other, and prints those
// for which it is done.
func (a *app) eachRealm(ctx context.Context, names []string, shares uint32,
	do func(rs sigma.Realms, id sigma.RealmID) error) error {
	if err := cmp.Or(checkShares(shares), checkRealms(names)); err != nil {
		return err
	}
	c, err := a.ClientOf(ctx, sigma.SystemRealm)
	if err != nil {
		return err
	}
	return cli.EachDone(a.App, names, func(n string) error { return do(c.Realms(), sigma.RealmID(n)) })
}

func checkRealms(names []string) error {
	for i, n := range names {
		if err := sigma.RealmID(n).Check(); err != nil {
			return cli.WithCode(cli.ExitUsage, err)
		}
		if slices.Contains(names[:i], n) {
			return cli.UsageError(nil, "name each realm once", "the realm %s is given twice", n)
		}
	}
	return nil
}

func newRealmLsCommand(a *app) *cobra.Command {
	return cli.Listing(a.App, &cobra.Command{
		Use:   "ls [-q]",
		Short: "List realms",
		Long: `List all realms with their age, how many procs they have that have not ended, and their
shares; with --json also what limits their names.`,
		Example: `  sudo sigma realm ls
  sudo sigma realm ls --json`,
	}, a.realms, func(r report.Realm) []any {
		return []any{r.ID, term.Ago(r.Created), r.Procs, r.Shares}
	}, "REALM", "AGE", "PROCS", "SHARES")
}

// realms lists all realms; a guest's own.
func (a *app) realms(ctx context.Context, _ []string) ([]report.Realm, error) {
	c, err := a.ClientOf(ctx, a.Whole())
	if err != nil {
		return nil, err
	}
	if !c.Info().Principal.System {
		return cli.Lines[report.Realm](ctx, c, "/sys/"+sigmap.FileRealms)
	}
	realms, err := c.Realms().List(ctx)
	return cli.Mapped(realms, report.OfRealm), err
}

func newRealmRmCommand(a *app) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:   "rm [--force] NAME...",
		Short: "Remove realms with all that is in them",
		Long: `Remove realms: their names, their stored files and their scratch files. A realm whose
procs have not all ended is only removed with --force, which kills them. There is no
way back.`,
		Example: `  sudo sigma realm rm team-a`,
		Args:    cli.Between(1, -1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.realmRm(cmd.Context(), args, force) },
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also if procs are running: kill them")
	return cmd
}

func (a *app) realmRm(ctx context.Context, names []string, force bool) error {
	if err := checkRealms(names); err != nil {
		return err
	}
	c, err := a.ClientOf(ctx, sigma.SystemRealm)
	if err != nil {
		return err
	}
	realms, err := c.Realms().List(ctx)
	if err != nil {
		return err
	}
	procs := map[string]int{}
	for _, r := range realms {
		procs[string(r.ID)] = r.Procs
	}
	for _, n := range names { // all are looked at before one is removed
		switch k, ok := procs[n]; {
		case n == string(sigma.DefaultRealm) || n == string(sigma.SystemRealm):
			return &sigma.Error{Op: "sigma.realmRm", Kind: sigma.KindPermission,
				Msg:  fmt.Sprintf("the realm %q belongs to every system and stays", n),
				Hint: "remove what is in it with: sigma rm -r, sigma kill"}
		case !ok:
			return &sigma.Error{Op: "sigma.realmRm", Kind: sigma.KindNotFound, Msg: fmt.Sprintf("there is no realm %q",
				n), Hint: "list realms with: sigma realm ls"}
		case k > 0 && !force:
			return &sigma.Error{Op: "sigma.realmRm", Kind: sigma.KindNotEmpty,
				Msg:  fmt.Sprintf("realm %q has %d procs that have not ended", n, k),
				Hint: "kill them and remove it with: sigma realm rm --force " + n}
		}
	}
	return cli.EachDone(a.App, names, func(n string) error { return c.Realms().Remove(ctx, sigma.RealmID(n)) })
}
