package procs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

func newExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain PROC...",
		Short: "Say why procs wait, waited or failed",
		Long: `Say of each proc what was decided about it and why, as the schedulers and initd noted when
they decided: whose turn it was, what each machine lacked, which limit or label stopped it;
when it was placed, and why it was not started or did not end well. It is kept for a day,
also of procs that have ended and over restarts, as far as a realm has room for it.
` + procArgument,
		Example: `  sudo sigma explain hello
  sudo sigma explain --json 3kq`,
		Args: cli.Between(1, -1),
		RunE: a.InRealm(a.explain),
	}
}

// explained is what there is to say of a proc, and an object of --json.
type explained struct {
	ID        string            `json:"id"`
	State     string            `json:"state,omitempty"`  // none if the proc is not remembered
	Reason    string            `json:"reason,omitempty"` // the main one, of the last decision
	Lines     []string          `json:"lines"`
	Decisions []decision.Record `json:"decisions"`
}

func (a *app) explain(ctx context.Context, c *sdk.Client, words []string) error {
	procs, err := c.List(ctx, true)
	if err != nil {
		return err
	}
	noted, err := decisions(ctx, c)
	if err != nil {
		return err
	}
	var list []explained
	for _, w := range words {
		e, err := explainOne(ctx, c, procs, noted, w)
		if err != nil {
			return err
		}
		list = append(list, e)
	}
	if a.JSON {
		return a.PrintJSON(list)
	}
	for _, e := range list {
		fmt.Fprintf(a.Out, "%s\n", term.Printable(e.ID))
		for _, l := range e.Lines {
			fmt.Fprintf(a.Out, "  %s\n", term.Printable(l))
		}
	}
	return nil
}

// decisions are all that the realm is told of, in order of time; last those that say what is
// missing.
func decisions(ctx context.Context, c *sdk.Client) (all []decision.Record, err error) {
	all, err = cli.Lines[decision.Record](ctx, c, "/sys/decisions")
	slices.SortStableFunc(all, func(a, b decision.Record) int {
		if a.At == b.At {
			return cmp.Compare(a.Seq, b.Seq)
		}
		return cmp.Or(cmp.Compare(a.Missing, b.Missing), a.Time.Compare(b.Time))
	})
	return all, err
}

// explainOne finds a proc by its id, the start of that or its name: of several with that name the
// latest, and of those that are not remembered any more among the decisions.
func explainOne(ctx context.Context, c *sdk.Client, procs []sigma.ProcInfo, noted []decision.Record,
	word string) (explained, error) {
	id, err := findProc(procs, word)
	for _, p := range procs {
		if err != nil && p.Name == word {
			id = p.ID
		}
	}
	for _, r := range noted {
		if err != nil && id == "" && word != "" && (r.Name == word || strings.HasPrefix(r.Proc, word)) {
			id = sigma.ProcID(r.Proc)
		}
	}
	if id == "" {
		return explained{}, err
	}
	e := explained{ID: string(id), Decisions: []decision.Record{}}
	for _, r := range noted {
		if r.Proc == e.ID {
			e.Decisions, e.Reason = append(e.Decisions, r), string(r.Reason)
		}
	}
	e.say(ctx, c, procs, noted)
	return e, nil
}

// say puts what is known into words.
func (e *explained) say(ctx context.Context, c *sdk.Client, procs []sigma.ProcInfo, noted []decision.Record) {
	var p *sigma.ProcInfo
	if i := slices.IndexFunc(procs, func(p sigma.ProcInfo) bool { return string(p.ID) == e.ID }); i >= 0 {
		p = &procs[i]
		e.State = p.State.String()
		near := nearOf(ctx, c, p.ID)
		e.sayProc(p, near)
		e.sayMember(ctx, c, p, near)
	} else {
		e.Lines = append(e.Lines, "the proc is not remembered any more; this was noted of it")
	}
	e.sayDecided(e.Decisions)
	if p != nil && len(e.Decisions) == 0 {
		e.sayOthers(p, noted)
	}
	for _, r := range noted {
		if r.Missing != "" {
			e.Lines = append(e.Lines, fmt.Sprintf("what machine %s noted is not known: %s", r.At, r.Missing))
		}
	}
	if p != nil && p.State == sigma.ProcEnded {
		e.Lines = append(e.Lines, "it ended: "+statusWords(p.Status))
	}
}

