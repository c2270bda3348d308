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
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
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
	for _, what := range []string{"names", "bytes", "watches", "leases", "sessions", "handles", "scratch"} {
		of := what
		if what == "scratch" {
			of = "bytes of scratch files"
		}
		limits[what] = cmd.Flags().String("limit-"+what, "", "`N` "+of+" at most, or default")
	}
	for _, f := range []struct{ name, use string }{
		{"max-cpu", "`CORES` at each machine at most, or default"},
		{"max-memory", "`SIZE` of memory at each machine at most, or default"},
		{"min-cpu", "`CORES` that latency-critical procs can always reserve, or default"},
		{"min-memory", "`SIZE` of memory that they can always reserve, or default"},
		{"limit-reserve-cpu", "`CORES` that they may reserve at most, or default"},
		{"limit-reserve-memory", "`SIZE` of memory that they may reserve at most, or default"},
	} {
		limits[f.name] = cmd.Flags().String(f.name, "", f.use)
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

// parseLimits reads numbers, sizes of bytes, or "default"; what is empty is left as it is.
func parseLimits(flags map[string]*string) (l sigma.RealmLimits, err error) {
	parse := func(what string) uint64 {
		text := *flags[what]
		switch {
		case text == "" || err != nil:
			return 0
		case text == "default":
			return sigma.LimitDefault
		}
		var n uint64
		var bad error
		if what == "bytes" || what == "scratch" {
			var size sigma.Bytes
			size, bad = sigma.ParseBytes(text)
			n = uint64(size)
		} else {
			n, bad = strconv.ParseUint(text, 10, 64)
		}
		if bad != nil || n == 0 || n == sigma.LimitDefault {
			err = cli.UsageError(nil, "a number from 1 on, or default", "--limit-%s %.80q is no limit", what, text)
		}
		return n
	}
	l = sigma.RealmLimits{Names: parse("names"), Bytes: sigma.Bytes(parse("bytes")), Watches: parse("watches"),
		Leases: parse("leases"), Sessions: parse("sessions"), Handles: parse("handles"),
		Scratch: sigma.Bytes(parse("scratch"))}
	l.MaxCPU, l.MinCPU, l.ReserveCPU = parseCores(flags, "max-cpu", &err), parseCores(flags, "min-cpu", &err),
		parseCores(flags, "limit-reserve-cpu", &err)
	l.MaxMemory, l.MinMemory, l.ReserveMemory = parseMemory(flags, "max-memory", &err), parseMemory(flags, "min-memory",
		&err), parseMemory(flags, "limit-reserve-memory", &err)
	if err == nil {
		err = cli.WithCode(cli.ExitUsage, l.Check())
	}
	return l, err
}

// parseCores reads a number of cores, as 1.5; 0 = it is left as it is. An error stays.
func parseCores(flags map[string]*string, name string, err *error) sigma.MilliCPU {
	switch text := *flags[name]; {
	case text == "" || *err != nil:
		return 0
	case text == "default":
		return sigma.LimitCPUDefault
	default:
		n, bad := strconv.ParseFloat(text, 64)
		if bad != nil || !(n >= 0.001) || n > float64(sigma.LimitCPUMax)/1000 {
			*err = cli.UsageError(nil, "a number such as 1.5, or default", "--%s %.80q is no number of cores", name,
				text)
			return 0
		}
		return sigma.MilliCPU(math.Round(n * 1000))
	}
}

// parseMemory reads a size likewise.
func parseMemory(flags map[string]*string, name string, err *error) sigma.Bytes {
	switch text := *flags[name]; {
	case text == "" || *err != nil:
		return 0
	case text == "default":
		return sigma.LimitDefault
	default:
		n, bad := sigma.ParseBytes(text)
		if bad != nil || n == 0 {
			*err = cli.UsageError(nil, "a size such as 512M, or default", "--%s %.80q is no size", name, text)
			return 0
		}
		return n
	}
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
	quiet := false
	cmd := &cobra.Command{
		Use:     "ls [-q]",
		Aliases: []string{"list"},
		Short:   "List realms",
		Long: `List all realms with their age, how many procs they have that have not ended, and their
shares; with --json also what limits their names.`,
		Example: `  sudo sigma realm ls
  sudo sigma realm ls --json`,
		Args: cli.Between(0, 0),
		RunE: a.InWhole(func(ctx context.Context, c *sdk.Client, _ []string) error {
			return a.realmLs(ctx, c, quiet)
		}),
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	return cmd
}

func (a *app) realmLs(ctx context.Context, c *sdk.Client, quiet bool) error {
	list, err := realmList(ctx, c)
	if err != nil {
		return err
	}
	return cli.PrintList(a.App, list, quiet, func(r state.Realm) []any {
		return []any{r.ID, term.Ago(r.Created), r.Procs, r.Shares}
	}, "REALM", "AGE", "PROCS", "SHARES")
}

// realmList lists all realms; a guest's own.
func realmList(ctx context.Context, c *sdk.Client) ([]state.Realm, error) {
	if !c.Info().Principal.System {
		return cli.Lines[state.Realm](ctx, c, "/sys/"+sigmap.FileRealms)
	}
	realms, err := c.Realms().List(ctx)
	list := make([]state.Realm, len(realms))
	for i, r := range realms {
		list[i] = state.OfRealm(r)
	}
	return list, err
}

func newRealmRmCommand(a *app) *cobra.Command {
	force := false
	cmd := &cobra.Command{
		Use:     "rm [--force] NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove realms with all that is in them",
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
