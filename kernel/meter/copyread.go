package meter

import (
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// How copies of ledgers are read, at whichever control machine has them.

// Copy is a copy, without what is in it.
type Copy struct {
	ID      uint64          `json:"ledger"`
	Machine sigma.MachineID `json:"machine"`
	Former  bool            `json:"former"`
	Version uint64          `json:"version"`
	Told    time.Time       `json:"told"`

	Keeper sigma.MachineID // who has it
}

// List gives some copies after one, by key, as lines.
func (c *Copies) List(after string) (text []byte, last string, more bool, err error) {
	c.mu.Lock()
	all := map[string]Copy{}
	for key, one := range c.of {
		if key > after {
			all[key] = Copy{ID: one.ID, Machine: one.Machine, Former: one.Former, Version: one.Version, Told: one.Told}
		}
	}
	c.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if len(text) >= usagePage {
			return text, last, true, nil
		}
		line, err := report.Line(all[key])
		if err != nil {
			return nil, "", false, err
		}
		text, last = append(text, line...), key
	}
	return text, last, false, nil
}

// hours are what a copy has of a realm, or of all ("").
func (c *Copies) hours(m sigma.MachineID, id uint64, realm sigma.RealmID) (out []report.RealmUsage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if realm != "" && c.unsure {
		return nil, notHeard()
	}
	one := c.of[CopyKey(m, id)]
	if one == nil {
		return nil, sigma.Errorf("kernel.usage", sigma.KindUnavailable,
			"the control machine keeps nothing any more of what the machine told")
	}
	for of, r := range one.Realms {
		if realm != "" && of != realm {
			continue
		}
		if r.Sum != nil {
			out = append(out, *r.Sum)
		}
		for _, h := range r.Hours {
			out = append(out, *h)
		}
	}
	return out, nil
}

// Page is as a ledger's. The lines say when they were told, if that is not zero.
func (c *Copies) Page(one Copy, realm sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
	p := pager{after: after}
	hours, err := c.hours(one.Machine, one.ID, realm)
	if err != nil {
		return nil, "", false, err
	}
	for _, h := range hours {
		h.Machine = string(one.Machine)
		if !one.Told.IsZero() {
			told := one.Told.UTC()
			h.Told = &told
		}
		p.add(sigma.RealmID(h.Realm), h.From.Unix()/3600, "", h)
	}
	return p.page(one.Machine)
}
