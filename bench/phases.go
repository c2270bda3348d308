package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// phases are the names of the parts of a start.
func phases() (names []string) {
	for p := range sigma.PhaseCount {
		names = append(names, p.String())
	}
	return names
}

// timings fetches the traces of our procs, which have ended.
func (a *startArms) timings(ctx context.Context) (out []sigma.Timing, err error) {
	procs, err := a.s.List(ctx, true)
	if err != nil {
		return nil, err
	}
	mine := map[sigma.ProcID]bool{}
	for _, id := range a.ids {
		mine[id] = true
	}
	for _, p := range procs {
		if !mine[p.ID] || p.Timing.Total() == 0 {
			continue
		}
		out = append(out, p.Timing)
		for i, d := range p.Timing {
			a.r.sample(a.ours.name, "phase_"+sigma.Phase(i).String()+"_ms", float64(d)/1e6)
		}
	}
	return out, nil
}

// meaning says what happens in a phase, for people who have read of other systems' (001 Table 3).
func meaning(p sigma.Phase) string {
	return [...]string{"waiting for a turn and for room on a machine",
		"finding the program; pipes, socket, request to the launcher",
		"to a child that is ready: limits, Landlock rules, descriptors",
		"of the child to the one program; its turn on a processor",
		"execveat of the program's descriptor, and the launcher's seeing that", "word of it at sigmad",
		"until it calls Started, if it does", ""}[min(p, sigma.PhaseCount)]
}

// reportPhases prints the parts of a start, as lines, for people, and as the table of
// docs/internals/start-time.md beside the raw samples.
func (a *startArms) reportPhases(ctx context.Context) error {
	timings, err := a.timings(ctx)
	if err != nil {
		return err
	}
	if len(timings) == 0 {
		a.r.note("sigmad kept no traces of the starts")
		return nil
	}
	var total []float64
	for _, t := range timings {
		total = append(total, float64(t.Total())/float64(time.Millisecond))
	}
	var table strings.Builder
	row := func(name, meaning string, values []float64) {
		fmt.Fprintf(&table, "| %s | %s | %.3f | %.3f |\n", name, meaning, median(values), quantile(values, 0.99))
	}
	table.WriteString("| phase | what happens | p50 ms | p99 ms |\n|---|---|---|---|\n")
	for i := range sigma.PhaseCount {
		var values []float64
		for _, t := range timings {
			values = append(values, float64(t[i])/float64(time.Millisecond))
		}
		row(i.String(), meaning(i), values)
		if err := a.r.print(Line{Metric: "phase_" + i.String() + "_p50_ms", Unit: "ms", Ours: median(values),
			N: len(values)}); err != nil {
			return err
		}
	}
	row("all phases", "from Spawn at sigmad to Started", total)
	row("outside", "from the spawner's call to the first line of main", a.ours.all)
	row("floor", "posix_spawn of the same program, to the first line of main", a.peers[0].all)
	for line := range strings.Lines(table.String()) {
		a.r.note("%s", strings.TrimSpace(line))
	}
	if a.r.Results == "" {
		return nil
	}
	if err := os.MkdirAll(a.r.Results, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(a.r.Results, "start-phases.md"), []byte(table.String()), 0o644)
}
