package kernel

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// copies are what a control machine was told of other machines' ledgers, so that what realms have used of a machine is known when it is lost. Each machine tells all control machines, every copyEvery, which hours have changed, as they are now: told twice they
// count once. A machine goes on from what the control machine holds, which says so with each answer. A ledger has a number, so that one that a machine begins after it lost its disk is another one; a machine speaks of its own alone, whatever number it says. It is
// kept in a file, as the ledger is.
type copies struct {
	path string

	mu    sync.Mutex
	of    map[string]*ledgerCopy        // mu; by copyKey
	full  map[sigma.MachineID]time.Time // mu; for which there was no room, and until when nothing of it is taken
	added int                           // mu; lines since it was tidied
	dirty bool                          // mu
}

// copyKey is of what a machine told of a ledger.
func copyKey(m sigma.MachineID, ledger uint64) string { return fmt.Sprintf("%s/%020d", m, ledger) }

// ledgerCopy is what is known of a ledger.
type ledgerCopy struct {
	ID      uint64                         `json:"ledger"`
	Machine sigma.MachineID                `json:"machine"`
	Former  bool                           `json:"former,omitempty"` // the machine has another one now
	Version uint64                         `json:"version"`          // of the ledger, as far as all is told
	Told    time.Time                      `json:"told"`
	Odd     bool                           `json:"odd,omitempty"` // it told what cannot be
	Realms  map[sigma.RealmID]*copiedRealm `json:"realms"`
}

// copiedRealm is a realm's part of it.
type copiedRealm struct {
	Sum   *state.RealmUsage           `json:"sum,omitempty"` // of the hours until Until, which are not kept singly any more
	Until int64                       `json:"until,omitempty"`
	Hours map[int64]*state.RealmUsage `json:"hours"`
}

const (
	// copyEvery is how often a machine tells what is new, and copyLeast how often it does if nothing is.
	copyEvery = 3 * time.Second
	copyLeast = time.Minute
	// copyLines are kept in all, of all machines, a ledger counting as one. Of more the older hours of each realm and machine become one sum; and if there are more realms and machines than that, machines are forgotten, that with the most lines first, and nothing is taken of them
	// for copyPause: part of what a machine has used would be taken for all.
	copyLines = 20000
	copyPause = 10 * time.Minute
	// copyHours of a realm at a machine are kept singly where there is no room for all.
	copyHours = 2
	// copyAhead is how far the clock of another machine may be ahead, and copyMost bounds figures that it tells: sums are to be numbers.
	copyAhead = 48 * time.Hour
	copyMost  = 1e30
	// copyGone bounds the realms that one telling says are gone.
	copyGone = 256
)

func newCopies(dir string) (*copies, error) {
	c := &copies{path: filepath.Join(dir, "usage-told"), of: map[string]*ledgerCopy{}, full: map[sigma.MachineID]time.Time{}}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c.of)
	}
	if err != nil {
		c.of = map[string]*ledgerCopy{}
		return c, err
	}
	maps.DeleteFunc(c.of, func(_ string, one *ledgerCopy) bool { return one == nil })
	for _, one := range c.of {
		maps.DeleteFunc(one.Realms, func(_ sigma.RealmID, r *copiedRealm) bool { return r == nil || r.Hours == nil })
		if one.Realms == nil {
			one.Realms = map[sigma.RealmID]*copiedRealm{}
		}
		for _, r := range one.Realms {
			maps.DeleteFunc(r.Hours, func(_ int64, h *state.RealmUsage) bool { return h == nil })
		}
	}
	return c, nil
}

