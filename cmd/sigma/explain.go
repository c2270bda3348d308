package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

func newExplainCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "explain PROC...",
		Short: "Say why procs wait, or where they waited and run",
		Long: `Say of each proc where it waited, for how long and for what, which machines were
considered and what rules each out, by which share its realm takes turns, and where it was
placed; also of procs that have ended, while they are remembered. ` + procArgument,
		Example: `  sudo sigma explain hello
  sudo sigma explain --json 3kq`,
		Args: between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.explain(cmd.Context(), args) },
	}
}

// explained is what there is to say of a proc, and an object of --json.
type explained struct {
	ID    string   `json:"id"`
	State string   `json:"state"`
	Lines []string `json:"lines"`
}

func (a *app) explain(ctx context.Context, words []string) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	procs, err := c.List(ctx, true)
	if err != nil {
		return err
	}
	now := situationOf(ctx, c)
	var list []explained
	for _, w := range words {
		id, err := findProc(procs, w)
		if err != nil {
			return err
		}
		p := procs[slices.IndexFunc(procs, func(p sigma.ProcInfo) bool { return p.ID == id })]
		list = append(list, explained{string(p.ID), p.State.String(), now.explain(&p, nearOf(ctx, c, id))})
	}
	if a.json {
		return a.printJSON(list)
	}
	for _, e := range list {
		fmt.Fprintf(a.out, "%s\n", e.ID)
		for _, l := range e.Lines {
			fmt.Fprintf(a.out, "  %s\n", printable(l))
		}
	}
	return nil
}

// nearOf is the machine where a proc should be; none if it is all the same, or not known any more.
func nearOf(ctx context.Context, c *sdk.Client, id sigma.ProcID) sigma.MachineID {
	var d state.Descriptor
	readLines(ctx, c, sigma.JoinPath(sigma.NameProc, string(id), "descriptor"), func(b []byte) error { return json.Unmarshal(b, &d) })
	return sigma.MachineID(d.Near)
}

// situation is what the schedulers and machines say now.
type situation struct {
	at       time.Time
	queues   []state.Queue
	noQueues error // why they are not known
	machines []state.MachineSeen
	here     state.MachineUse       // of the machine that was asked; none if it does not say
	most     map[string]state.Limit // of memory at each machine, by realms that have one; used is at the machine that was asked
}

func situationOf(ctx context.Context, c *sdk.Client) situation {
	s := situation{at: time.Now()}
	s.noQueues = readLines(ctx, c, "/sys/queues", func(b []byte) error { return appendLine(&s.queues, b) })
	readLines(ctx, c, "/sys/machines", func(b []byte) error { return appendLine(&s.machines, b) })
	readLines(ctx, c, "/sys/utilisation", func(b []byte) error {
		if s.here.Machine != "" {
			return nil
		}
		return json.Unmarshal(b, &s.here)
	})
	s.most = map[string]state.Limit{}
	readLines(ctx, c, "/sys/limits", func(b []byte) error {
		var l state.Limit
		err := json.Unmarshal(b, &l)
		if err == nil && l.Limit == "max_memory_bytes" {
			s.most[l.Realm] = l
		}
		return err
	})
	return s
}

func appendLine[T any](list *[]T, b []byte) error {
	var v T
	err := json.Unmarshal(b, &v)
	if err == nil {
		*list = append(*list, v)
	}
	return err
}

// readLines reads a file of one JSON object a line.
func readLines(ctx context.Context, c *sdk.Client, path string, each func([]byte) error) error {
	b, _, err := c.Get(ctx, path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		if err := each([]byte(line)); err != nil {
			return err
		}
	}
	return nil
}

// noWait is what a proc may wait without it being said.
const noWait = time.Millisecond

