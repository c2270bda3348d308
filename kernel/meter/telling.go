package meter

import (
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// How machines tell control machines of their ledgers.

// Telling is what a machine tells at a time.
type Telling struct {
	Ledger  uint64
	Since   uint64          // what is new since this version; 0 = all
	Version uint64          // of the ledger, as far as it is told then
	Gone    []sigma.RealmID // removed since
	Text    []byte          // toldHours
}

// toldHour is a line of it.
type toldHour struct {
	report.RealmUsage
	Made Made `json:"made,omitempty"` // of the realm
}

// CodeTelling is its layout.
func CodeTelling(c *sigmap.Coder, t *Telling) {
	gone := make([]string, len(t.Gone))
	for i, r := range t.Gone {
		gone[i] = string(r)
	}
	c.U64(&t.Ledger)
	c.U64(&t.Since)
	c.U64(&t.Version)
	c.Strs(&gone)
	c.Data(&t.Text)
	t.Gone = t.Gone[:0]
	for _, r := range gone {
		t.Gone = append(t.Gone, sigma.RealmID(r))
	}
}
