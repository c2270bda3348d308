package meter

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
)

// Ledger is what the procs of each realm have used of this machine, hour by hour, and which of them
// used what. A proc counts while it runs, and the rest of it at its end, in the hour in which that
// is seen. It is kept in a file, so that another sigmad goes on with it; what the last few seconds
// before a kill -9 have added is lost.
type Ledger struct {
	path string

	ID uint64 // its number: another one is begun where there is none

	mu      sync.Mutex
	hours   map[ledgerKey]*ledgerHour // mu
	version uint64                    // mu; of the latest change; those of another sigmad were less
	gone    map[sigma.RealmID]uint64  // mu; at which version the realm was removed; copyGone at most
	running map[sigma.ProcID]*Proc    // mu
	// mu; the latest of each realm, oldest first; what has ended does not change any more
	ended map[sigma.RealmID][]*Proc
	kept  int                     // mu; in ended
	spent map[Class]time.Duration // mu; processor time since this sigmad began
	// mu; which realm of the name it is that something is kept of, as far as that is known
	created map[sigma.RealmID]Made
	realms  realmsThere // mu
	// mu; what another sigmad has kept was not compared yet with which realms there are
	unsure bool
	dirty  bool // mu
}

type ledgerKey struct {
	realm sigma.RealmID
	hour  int64 // Unix time / 3600
}

// ledgerHour is what a realm has used in an hour.
type ledgerHour struct {
	report.RealmUsage
	changed uint64 // at which version
}

// Class is a realm's procs of a class.
type Class struct {
	Realm sigma.RealmID
	Class sigma.Class
}

// Proc is a proc that runs here, or did.
type Proc struct {
	ID     sigma.ProcID  `json:"id"`
	Realm  sigma.RealmID `json:"realm"`
	Name   string        `json:"name,omitempty"`
	Class  sigma.Class   `json:"class,omitempty"`
	Memory sigma.Bytes   `json:"memory"`
	Began  time.Time     `json:"began"`
	Until  time.Time     `json:"until"` // it is counted
	CPU    time.Duration `json:"cpu"`   // that is counted, as are the following
	Held   float64       `json:"held"`  // byte seconds
	Egress uint64        `json:"egress,omitempty"`
	Ended  bool          `json:"ended,omitempty"`
}

// ledgerFile is what is kept.
type ledgerFile struct {
	ID      uint64                 `json:"id"`
	Hours   []report.RealmUsage    `json:"hours"`
	Running map[sigma.ProcID]*Proc `json:"running"`
	Ended   []*Proc                `json:"ended"`
	Made    map[sigma.RealmID]Made `json:"made"`
}

const (
	// LookEvery is how often procs that run are looked at and the file is written.
	LookEvery = 10 * time.Second
	// ledgerEach bounds the procs that are looked at each time; each costs the launcher some 40 µs.
	// With more each has its turn later.
	ledgerEach = 128
	// ledgerMost hours of realms are kept, some 100 bytes each; the oldest are forgotten.
	ledgerMost = 20000
	// ledgerAge is for how long.
	ledgerAge = 31 * 24 * time.Hour
	// ledgerProcs that have ended are remembered about, of all realms together and never twice as
	// many, and each realm has an equal part, but ledgerLeast where there is room; some 200 bytes
	// each.
	ledgerProcs = 4096
	ledgerLeast = 16
	// ledgerName is how much of a proc's name is kept.
	ledgerName = 64
)