// explain says what there is to say of a proc that should be near a machine, or none.
func (s *situation) explain(p *sigma.ProcInfo, near sigma.MachineID) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	what := fmt.Sprintf("best-effort, %v of memory", p.Memory)
	if p.Class == sigma.LatencyCritical {
		what = fmt.Sprintf("latency-critical, reserves %g cores and %v of memory", float64(p.CPU)/1000, p.Memory)
	}
	say("%s of the realm %s: %s", p.Name, p.Realm, what)
	t := p.Times
	switch {
	case near == "":
	case t.Placed.IsZero():
		say("it should be near the data on machine %s, which is preferred for %v", near, sigma.NearWait)
	case near == p.Machine:
		say("it is near its data: on machine %s, as it should be", near)
	default:
		say("it should be near the data on machine %s, which had no room for it within %v, or was away", near, sigma.NearWait)
	}
	switch waited := t.Placed.Sub(t.Spawned); {
	case p.State == sigma.ProcQueued:
		say("it has waited %v for a machine", s.at.Sub(t.Spawned).Round(time.Millisecond))
		s.waits(p, say)
	case t.Placed.IsZero():
		say("it was never placed on a machine")
	case waited <= noWait:
		say("it was placed on machine %s at once: there was room, and nobody waited", p.Machine)
	default:
		say("it waited %v until it was its turn and machine %s had room", waited.Round(10*time.Microsecond), p.Machine)
	}
	if !t.Placed.IsZero() && !t.Executed.IsZero() {
		say("its program was found and started in %v", t.Executed.Sub(t.Placed).Round(10*time.Microsecond))
	}
	if p.State == sigma.ProcEnded {
		status := p.Status.Code.String()
		if p.Status.Msg != "" {
			status += ": " + p.Status.Msg
		}
		say("it ended: %s", status)
	}
	return out
}

// waits says what one waits for that is queued now.
func (s *situation) waits(p *sigma.ProcInfo, say func(string, ...any)) {
	if p.Class == sigma.LatencyCritical {
		if i := slices.IndexFunc(s.queues, func(q state.Queue) bool { return q.Proc == string(p.ID) }); i >= 0 {
			say("lcsched: %s", s.queues[i].Why)
		} else if s.noQueues != nil {
			say("what lcsched thinks is not known: %v", s.noQueues)
		} else {
			say("no lcsched that leads knows it: one is being elected, or the names are away; or it was just granted")
		}
	} else {
		var all uint32
		var own state.Queue
		for _, q := range s.queues {
			if q.Class == "" {
				all += max(1, q.Shares)
				if q.Realm == string(p.Realm) {
					own = q
				}
			}
		}
		switch {
		case s.noQueues != nil:
			say("what besched thinks is not known: %v", s.noQueues)
		case own.Waiting > 0:
			say("%d procs of its realm wait, which ask for %v", own.Waiting, sigma.Bytes(own.Memory))
			say("its realm has %d of the %d shares of those that wait, and takes turns by them", max(1, own.Shares), all)
		}
	}
	for _, m := range s.machines {
		say("machine %s: %s", m.Name, s.rules(p, &m))
	}
}

// rules says what rules a machine out.
func (s *situation) rules(p *sigma.ProcInfo, m *state.MachineSeen) string {
	switch {
	case m.State == sigma.MachineLost.String():
		return "is lost"
	case m.Cordoned || m.Draining:
		return "takes nothing new, says its operator"
	case sigma.Bytes(m.Memory) < p.Memory:
		return fmt.Sprintf("is too small: it has %v of memory", sigma.Bytes(m.Memory))
	case float64(p.CPU) > 1000*m.CPU:
		return fmt.Sprintf("is too small: it has %g cores", m.CPU)
	case s.most[string(p.Realm)].Max > 0:
		return s.keptBack(p, m)
	case s.here.Machine == m.Name && sigma.Bytes(s.here.Free) < p.Memory:
		return fmt.Sprintf("is full: %v of %v are free for procs, %d run", sigma.Bytes(s.here.Free), sigma.Bytes(s.here.Capacity), s.here.Running)
	case s.here.Machine == m.Name:
		return fmt.Sprintf("has %v free for procs", sigma.Bytes(s.here.Free))
	}
	return "is large enough; what is free there is known to itself and its scheduler"
}

// keptBack says what rules a machine out for a proc whose realm may have only so much of each machine's memory.
func (s *situation) keptBack(p *sigma.ProcInfo, m *state.MachineSeen) string {
	l := s.most[string(p.Realm)]
	most := sigma.Bytes(l.Max)
	switch {
	case most < p.Memory:
		return fmt.Sprintf("is not for it: its realm may have %v of memory at each machine", most)
	case s.here.Machine != m.Name || l.Used == nil:
		return fmt.Sprintf("is large enough, but keeps it back while its realm has more than %v there, of the %v that it may have at each machine; what it has is known to the machine", most-p.Memory, most)
	case sigma.Bytes(*l.Used) > most-p.Memory:
		return fmt.Sprintf("keeps it back: its realm may have %v of memory at each machine, and has %v there; it goes on when others of its realm have ended", most, sigma.Bytes(*l.Used))
	}
	free := fmt.Sprintf("has %v free for procs, and its realm has %v there of the %v that it may have", sigma.Bytes(s.here.Free), sigma.Bytes(*l.Used), most)
	if sigma.Bytes(s.here.Free) < p.Memory {
		return "is full: it " + free
	}
	return free
}
