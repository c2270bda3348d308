package kernel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/machines"
	"sigmaos.dev/sigma"
	"sigmaos.dev/treekit"
)

// nameRoster is /sys/roster: the machines there are, for everybody. Addresses and what else only operators need is not in it.
const nameRoster = "roster"

const (
	rosterFor = time.Second     // how long an answer of machined is good, so that tenants who look all the time cost it one call a second
	rosterMax = 2 * time.Second // how long machined may take; then what this machine knows itself is told
)

// rosterText remembers what machined said last.
type rosterText struct {
	mu   sync.Mutex // held while machined is asked: those who come meanwhile want the same
	text []byte     // mu
	at   time.Time  // mu
}

func (r *root) rosterFile() sigma.File {
	return &treekit.Blob{ID: sigma.FileID{Kind: sigma.KindDevice, Path: idOf("/sys/" + nameRoster)}, Name: nameRoster, Perm: 0o444, Content: r.tree.k.rosterText}
}

// rosterText is one line a machine: name, state, and key=value words.
func (k *Kernel) rosterText(context.Context) ([]byte, error) {
	t := &k.roster
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.at) < rosterFor && t.text != nil {
		return t.text, nil
	}
	ctx, cancel := context.WithTimeout(k.ctx, rosterMax) // not of who asks: one who gives up would have the others told less
	defer cancel()
	var b strings.Builder
	infos, err := []sigma.MachineInfo(nil), error(nil)
	if k.registered() {
		infos, err = k.askMachines(ctx)
	}
	if err == nil && len(infos) > 0 {
		for i := range infos {
			b.WriteString(rosterLine(&infos[i]))
		}
		t.text, t.at = []byte(b.String()), time.Now()
		return t.text, nil
	}
	alive := k.alive()
	for _, m := range alive {
		b.WriteString(rosterLine(&sigma.MachineInfo{ID: m, State: sigma.MachineAlive}))
	}
	if k.registered() {
		for _, m := range k.id.Roster().Members() {
			if !slices.Contains(alive, m.Machine) {
				b.WriteString(rosterLine(&sigma.MachineInfo{ID: m.Machine}))
			}
		}
	}
	text := []byte(b.String())
	if k.registered() { // for as long, or each of those who wait would have machined asked in vain
		t.text, t.at = text, time.Now()
	}
	return text, nil
}

func (k *Kernel) askMachines(ctx context.Context) ([]sigma.MachineInfo, error) {
	c, err := k.dial(ctx, serviceMachined)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	root, err := c.Attach(ctx, "")
	if err != nil {
		return nil, err
	}
	caller, ok := root.(sigma.Caller)
	if !ok {
		return nil, sigma.Errorf("kernel.roster", sigma.KindUnsupported, "machined answers no calls")
	}
	return machines.NewClient(caller).List(ctx)
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
