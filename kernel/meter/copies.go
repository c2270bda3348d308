package meter

import (
	"bytes"
	"cmp"
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

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
)

// Copies are what a control machine was told of other machines' ledgers, so that what realms have
// used of a machine is known when it is lost. Each machine tells all control machines, every
// copyEvery, which hours have changed, as they are now: told twice they count once. A machine goes
// on from what the control machine holds, which says so with each answer. A ledger has a number, so
// that one that a machine begins after it lost its disk is another one; a machine speaks of its own
// alone, whatever number it says. It is kept in a file, as the ledger is.
type Copies struct {
	path string

	mu    sync.Mutex
	of    map[string]*ledgerCopy        // mu; by copyKey
	full  map[sigma.MachineID]time.Time // mu; for which there was no room, and until when nothing of it is taken
	added int                           // mu; lines since it was tidied
	there realmsThere                   // mu
	dirty bool                          // mu

	unsure bool // mu; what another sigmad has kept was not compared yet with which realms there are
}

// CopyKey is of what a machine told of a ledger.
func CopyKey(m sigma.MachineID, ledger uint64) string { return fmt.Sprintf("%s/%020d", m, ledger) }

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
	Made Made `json:"made,omitempty"`
	// of the hours until Until, which are not kept singly any more
	Sum   *report.RealmUsage           `json:"sum,omitempty"`
	Until int64                        `json:"until,omitempty"`
	Hours map[int64]*report.RealmUsage `json:"hours"`
}

const (
	// CopyEvery is how often a machine tells what is new, and copyLeast how often it does if
	// nothing is.
	CopyEvery = 3 * time.Second
	CopyLeast = time.Minute
	// copyLines are kept in all, of all machines, a ledger counting as one. Of more the older hours
	// of each realm and machine become one sum; and if there are more realms and machines than
	// that, machines are forgotten, that with the most lines first, and nothing is taken of them
	// for copyPause: part of what a machine has used would be taken for all.
	copyLines = 20000
	copyPause = 10 * time.Minute
	// copyHours of a realm at a machine are kept singly where there is no room for all.
	copyHours = 2
	// copyAhead is how far the clock of another machine may be ahead, and copyMost bounds figures
	// that it tells: sums are to be numbers.
	copyAhead = 48 * time.Hour
	copyMost  = 1e30
	// copyGone bounds the realms that one telling says are gone.
	copyGone = 256
)

func OpenCopies(dir string) (*Copies, error) {
	c := &Copies{path: filepath.Join(dir, "usage-told"), of: map[string]*ledgerCopy{},
		full: map[sigma.MachineID]time.Time{}}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = c.parse(text)
	}
	c.unsure = len(c.of) > 0
	return c, err
}

// parse reads what text makes; what is in it and no usage is left out.
func (c *Copies) parse(text []byte) error {
	if err := json.Unmarshal(text, &c.of); err != nil {
		c.of = map[string]*ledgerCopy{}
		return err
	}
	if c.of == nil { // null
		c.of = map[string]*ledgerCopy{}
	}
	maps.DeleteFunc(c.of, func(_ string, one *ledgerCopy) bool { return one == nil })
	for _, one := range c.of {
		maps.DeleteFunc(one.Realms, func(_ sigma.RealmID, r *copiedRealm) bool { return r == nil || r.Hours == nil })
		if one.Realms == nil {
			one.Realms = map[sigma.RealmID]*copiedRealm{}
		}
		for _, r := range one.Realms {
			maps.DeleteFunc(r.Hours, func(_ int64, h *report.RealmUsage) bool { return h == nil })
		}
	}
	return nil
}

// text is what the file keeps.
func (c *Copies) text(now time.Time) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tidyLocked(now)
	c.dirty = false
	return json.Marshal(c.of)
}

