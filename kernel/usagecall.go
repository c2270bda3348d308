package kernel

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/memo"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// peerCopies lists the copies that this machine has.
func (k *Kernel) peerCopies(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&after) }); err != nil {
		return nil, err
	}
	text, last, more, err := k.copies.List(after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// peerCopied tells what is in one.
func (k *Kernel) peerCopied(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var one meter.Copy
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
	text, last, more, err := k.copies.Page(one, sigma.RealmID(realm), after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// copiesKnown lists the copies that there are, of each machine and ledger the one that holds the
// most.
func (k *Kernel) copiesKnown() []meter.Copy {
	out, _ := memo.Recall(&k.memo, "copies", func() ([]meter.Copy, error) {
		ctx, cancel := k.asked()
		defer cancel()
		var mu sync.Mutex
		best := map[string]meter.Copy{}
		note := func(keeper sigma.MachineID, list func(after string) ([]byte, string, bool, error)) {
			after, more := "", true
			for more {
				text, last, left, err := list(after)
				if err != nil {
					return
				}
				all, err := meter.ParseLines[meter.Copy](text)
				if err != nil {
					return
				}
				mu.Lock()
				for _, one := range all {
					key := meter.CopyKey(one.Machine, one.ID)
					one.Keeper = keeper
					if so, is := best[key]; !is || cmp.Or(cmp.Compare(one.Version, so.Version),
						one.Told.Compare(so.Told)) > 0 {
						best[key] = one
					}
				}
				mu.Unlock()
				after, more = last, left && last > after
			}
		}
		note(k.cfg.Machine, k.copies.List)
		alive := k.cluster.Others()
		keepers := slices.DeleteFunc(k.controlsKnown(), func(m sigma.MachineID) bool {
			return !slices.Contains(alive, m)
		})
		services.EachOf(len(keepers)+1, keepers, func(m sigma.MachineID) {
			note(m, func(after string) (text []byte, last string, more bool, err error) {
				err = k.reach.Ask(ctx, m, peerCopies, func(c *sigmap.Coder) {
					c.Str(&after)
				}, func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
				return slices.Clone(text), last, more, err
			})
		})
		return slices.Collect(maps.Values(best)), nil
	})
	return out
}

// controlsKnown are the control machines but for this one; none before it is registered.
func (k *Kernel) controlsKnown() []sigma.MachineID {
	if !k.cluster.Registered() {
		return nil
	}
	return k.cluster.Controls()
}

// usageOfCopy is usageOfMachine of a copy.
func (k *Kernel) usageOfCopy(ctx context.Context, one meter.Copy, of sigma.RealmID, after string) (text []byte,
	last string, more bool, err error) {
	if one.Keeper == k.cfg.Machine {
		return k.copies.Page(one, of, after)
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	machine, realm := string(one.Machine), string(of)
	err = k.reach.Ask(ctx, one.Keeper, peerCopied, func(c *sigmap.Coder) {
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

// usageCursor is how far a reader has come.
type usageCursor struct {
	machine sigma.MachineID // the last that was asked; "" = none
	copy    uint64          // the number of the ledger, if it is only known by a copy
	ledger  uint64          // that the machine itself was asked of, as far as that is known
	from    meter.Copy      // the copy that tells; ID 0 = the machine itself
	after   string          // the last key it told; "" = it has told all
}

// peerLedger answers another machine's sigmad.
func (k *Kernel) peerLedger(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var what, realm, after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&what); c.Str(&realm); c.Str(&after) }); err != nil {
		return nil, err
	}
	text, last, more, err := k.ledger.Page(what, k.cfg.Machine, sigma.RealmID(realm), after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// usageFile makes /sys/usage and /sys/usage-procs. A tenant is told of its own realm, the provider
// of all.
func (r *root) usageFile(what string) sigma.File {
	k, of := r.tree.k, r.realm
	if r.tree.principal.System {
		of = ""
	}
	return computed.LinesFile("/sys/"+what, what, 0o444, func(ctx context.Context, at usageCursor) (text []byte,
		next usageCursor, more bool, err error) {
		sources := k.usageSources(what)
		i, found := slices.BinarySearchFunc(sources, at, func(s meter.Source, at usageCursor) int {
			return cmp.Or(cmp.Compare(s.Machine, at.machine), cmp.Compare(s.Copy.ID, at.copy))
		})
		if found {
			i++
		}
		for i < len(sources) && sources[i].Machine == at.machine &&
			sources[i].Copy.ID == at.ledger { // it has told this itself, and is no member any more
			i++
		}
		var left bool
		if at.after != "" { // whoever began goes on: what a machine and its copies know are of different times
			text, at.after, left, err = k.usageFrom(ctx, at.machine, at.from, what, of, at.after)
		} else if i < len(sources) {
			s := sources[i]
			i++
			at = usageCursor{machine: s.Machine, copy: s.Copy.ID, ledger: s.Lost.ID}
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

// usageSources are those of all machines, in order: of members, what they say, and of machines that
// are gone, or have lost what they knew, what they told.
func (k *Kernel) usageSources(what string) []meter.Source {
	var known []meter.Copy
	if what == roles.Usage {
		known = k.copiesKnown()
	}
	return meter.SourcesOf(k.usageMachines(), k.ledger.ID, known)
}

// usageOfSource begins with a source. from is who tells.
func (k *Kernel) usageOfSource(ctx context.Context, s meter.Source, what string, of sigma.RealmID) (text []byte,
	from meter.Copy, last string, more bool, err error) {
	from = s.Copy
	if text, last, more, err = k.usageFrom(ctx, s.Machine, from, what, of, ""); err != nil && from.ID == 0 &&
		s.Lost.ID != 0 && ctx.Err() == nil {
		from = s.Lost
		text, last, more, err = k.usageFrom(ctx, s.Machine, from, what, of, "")
	}
	return text, from, last, more, err
}

// usageFrom gives what comes after a key, of a copy or, if that has no number, of the machine
// itself.
func (k *Kernel) usageFrom(ctx context.Context, m sigma.MachineID, from meter.Copy, what string, of sigma.RealmID,
	after string) (text []byte, last string, more bool, err error) {
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

func (k *Kernel) usageOfMachine(ctx context.Context, m sigma.MachineID, what string, of sigma.RealmID,
	after string) (text []byte, last string, more bool, err error) {
	if m == k.cfg.Machine {
		return k.ledger.Page(what, m, of, after)
	}
	if !slices.Contains(k.cluster.Others(), m) {
		return nil, "", false, sigma.Errorf("kernel.usage", sigma.KindUnavailable, "the machine is away")
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	realm := string(of)
	err = k.reach.Ask(ctx, m, peerLedger, func(c *sigmap.Coder) {
		c.Str(&what)
		c.Str(&realm)
		c.Str(&after)
	}, func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
	if err == nil && more && last <= after {
		err = sigma.Errorf("kernel.usage", sigma.KindInvalid, "the machine tells the same again and again")
	}
	return slices.Clone(text), last, more, err
}