// OpenLedger reads what another sigmad has kept. Between the two nothing is counted but processor
// time, so that no change of the clock is. A damaged file is none, which is said.
func OpenLedger(dir string, now time.Time) (*Ledger, error) {
	l := &Ledger{path: filepath.Join(dir, "usage"), ID: rand.Uint64()>>1 + 1, version: uint64(max(1, now.UnixMicro())),
		hours: map[ledgerKey]*ledgerHour{}, gone: map[sigma.RealmID]uint64{}, running: map[sigma.ProcID]*Proc{},
		ended: map[sigma.RealmID][]*Proc{}, spent: map[Class]time.Duration{},
		created: map[sigma.RealmID]Made{}}
	text, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	var kept ledgerFile
	if err == nil {
		err = json.Unmarshal(text, &kept)
	}
	if err != nil {
		return l, err
	}
	for i := range kept.Hours {
		h := &kept.Hours[i]
		l.hours[ledgerKey{sigma.RealmID(h.Realm), h.From.Unix() / 3600}] = &ledgerHour{*h, l.version}
		l.version++
	}
	if kept.ID != 0 {
		l.ID = kept.ID
	}
	for id, p := range kept.Running {
		if p != nil {
			p.ID, p.Until = id, now
			l.running[id] = p
		}
	}
	for _, p := range kept.Ended {
		if p != nil {
			l.ended[p.Realm] = append(l.ended[p.Realm], p)
			l.kept++
		}
	}
	maps.Copy(l.created, kept.Made)
	l.unsure = len(l.hours)+len(l.ended) > 0
	l.cutLocked()
	return l, nil
}

// hourLocked is the present hour of a realm.
func (l *Ledger) hourLocked(now time.Time, realm sigma.RealmID) *report.RealmUsage {
	l.dirty = true
	key := ledgerKey{realm, now.Unix() / 3600}
	h := l.hours[key]
	if h == nil {
		h = &ledgerHour{RealmUsage: report.RealmUsage{Realm: string(realm), From: time.Unix(key.hour*3600, 0).UTC()}}
		l.hours[key] = h
		l.tidyLocked(now)
	}
	l.version++
	h.changed = l.version
	return &h.RealmUsage
}

// tidyLocked forgets what is old, and the oldest of too much.
func (l *Ledger) tidyLocked(now time.Time) {
	oldest := now.Add(-ledgerAge).Unix() / 3600
	for key := range l.hours {
		if key.hour < oldest {
			delete(l.hours, key)
		}
	}
	if len(l.hours) <= ledgerMost {
		return
	}
	keys := make([]ledgerKey, 0, len(l.hours))
	for key := range l.hours {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b ledgerKey) int { return cmp.Compare(a.hour, b.hour) })
	for _, key := range keys[:len(keys)-ledgerMost/2] {
		delete(l.hours, key)
	}
}

// Started counts a start.
func (l *Ledger) Started(now time.Time, realm sigma.RealmID, id sigma.ProcID, name string, memory sigma.Bytes,
	class sigma.Class) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hourLocked(now, realm).Starts++
	l.running[id] = &Proc{ID: id, Realm: realm, Name: name[:min(len(name), ledgerName)], Class: class, Memory: memory,
		Began: now, Until: now}
}

// Uses counts what a proc has used in all, cpu, as far as that is new; ended: it has.
func (l *Ledger) Uses(now time.Time, id sigma.ProcID, cpu time.Duration, ended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.running[id]
	if p == nil {
		return
	}
	h := l.hourLocked(now, p.Realm)
	held := float64(p.Memory) * max(0, now.Sub(p.Until).Seconds())
	h.CPU += max(0, cpu-p.CPU).Seconds()
	l.spent[Class{p.Realm, p.Class}] += max(0, cpu-p.CPU)
	h.Memory += held
	p.CPU, p.Held, p.Until = max(p.CPU, cpu), p.Held+held, now
	if ended {
		h.Ended++
		delete(l.running, id)
		p.Ended = true
		l.ended[p.Realm] = append(l.ended[p.Realm], p)
		l.kept++
		l.keepLocked(p.Realm, max(ledgerLeast, ledgerProcs/len(l.ended)))
		l.cutLocked()
	}
}

// keepLocked forgets all ended procs of a realm but the latest most.
func (l *Ledger) keepLocked(realm sigma.RealmID, most int) {
	if n := len(l.ended[realm]) - most; n > 0 {
		l.ended[realm] = slices.Delete(l.ended[realm], 0, n)
		l.kept -= n
	}
}