func statusWords(s sigma.Status) string {
	if s.Msg == "" {
		return s.Code.String()
	}
	return s.Code.String() + ": " + s.Msg
}

// noWait is what a proc may wait without it being said.
const noWait = 2 * time.Millisecond

// sayProc says what a proc asked for and how long it waited.
func (e *explained) sayProc(p *sigma.ProcInfo, near sigma.MachineID) {
	say := func(format string, args ...any) { e.Lines = append(e.Lines, fmt.Sprintf(format, args...)) }
	what := fmt.Sprintf("best-effort, %v of memory", p.Memory)
	if p.Class == sigma.LatencyCritical {
		what = fmt.Sprintf("latency-critical, reserves %g cores and %v of memory", float64(p.CPU)/1000, p.Memory)
	}
	say("%s of the realm %s: %s", p.Name, p.Realm, what)
	if _, _, member := fleet.ParseMemberName(p.Name); near != "" && !member {
		say("it should be near the data on machine %s, which is preferred for %v", near, sigma.NearWait)
	}
	t := p.Times
	switch waited := t.Placed.Sub(t.Spawned); {
	case p.State == sigma.ProcQueued:
		say("it has waited %v for a machine", time.Since(t.Spawned).Round(time.Millisecond))
	case t.Placed.IsZero():
		say("it was never placed on a machine")
	case waited <= noWait:
		say("it was placed on machine %s at once", p.Machine)
	default:
		say("it was placed on machine %s after %v", p.Machine, waited.Round(10*time.Microsecond))
	}
	if !t.Placed.IsZero() && !t.Executed.IsZero() {
		say("its program was found and started in %v", t.Executed.Sub(t.Placed).Round(10*time.Microsecond))
	}
}

// sayMember says why a member of a fleet should be where: its coordinator noted that then.
func (e *explained) sayMember(ctx context.Context, c *sdk.Client, p *sigma.ProcInfo, near sigma.MachineID) {
	name, _, member := fleet.ParseMemberName(p.Name)
	if near == "" || !member {
		return
	}
	why := "its fleet asks for it"
	ds, _ := cli.Lines[fleet.Decision](ctx, c, fleet.Dir(name)+"/decisions") // what cannot be read says nothing
	for _, d := range ds {
		if d.Reason == fleet.ReasonNear && d.Machine == near &&
			!d.Time.After(p.Times.Spawned.Add(clocksMax)) {
			why = d.Why
		}
	}
	e.Lines = append(e.Lines, fmt.Sprintf("it should be near machine %s, which is preferred for %v: %s", near,
		sigma.NearWait, why))
}

// clocksMax is by how much the clocks of two machines may differ without its being noticed here.
const clocksMax = time.Second

func (e *explained) sayDecided(rs []decision.Record) {
	for _, r := range rs {
		e.Lines = append(e.Lines, fmt.Sprintf("%s %s: %s: %s", r.Time.Local().Format("Jan _2 15:04:05.000"), r.By,
			r.Reason, r.Why))
		for _, m := range r.Machines {
			e.Lines = append(e.Lines, fmt.Sprintf("  machine %s %s", m.Name, m.Why))
		}
	}
}

// sayOthers says what was noted of others of its realm while a proc waited of which nothing was: of
// many that wait some are noted.
func (e *explained) sayOthers(p *sigma.ProcInfo, noted []decision.Record) {
	until := p.Times.Placed
	if p.State == sigma.ProcQueued {
		until = time.Now()
	}
	if until.Sub(p.Times.Spawned) <= noWait {
		return
	}
	var last []decision.Record
	for _, r := range noted {
		if r.By == "besched" && r.Realm == string(p.Realm) && !r.Time.After(until) &&
			r.Time.After(p.Times.Spawned.Add(-time.Minute)) {
			last = []decision.Record{r}
		}
	}
	if last != nil {
		e.Lines = append(e.Lines, "of itself nothing was noted, for many waited; of another of its realm:")
		e.sayDecided(last)
	}
}

// nearOf is the machine where a proc should be; none if it is all the same, or not known any more.
func nearOf(ctx context.Context, c *sdk.Client, id sigma.ProcID) sigma.MachineID {
	d, _ := cli.Value[report.Descriptor](ctx, c, sigma.JoinPath(sigma.NameProc, string(id), "descriptor"))
	return sigma.MachineID(d.Near)
}
