package kernel

import (
	"context"
	"slices"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// How machines tell control machines of their ledgers.

// telling is what a machine tells at a time.
type telling struct {
	ledger  uint64
	since   uint64          // what is new since this version; 0 = all
	version uint64          // of the ledger, as far as it is told then
	gone    []sigma.RealmID // removed since
	text    []byte          // toldHours
}

// toldHour is a line of it.
type toldHour struct {
	state.RealmUsage
	Made made `json:"made,omitempty"` // of the realm
}

func (t *telling) code(c *sigmap.Coder) {
	gone := make([]string, len(t.gone))
	for i, r := range t.gone {
		gone[i] = string(r)
	}
	c.U64(&t.ledger)
	c.U64(&t.since)
	c.U64(&t.version)
	c.Strs(&gone)
	c.Data(&t.text)
	t.gone = t.gone[:0]
	for _, r := range gone {
		t.gone = append(t.gone, sigma.RealmID(r))
	}
}

// peerTold notes what another machine tells of its ledger, and answers with the version that is held then.
func (k *Kernel) peerTold(_ context.Context, who identity.Subject, payload []byte) ([]byte, error) {
	var t telling
	if err := sigmap.Parse(payload, t.code); err != nil {
		return nil, err
	}
	held, odd, err := k.copies.take(time.Now(), who.Machine, &t)
	if err != nil {
		return nil, err
	}
	if odd {
		k.cfg.Log.Warn("a machine tells of usage in an hour that cannot be, which is left out; was its clock wrong?", "machine", who.Machine)
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.U64(&held) })
}

// tellLedger tells the control machines what is new in this machine's ledger, until ctx ends.
func (k *Kernel) tellLedger(ctx context.Context) {
	select {
	case <-k.enrolled:
	case <-ctx.Done():
		return
	}
	known := map[sigma.MachineID]*toldKeeper{}
	every := time.NewTicker(copyEvery)
	defer every.Stop()
	for ctx.Err() == nil {
		to := k.controls()
		for m := range known {
			if !slices.Contains(to, m) {
				delete(known, m)
			}
		}
		for _, m := range to {
			if known[m] == nil {
				known[m] = &toldKeeper{}
			}
		}
		eachOf(len(to)+1, to, func(m sigma.MachineID) {
			if err := k.tellKeeper(ctx, m, known[m]); err != nil {
				k.cfg.Log.Debug("a control machine does not hear what realms use", "machine", m, "err", err)
			}
		})
		select {
		case <-every.C:
		case <-ctx.Done():
		}
	}
}

// toldKeeper is what a control machine was told.
type toldKeeper struct {
	version uint64
	at      time.Time
}

// tellKeeper tells one control machine.
func (k *Kernel) tellKeeper(ctx context.Context, m sigma.MachineID, to *toldKeeper) error {
	ctx, cancel := context.WithTimeout(ctx, findMax)
	defer cancel()
	for more := true; more; {
		t := telling{ledger: k.ledger.id, since: to.version}
		var err error
		if t.text, t.gone, t.version, more, err = k.ledger.since(to.version); err != nil {
			return err
		}
		if t.version == to.version && time.Since(to.at) < copyLeast {
			return nil
		}
		var held uint64
		if err := k.ask(ctx, m, peerTold, t.code, func(c *sigmap.Coder) { c.U64(&held) }); err != nil {
			return err
		}
		to.at = time.Now()
		switch {
		case held == t.version:
			to.version = held
		case t.since == 0:
			return sigma.Errorf("kernel.tellKeeper", sigma.KindInvalid, "all was told, and it holds another version")
		case held < t.version: // it does not hold what was told before
			to.version, more = held, true
		default: // of a sigmad whose clock was ahead
			to.version, more = 0, true
		}
	}
	return nil
}