// cutLocked leaves each realm its equal part if too many ended procs are remembered, and some
// realms nothing if there are too many of them.
func (l *Ledger) cutLocked() {
	if l.kept < 2*ledgerProcs {
		return
	}
	most := max(1, ledgerProcs/len(l.ended))
	for realm := range l.ended {
		if l.keepLocked(realm, most); l.kept > ledgerProcs && most == 1 {
			l.forgetLocked(realm)
		}
	}
}

func (l *Ledger) forgetLocked(realm sigma.RealmID) {
	l.kept -= len(l.ended[realm])
	delete(l.ended, realm)
}

// egress counts bytes that a proc has sent to other machines, or beyond the system. One that is not
// known counts for its realm.
func (l *Ledger) egress(now time.Time, realm sigma.RealmID, id sigma.ProcID, bytes uint64) {
	if bytes == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.running[id]; p != nil && p.Realm == realm {
		p.Egress += bytes
	}
	l.hourLocked(now, realm).Egress += bytes
}

// Sigmad is the name under which the work of sigmad itself is counted.
const Sigmad = "sigmad"

// Served counts what a service, or sigmad, did for a realm; done.CPU is its processor time.
func (l *Ledger) Served(now time.Time, service string, done sigma.Work) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hourLocked(now, done.Realm)
	if service == Sigmad {
		h.Requests += done.Requests
		h.Served += done.CPU.Seconds()
		h.ServedIn += uint64(done.In)
		h.ServedOut += uint64(done.Out)
	} else if s := h.Services.Of(service); s != nil {
		*s = s.Plus(report.OfWork(done))
	}
}

// Some lists procs that have not been looked at for a while.
func (l *Ledger) Some(now time.Time) map[sigma.ProcID]sigma.RealmID {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[sigma.ProcID]sigma.RealmID{}
	for id, p := range l.running { // in an order that differs each time, so that all have their turn
		if now.Sub(p.Until) >= LookEvery {
			out[id] = p.Realm
		}
		if len(out) == ledgerEach {
			break
		}
	}
	return out
}

// Procs are those that run.
func (l *Ledger) Procs() (out []Proc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.running { // in an order that differs each time, so that all have their turn
		out = append(out, *p)
	}
	return out
}

// Classes is what procs have used since this sigmad began, as far as it was looked at, and how many
// best-effort procs of realms run.
func (l *Ledger) Classes() (spent map[Class]time.Duration, running map[sigma.RealmID]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	running = map[sigma.RealmID]int{}
	for _, p := range l.running {
		if p.Class == sigma.BestEffort {
			running[p.Realm]++
		}
	}
	return maps.Clone(l.spent), running
}

// Drop forgets a realm that was removed.
func (l *Ledger) Drop(realm sigma.RealmID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(realm, time.Time{})
}

// dropLocked forgets what a realm has used, but for procs that run and began after a time which is
// not zero: they are another's.
func (l *Ledger) dropLocked(realm sigma.RealmID, until time.Time) {
	l.dirty = true
	for key := range l.hours {
		if key.realm == realm {
			delete(l.hours, key)
		}
	}
	for id, p := range l.running {
		if p.Realm == realm && (until.IsZero() || p.Began.Before(until)) {
			delete(l.running, id)
		}
	}
	l.version++
	l.gone[realm] = l.version
	if len(l.gone) > copyGone {
		oldest := realm
		for other, at := range l.gone {
			if at < l.gone[oldest] {
				oldest = other
			}
		}
		delete(l.gone, oldest)
	}
	delete(l.created, realm)
	l.forgetLocked(realm)
	for _, class := range []sigma.Class{sigma.BestEffort, sigma.LatencyCritical} {
		delete(l.spent, Class{realm, class})
	}
}

// Heard takes which realms there are, and forgets what was used by others.
func (l *Ledger) Heard(now time.Time, there map[sigma.RealmID]Made) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsure = false
	of := map[sigma.RealmID]bool{}
	for key := range l.hours {
		of[key.realm] = true
	}
	for realm := range l.ended {
		of[realm] = true
	}
	for _, p := range l.running {
		of[p.Realm] = true
	}
	judge := l.realms.hear(now, there)
	for realm := range of {
		was := l.created[realm]
		is, over := judge(string(realm), realm, was)
		if over && is != 0 {
			l.dropLocked(realm, time.Unix(0, int64(is)))
		} else if over {
			l.dropLocked(realm, time.Time{})
		}
		if is != 0 && (over || was == 0) {
			l.isLocked(realm, is)
		}
	}
	maps.DeleteFunc(l.created, func(realm sigma.RealmID, _ Made) bool { return !of[realm] })
}

