package history

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sched/decision"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// /sys/decisions: why procs waited, were placed and failed, as whoever decided noted then. Each
// machine keeps what was noted there: by its schedd, and by the besched and lcsched that run there.

// peerDecisions asks for the lines of decisions after a number.
var peerDecisions = sigmap.Method[decisionsAsk, lines]{Name: "decisions", Request: codeDecisionsAsk, Reply: codeLines}

type decisionsAsk struct {
	of  sigma.RealmID // "" = of all
	seq uint64
}

func codeDecisionsAsk(c *sigmap.Coder, a *decisionsAsk) {
	c.RealmID(&a.of)
	c.U64(&a.seq)
}

// lines are some of what a machine keeps.
type lines struct {
	text []byte
	last uint64 // number of the last
	more bool
}

func codeLines(c *sigmap.Coder, l *lines) {
	c.Data(&l.text)
	c.U64(&l.last)
	c.Bool(&l.more)
}

// decisionsPage bounds the bytes of lines that are told at a time, but for the last line.
const decisionsPage = 40 << 10

// openDecisions reads what was noted before this sigmad.
func (x *History) openDecisions() *decision.Log {
	l, err := decision.Open(filepath.Join(x.cfg.Data, "decisions"), x.cfg.Machine, x.completeDecision)
	if err != nil {
		x.cfg.Log.Warn("why procs waited is not known any more, or not kept", "err", err)
	}
	return l
}

// completeDecision adds what whoever decided does not know: the proc's name, and that a machine
// offers nothing because its operator closed it.
func (x *History) completeDecision(r *decision.Record) {
	if r.Name == "" {
		if p, ok := x.cfg.Procs.Find(sigma.ProcID(r.Proc)); ok {
			r.Name = p.Name
		}
	}
	if r.Reason != decision.Memory || len(r.Machines) == 0 {
		return
	}
	closed := 0
	for i := range r.Machines {
		if x.isClosed(sigma.MachineID(r.Machines[i].Name)) {
			r.Machines[i].Why = "takes nothing new, says its operator"
			closed++
		}
	}
	if closed == len(r.Machines) {
		r.Reason, r.Why = decision.Cordoned, "all machines take nothing new, say their operators"
	}
}

// isClosed reports whether the operator has closed a machine for new procs.
func (x *History) isClosed(id sigma.MachineID) bool {
	if !x.cfg.Cluster.Registered() {
		return false
	}
	m, _ := x.cfg.Cluster.Identity().Roster().Member(id)
	return m.Cordoned || m.Draining
}

// waitSaid is from when on it is noted that a proc has waited.
const waitSaid = 2 * time.Millisecond

// noteFate notes that a proc which waited has a machine, or that one ended otherwise than well.
// procs.Table.mu is held.
func (x *History) noteFate(p *sigma.ProcInfo) {
	waited := p.Times.Placed.Sub(p.Times.Spawned)
	switch {
	case p.State == sigma.ProcEnded && p.Status.Code != sigma.StatusOK:
		why := fmt.Sprintf("%v: %s", p.Status.Code, p.Status.Msg)
		if p.Times.Started.IsZero() {
			why = "it was not started: " + why
		}
		x.noteProc("schedd", p, decision.Failed, why)
	case p.State != sigma.ProcEnded && waited > waitSaid:
		x.noteProc("schedd", p, decision.Placed, fmt.Sprintf("it was placed on machine %s after %v", p.Machine,
			waited.Round(10*time.Microsecond)))
	}
}

func (x *History) noteProc(by string, p *sigma.ProcInfo, reason decision.Reason, why string) {
	r := decision.New(by, p.Realm, p.ID, reason, why)
	r.Name = p.Name
	x.Decisions.Note(r)
}

// NoteUnscheduled notes that nobody is there to place a proc. procs.Table.mu is held.
func (x *History) NoteUnscheduled(p *schedd.Proc) {
	why := "no besched answers; it is sent to the first that does"
	if p.Class == sigma.LatencyCritical {
		why = "no lcsched leads: one is being elected, or the control machines have no quorum"
	}
	x.noteProc("schedd", &p.ProcInfo, decision.Scheduler, why)
}

// decisionsAt is how far a reader has come: all of the machines before one, and of that what is not
// after a number.
type decisionsAt struct {
	machine sigma.MachineID
	seq     uint64
	begun   bool // with this machine, which has more
}

// DecisionsFile is /sys/decisions of a realm; "" = of all.
func (x *History) DecisionsFile(of sigma.RealmID) *computed.Lines[decisionsAt] {
	return computed.LinesFile("/sys/"+sigmap.FileDecisions, sigmap.FileDecisions, 0o444,
		func(ctx context.Context, at decisionsAt) ([]byte, decisionsAt, bool, error) {
			machines := x.cfg.Machines()
			i, found := slices.BinarySearch(machines, at.machine)
			if found && !at.begun {
				i++
			}
			if i == len(machines) {
				return nil, at, false, nil
			}
			if machines[i] != at.machine {
				at = decisionsAt{machine: machines[i]}
			}
			text, last, more, err := x.decisionsOf(ctx, at.machine, of, at.seq)
			if err != nil {
				if ctx.Err() != nil {
					return nil, at, false, err
				}
				text, err = report.Line(decision.Record{At: string(at.machine), Missing: err.Error()})
			}
			at.seq, at.begun = last, more
			return text, at, more || i+1 < len(machines), err
		})
}

// Note keeps what a scheduler of this machine decided.
func (x *History) Note(_ context.Context, rs []decision.Record) error {
	for _, one := range rs {
		x.Decisions.Note(one)
	}
	return nil
}

// decisionsOf are those that a machine keeps.
func (x *History) decisionsOf(ctx context.Context, m sigma.MachineID, of sigma.RealmID, seq uint64) (text []byte,
	last uint64, more bool, err error) {
	if m == x.cfg.Machine {
		text, last, more = x.Decisions.After(of, seq, decisionsPage)
		return text, last, more, nil
	}
	if !slices.Contains(x.cfg.Cluster.Others(), m) {
		return nil, 0, false, sigma.Errorf("kernel.decisions", sigma.KindUnavailable, "the machine is away")
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	l, err := peerDecisions.Ask(ctx, x.cfg.Reach.At(m), decisionsAsk{of, seq})
	if err == nil && l.more && l.last <= seq {
		err = sigma.Errorf("kernel.decisions", sigma.KindInvalid, "the machine tells the same again and again")
	}
	return slices.Clone(l.text), l.last, l.more && err == nil, err
}

// decisionsHere answers peerDecisions.
func (x *History) decisionsHere(_ context.Context, a decisionsAsk) (l lines, err error) {
	l.text, l.last, l.more = x.Decisions.After(a.of, a.seq, decisionsPage)
	return l, nil
}
