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

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Calls of sigmads among themselves about usage (docs/internals/machines-protocol.md).
var (
	peerLedger = sigmap.Method[ledgerAsk, page]{Name: "ledger", Request: codeLedgerAsk, Reply: codePage}
	// peerLoad answers with lines of /sys/load.
	peerLoad = sigmap.Method[sigmap.None, []byte]{Name: "load", Reply: (*sigmap.Coder).Data}
	// peerTold tells a control machine lines of /sys/usage that are new, and answers with the
	// version that is held then (see copies.go).
	peerTold = sigmap.Method[meter.Telling, uint64]{Name: "told", Request: meter.CodeTelling,
		Reply: (*sigmap.Coder).U64}
	// peerCopies answers with lines that say what ledgers it was told of after one.
	peerCopies = sigmap.Method[string, page]{Name: "copies", Request: (*sigmap.Coder).Str, Reply: codePage}
	peerCopied = sigmap.Method[copyAsk, page]{Name: "copied", Request: codeCopyAsk, Reply: codePage}
)

type ledgerAsk struct{ what, realm, after string }

type copyAsk struct {
	one   meter.Copy // its ID, Machine and Told
	realm sigma.RealmID
	after string
}

// page is a part of the lines.
type page struct {
	text []byte
	last string
	more bool
}

func codeLedgerAsk(c *sigmap.Coder, a *ledgerAsk) {
	c.Str(&a.what)
	c.Str(&a.realm)
	c.Str(&a.after)
}

func codeCopyAsk(c *sigmap.Coder, a *copyAsk) {
	c.U64(&a.one.ID)
	c.MachineID(&a.one.Machine)
	c.RealmID(&a.realm)
	c.Str(&a.after)
	c.Time(&a.one.Told)
}

func codePage(c *sigmap.Coder, p *page) {
	c.Data(&p.text)
	c.Str(&p.last)
	c.Bool(&p.more)
}

// copiesHere answers peerCopies: it lists the copies that this machine has.
func (x *Accounts) copiesHere(_ context.Context, after string) (p page, err error) {
	p.text, p.last, p.more, err = x.cfg.Copies.List(after)
	return p, err
}

// copyHere answers peerCopied: it tells what is in one.
func (x *Accounts) copyHere(_ context.Context, a copyAsk) (p page, err error) {
	p.text, p.last, p.more, err = x.cfg.Copies.Page(a.one, a.realm, a.after)
	return p, err
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
				p, err := peerCopies.Ask(ctx, x.cfg.Reach.At(m), after)
				return slices.Clone(p.text), p.last, p.more, err
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
	p, err := peerCopied.Ask(ctx, x.cfg.Reach.At(one.Keeper), copyAsk{one, of, after})
	return p.after(after, err)
}

// Cursor is how far a reader has come.
type Cursor struct {
	machine sigma.MachineID // the last that was asked; "" = none
	copy    uint64          // the number of the ledger, if it is only known by a copy
	ledger  uint64          // that the machine itself was asked of, as far as that is known
	from    meter.Copy      // the copy that tells; ID 0 = the machine itself
	after   string          // the last key it told; "" = it has told all
}

// after checks that an answer goes on after a key.
func (p page) after(key string, err error) ([]byte, string, bool, error) {
	if err == nil && p.more && p.last <= key {
		err = sigma.Errorf("kernel.usage", sigma.KindInvalid, "the machine tells the same again and again")
	}
	return slices.Clone(p.text), p.last, p.more, err
}

// ledgerHere answers peerLedger.
func (x *Accounts) ledgerHere(_ context.Context, a ledgerAsk) (p page, err error) {
	p.text, p.last, p.more, err = x.cfg.Ledger.Page(a.what, x.cfg.Machine, sigma.RealmID(a.realm), a.after)
	return p, err
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
	p, err := peerLedger.Ask(ctx, x.cfg.Reach.At(m), ledgerAsk{what, string(of), after})
	return p.after(after, err)
}
