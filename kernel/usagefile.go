package kernel

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// /sys/usage and /sys/usage-procs: what realms, and procs, have used of all machines. Each machine counts for itself and what it says has its name, so nothing is counted twice; of one that does not answer there is what it had told (copies.go), or a line that says so.

// usagePage bounds the bytes of lines that a machine tells at a time, but for the last line.
const usagePage = 40 << 10

// usageCursor is how far a reader has come.
type usageCursor struct {
	machine sigma.MachineID // the last that was asked; "" = none
	copy    uint64          // the number of the ledger, if it is only known by a copy
	ledger  uint64          // that the machine itself was asked of, as far as that is known
	from    copyInfo        // the copy that tells; ID 0 = the machine itself
	after   string          // the last key it told; "" = it has told all
}

// page gives some lines of what is counted after a key, of a realm or of all ("").
func (l *ledger) page(what string, self sigma.MachineID, realm sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
	p := pager{after: after}
	var hours []state.RealmUsage
	var procs []*ledgerProc
	l.mu.Lock() // for no longer than it takes to copy
	if realm != "" && l.unsure {
		l.mu.Unlock()
		return nil, "", false, notHeard()
	}
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
		p.add(sigma.RealmID(h.Realm), h.From.Unix()/3600, "", h)
	}
	for _, one := range procs {
		p.add(one.Realm, one.Began.UnixNano(), one.ID, one)
	}
	return p.page(self)
}

// pager makes pages of lines that have an order.
type pager struct {
	after string // the last key of the page before
	all   []pagerLine
}

type pagerLine struct {
	key  string
	line any
}

func (p *pager) add(of sigma.RealmID, at int64, id sigma.ProcID, line any) {
	if key := fmt.Sprintf("%s\x00%020d\x00%s", of, at, id); key > p.after {
		p.all = append(p.all, pagerLine{key, line})
	}
}

// page gives the first of them.
func (p *pager) page(self sigma.MachineID) (text []byte, last string, more bool, err error) {
	all := p.all
	slices.SortFunc(all, func(a, b pagerLine) int { return cmp.Compare(a.key, b.key) })
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
		sources := k.usageSources(what)
		i, found := slices.BinarySearchFunc(sources, at, func(s usageSource, at usageCursor) int {
			return cmp.Or(cmp.Compare(s.machine, at.machine), cmp.Compare(s.copy.ID, at.copy))
		})
		if found {
			i++
		}
		for i < len(sources) && sources[i].machine == at.machine && sources[i].copy.ID == at.ledger { // it has told this itself, and is no member any more
			i++
		}
		var left bool
		if at.after != "" { // whoever began goes on: what a machine and its copies know are of different times
			text, at.after, left, err = k.usageFrom(ctx, at.machine, at.from, what, of, at.after)
		} else if i < len(sources) {
			s := sources[i]
			i++
			at = usageCursor{machine: s.machine, copy: s.copy.ID, ledger: s.lost.ID}
			text, at.from, at.after, left, err = k.usageOfSource(ctx, s, what, of)
		} else {
			return nil, at, false, nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, at, false, err
			}
			text, err = state.Line(state.UsageMissing{Machine: string(at.machine), Missing: err.Error()})
			left = false
		}
		if !left {
			at.after = ""
		}
		return text, at, left || i < len(sources), err
	})
}

// usageSource is where it is known what was used of a machine: the machine itself, or a copy of a ledger of which it can say nothing.
type usageSource struct {
	machine sigma.MachineID
	copy    copyInfo // ID 0 = the machine
	lost    copyInfo // what it had told, for when it does not answer; ID 0 = nothing
}

// usageSources are those of all machines, in order: of members, what they say, and of machines that are gone, or have lost what they knew, what they told.
func (k *Kernel) usageSources(what string) []usageSource {
	var known []copyInfo
	if what == nameUsage {
		known = k.copiesKnown()
	}
	return sourcesOf(k.usageMachines(), k.ledger.id, known)
}

// sourcesOf is usageSources of members, the number of the own ledger and the copies that are known. A ledger that a member has is not counted again under the name of another one that had it, nor under two names of machines that had it; what a member told of the one it has is its own, whoever says the same
// number.
func sourcesOf(members []sigma.MachineID, own uint64, known []copyInfo) (out []usageSource) {
	at := map[sigma.MachineID]int{}
	for _, m := range members {
		at[m] = len(out)
		out = append(out, usageSource{machine: m})
	}
	has := map[uint64]bool{own: true}
	left := map[uint64]copyInfo{} // the latest of each
	for _, one := range known {
		if i, member := at[one.Machine]; member && !one.Former {
			out[i].lost, has[one.ID] = one, true
		} else if so, is := left[one.ID]; !is || cmp.Or(one.Told.Compare(so.Told), cmp.Compare(one.Machine, so.Machine)) > 0 {
			left[one.ID] = one
		}
	}
	for id, one := range left {
		if !has[id] {
			one.Told = time.Time{} // it is all there will be
			out = append(out, usageSource{machine: one.Machine, copy: one})
		}
	}
	slices.SortFunc(out, func(a, b usageSource) int {
		return cmp.Or(cmp.Compare(a.machine, b.machine), cmp.Compare(a.copy.ID, b.copy.ID))
	})
	return out
}

// usageOfSource begins with a source. from is who tells.
func (k *Kernel) usageOfSource(ctx context.Context, s usageSource, what string, of sigma.RealmID) (text []byte, from copyInfo, last string, more bool, err error) {
	from = s.copy
	if text, last, more, err = k.usageFrom(ctx, s.machine, from, what, of, ""); err != nil && from.ID == 0 && s.lost.ID != 0 && ctx.Err() == nil {
		from = s.lost
		text, last, more, err = k.usageFrom(ctx, s.machine, from, what, of, "")
	}
	return text, from, last, more, err
}

// usageFrom gives what comes after a key, of a copy or, if that has no number, of the machine itself.
func (k *Kernel) usageFrom(ctx context.Context, m sigma.MachineID, from copyInfo, what string, of sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
	if from.ID != 0 {
		return k.usageOfCopy(ctx, from, of, after)
	}
	return k.usageOfMachine(ctx, m, what, of, after)
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