// Take notes what a machine tells, and gives the version that is held then, which is another one
// than was told if it does not go on from what was held. An hour that cannot be, as of a machine
// whose clock was wrong, is left out; odd: for the first time.
func (c *Copies) Take(now time.Time, m sigma.MachineID, t *Telling) (held uint64, odd bool, err error) {
	const op = "kernel.copies"
	if t.Ledger == 0 || len(t.Gone) > copyGone {
		return 0, false, sigma.Errorf(op, sigma.KindInvalid, "no ledger is told of")
	}
	hours, err := ParseLines[toldHour](t.Text)
	if err != nil {
		return 0, false, sigma.Errorf(op, sigma.KindInvalid, "machine %s tells what is no usage: %v", m, err)
	}
	told := len(hours)
	hours = slices.DeleteFunc(hours, func(h toldHour) bool {
		least, most := min(h.CPU, h.Memory, h.Served, h.Services.Named.CPU, h.Services.S3d.CPU, h.Services.Dbd.CPU),
			max(h.CPU, h.Memory, h.Served, h.Services.CPU())
		return sigma.RealmID(h.Realm).Check() != nil || h.From.Unix() <= 0 || h.From.Unix()%3600 != 0 ||
			h.From.After(now.Add(copyAhead)) || least < 0 || most > copyMost || h.Made < 0
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.full[m]) {
		return 0, false, sigma.Errorf(op, sigma.KindBusy, "there is no room for what realms use of machine %s", m)
	}
	key := CopyKey(m, t.Ledger)
	one := c.of[key]
	if one != nil {
		held = one.Version
	}
	if t.Since != 0 && t.Since != held {
		return held, false, nil
	}
	c.dirty = true
	if one == nil {
		one = &ledgerCopy{ID: t.Ledger, Machine: m, Realms: map[sigma.RealmID]*copiedRealm{}}
		c.of[key] = one
	}
	for _, other := range c.of {
		other.Former = other.Former || other.Machine == m
	}
	odd = len(hours) < told && !one.Odd
	one.Former, one.Odd, one.Version, one.Told = false, one.Odd || odd, t.Version, now
	for _, realm := range t.Gone {
		delete(one.Realms, realm)
	}
	for i := range hours {
		h := &hours[i]
		h.Machine, h.Told = "", nil
		if r := c.partLocked(one, h); r != nil {
			if hour := h.From.Unix() / 3600; hour > r.Until {
				r.Hours[hour] = &h.RealmUsage
				c.added++
			}
		}
	}
	if c.added > copyLines/10 {
		c.tidyLocked(now)
	}
	return t.Version, odd, nil
}

// partLocked is the part of a ledger's copy that an hour belongs to; nil if it is of a realm that
// is gone.
func (c *Copies) partLocked(one *ledgerCopy, h *toldHour) *copiedRealm {
	realm := sigma.RealmID(h.Realm)
	r, is := one.Realms[realm], c.there.created[realm]
	if h.Made != 0 && h.Made < is || h.Made == 0 && is.before(h.From.Unix()/3600) {
		return nil
	}
	if r != nil && h.Made != 0 && r.Made != h.Made {
		switch {
		case r.Made == 0:
			r.is(h.Made)
		case h.Made < r.Made:
			return nil
		default:
			r = nil
		}
	}
	if r == nil {
		r = &copiedRealm{Made: h.Made, Hours: map[int64]*report.RealmUsage{}}
		one.Realms[realm] = r
	}
	return r
}

// is notes which realm it is, and forgets what was used by one before.
func (r *copiedRealm) is(of Made) {
	r.Made = of
	maps.DeleteFunc(r.Hours, func(hour int64, _ *report.RealmUsage) bool { return of.before(hour) })
	if of.before(r.Until) {
		r.Sum = nil
	}
}

// Heard takes which realms there are, and forgets what was used by others.
func (c *Copies) Heard(now time.Time, there map[sigma.RealmID]Made) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsure = false
	judge := c.there.hear(now, there)
	for key, one := range c.of {
		for realm, r := range one.Realms {
			is, over := judge(key+"/"+string(realm), realm, r.Made)
			switch {
			case over:
				delete(one.Realms, realm)
				c.dirty = true
			case r.Made == 0 && is != 0:
				r.is(is)
				c.dirty = true
			}
		}
	}
}

// tidyLocked forgets what is old, and adds up the older hours of too many.
func (c *Copies) tidyLocked(now time.Time) {
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
func (c *Copies) weighLocked() (n int, of map[sigma.MachineID]copyWeight) {
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

// Drop forgets a realm that was removed.
func (c *Copies) Drop(realm sigma.RealmID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.of {
		if one.Realms[realm] != nil {
			delete(one.Realms, realm)
			c.dirty = true
		}
	}
}

// Save writes the file, if something is new.
func (c *Copies) Save(now time.Time) error {
	c.mu.Lock()
	dirty := c.dirty
	c.mu.Unlock()
	if !dirty {
		return nil
	}
	text, err := c.text(now)
	if err == nil {
		err = atomicfile.Write(c.path, text)
	}
	if err != nil {
		c.mu.Lock()
		c.dirty = true
		c.mu.Unlock()
	}
	return err
}

// ParseLines reads what report.Lines wrote.
func ParseLines[T any](text []byte) (out []T, err error) {
	for line := range bytes.Lines(text) {
		var v T
		if err := json.Unmarshal(line, &v); err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}
