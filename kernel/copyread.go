package kernel

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// How copies of ledgers are read, at whichever control machine has them.

// copyInfo is a copy, without what is in it.
type copyInfo struct {
	ID      uint64          `json:"ledger"`
	Machine sigma.MachineID `json:"machine"`
	Former  bool            `json:"former"`
	Version uint64          `json:"version"`
	Told    time.Time       `json:"told"`

	keeper sigma.MachineID // who has it
}

// list gives some copies after one, by key, as lines.
func (c *copies) list(after string) (text []byte, last string, more bool, err error) {
	c.mu.Lock()
	all := map[string]copyInfo{}
	for key, one := range c.of {
		if key > after {
			all[key] = copyInfo{ID: one.ID, Machine: one.Machine, Former: one.Former, Version: one.Version, Told: one.Told}
		}
	}
	c.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if len(text) >= usagePage {
			return text, last, true, nil
		}
		line, err := state.Line(all[key])
		if err != nil {
			return nil, "", false, err
		}
		text, last = append(text, line...), key
	}
	return text, last, false, nil
}

// hours are what a copy has of a realm, or of all ("").
func (c *copies) hours(m sigma.MachineID, id uint64, realm sigma.RealmID) (out []state.RealmUsage, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if realm != "" && c.unsure {
		return nil, notHeard()
	}
	one := c.of[copyKey(m, id)]
	if one == nil {
		return nil, sigma.Errorf("kernel.usage", sigma.KindUnavailable, "the control machine keeps nothing any more of what the machine told")
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

// peerCopies lists the copies that this machine has.
func (k *Kernel) peerCopies(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&after) }); err != nil {
		return nil, err
	}
	text, last, more, err := k.copies.list(after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// peerCopied tells what is in one.
func (k *Kernel) peerCopied(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var one copyInfo
	var machine, realm, after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) {
		c.U64(&one.ID)
		c.Str(&machine)
		c.Str(&realm)
		c.Str(&after)
		c.Time(&one.Told)
	}); err != nil {
		return nil, err
	}
	one.Machine = sigma.MachineID(machine)
	text, last, more, err := k.copies.page(one, sigma.RealmID(realm), after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// page is as a ledger's. The lines say when they were told, if that is not zero.
func (c *copies) page(one copyInfo, realm sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
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

// copiesKnown lists the copies that there are, of each machine and ledger the one that holds the most.
func (k *Kernel) copiesKnown() []copyInfo {
	out, _ := recall(&k.memo, "copies", func() ([]copyInfo, error) {
		ctx, cancel := k.asked()
		defer cancel()
		var mu sync.Mutex
		best := map[string]copyInfo{}
		note := func(keeper sigma.MachineID, list func(after string) ([]byte, string, bool, error)) {
			after, more := "", true
			for more {
				text, last, left, err := list(after)
				if err != nil {
					return
				}
				all, err := parseLines[copyInfo](text)
				if err != nil {
					return
				}
				mu.Lock()
				for _, one := range all {
					key := copyKey(one.Machine, one.ID)
					one.keeper = keeper
					if so, is := best[key]; !is || cmp.Or(cmp.Compare(one.Version, so.Version), one.Told.Compare(so.Told)) > 0 {
						best[key] = one
					}
				}
				mu.Unlock()
				after, more = last, left && last > after
			}
		}
		note(k.cfg.Machine, k.copies.list)
		alive := k.others()
		keepers := slices.DeleteFunc(k.controlsKnown(), func(m sigma.MachineID) bool { return !slices.Contains(alive, m) })
		eachOf(len(keepers)+1, keepers, func(m sigma.MachineID) {
			note(m, func(after string) (text []byte, last string, more bool, err error) {
				err = k.ask(ctx, m, peerCopies, func(c *sigmap.Coder) { c.Str(&after) }, func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
				return slices.Clone(text), last, more, err
			})
		})
		return slices.Collect(maps.Values(best)), nil
	})
	return out
}

// controlsKnown are the control machines but for this one; none before it is registered.
func (k *Kernel) controlsKnown() []sigma.MachineID {
	if !k.registered() {
		return nil
	}
	return k.controls()
}

// usageOfCopy is usageOfMachine of a copy.
func (k *Kernel) usageOfCopy(ctx context.Context, one copyInfo, of sigma.RealmID, after string) (text []byte, last string, more bool, err error) {
	if one.keeper == k.cfg.Machine {
		return k.copies.page(one, of, after)
	}
	ctx, cancel := context.WithTimeout(ctx, findMax)
	defer cancel()
	machine, realm := string(one.Machine), string(of)
	err = k.ask(ctx, one.keeper, peerCopied, func(c *sigmap.Coder) {
		c.U64(&one.ID)
		c.Str(&machine)
		c.Str(&realm)
		c.Str(&after)
		c.Time(&one.Told)
	}, func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
	if err == nil && more && last <= after {
		err = sigma.Errorf("kernel.usage", sigma.KindInvalid, "the machine tells the same again and again")
	}
	return slices.Clone(text), last, more, err
}
