// Package topo is the command that shows how far machines are from one another, and who talks with
// whom.
package topo

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/files"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/lib/fleet/traffic"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// matrixMax machines are shown as a matrix; of more each pair has a line.
const matrixMax = 10

// lookLeast is the least time between the two reads that make a rate: answers are a second old.
const lookLeast = 1100 * time.Millisecond

// app gives the command what all commands share.
type app struct{ *cli.App }

// Command is sigma topo.
func Command(base *cli.App) *cobra.Command {
	a := &app{base}
	over := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "topo [--over DURATION]",
		Short: "Show how far machines are, and who talks with whom",
		Long: `Show the round-trip times between machines, as TCP measures them on the links that they have,
and which procs of the realm exchange how many bytes a second, the fastest first; both looked at
for --over. Bytes between machines are the kernel's account, those on one machine what the procs
counted themselves. Of connections that begin and end within that time nothing is known.`,
		Example: "  sudo sigma topo\n  sudo sigma topo --over 10s --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if over < lookLeast || over > time.Hour {
				return cli.UsageError(cmd, "", "--over is %v to 1h", lookLeast)
			}
			return a.topo(cmd.Context(), over)
		},
	}
	cmd.Flags().DurationVar(&over, "over", over, "how long to look")
	return cmd
}

// Talk is a pair of procs, and an object of --json.
type Talk struct {
	traffic.Rate
	FromName string `json:"from_name,omitempty"`
	ToName   string `json:"to_name,omitempty"`
}

// shown is what is printed, and the object of --json.
type shown struct {
	Distances []report.Distance `json:"distances"`
	Talks     []Talk            `json:"talks"`
	Missing   []traffic.Missing `json:"missing,omitempty"` // machines that did not answer
}

func (a *app) topo(ctx context.Context, over time.Duration) error {
	c, err := a.Client(ctx)
	if err != nil {
		return err
	}
	var meter traffic.Meter
	s := shown{Distances: []report.Distance{}, Talks: []Talk{}}
	if _, err := look(ctx, c, &meter); err != nil {
		return err
	}
	if err := datadir.Pause(ctx, over); err != nil {
		return err
	}
	if s.Missing, err = look(ctx, c, &meter); err != nil {
		return err
	}
	distances, _, err := cli.KnownLines[report.Distance](ctx, c, "/sys/distances")
	if err != nil {
		return err
	}
	s.Distances = append(s.Distances, distances...) // [] if there are none
	names, err := namesOf(ctx, c)
	if err != nil {
		return err
	}
	for _, r := range meter.Rates() {
		s.Talks = append(s.Talks, Talk{r, names[r.From], names[r.To]})
	}
	if a.JSON {
		return a.PrintJSON(s)
	}
	return a.show(&s)
}

// look reads the realm's traffic once.
func look(ctx context.Context, c *sdk.Client, meter *traffic.Meter) ([]traffic.Missing, error) {
	var text bytes.Buffer
	if err := files.OfRealm(c).Content(ctx, traffic.File, &text); err != nil {
		return nil, err
	}
	pairs, missing, err := traffic.Parse(text.Bytes())
	meter.Add(pairs)
	return missing, err
}

func namesOf(ctx context.Context, c *sdk.Client) (map[sigma.ProcID]string, error) {
	procs, err := c.List(ctx, true)
	names := make(map[sigma.ProcID]string, len(procs))
	for _, p := range procs {
		names[p.ID] = p.Name
	}
	return names, err
}

func (a *app) show(s *shown) error {
	if err := a.showDistances(s.Distances); err != nil {
		return err
	}
	for _, m := range s.Missing {
		a.Remark("sigma: machine %s tells nothing: %s", string(m.Machine), m.Why)
	}
	fmt.Fprintln(a.Out)
	t := a.Table("FROM", "NAME", "TO", "NAME", "SENT", "RECEIVED", "CONNECTIONS")
	for _, x := range s.Talks {
		t.Row(who(x.From, x.FromOn), cli.OrElse(x.FromName, "-"), who(x.To, x.On), cli.OrElse(x.ToName, "-"),
			perSecond(x.Sent), perSecond(x.Received), x.Connections)
	}
	return t.Print()
}

func who(id sigma.ProcID, on sigma.MachineID) string {
	return cmp.Or(string(id), "outside") + "@" + string(on)
}

func perSecond(rate float64) string {
	switch {
	case rate >= 1e6:
		return fmt.Sprintf("%.1f MB/s", rate/1e6)
	case rate >= 1e3:
		return fmt.Sprintf("%.1f kB/s", rate/1e3)
	}
	return fmt.Sprintf("%.0f B/s", rate)
}

// showDistances prints a matrix, the machine that measured before those that it measured.
func (a *app) showDistances(ds []report.Distance) error {
	is, of := map[string]bool{}, map[[2]string]string{}
	for _, d := range ds {
		is[d.Machine], is[d.To] = true, true
		of[[2]string{d.Machine, d.To}] = rtt(d.RoundTrip)
	}
	machines := slices.Sorted(maps.Keys(is))
	if len(machines) == 0 {
		fmt.Fprintln(a.Out, "there is one machine")
		return nil
	}
	if len(machines) > matrixMax {
		t := a.Table("MACHINE", "TO", "ROUND TRIP")
		for _, d := range ds {
			t.Row(d.Machine, d.To, rtt(d.RoundTrip))
		}
		return t.Print()
	}
	t := a.Table(append([]string{"ROUND TRIP"}, machines...)...)
	for _, m := range machines {
		row := []any{m}
		for _, to := range machines {
			row = append(row, cmp.Or(of[[2]string{m, to}], "-"))
		}
		t.Row(row...)
	}
	return t.Print()
}

func rtt(seconds *float64) string {
	if seconds == nil {
		return "?"
	}
	return time.Duration(*seconds * float64(time.Second)).Round(time.Microsecond).String()
}
