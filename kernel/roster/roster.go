// Package roster tells which machines there are: machined's answer of the last second, or what this
// machine knows itself. It has no lock. Users: kernel.
package roster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/machines"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
)

// rosterMax is how long machined may take; then what this machine knows itself is told.
const rosterMax = 2 * time.Second

// Roster is what knows machines. Safe for concurrent use.
type Roster struct {
	Machine sigma.MachineID
	Memo    *memo.Memo // so that tenants who look all the time cost machined one call a second
	Cluster *cluster.Cluster
	Reach   *reach.Reach
}

// Text is one line a machine: name, state, and key=value words.
func (x *Roster) Text(context.Context) ([]byte, error) {
	var b strings.Builder
	for _, m := range x.Infos() {
		b.WriteString(line(&m))
	}
	return []byte(b.String()), nil
}

// Infos are the machines, as machined said last, or what this machine knows itself. Nobody changes
// them.
func (x *Roster) Infos() []sigma.MachineInfo {
	if !x.Cluster.Registered() {
		return x.own()
	}
	infos, _ := memo.Recall(x.Memo, roles.Roster, func(ctx context.Context) ([]sigma.MachineInfo, error) {
		ctx, cancel := context.WithTimeout(ctx, rosterMax)
		defer cancel()
		infos, err := x.ask(ctx)
		if err != nil || len(infos) == 0 {
			infos = x.own()
		}
		return infos, nil
	})
	return infos
}

// own is what this machine knows itself.
func (x *Roster) own() (out []sigma.MachineInfo) {
	alive := x.Cluster.Alive()
	for _, m := range alive {
		out = append(out, sigma.MachineInfo{ID: m, State: sigma.MachineAlive})
	}
	if x.Cluster.Registered() {
		for _, m := range x.Cluster.Identity().Roster().Members() {
			if !slices.Contains(alive, m.Machine) {
				out = append(out, sigma.MachineInfo{ID: m.Machine})
			}
		}
	}
	return out
}

func (x *Roster) ask(ctx context.Context) ([]sigma.MachineInfo, error) {
	c, err := x.Reach.Dial(ctx, services.Machined)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	root, err := cluster.Callee(ctx, c, services.Machined)
	if err != nil {
		return nil, err
	}
	return machines.NewClient(root).List(ctx)
}

func line(m *sigma.MachineInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", m.ID, m.State)
	if m.CPU > 0 {
		fmt.Fprintf(&b, " cpu=%d memory=%d", m.CPU, uint64(m.Memory))
	}
	for _, w := range []struct {
		is   bool
		word string
	}{{m.Control, "control"}, {m.Cordoned, "cordoned"}, {m.Draining, "draining"}} {
		if w.is {
			b.WriteString(" " + w.word)
		}
	}
	for _, l := range slices.Sorted(maps.Keys(m.Labels)) {
		fmt.Fprintf(&b, " label.%s=%s", l, m.Labels[l])
	}
	return b.String() + "\n"
}

// Machines are all that are members, whether they are there or not, in order.
func (x *Roster) Machines() []sigma.MachineID {
	out := []sigma.MachineID{x.Machine}
	for _, m := range x.Infos() {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
