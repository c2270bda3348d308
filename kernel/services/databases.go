package services

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/kernel/meter"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// A realm's SQL statements run in a dbd of that realm alone, in its own process and cgroup, which
// sees no directory but the realm's (docs/adr/0048-a-dbd-for-each-realm.md). A dbd is started when
// its realm first uses a database, and ends when the realm has had no session for a while.

// databaseMemory is the hard limit of the memory of one dbd: 128 MiB that SQLite may have
// (db.DefaultLimits.Heap), and twice that for the program itself and the answers under way.
const databaseMemory = 384 * sigma.MiB

// Databases holds the dbd of each realm that has one now.
type Databases struct {
	set     *Set
	program Program // File is nil on a machine that has no databases
	uid     uint32

	mu sync.Mutex
	of map[sigma.RealmID]*Service // mu
}

// DatabaseService names the dbd of a realm.
func DatabaseService(realm sigma.RealmID) string { return DB + "/" + string(realm) }

// DatabaseRealm is the realm whose dbd has that name.
func DatabaseRealm(name string) (realm sigma.RealmID, ok bool) {
	rest, ok := strings.CutPrefix(name, DB+"/")
	realm = sigma.RealmID(rest)
	return realm, ok && realm.Check() == nil
}

// service returns the dbd of a realm, which may not run yet; nil on a machine that has no
// databases.
func (d *Databases) service(realm sigma.RealmID) *Service {
	if d.program.File == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.of[realm]
	if s == nil {
		s = newService(d.set, d.program, d.uid)
		s.Name, s.Realm, s.state = DatabaseService(realm), realm, "unused"
		s.Args = []string{"--realm", string(realm)}
		d.of[realm] = s
	}
	return s
}

// list returns the dbds that are wanted now, ordered by realm.
func (d *Databases) list() (out []*Service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.of {
		if s.asked.Load() {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *Service) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// drop forgets a dbd that has ended because nobody needs it. The next use of the realm's databases
// starts another.
func (d *Databases) drop(s *Service) {
	d.mu.Lock()
	if d.of[s.Realm] == s {
		delete(d.of, s.Realm)
	}
	d.mu.Unlock()
	d.set.launches.forget(s.Name)
	close(s.gone)
}

// usedFile exists from the first use of a realm's databases on, so that the removal of a realm
// without any starts no dbd.
func (d *Databases) usedFile(realm sigma.RealmID) string {
	return filepath.Join(d.set.cfg.Data, "dbd-used", string(realm))
}

// noteUsed makes the file usedFile.
func (d *Databases) noteUsed(realm sigma.RealmID) {
	file := d.usedFile(realm)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err != nil {
		d.set.cfg.Log.Error(
			"that databases are used cannot be noted: the realm may leave its databases when it is removed", "realm",
			realm, "err", err)
	}
}

// unused reports whether a realm never used a database on this machine.
func (d *Databases) unused(realm sigma.RealmID) bool {
	d.mu.Lock()
	s := d.of[realm]
	d.mu.Unlock()
	if s != nil && s.asked.Load() {
		return false
	}
	_, err := os.Stat(d.usedFile(realm))
	return os.IsNotExist(err)
}

// charge charges a realm for all that its dbd has used since it was charged last. total is what
// this dbd has used since its launch; works is what it did, as far as it told.
func (d *Databases) charge(now time.Time, s *Service, id uint64, total time.Duration, works []sigma.Work) {
	done := sigma.Work{Realm: s.Realm, CPU: d.set.cfg.Worked.Fresh(s.Name, meter.Spent{Launch: id, CPU: total})}
	for _, w := range works {
		done.Requests, done.In, done.Out = done.Requests+w.Requests, done.In+w.In, done.Out+w.Out
	}
	before := meter.Spanned(now, d.set.cfg.Worked.Since(s.Name, now))
	d.set.cfg.Worked.Add(DB, done)
	d.set.cfg.Charge(now, before, DB, done)
}

// ended charges what a dbd used until its end.
func (d *Databases) ended(s *Service, e launch.Exited) {
	d.charge(time.Now(), s, e.ID, e.User+e.Sys, nil)
}
