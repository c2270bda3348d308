package besched

import (
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Methods of the service's root file. The machine that calls is the Principal's, stamped from its
// link.
var (
	// CallAttend makes the machine known, and lasts until its end, or until the machine attends
	// anew; then all that it has here is dropped. The other calls wait for the one of their
	// session.
	CallAttend = sigmap.Method[Attendance, sigmap.None]{Name: "attend", Request: codeAttendance}
	// CallEnqueue ignores the jobs' homes: it is the caller.
	CallEnqueue = sigmap.Method[[]Job, sigmap.None]{Name: "enqueue", Request: CodeJobs}
	CallCancel  = sigmap.Method[sigma.ProcID, sigmap.None]{Name: "cancel", Request: (*sigmap.Coder).ProcID}
	// CallPull waits until there is a job that fits; or answers with a lease if one was asked for
	// and no job waits; or tells whether the machine is kept for a job, if the offer says that it
	// must know.
	CallPull = sigmap.Method[Offer, Pulled]{Name: "pull", Request: codeOffer, Reply: codePulled}
	// CallHold waits until the lease is recalled.
	CallHold = sigmap.Method[Ticket, sigmap.None]{Name: "hold", Request: codeTicket}
	// CallCharge says what the procs used that ran on the machine, and how the memory that they
	// hold has changed.
	CallCharge = sigmap.Method[[]Charge, sigmap.None]{Name: "charge", Request: codeCharges}
	// CallShares says the shares of all realms that have not 1; what is older than what is known is
	// ignored.
	CallShares = sigmap.Method[Shares, sigmap.None]{Name: "shares", Request: codeShares}
	// CallQueues says what waits; of anybody, who need not attend.
	CallQueues = sigmap.Method[sigmap.None, []Queued]{Name: "queues", Reply: codeQueues}
)

// Attendance is what a machine says of itself.
type Attendance struct {
	Incarnation sigma.Incarnation
	CPU         sigma.MilliCPU
	Memory      sigma.Bytes
}

// Shares are those of realms, as they were so long ago.
type Shares struct {
	Age time.Duration
	Of  []sigmap.RealmShares
}

// Pulled is the answer to pull.
type Pulled struct {
	Jobs    []Job
	Lease   Ticket // 0 if there are jobs
	Kind    Lease
	Kept    bool        // the machine is kept for a job here; told if there are neither jobs nor a lease
	Largest sigma.Bytes // the most memory that a machine has
}

func codeAttendance(c *sigmap.Coder, a *Attendance) {
	c.U64((*uint64)(&a.Incarnation))
	c.U32((*uint32)(&a.CPU))
	c.U64((*uint64)(&a.Memory))
}

// CodeJobs is the layout of jobs.
func CodeJobs(c *sigmap.Coder, js *[]Job) {
	sigmap.List(c, js, 40, func(j *Job) {
		c.ProcID(&j.ID)
		c.RealmID(&j.Realm)
		c.U64((*uint64)(&j.Memory))
		c.Str((*string)(&j.Home.Machine))
		c.U64((*uint64)(&j.Home.Incarnation))
		c.U64(&j.Program)
		c.Str((*string)(&j.Near))
		c.Duration(&j.Prepaid)
	})
}

func codeCharges(c *sigmap.Coder, cs *[]Charge) {
	sigmap.List(c, cs, 38, func(ch *Charge) {
		c.RealmID(&ch.Realm)
		c.Duration(&ch.Used)
		c.Duration(&ch.Prepaid)
		c.U32(&ch.Ended)
		c.Duration(&ch.Whole)
		held := uint64(ch.Held)
		c.U64(&held)
		ch.Held = int64(held)
	})
}

func codeShares(c *sigmap.Coder, s *Shares) {
	c.Duration(&s.Age)
	c.RealmsShares(&s.Of)
}

func codeQueues(c *sigmap.Coder, qs *[]Queued) {
	sigmap.List(c, qs, 18, func(q *Queued) {
		c.RealmID(&q.Realm)
		c.U32(&q.Jobs)
		c.U64((*uint64)(&q.Memory))
		c.U32(&q.Shares)
	})
}

func codeOffer(c *sigmap.Coder, o *Offer) {
	c.U64((*uint64)(&o.Memory))
	c.U32(&o.Load)
	c.Bool(&o.Ask)
	c.Bool(&o.Elsewhere)
	c.Bool(&o.Kept)
}

func codePulled(c *sigmap.Coder, p *Pulled) {
	CodeJobs(c, &p.Jobs)
	c.U64((*uint64)(&p.Lease))
	c.U8((*uint8)(&p.Kind))
	c.Bool(&p.Kept)
	c.U64((*uint64)(&p.Largest))
}

func codeTicket(c *sigmap.Coder, t *Ticket) { c.U64((*uint64)(t)) }
