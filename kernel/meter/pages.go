package meter

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// /sys/usage and /sys/usage-procs: what realms, and procs, have used of all machines. Each machine
// counts for itself and what it says has its name, so nothing is counted twice; of one that does
// not answer there is what it had told (copies.go), or a line that says so.

// ByHour asks a ledger for what realms have used by the hour; any other word asks for what procs
// have used.
const ByHour = "usage"

// usagePage bounds the bytes of lines that a machine tells at a time, but for the last line.
const usagePage = 40 << 10

// Page gives some lines of what is counted after a key, of a realm or of all ("").
func (l *Ledger) Page(what string, self sigma.MachineID, realm sigma.RealmID, after string) (text []byte, last string,
	more bool, err error) {
	p := pager{after: after}
	var hours []report.RealmUsage
	var procs []*Proc
	l.mu.Lock() // for no longer than it takes to copy
	if realm != "" && l.unsure {
		l.mu.Unlock()
		return nil, "", false, notHeard()
	}
	if what == ByHour {
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
		if p, is := all[i].line.(*Proc); is {
			all[i].line = p.spent(self)
		}
		line, err := report.Line(all[i].line)
		if err != nil {
			return nil, "", false, err
		}
		text, last = append(text, line...), all[i].key
	}
	return text, last, false, nil
}

// spent is what is told of a proc.
func (p *Proc) spent(machine sigma.MachineID) report.ProcSpent {
	s := report.ProcSpent{Machine: string(machine), Realm: string(p.Realm), Proc: string(p.ID), Name: p.Name,
		Began: p.Began.UTC(), CPU: p.CPU.Seconds(), Memory: p.Held, Egress: p.Egress}
	if p.Ended {
		at := p.Until.UTC()
		s.Ended = &at
	}
	return s
}

// Source is where it is known what was used of a machine: the machine itself, or a copy of a ledger
// of which it can say nothing.
type Source struct {
	Machine sigma.MachineID
	Copy    Copy // ID 0 = the machine
	Lost    Copy // what it had told, for when it does not answer; ID 0 = nothing
}

// SourcesOf is usageSources of members, the number of the own ledger and the copies that are known.
// A ledger that a member has is not counted again under the name of another one that had it, nor
// under two names of machines that had it; what a member told of the one it has is its own, whoever
// says the same number.
func SourcesOf(members []sigma.MachineID, own uint64, known []Copy) (out []Source) {
	at := map[sigma.MachineID]int{}
	for _, m := range members {
		at[m] = len(out)
		out = append(out, Source{Machine: m})
	}
	has := map[uint64]bool{own: true}
	left := map[uint64]Copy{} // the latest of each
	for _, one := range known {
		if i, member := at[one.Machine]; member && !one.Former {
			out[i].Lost, has[one.ID] = one, true
		} else if so, is := left[one.ID]; !is || cmp.Or(one.Told.Compare(so.Told),
			cmp.Compare(one.Machine, so.Machine)) > 0 {
			left[one.ID] = one
		}
	}
	for id, one := range left {
		if !has[id] {
			one.Told = time.Time{} // it is all there will be
			out = append(out, Source{Machine: one.Machine, Copy: one})
		}
	}
	slices.SortFunc(out, func(a, b Source) int {
		return cmp.Or(cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Copy.ID, b.Copy.ID))
	})
	return out
}
