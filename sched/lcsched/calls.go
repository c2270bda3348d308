package lcsched

import (
	"maps"
	"slices"
	"strings"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Methods of the service's root file. The machine that calls is the Principal's, stamped from its
// link. Those of an lcsched that does not lead answer KindUnavailable.
var (
	// CallLeads asks whether this one leads; of anybody.
	CallLeads = sigmap.Method[sigmap.None, sigmap.None]{Name: "leads"}
	// CallHeld says what is reserved at the machine, or more of it; before CallAttend.
	CallHeld = sigmap.Method[[]Held, sigmap.None]{Name: "held", Request: CodeHeld}
	// CallAttend makes the machine known, and lasts until its end, or until the machine attends
	// anew, or this lcsched leads no more. The other calls wait for the one of their session.
	CallAttend = sigmap.Method[Attendance, sigmap.None]{Name: "attend", Request: codeAttendance}
	// CallEnqueue ignores the jobs' homes: it is the caller.
	CallEnqueue = sigmap.Method[[]Job, sigmap.None]{Name: "enqueue", Request: CodeJobs}
	CallCancel  = sigmap.Method[sigma.ProcID, sigmap.None]{Name: "cancel", Request: (*sigmap.Coder).ProcID}
	// CallNext waits until there are grants for this machine, or refusals of what it enqueued.
	CallNext = sigmap.Method[sigmap.None, Next]{Name: "next", Reply: codeNext}
	// CallReleased names reservations that are over.
	CallReleased = sigmap.Method[[]sigma.ProcID, sigmap.None]{Name: "released", Request: (*sigmap.Coder).ProcIDs}
	// CallDeclined says that what was granted has no room here.
	CallDeclined = sigmap.Method[sigma.ProcID, sigmap.None]{Name: "declined", Request: (*sigmap.Coder).ProcID}
	// CallLent says how much memory best-effort procs hold.
	CallLent = sigmap.Method[sigma.Bytes, sigmap.None]{Name: "lent", Request: codeBytes}
	// CallLimits says the limits of all realms that have any, in one call or several.
	CallLimits = sigmap.Method[LimitsPage, sigmap.None]{Name: "limits", Request: codeLimitsPage}
	// CallWaiting says what waits; of anybody.
	CallWaiting = sigmap.Method[sigmap.None, []Waits]{Name: "waiting", Reply: codeWaits}
)

// Attendance is what a machine says of itself.
type Attendance struct {
	Incarnation sigma.Incarnation
	CPU         sigma.MilliCPU
	Memory      sigma.Bytes
	Labels      map[string]string
	Held        []Held // not in its payload: it was told before
	Lent        sigma.Bytes
	Closed      bool // it takes nothing new
}

// Refusal is what a home is told of a job.
type Refusal struct {
	ID  sigma.ProcID
	Why string
}

// Next is the answer to next.
type Next struct {
	Jobs    []Job
	Refused []Refusal
}

// LimitsPage is a part of the limits of all realms.
type LimitsPage struct {
	More   bool
	Limits []Limits
}

func codeAttendance(c *sigmap.Coder, a *Attendance) {
	var labels []string
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		labels = append(labels, name+"="+a.Labels[name])
	}
	c.U64((*uint64)(&a.Incarnation))
	c.U32((*uint32)(&a.CPU))
	c.U64((*uint64)(&a.Memory))
	c.Strs(&labels)
	if c.Decoding() {
		a.Labels = make(map[string]string, len(labels))
		for _, l := range labels {
			name, value, _ := strings.Cut(l, "=")
			a.Labels[name] = value
		}
	}
	c.U64((*uint64)(&a.Lent))
	c.Bool(&a.Closed)
}

// CodeHeld is the layout of reservations.
func CodeHeld(c *sigmap.Coder, hs *[]Held) {
	sigmap.List(c, hs, 18, func(h *Held) {
		c.ProcID(&h.ID)
		c.RealmID(&h.Realm)
		c.Str(&h.Name)
		c.U32((*uint32)(&h.CPU))
		c.U64((*uint64)(&h.Memory))
	})
}

// CodeJobs is the layout of jobs.
func CodeJobs(c *sigmap.Coder, js *[]Job) {
	sigmap.List(c, js, 34, func(e *Job) {
		codeJob(c, e)
	})
}

func codeJob(c *sigmap.Coder, j *Job) {
	c.ProcID(&j.ID)
	c.RealmID(&j.Realm)
	c.Str(&j.Name)
	c.U32((*uint32)(&j.CPU))
	c.U64((*uint64)(&j.Memory))
	c.Strs(&j.Where)
	c.Str(&j.Spread)
	c.Str((*string)(&j.Near))
	c.Str((*string)(&j.Home.Machine))
	c.U64((*uint64)(&j.Home.Incarnation))
}

func codeNext(c *sigmap.Coder, x *Next) {
	CodeJobs(c, &x.Jobs)
	sigmap.List(c, &x.Refused, 4, func(e *Refusal) {
		c.ProcID(&e.ID)
		c.Str(&e.Why)
	})
}

func codeWaits(c *sigmap.Coder, ws *[]Waits) {
	sigmap.List(c, ws, 42, func(w *Waits) {
		codeJob(c, &w.Job)
		c.Time(&w.Since)
		c.Str(&w.Why)
	})
}

func codeBytes(c *sigmap.Coder, b *sigma.Bytes) { c.U64((*uint64)(b)) }

func codeLimitsPage(c *sigmap.Coder, p *LimitsPage) {
	c.Bool(&p.More)
	sigmap.List(c, &p.Limits, 38, func(l *Limits) {
		c.RealmID(&l.Realm)
		for _, a := range []*Amount{&l.Max, &l.Min, &l.Reservable} {
			c.U32((*uint32)(&a.CPU))
			c.U64((*uint64)(&a.Memory))
		}
	})
}
