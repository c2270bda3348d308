package kernel

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/kernel/meter"

	"sigmaos.dev/launch"
	"sigmaos.dev/sigma"
)

// A realm's SQL statements run in a dbd of that realm alone, in its own process and cgroup, which
// sees no directory but the realm's (docs/adr/0048-a-dbd-for-each-realm.md). A dbd is started when
// its realm first uses a database, and ends when the realm has had no session for a while.

// databaseMemory is the hard limit of the memory of one dbd: 128 MiB that SQLite may have
// (db.DefaultLimits.Heap), and twice that for the program itself and the answers under way.
const databaseMemory = 384 * sigma.MiB

// databases holds the dbd of each realm that has one now.
type databases struct {
	k       *Kernel
	program Program // File is nil on a machine that has no databases
	uid     uint32

	mu sync.Mutex
	of map[sigma.RealmID]*service // mu
}

// databaseService names the dbd of a realm.
func databaseService(realm sigma.RealmID) string { return serviceDB + "/" + string(realm) }

// databaseRealm is the realm whose dbd has that name.
func databaseRealm(name string) (realm sigma.RealmID, ok bool) {
	rest, ok := strings.CutPrefix(name, serviceDB+"/")
	realm = sigma.RealmID(rest)
	return realm, ok && realm.Check() == nil
}

// service returns the dbd of a realm, which may not run yet; nil on a machine that has no
// databases.
func (d *databases) service(realm sigma.RealmID) *service {
	if d.program.File == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.of[realm]
	if s == nil {
		s = newService(d.k, d.program, d.uid)
		s.name, s.realm, s.state = databaseService(realm), realm, "unused"
		s.args = []string{"--realm", string(realm)}
		d.of[realm] = s
	}
	return s
}

// list returns the dbds that are wanted now, ordered by realm.
func (d *databases) list() (out []*service) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.of {
		if s.asked.Load() {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *service) int { return strings.Compare(a.name, b.name) })
	return out
}

// drop forgets a dbd that has ended because nobody needs it. The next use of the realm's databases
// starts another.
func (d *databases) drop(s *service) {
	d.mu.Lock()
	if d.of[s.realm] == s {
		delete(d.of, s.realm)
	}
	d.mu.Unlock()
	d.k.launches.forget(s.name)
	close(s.gone)
}

// usedFile exists from the first use of a realm's databases on, so that the removal of a realm
// without any starts no dbd.
func (d *databases) usedFile(realm sigma.RealmID) string {
	return filepath.Join(d.k.cfg.Data, "dbd-used", string(realm))
}

// noteUsed makes the file usedFile.
func (d *databases) noteUsed(realm sigma.RealmID) {
	file := d.usedFile(realm)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err != nil {
		d.k.cfg.Log.Error(
			"that databases are used cannot be noted: the realm may leave its databases when it is removed", "realm",
			realm, "err", err)
	}
}

// unused reports whether a realm never used a database on this machine.
func (d *databases) unused(realm sigma.RealmID) bool {
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
func (d *databases) charge(now time.Time, s *service, id uint64, total time.Duration, works []sigma.Work) {
	done := sigma.Work{Realm: s.realm, CPU: d.k.worked.Fresh(s.name, meter.Spent{Launch: id, CPU: total})}
	for _, w := range works {
		done.Requests, done.In, done.Out = done.Requests+w.Requests, done.In+w.In, done.Out+w.Out
	}
	before := meter.Spanned(now, d.k.worked.Since(s.name, now))
	d.k.worked.Add(serviceDB, done)
	d.k.countDone(now, before, serviceDB, done)
}

// ended charges what a dbd used until its end.
func (d *databases) ended(s *service, e launch.Exited) {
	d.charge(time.Now(), s, e.ID, e.User+e.Sys, nil)
}
