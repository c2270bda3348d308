package health

import (
	"fmt"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
)

// printMembership says in two lines or three how this machine stands with its system.
func (a *app) printMembership(m machines.Membership) {
	if m.System == "" {
		fmt.Fprintf(a.Out, "it is not registered with a system yet\n\n")
		return
	}
	fmt.Fprintf(a.Out, "system %s: %d of %s alive, %s\n", m.System, m.Alive, cli.Count(int(m.Machines), "machine"),
		quorumWords(m))
	for _, e := range m.Expiries {
		warning := ""
		if e.Warn {
			warning = " (it should have been renewed: sigma doctor)"
		}
		fmt.Fprintf(a.Out, "%s good for %s%s\n", e.What, left(e.At), warning)
	}
	fmt.Fprintln(a.Out)
}

func quorumWords(m machines.Membership) string {
	words := fmt.Sprintf("%d of %s", m.Voting, cli.Count(int(m.Controls), "control machine"))
	if m.Silent > 0 {
		words += fmt.Sprintf(", %d silent", m.Silent)
	}
	if !m.Quorum() {
		words += ": no quorum"
	}
	return words
}

// left is the time until at.
func left(at time.Time) string {
	if d := time.Until(at); d > 0 {
		return term.Short(d)
	}
	return "no time, since " + at.UTC().Format(time.RFC3339)
}

// memberWords judges a membership.
func memberWords(m machines.Membership, self sigma.MachineID) (out []finding) {
	if m.System == "" {
		return []finding{weak("membership", "machine "+string(self)+" is not registered with a system",
			"it tries by itself; why it does not succeed is in the log")}
	}
	found := fmt.Sprintf("machine %s of system %s, life %d, %d of %s alive", self, m.System, m.Incarnation, m.Alive,
		cli.Count(int(m.Machines), "machine"))
	if m.Alive < m.Machines {
		out = append(out, finding{"membership", findingDown, found,
			"sigma machine ls shows which are lost; those that do not come back: sigma machine rm"})
	} else {
		out = append(out, ok("membership", found))
	}
	switch {
	case !m.Quorum():
		out = append(out, finding{"quorum", findingDown, quorumWords(m),
			"nothing that needs the control plane works until more control machines are back; procs go on"})
	case m.Voting < m.Controls:
		out = append(out, weak("quorum", quorumWords(m),
			"bring the lost ones back, or replace them: sigma machine control"))
	case m.Controls%2 == 0:
		out = append(out, weak("quorum", quorumWords(m),
			"an even number bears no loss more than one less: make it 1, 3 or 5 with sigma machine control"))
	default:
		out = append(out, ok("quorum", quorumWords(m)))
	}
	for _, e := range m.Expiries {
		found := "good until " + e.At.UTC().Format(time.RFC3339)
		switch {
		case !e.Warn:
			out = append(out, ok(e.What, found))
		case e.What == "certificate":
			out = append(out, weak(e.What, found,
				"it should have been renewed before: does a control machine answer (sigma machine ls), and is this "+
					"machine's clock right? Without a certificate the machine leaves the system until it can "+
					"register again"))
		default:
			out = append(out, weak(e.What, found, "when it ends no machine is certified any more: plan a new system"))
		}
	}
	return out
}
