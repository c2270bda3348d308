package remote

import (
	"time"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/view"
	"sigmaos.dev/wire/sigmap"
)

// Calls of sigmads among themselves about procs (docs/internals/machines-protocol.md). Who calls,
// in which life, is known from the link.
var (
	// peerTake is of who was granted a job, to its home.
	peerTake = sigmap.Method[taking, given]{Name: "take", Request: codeTaking, Reply: codeGiven}
	// peerDecline is of the same, when there is no room after all.
	peerDecline = sigmap.Method[sigma.ProcID, sigmap.None]{Name: "decline", Request: (*sigmap.Coder).ProcID}
	// peerReport is of who runs procs, to their home.
	peerReport = sigmap.Method[reports, sigmap.None]{Name: "report", Request: codeReports}
	// peerResync has a boot number: I have reported all; report to me what you run for me.
	peerResync = sigmap.Method[uint64, sigmap.None]{Name: "resync", Request: (*sigmap.Coder).U64}
	peerTell   = sigmap.Method[telling, sigmap.None]{Name: "tell", Request: codeTelling}
	peerWait   = sigmap.Method[waiting, sigma.ProcInfo]{Name: "wait", Request: codeWaiting,
		Reply: (*sigmap.Coder).ProcInfo}
	peerList  = sigmap.Method[listing, listed]{Name: "list", Request: codeListing, Reply: codeListed}
	peerUsage = sigmap.Method[someProcs, usages]{Name: "usage", Request: codeSomeProcs, Reply: codeUsages}
	peerHave  = sigmap.Method[oneProc, had]{Name: "have", Request: codeOneProc, Reply: codeHad}
	// peerCount asks how many procs realms have.
	peerCount = sigmap.Method[[]string, []uint64]{Name: "count", Request: (*sigmap.Coder).Strs, Reply: codeCounts}
	peerCaps  = sigmap.Method[oneProc, sigmap.Caps]{Name: "caps", Request: codeOneProc, Reply: (*sigmap.Coder).Caps}
)

type taking struct {
	home sigma.Incarnation
	id   sigma.ProcID
	boot uint64
}

type given struct {
	is         bool // else the rest is missing
	info       sigma.ProcInfo
	descriptor sigma.Descriptor
	view       *view.Table
	kin        []sigma.ProcID
}

type reports struct {
	home  sigma.Incarnation
	boot  uint64
	procs []schedd.Report
}

type oneProc struct {
	realm sigma.RealmID
	id    sigma.ProcID
}

type telling struct {
	oneProc
	act   Act
	grace time.Duration
}

type waiting struct {
	oneProc
	until procs.Until
}

type listing struct {
	realm sigma.RealmID
	all   bool
	after uint64
	of    sigma.ProcID // whose kin alone is meant; "" = of all
}

type listed struct {
	page    []sigma.ProcInfo
	numbers []uint64
	more    bool
	last    uint64
}

type someProcs struct {
	realm sigma.RealmID
	ids   []sigma.ProcID
}

type usages struct {
	usages []sigma.Usage
	known  []bool
}

type had struct {
	is bool
	at Place
}

func codeTaking(c *sigmap.Coder, t *taking) {
	c.U64((*uint64)(&t.home))
	c.ProcID(&t.id)
	c.U64(&t.boot)
}

func codeGiven(c *sigmap.Coder, g *given) {
	if c.Bool(&g.is); g.is {
		c.ProcInfo(&g.info)
		c.Descriptor(&g.descriptor)
		view.Code(c, &g.view)
		c.ProcIDs(&g.kin)
	}
}

func codeReports(c *sigmap.Coder, r *reports) {
	c.U64((*uint64)(&r.home))
	c.U64(&r.boot)
	sigmap.List(c, &r.procs, 100, func(p *schedd.Report) {
		c.ProcInfo(&p.Info)
		c.Bool(&p.Started)
		c.ProcIDs(&p.Kin)
	})
}

func codeOneProc(c *sigmap.Coder, p *oneProc) {
	c.RealmID(&p.realm)
	c.ProcID(&p.id)
}

func codeTelling(c *sigmap.Coder, t *telling) {
	codeOneProc(c, &t.oneProc)
	c.U8((*uint8)(&t.act))
	c.Duration(&t.grace)
}

func codeWaiting(c *sigmap.Coder, w *waiting) {
	codeOneProc(c, &w.oneProc)
	c.Bool((*bool)(&w.until))
}

func codeListing(c *sigmap.Coder, l *listing) {
	c.RealmID(&l.realm)
	c.Bool(&l.all)
	c.U64(&l.after)
	c.ProcID(&l.of)
}

func codeListed(c *sigmap.Coder, l *listed) {
	c.ProcInfos(&l.page)
	codeCounts(c, &l.numbers)
	c.Bool(&l.more)
	c.U64(&l.last)
}

func codeSomeProcs(c *sigmap.Coder, p *someProcs) {
	c.RealmID(&p.realm)
	c.ProcIDs(&p.ids)
}

func codeUsages(c *sigmap.Coder, u *usages) {
	c.Usages(&u.usages)
	if c.Decoding() {
		u.known = make([]bool, len(u.usages))
	}
	for i := range u.known {
		c.Bool(&u.known[i])
	}
}

func codeHad(c *sigmap.Coder, h *had) {
	c.Bool(&h.is)
	c.Str((*string)(&h.at.Home))
	c.Str((*string)(&h.at.Runs))
	c.ProcIDs(&h.at.Kin)
}

func codeCounts(c *sigmap.Coder, counts *[]uint64) { sigmap.List(c, counts, 8, c.U64) }
