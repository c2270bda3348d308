package kernel

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// /sys/usage and /sys/usage-procs: what realms, and procs, have used of all machines. Each machine counts for itself and what it says has its name, so nothing is counted twice; one that does not answer has a line that says so.

// usagePage bounds the bytes of lines that a machine tells at a time, but for the last line.
const usagePage = 40 << 10

// usageCursor is how far a reader has come.
type usageCursor struct {
	machine sigma.MachineID // the last that was asked; "" = none
	after   string          // the last key it told; "" = it has told all
}

// page gives some lines of what is counted after a key, of a realm or of all ("").
func (l *ledger) page(what string, self sigma.MachineID, realm sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
	type entry struct {
		key  string
		line any
	}
	var all []entry
	add := func(of sigma.RealmID, at int64, id sigma.ProcID, line any) {
		if key := fmt.Sprintf("%s\x00%020d\x00%s", of, at, id); key > after {
			all = append(all, entry{key, line})
		}
	}
	var hours []state.RealmUsage
	var procs []*ledgerProc
	l.mu.Lock() // for no longer than it takes to copy
	if what == nameUsage {
		hours = l.hoursLocked(realm)
	} else {
		for of, ps := range l.ended {
			if realm == "" || of == realm {
				procs = append(procs, ps...)
			}
		}
		for _, p := range l.running {
			if realm == "" || p.Realm == realm {
				now := *p
				procs = append(procs, &now)
			}
		}
	}
	l.mu.Unlock()
	for _, h := range hours {
		h.Machine = string(self)
		add(sigma.RealmID(h.Realm), h.From.Unix()/3600, "", h)
	}
	for _, p := range procs {
		add(p.Realm, p.Began.UnixNano(), p.ID, p)
	}
	slices.SortFunc(all, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	for i := range all {
		if len(text) >= usagePage {
			return text, last, true, nil
		}
		if p, is := all[i].line.(*ledgerProc); is {
			all[i].line = p.spent(self)
		}
		line, err := state.Line(all[i].line)
		if err != nil {
			return nil, "", false, err
		}
		text, last = append(text, line...), all[i].key
	}
	return text, last, false, nil
}

// spent is what is told of a proc.
func (p *ledgerProc) spent(machine sigma.MachineID) state.ProcSpent {
	s := state.ProcSpent{Machine: string(machine), Realm: string(p.Realm), Proc: string(p.ID), Name: p.Name, Began: p.Began.UTC(), CPU: p.CPU.Seconds(), Memory: p.Held, Egress: p.Egress}
	if p.Ended {
		at := p.Until.UTC()
		s.Ended = &at
	}
	return s
}

// peerLedger answers another machine's sigmad.
func (k *Kernel) peerLedger(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var what, realm, after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&what); c.Str(&realm); c.Str(&after) }); err != nil {
		return nil, err
	}
	text, last, more, err := k.ledger.page(what, k.cfg.Machine, sigma.RealmID(realm), after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// usageFile makes /sys/usage and /sys/usage-procs. A tenant is told of its own realm, the provider of all.
func (r *root) usageFile(what string) sigma.File {
	k, of := r.tree.k, r.realm
	if r.tree.principal.System {
		of = ""
	}
	return linesFile("/sys/"+what, what, 0o444, func(ctx context.Context, at usageCursor) (text []byte, next usageCursor, more bool, err error) {
		machines := k.usageMachines()
		i, found := slices.BinarySearch(machines, at.machine)
		if found && at.after == "" { // it has told all
			i++
		} else if !found {
			at.after = ""
		}
		if i >= len(machines) {
			return nil, at, false, nil
		}
		m := machines[i]
		var left bool
		if text, at.after, left, err = k.usageOfMachine(ctx, m, what, of, at.after); err != nil {
			if ctx.Err() != nil {
				return nil, at, false, err
			}
			text, err = state.Line(state.UsageMissing{Machine: string(m), Missing: err.Error()})
			left = false
		}
		if !left {
			at.after = ""
		}
		at.machine = m
		return text, at, left || i+1 < len(machines), err
	})
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

func (k *Kernel) usageOfMachine(ctx context.Context, m sigma.MachineID, what string, of sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
	if m == k.cfg.Machine {
		return k.ledger.page(what, m, of, after)
	}
	if !slices.Contains(k.others(), m) {
		return nil, "", false, sigma.Errorf("kernel.usage", sigma.KindUnavailable, "the machine is away")
	}
	ctx, cancel := context.WithTimeout(ctx, findMax)
	defer cancel()
	realm := string(of)
	err = k.ask(ctx, m, peerLedger, func(c *sigmap.Coder) { c.Str(&what); c.Str(&realm); c.Str(&after) }, func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
	if err == nil && more && last <= after {
		err = sigma.Errorf("kernel.usage", sigma.KindInvalid, "the machine tells the same again and again")
	}
	return slices.Clone(text), last, more, err
}
