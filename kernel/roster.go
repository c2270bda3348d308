package kernel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// nameRoster is /sys/roster: the machines there are, for everybody. Addresses and what else only
// operators need is not in it.

// rosterMax is how long machined may take; then what this machine knows itself is told. Its answer
// is good for memoFor, so that tenants who look all the time cost it one call a second.
const rosterMax = 2 * time.Second

func (r sys) rosterFile() sigma.File {
	return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: viewfs.PathID("/sys/" + roles.Roster)},
		Name: roles.Roster, Perm: 0o444, Content: r.tree.k.rosterText}
}

// rosterText is one line a machine: name, state, and key=value words.
func (k *Kernel) rosterText(context.Context) ([]byte, error) {
	var b strings.Builder
	for _, m := range k.rosterInfos() {
		b.WriteString(rosterLine(&m))
	}
	return []byte(b.String()), nil
}

// rosterInfos is what machined said last, or what this machine knows itself. Nobody changes it.
func (k *Kernel) rosterInfos() []sigma.MachineInfo {
	if !k.cluster.Registered() {
		return k.ownRoster()
	}
	infos, _ := memo.Recall(k.memo, roles.Roster, func() ([]sigma.MachineInfo, error) {
		ctx, cancel := context.WithTimeout(k.life.ctx,
			rosterMax) // not of who asks: one who gives up would have the others told less
		defer cancel()
		infos, err := k.askMachines(ctx)
		if err != nil || len(infos) == 0 {
			infos = k.ownRoster()
		}
		return infos, nil
	})
	return infos
}

// ownRoster is what this machine knows itself.
func (k *Kernel) ownRoster() (out []sigma.MachineInfo) {
	alive := k.cluster.Alive()
	for _, m := range alive {
		out = append(out, sigma.MachineInfo{ID: m, State: sigma.MachineAlive})
	}
	if k.cluster.Registered() {
		for _, m := range k.cluster.Identity().Roster().Members() {
			if !slices.Contains(alive, m.Machine) {
				out = append(out, sigma.MachineInfo{ID: m.Machine})
			}
		}
	}
	return out
}

func (k *Kernel) askMachines(ctx context.Context) ([]sigma.MachineInfo, error) {
	c, err := k.reach.Dial(ctx, services.Machined)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	root, err := reach.Callee(ctx, c, services.Machined)
	if err != nil {
		return nil, err
	}
	return machines.NewClient(root).List(ctx)
}

func rosterLine(m *sigma.MachineInfo) string {
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

// usageMachines are all that are members, whether they are there or not, in order.
func (k *Kernel) usageMachines() []sigma.MachineID {
	out := []sigma.MachineID{k.cfg.Machine}
	for _, m := range k.rosterInfos() {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
