package realms

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func newRealmInspectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show a realm, its limits and how much of them is used",
		Long: `Show a realm: its age, procs and shares, which machine's named leads the names of all
realms, and each limit of the realm with how much of it is used, as far as that is known
at this machine. Limits of sessions, handles and procs are of this machine.`,
		Example: `  sudo sigma realm inspect team-a
  sudo sigma realm inspect --json team-a`,
		Args: cli.Between(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.realmInspect(cmd.Context(), args[0]) },
	}
}

// realmJSON is a realm as inspect prints it.
type realmJSON struct {
	report.Realm
	Leader string      `json:"names_leader,omitempty"` // the machine whose named leads; absent if none does
	Quotas []quotaJSON `json:"quotas"`
}

type quotaJSON struct {
	Limit string  `json:"limit"`
	Max   uint64  `json:"max"`
	Used  *uint64 `json:"used,omitempty"`
}

func (a *app) realmInspect(ctx context.Context, name string) error {
	if err := checkRealms([]string{name}); err != nil {
		return err
	}
	c, err := a.ClientOf(ctx, sigma.RealmID(name))
	if err != nil {
		return err
	}
	r := realmJSON{Quotas: []quotaJSON{}}
	realms, err := cli.Lines[report.Realm](ctx, c, "/sys/"+sigmap.FileRealms)
	if err != nil {
		return err
	}
	for _, x := range realms {
		if x.ID == name {
			r.Realm = x
		}
	}
	limits, err := cli.Lines[report.Limit](ctx, c, "/sys/limits")
	if err != nil {
		return err
	}
	for _, l := range limits {
		if l.Realm == name {
			r.Quotas = append(r.Quotas, quotaJSON{l.Limit, l.Max, l.Used})
		}
	}
	if c.Info().Principal.System { // who leads is not a tenant's to know
		if r.Leader, err = namesLeader(ctx, c); err != nil {
			return err
		}
	}
	if a.JSON {
		return a.PrintJSON(r)
	}
	return a.printRealm(&r)
}

func (a *app) printRealm(r *realmJSON) error {
	t := term.NewTable(a.Out)
	t.Pairs("realm", r.ID, "created", r.Created.Local().Format(time.RFC3339), "procs", r.Procs, "shares", r.Shares,
		"names led by", cli.OrElse(r.Leader, "-"))
	if err := t.Print(); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	t = a.Table("LIMIT", "MAX", "USED")
	for _, q := range r.Quotas {
		shown := func(n uint64) any {
			if strings.HasSuffix(q.Limit, "_bytes") {
				return sigma.Bytes(n)
			}
			return n
		}
		used := any("-")
		if q.Used != nil {
			used = shown(*q.Used)
		}
		t.Row(q.Limit, shown(q.Max), used)
	}
	return t.Print()
}

// namesLeader asks named which member leads.
func namesLeader(ctx context.Context, c *sdk.Client) (string, error) {
	names, err := cli.ServiceOf(ctx, c, sigmap.FileNames)
	if err != nil {
		return "", err
	}
	ms, err := sigmap.CallMembers.Ask(ctx, names, sigmap.None{})
	for _, m := range ms {
		if m.Leads {
			return string(m.Machine), err
		}
	}
	return "", err
}