// isLocked notes which realm it is, and forgets what was used by one before.
func (l *Ledger) isLocked(realm sigma.RealmID, is Made) {
	l.dirty = true
	l.created[realm] = is
	for key := range l.hours {
		if key.realm == realm && is.before(key.hour) {
			delete(l.hours, key)
		}
	}
	all := len(l.ended[realm])
	l.ended[realm] = slices.DeleteFunc(l.ended[realm], func(p *Proc) bool { return p.Until.UnixNano() < int64(is) })
	l.kept -= all - len(l.ended[realm])
	if len(l.ended[realm]) == 0 {
		delete(l.ended, realm)
	}
}

// list gives the hours of a realm, or of all (""), by realm and time.
func (l *Ledger) list(realm sigma.RealmID) []report.RealmUsage {
	l.mu.Lock()
	out := l.hoursLocked(realm)
	l.mu.Unlock()
	sortHours(out)
	return out
}

// hoursLocked are those of list in no order.
func (l *Ledger) hoursLocked(realm sigma.RealmID) []report.RealmUsage {
	out := []report.RealmUsage{}
	for key, h := range l.hours {
		if realm == "" || key.realm == realm {
			out = append(out, h.RealmUsage)
		}
	}
	return out
}

// Since gives, as lines, the hours that have changed after a version, and the realms that were
// removed, as far as they are up to another version; with the oldest change first, and more if
// there are more.
func (l *Ledger) Since(version uint64) (text []byte, gone []sigma.RealmID, last uint64, more bool, err error) {
	l.mu.Lock()
	var hours []ledgerHour
	of := map[sigma.RealmID]Made{}
	for key, h := range l.hours {
		if h.changed > version {
			hours = append(hours, *h)
			of[key.realm] = l.created[key.realm]
		}
	}
	removed := maps.Clone(l.gone)
	last = max(version, l.version)
	l.mu.Unlock()
	slices.SortFunc(hours, func(a, b ledgerHour) int { return cmp.Compare(a.changed, b.changed) })
	for i := range hours {
		if len(text) >= usagePage {
			last, more = hours[i-1].changed, true
			break
		}
		line, err := report.Line(toldHour{hours[i].RealmUsage, of[sigma.RealmID(hours[i].Realm)]})
		if err != nil {
			return nil, nil, 0, false, err
		}
		text = append(text, line...)
	}
	for realm, at := range removed {
		if at > version && at <= last {
			gone = append(gone, realm)
		}
	}
	return text, gone, last, more, nil
}

func sortHours(out []report.RealmUsage) {
	slices.SortFunc(out, func(a, b report.RealmUsage) int {
		return cmp.Or(cmp.Compare(a.Realm, b.Realm), a.From.Compare(b.From))
	})
}

// Save writes the file, if something is new. Nobody waits for more than that it is copied.
func (l *Ledger) Save() error {
	l.mu.Lock()
	if !l.dirty {
		l.mu.Unlock()
		return nil
	}
	file := ledgerFile{ID: l.ID, Hours: l.hoursLocked(""), Running: make(map[sigma.ProcID]*Proc, len(l.running)),
		Made: maps.Clone(l.created)}
	for id, p := range l.running {
		now := *p
		file.Running[id] = &now
	}
	for _, of := range l.ended {
		file.Ended = append(file.Ended, of...)
	}
	l.dirty = false
	l.mu.Unlock()
	sortHours(file.Hours)
	text, err := json.Marshal(file)
	if err == nil {
		err = atomicfile.Write(l.path, text)
	}
	if err != nil {
		l.mu.Lock()
		l.dirty = true
		l.mu.Unlock()
	}
	return err
}
