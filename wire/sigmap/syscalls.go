package sigmap

import (
	"time"

	"sigmaos.dev/sigma"
)

// Methods of /sys/procs.
var (
	CallSpawn = Method[[]sigma.Descriptor, []sigma.ProcID]{Name: "spawn", Request: (*Coder).Descriptors,
		Reply: (*Coder).ProcIDs}
	CallWaitStart = Method[sigma.ProcID, None]{Name: "wait-start", Request: (*Coder).ProcID}
	CallWaitExit  = Method[sigma.ProcID, sigma.Status]{Name: "wait-exit", Request: (*Coder).ProcID,
		Reply: (*Coder).Status}
	CallEvict     = Method[Eviction, None]{Name: "evict", Request: codeEviction}
	CallKill      = Method[sigma.ProcID, None]{Name: "kill", Request: (*Coder).ProcID}
	CallFreeze    = Method[sigma.ProcID, None]{Name: "freeze", Request: (*Coder).ProcID}
	CallThaw      = Method[sigma.ProcID, None]{Name: "thaw", Request: (*Coder).ProcID}
	CallListProcs = Method[ProcsAfter, ProcsPage]{Name: "list", Request: codeProcsAfter, Reply: codeProcsPage}
	// CallProcsUsage is of running procs what they use now. It is for the provider, and for
	// sessions with a credential.
	CallProcsUsage = Method[[]sigma.ProcID, []sigma.Usage]{Name: "usage", Request: (*Coder).ProcIDs,
		Reply: (*Coder).Usages}
	// CallCaps is for the provider, and for a proc about itself.
	CallCaps = Method[sigma.ProcID, Caps]{Name: "caps", Request: (*Coder).ProcID, Reply: (*Coder).Caps}
)

// Methods of /sys/self.
var (
	CallStarted   = Method[None, None]{Name: "started"}
	CallExited    = Method[sigma.Status, None]{Name: "exited", Request: (*Coder).Status}
	CallWaitEvict = Method[None, None]{Name: "wait-evict"}
	CallInfo      = Method[None, Info]{Name: "info", Reply: (*Coder).Info}
	// CallWorked is of services: what was done for realms is answered with the realms' shares.
	CallWorked = Method[Worked, []RealmShares]{Name: "worked", Request: codeWorked, Reply: (*Coder).RealmsShares}
)

// Info tells a program who and where it is.
type Info struct {
	Principal sigma.Principal
	Version   string // of sigmad
}

// Eviction asks a proc to go.
type Eviction struct {
	ID    sigma.ProcID
	Grace time.Duration
}

// ProcsAfter asks for a page of the realm's procs.
type ProcsAfter struct {
	All   bool            // also of those that have ended
	At    sigma.MachineID // with After: where the last page ended
	After uint64
}

// ProcsPage is a page, and where it ends.
type ProcsPage struct {
	Procs []sigma.ProcInfo
	More  bool
	At    sigma.MachineID
	After uint64
}

// Worked is what a service did for realms since its last report.
type Worked struct {
	Number uint64 // of the report
	Works  []sigma.Work
}

func codeEviction(c *Coder, e *Eviction) {
	c.ProcID(&e.ID)
	c.Duration(&e.Grace)
}

func codeProcsAfter(c *Coder, a *ProcsAfter) {
	c.Bool(&a.All)
	c.MachineID(&a.At)
	c.U64(&a.After)
}

func codeProcsPage(c *Coder, p *ProcsPage) {
	c.ProcInfos(&p.Procs)
	c.Bool(&p.More)
	c.MachineID(&p.At)
	c.U64(&p.After)
}

func codeWorked(c *Coder, w *Worked) {
	c.U64(&w.Number)
	c.Works(&w.Works)
}
