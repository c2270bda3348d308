package accounts

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

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Calls of sigmads among themselves about usage (docs/internals/machines-protocol.md).
//
//	ledger    usage or usage-procs, realm or "", after -> lines, last, more
//	load      - -> lines of /sys/load
//	told      ledger, since, version, []realm that are gone, lines of /sys/usage that are new since
//	          -> version that is held    (to a control machine, see copies.go)
//	copies    after -> lines with what ledgers it was told of, last, more
//	copied    ledger, machine, realm or "", after, time -> lines, last, more
const (
	peerLedger = "ledger"
	peerLoad   = "load"
	peerTold   = "told"
	peerCopies = "copies"
	peerCopied = "copied"
)

// peerCopies lists the copies that this machine has.
func (x *Accounts) peerCopies(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&after) }); err != nil {
		return nil, err
	}
	text, last, more, err := x.cfg.Copies.List(after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// peerCopied tells what is in one.
func (x *Accounts) peerCopied(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
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
	text, last, more, err := x.cfg.Copies.Page(one, sigma.RealmID(realm), after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// copiesKnown lists the copies that there are, of each machine and ledger the one that holds the
// most.
func (x *Accounts) copiesKnown() []meter.Copy {
	out, _ := memo.Recall(x.cfg.Memo, "copies", func(ctx context.Context) ([]meter.Copy, error) {
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
		note(x.cfg.Machine, x.cfg.Copies.List)
		alive := x.cfg.Cluster.Others()
		keepers := slices.DeleteFunc(x.controlsKnown(), func(m sigma.MachineID) bool {
			return !slices.Contains(alive, m)
		})
		services.EachOf(len(keepers)+1, keepers, func(m sigma.MachineID) {
			note(m, func(after string) (text []byte, last string, more bool, err error) {
				err = x.cfg.Reach.Ask(ctx, m, peerCopies, func(c *sigmap.Coder) {
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
func (x *Accounts) controlsKnown() []sigma.MachineID {
	if !x.cfg.Cluster.Registered() {
		return nil
	}
	return x.cfg.Cluster.Controls()
}

// usageOfCopy is usageOfMachine of a copy.
func (x *Accounts) usageOfCopy(ctx context.Context, one meter.Copy, of sigma.RealmID, after string) (text []byte,
	last string, more bool, err error) {
	if one.Keeper == x.cfg.Machine {
		return x.cfg.Copies.Page(one, of, after)
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	machine, realm := string(one.Machine), string(of)
	err = x.cfg.Reach.Ask(ctx, one.Keeper, peerCopied, func(c *sigmap.Coder) {
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

// Cursor is how far a reader has come.
type Cursor struct {
	machine sigma.MachineID // the last that was asked; "" = none
	copy    uint64          // the number of the ledger, if it is only known by a copy
	ledger  uint64          // that the machine itself was asked of, as far as that is known
	from    meter.Copy      // the copy that tells; ID 0 = the machine itself
	after   string          // the last key it told; "" = it has told all
}

// peerLedger answers another machine's sigmad.
func (x *Accounts) peerLedger(_ context.Context, _ identity.Subject, payload []byte) ([]byte, error) {
	var what, realm, after string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&what); c.Str(&realm); c.Str(&after) }); err != nil {
		return nil, err
	}
	text, last, more, err := x.cfg.Ledger.Page(what, x.cfg.Machine, sigma.RealmID(realm), after)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
}

// UsageFile makes /sys/usage and /sys/usage-procs. A tenant is told of its own realm, the provider
// of all.
func (x *Accounts) UsageFile(what string, of sigma.RealmID, provider bool) sigma.File {
	if provider {
		of = ""
	}
	return computed.LinesFile("/sys/"+what, what, 0o444, func(ctx context.Context, at Cursor) (text []byte,
		next Cursor, more bool, err error) {
		sources := x.usageSources(what)
		i, found := slices.BinarySearchFunc(sources, at, func(s meter.Source, at Cursor) int {
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
			text, at.after, left, err = x.usageFrom(ctx, at.machine, at.from, what, of, at.after)
		} else if i < len(sources) {
			s := sources[i]
			i++
			at = Cursor{machine: s.Machine, copy: s.Copy.ID, ledger: s.Lost.ID}
			text, at.from, at.after, left, err = x.usageOfSource(ctx, s, what, of)
		} else {
			return nil, at, false, nil
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, at, false, err
			}
			text, err = report.Line(report.UsageMissing{Machine: string(at.machine), Missing: err.Error()})
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
func (x *Accounts) usageSources(what string) []meter.Source {
	var known []meter.Copy
	if what == roles.Usage {
		known = x.copiesKnown()
	}
	return meter.SourcesOf(x.cfg.Machines(), x.cfg.Ledger.ID, known)
}

// usageOfSource begins with a source. from is who tells.
func (x *Accounts) usageOfSource(ctx context.Context, s meter.Source, what string, of sigma.RealmID) (text []byte,
	from meter.Copy, last string, more bool, err error) {
	from = s.Copy
	if text, last, more, err = x.usageFrom(ctx, s.Machine, from, what, of, ""); err != nil && from.ID == 0 &&
		s.Lost.ID != 0 && ctx.Err() == nil {
		from = s.Lost
		text, last, more, err = x.usageFrom(ctx, s.Machine, from, what, of, "")
	}
	return text, from, last, more, err
}

// usageFrom gives what comes after a key, of a copy or, if that has no number, of the machine
// itself.
func (x *Accounts) usageFrom(ctx context.Context, m sigma.MachineID, from meter.Copy, what string, of sigma.RealmID,
	after string) (text []byte, last string, more bool, err error) {
	if from.ID != 0 {
		return x.usageOfCopy(ctx, from, of, after)
	}
	return x.usageOfMachine(ctx, m, what, of, after)
}

func (x *Accounts) usageOfMachine(ctx context.Context, m sigma.MachineID, what string, of sigma.RealmID,
	after string) (text []byte, last string, more bool, err error) {
	if m == x.cfg.Machine {
		return x.cfg.Ledger.Page(what, m, of, after)
	}
	if !slices.Contains(x.cfg.Cluster.Others(), m) {
		return nil, "", false, sigma.Errorf("kernel.usage", sigma.KindUnavailable, "the machine is away")
	}
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	realm := string(of)
	err = x.cfg.Reach.Ask(ctx, m, peerLedger, func(c *sigmap.Coder) {
		c.Str(&what)
		c.Str(&realm)
		c.Str(&after)
	}, func(c *sigmap.Coder) { c.Data(&text); c.Str(&last); c.Bool(&more) })
	if err == nil && more && last <= after {
		err = sigma.Errorf("kernel.usage", sigma.KindInvalid, "the machine tells the same again and again")
	}
	return slices.Clone(text), last, more, err
}