// telling is what a machine tells at a time.
type telling struct {
	ledger  uint64
	since   uint64          // what is new since this version; 0 = all
	version uint64          // of the ledger, as far as it is told then
	gone    []sigma.RealmID // removed since
	text    []byte          // lines of /sys/usage
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

// take notes what a machine tells, and gives the version that is held then, which is another one than was told if it does not go on from what was held. An hour that cannot be, as of a machine whose clock was wrong, is left out; odd: for the first time.
func (c *copies) take(now time.Time, m sigma.MachineID, t *telling) (held uint64, odd bool, err error) {
	const op = "kernel.copies"
	if t.ledger == 0 || len(t.gone) > copyGone {
		return 0, false, sigma.Errorf(op, sigma.KindInvalid, "no ledger is told of")
	}
	hours, err := parseLines[state.RealmUsage](t.text)
	if err != nil {
		return 0, false, sigma.Errorf(op, sigma.KindInvalid, "machine %s tells what is no usage: %v", m, err)
	}
	told := len(hours)
	hours = slices.DeleteFunc(hours, func(h state.RealmUsage) bool {
		least, most := min(h.CPU, h.Memory, h.Served, h.Services.Named.CPU, h.Services.S3d.CPU, h.Services.Dbd.CPU), max(h.CPU, h.Memory, h.Served, h.Services.CPU())
		return sigma.RealmID(h.Realm).Check() != nil || h.From.Unix() <= 0 || h.From.Unix()%3600 != 0 || h.From.After(now.Add(copyAhead)) || least < 0 || most > copyMost
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.full[m]) {
		return 0, false, sigma.Errorf(op, sigma.KindBusy, "there is no room for what realms use of machine %s", m)
	}
	key := copyKey(m, t.ledger)
	one := c.of[key]
	if one != nil {
		held = one.Version
	}
	if t.since != 0 && t.since != held {
		return held, false, nil
	}
	c.dirty = true
	if one == nil {
		one = &ledgerCopy{ID: t.ledger, Machine: m, Realms: map[sigma.RealmID]*copiedRealm{}}
		c.of[key] = one
	}
	for _, other := range c.of {
		other.Former = other.Former || other.Machine == m
	}
	odd = len(hours) < told && !one.Odd
	one.Former, one.Odd, one.Version, one.Told = false, one.Odd || odd, t.version, now
	for _, realm := range t.gone {
		delete(one.Realms, realm)
	}
	for i := range hours {
		h := &hours[i]
		h.Machine, h.Told = "", nil
		r := one.Realms[sigma.RealmID(h.Realm)]
		if r == nil {
			r = &copiedRealm{Hours: map[int64]*state.RealmUsage{}}
			one.Realms[sigma.RealmID(h.Realm)] = r
		}
		if hour := h.From.Unix() / 3600; hour > r.Until {
			r.Hours[hour] = h
			c.added++
		}
	}
	if c.added > copyLines/10 {
		c.tidyLocked(now)
	}
	return t.version, odd, nil
}

// tidyLocked forgets what is old, and adds up the older hours of too many.
func (c *copies) tidyLocked(now time.Time) {
	oldest := now.Add(-ledgerAge).Unix() / 3600
	c.added = 0
	maps.DeleteFunc(c.full, func(_ sigma.MachineID, until time.Time) bool { return !now.Before(until) })
	for id, one := range c.of {
		for realm, r := range one.Realms {
			for hour := range r.Hours {
				if hour < oldest {
					delete(r.Hours, hour)
				}
			}
			if r.Sum != nil && r.Until < oldest {
				r.Sum = nil
			}
			if r.lines() == 0 {
				delete(one.Realms, realm)
			}
		}
		if len(one.Realms) == 0 && (one.Former || one.Told.Before(now.Add(-ledgerAge))) {
			delete(c.of, id)
		}
	}
	n, of := c.weighLocked()
	for keep := 24 * 7; n > copyLines && keep >= copyHours; keep /= 2 {
		for _, one := range c.of {
			for _, r := range one.Realms {
				r.fold(keep)
			}
		}
		n, of = c.weighLocked()
	}
	if n <= copyLines {
		return
	}
	all := slices.SortedFunc(maps.Keys(of), func(a, b sigma.MachineID) int {
		return cmp.Or(cmp.Compare(of[b].lines, of[a].lines), of[a].told.Compare(of[b].told))
	})
	for _, m := range all {
		if n <= copyLines*3/4 { // not with each telling
			break
		}
		n -= of[m].lines
		c.full[m] = now.Add(copyPause)
		maps.DeleteFunc(c.of, func(_ string, one *ledgerCopy) bool { return one.Machine == m })
	}
}

// copyWeight is how much is kept of a machine, and when it was heard of last.
type copyWeight struct {
	lines int
	told  time.Time
}

// weighLocked counts the lines, in all and of each machine.
func (c *copies) weighLocked() (n int, of map[sigma.MachineID]copyWeight) {
	of = map[sigma.MachineID]copyWeight{}
	for _, one := range c.of {
		lines := 1
		for _, r := range one.Realms {
			lines += r.lines()
		}
		w := of[one.Machine]
		if w.lines += lines; one.Told.After(w.told) {
			w.told = one.Told
		}
		of[one.Machine], n = w, n+lines
	}
	return n, of
}

func (r *copiedRealm) lines() int {
	if r.Sum != nil {
		return len(r.Hours) + 1
	}
	return len(r.Hours)
}

// fold adds up all hours but the latest so many.
func (r *copiedRealm) fold(keep int) {
	if len(r.Hours) <= keep {
		return
	}
	hours := make([]int64, 0, len(r.Hours))
	for hour := range r.Hours {
		hours = append(hours, hour)
	}
	slices.Sort(hours)
	for _, hour := range hours[:len(hours)-keep] {
		if h := r.Hours[hour]; r.Sum == nil {
			r.Sum = h
		} else {
			sum := r.Sum.Plus(*h)
			r.Sum = &sum
		}
		r.Until = hour
		delete(r.Hours, hour)
	}
}

// drop forgets a realm that was removed.
func (c *copies) drop(realm sigma.RealmID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.of {
		if one.Realms[realm] != nil {
			delete(one.Realms, realm)
			c.dirty = true
		}
	}
}

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
func (c *copies) hours(m sigma.MachineID, id uint64, realm sigma.RealmID) (out []state.RealmUsage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := c.of[copyKey(m, id)]
	if one == nil {
		return nil
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
	return out
}

// save writes the file, if something is new.
func (c *copies) save(now time.Time) error {
	c.mu.Lock()
	if !c.dirty {
		c.mu.Unlock()
		return nil
	}
	c.tidyLocked(now)
	text, err := json.Marshal(c.of)
	c.dirty = false
	c.mu.Unlock()
	if err == nil {
		err = replaceFile(c.path, text)
	}
	if err != nil {
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
	}
	return err
}

// parseLines reads what state.Lines wrote.
func parseLines[T any](text []byte) (out []T, err error) {
	for line := range bytes.Lines(text) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
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
	for _, h := range c.hours(one.Machine, one.ID, realm) {
		h.Machine = string(one.Machine)
		if !one.Told.IsZero() {
			told := one.Told.UTC()
			h.Told = &told
		}
		p.add(sigma.RealmID(h.Realm), h.From.Unix()/3600, "", h)
	}
	return p.page(one.Machine)
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
