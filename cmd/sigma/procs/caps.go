package procs

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func newCapsCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "caps PROC",
		Short: "Show what a proc may reach",
		Long: `Show what a proc may reach: all of its realm, or the entries of its view with their
rights; its endpoints, and those that it has read in its view and so may dial; its leases;
the profile of the calls it may make, and its limits. ` + procArgument + `

Targets are paths of the realm. Rights are ro (read), rc (read and call), rw (all) and
none (hidden). Besides its view a proc always has /proc with itself and its descendants,
and of /sys what it needs of itself.`,
		Example: `  sudo sigma caps worker
  sudo sigma caps --json 3kq`,
		Args: cli.Between(1, 1),
		RunE: a.InRealm(a.caps),
	}
}

// capsJSON is what caps --json prints.
type capsJSON struct {
	ID        sigma.ProcID    `json:"id"`
	Realm     sigma.RealmID   `json:"realm"`
	Machine   sigma.MachineID `json:"machine,omitempty"`
	All       bool            `json:"sees_all"`
	View      []viewEntryJSON `json:"view"`
	SeenBy    []sigma.ProcID  `json:"seen_by"` // ancestors with views
	Endpoints []string        `json:"endpoints"`
	Dials     []string        `json:"dials"`
	Entered   uint32          `json:"entered_trees"`
	Leases    []sigma.LeaseID `json:"leases"`
	Profile   sigma.Profile   `json:"profile"`
	Memory    uint64          `json:"memory_limit"`
	Tasks     uint32          `json:"tasks_limit"`
	Files     uint32          `json:"open_files_limit"`
}

type viewEntryJSON struct {
	Path   string `json:"path"`
	Target string `json:"target"`
	Rights string `json:"rights"`
}

func capsToJSON(c *sigmap.Caps) capsJSON {
	return capsJSON{ID: c.ID, Realm: c.Realm, Machine: c.Machine, All: c.All,
		View: cli.Mapped(c.View, func(e sigma.ViewEntry) viewEntryJSON {
			return viewEntryJSON{e.Path, e.Target, e.Rights.String()}
		}), SeenBy: append([]sigma.ProcID{}, c.Kin...), Endpoints: cli.Mapped(c.Listens, sigma.Endpoint.String),
		Dials: cli.Mapped(c.Read, sigma.Endpoint.String), Entered: c.Entered,
		Leases: append([]sigma.LeaseID{}, c.Leases...), Profile: c.Profile, Memory: uint64(c.Memory), Tasks: c.Tasks,
		Files: c.Files}
}

func (a *app) caps(ctx context.Context, c *sdk.Client, args []string) error {
	ids, err := findProcs(ctx, c, args)
	if err != nil {
		return err
	}
	caps, err := c.Caps(ctx, ids[0])
	if err != nil {
		return err
	}
	if a.JSON {
		return a.PrintJSON(capsToJSON(&caps))
	}
	return a.printCaps(&caps)
}

func (a *app) printCaps(c *sigmap.Caps) error {
	t := term.NewTable(a.Out)
	t.Pairs("id", c.ID, "realm", c.Realm, "machine", c.Machine)
	switch {
	case c.All:
		t.Row("sees", "all of its realm")
	case len(c.View) == 0:
		t.Row("sees", "itself")
	}
	for _, e := range c.View {
		t.Row("sees", fmt.Sprintf("%s = %s %v", e.Path, e.Target, e.Rights))
	}
	term.RowsOf(t, "seen by", c.Kin)
	term.RowsOf(t, "listens", c.Listens)
	term.RowsOf(t, "may dial", c.Read)
	if c.Entered > 0 {
		t.Row("trees entered", c.Entered)
	}
	term.RowsOf(t, "lease", c.Leases)
	t.Pairs("profile", c.Profile, "memory limit", c.Memory, "tasks limit", c.Tasks, "files limit", c.Files)
	return t.Print()
}

// parseView reads the words after --view: PATH[=TARGET][:RIGHTS], or none alone.
func parseView(words []string) ([]sigma.ViewEntry, error) {
	if len(words) == 0 {
		return nil, nil
	}
	view := []sigma.ViewEntry{}
	for _, w := range words {
		if w == "none" {
			continue
		}
		e := sigma.ViewEntry{Rights: sigma.RightsRead}
		rest := w
		if i := strings.LastIndexByte(w, ':'); i >= 0 && !strings.Contains(w[i:], "/") {
			r, err := sigma.ParseRights(w[i+1:])
			if err != nil {
				return nil, cli.WithCode(cli.ExitUsage, err)
			}
			e.Rights, rest = r, w[:i]
		}
		target := false
		if e.Path, e.Target, target = strings.Cut(rest, "="); !target {
			e.Target = e.Path
		}
		view = append(view, e)
	}
	return view, nil
}
