// Package decision is how the schedulers and initd say why a proc waits, was placed, or failed: one
// record for each decision, made by the program that decides at the moment when it does.
//
// It promises that whoever decides is never held up: what is too much is left out, a realm's own
// records drive out no other realm's, and memory and disk are bounded. It assumes that records are
// about procs of realms that exist. Users: besched, lcsched, schedd and initd, which decide;
// kernel, which keeps records (Log) and shows them as /sys/decisions; cmd/sigma, which reads them.
package decision

import (
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Reason is the main reason of a decision, in one word.
type Reason string

// The reasons.
const (
	Placed    Reason = "placed"     // it waited, and has a machine now
	Failed    Reason = "failed"     // it was not started, or ended otherwise than by its own will
	Behind    Reason = "behind"     // procs of its own realm come before it
	Turn      Reason = "turn"       // it is the turn of other realms
	Memory    Reason = "memory"     // no machine offers so much
	Overtaken Reason = "overtaken"  // smaller procs fit where it does not
	TooLarge  Reason = "too-large"  // no machine is large enough
	Kept      Reason = "kept"       // machines are kept for procs that have waited for longer
	Near      Reason = "near"       // the machine with its data has no room, and is waited for
	Cordoned  Reason = "cordoned"   // machines take nothing new
	Maximum   Reason = "maximum"    // its realm has as much as it may have
	Labels    Reason = "labels"     // no machine has the labels that it names
	Reserved  Reason = "reserved"   // others have reserved it
	Minimum   Reason = "minimum"    // it is kept for realms by their minima
	GivingWay Reason = "giving-way" // best-effort procs have yet to leave what was reserved
	Scheduler Reason = "scheduler"  // no scheduler answers
	Away      Reason = "away"       // machines are away
	Evicted   Reason = "evicted"    // it has to go, for others
	Pause     Reason = "pause"      // it ended, and is started again after a while
	Finished  Reason = "finished"   // it ended, and is not started again
)

// Machine is what one machine lacks.
type Machine struct {
	Name string `json:"machine"`
	Why  string `json:"why"`
}

// Record is one decision, and a line of /sys/decisions.
type Record struct {
	Seq      uint64    `json:"seq"` // of the machine that keeps it; they grow
	Time     time.Time `json:"time"`
	At       string    `json:"at"` // the machine that keeps it, whose clock the time is of
	By       string    `json:"by"` // the daemon that decided
	Realm    string    `json:"realm"`
	Proc     string    `json:"proc"`
	Name     string    `json:"name,omitempty"` // of the proc, as far as it is known
	Reason   Reason    `json:"reason"`
	Why      string    `json:"why"` // for people
	Machines []Machine `json:"machines,omitempty"`
	// why what the machine At keeps is not told; then there is nothing else
	Missing string `json:"missing,omitempty"`
}

// Bounds of a record.
const (
	MachinesMax = 16  // of which it is told
	whyMax      = 320 // bytes of a text
)

// New makes one about a proc.
func New(by string, realm sigma.RealmID, proc sigma.ProcID, reason Reason, why string) Record {
	return Record{By: by, Realm: string(realm), Proc: string(proc), Reason: reason, Why: why}
}

// Lacks adds what a machine lacks.
func (r *Record) Lacks(m sigma.MachineID, why string) {
	if len(r.Machines) < MachinesMax {
		r.Machines = append(r.Machines, Machine{string(m), why})
	}
}

// bound cuts what is too long.
func (r *Record) bound() {
	for _, s := range []*string{&r.Why, &r.Name, &r.By, &r.Realm, &r.Proc, (*string)(&r.Reason)} {
		*s = (*s)[:min(len(*s), whyMax)]
	}
	r.Machines = r.Machines[:min(len(r.Machines), MachinesMax)]
	for i := range r.Machines {
		m := &r.Machines[i]
		m.Name, m.Why = m.Name[:min(len(m.Name), 64)], m.Why[:min(len(m.Why), whyMax)]
	}
}

// CallNote of /sys/decisions tells the machine of besched and lcsched what these decide.
var CallNote = sigmap.Method[[]Record, sigmap.None]{Name: "note", Request: Code}

// Code is the layout of records, as programs that decide tell them. Who keeps them sets the rest.
func Code(c *sigmap.Coder, rs *[]Record) {
	sigmap.List(c, rs, 22, func(e *Record) {
		e.code(c)
	})
}

func (r *Record) code(c *sigmap.Coder) {
	c.Time(&r.Time)
	for _, s := range []*string{&r.By, &r.Realm, &r.Proc, &r.Name, (*string)(&r.Reason), &r.Why} {
		c.Str(s)
	}
	sigmap.List(c, &r.Machines, 4, func(e *Machine) {
		c.Str(&e.Name)
		c.Str(&e.Why)
	})
}
