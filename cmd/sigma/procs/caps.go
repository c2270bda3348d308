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
	"sigmaos.dev/sigmap"
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

func (a *app) caps(ctx context.Context, c *sdk.Client, args []string) error {
	ids, err := findProcs(ctx, c, []string{args[0]})
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

func capsToJSON(c *sigmap.Caps) capsJSON {
	j := capsJSON{ID: c.ID, Realm: c.Realm, Machine: c.Machine, All: c.All, View: []viewEntryJSON{},
		SeenBy: append([]sigma.ProcID{}, c.Kin...), Endpoints: endpointTexts(c.Listens), Dials: endpointTexts(c.Read),
		Entered: c.Entered, Leases: append([]sigma.LeaseID{}, c.Leases...), Profile: c.Profile,
		Memory: uint64(c.Memory), Tasks: c.Tasks, Files: c.Files}
	for _, e := range c.View {
		j.View = append(j.View, viewEntryJSON{e.Path, e.Target, e.Rights.String()})
	}
	return j
}

func endpointTexts(es []sigma.Endpoint) []string {
	out := []string{}
	for _, e := range es {
		out = append(out, e.String())
	}
	return out
}

func (a *app) printCaps(c *sigmap.Caps) error {
	t := term.NewTable(a.Out)
	t.Row("id", string(c.ID))
	t.Row("realm", string(c.Realm))
	if c.Machine != "" {
		t.Row("machine", string(c.Machine))
	}
	switch {
	case c.All:
		t.Row("sees", "all of its realm")
	case len(c.View) == 0:
		t.Row("sees", "itself")
	}
	for _, e := range c.View {
		t.Row("sees", fmt.Sprintf("%s = %s %v", e.Path, e.Target, e.Rights))
	}
	for _, id := range c.Kin {
		t.Row("seen by", string(id))
	}
	for _, e := range c.Listens {
		t.Row("listens", e.String())
	}
	for _, e := range c.Read {
		t.Row("may dial", e.String())
	}
	if c.Entered > 0 {
		t.Row("trees entered", fmt.Sprint(c.Entered))
	}
	for _, l := range c.Leases {
		t.Row("lease", fmt.Sprint(uint64(l)))
	}
	t.Row("profile", string(c.Profile))
	t.Row("memory limit", c.Memory.String())
	t.Row("tasks limit", fmt.Sprint(c.Tasks))
	t.Row("files limit", fmt.Sprint(c.Files))
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
