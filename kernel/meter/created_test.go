package meter

import (
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: what a realm has used that was removed while a machine was away is gone from its ledger,
// and from what it had told, when it is back: at once if there is a new realm of the name, which
// has its own use only, and is told nothing before that is known; else when lists have lacked it
// for a while. Nothing of realms that stay is lost, whatever an old list says.
func TestUsageOfRemovedRealms(t *testing.T) {
	at := time.Now().Truncate(time.Hour).Add(30 * time.Minute)
	was, is := MadeAt(at.Add(-5*time.Hour)), MadeAt(at.Add(-10*time.Minute))
	for name, c := range map[string]struct {
		knew  Made // which realm it was, when the machine went
		there Made // the realm of the name when it is back; 0 = none
		old   uint64
	}{
		"removed":                   {was, 0, 0},
		"removed and made anew":     {was, is, 0},
		"the same":                  {was, was, 2},
		"of an older sigmad":        {0, was, 2},
		"of an older sigmad, anew":  {0, is, 1}, // the hour in which it was made is its
		"of an older sigmad, ended": {0, 0, 0},
	} {
		dir, kept := t.TempDir(), t.TempDir()
		l, err := OpenLedger(dir, at)
		if err != nil {
			t.Fatal(err)
		}
		cs, err := OpenCopies(kept)
		if err != nil {
			t.Fatal(err)
		}
		for i, realm := range []sigma.RealmID{"a", "stays"} {
			for back := range 2 {
				id := sigma.ProcID(string(realm) + string(rune('0'+back)))
				l.Started(at.Add(-time.Duration(back)*time.Hour), realm, id, "", 1, sigma.BestEffort)
				l.Uses(at.Add(-time.Duration(back)*time.Hour-time.Duration(i)), id, 0, true)
			}
		}
		if c.knew != 0 {
			l.Heard(at, map[sigma.RealmID]Made{"a": c.knew, "stays": was})
		}
		tell(t, cs, at, "m2", l, 0)
		if err := l.Save(); err != nil {
			t.Fatal(err)
		}
		if err := cs.Save(at); err != nil {
			t.Fatal(err)
		}
		at := at.Add(time.Minute)
		if l, err = OpenLedger(dir, at); err != nil {
			t.Fatal(err)
		}
		if cs, err = OpenCopies(kept); err != nil {
			t.Fatal(err)
		}
		tellsNobodyYet(t, name, l, cs)
		there := map[sigma.RealmID]Made{"stays": was}
		if c.there != 0 {
			there["a"] = c.there
		}
		heard := func(at time.Time, there map[sigma.RealmID]Made) {
			l.Heard(at, there)
			cs.Heard(at, there)
		}
		check := func(when string, want uint64) {
			t.Helper()
			n := uint64(0)
			for _, h := range l.list("a") {
				n += h.Starts
			}
			if told := starts(cs, "m2", l.ID, "a"); n != want || told != want || uint64(len(l.ended["a"])) != want {
				t.Errorf("%s, %s: the ledger has %d starts and %d procs, the copy %d starts, want %d", name, when, n,
					len(l.ended["a"]), told, want)
			}
			if told := starts(cs, "m2", l.ID, "stays"); len(l.list("stays")) != 2 || told != 2 ||
				len(l.ended["stays"]) != 2 {
				t.Errorf("%s, %s: of the other realm are %d hours, %d procs and %d starts", name, when,
					len(l.list("stays")), len(l.ended["stays"]), told)
			}
		}
		heard(at, there)
		if c.there == 0 {
			check("missing once", 2)
			heard(at.Add(goneAfter-1), there)
			check("missing for a while", 2)
		}
		heard(at.Add(goneAfter), there)
		check("back", c.old)
		heard(at.Add(goneAfter+1), map[sigma.RealmID]Made{}) // of a named that does not know yet that it leads no more
		heard(at.Add(goneAfter+2), there)
		heard(at.Add(3*goneAfter), there)
		check("after an old list", c.old)
		l.Started(at, "a", "new", "", 1, sigma.BestEffort)
		tell(t, cs, at, "m2", l, 0)
		if told := starts(cs, "m2", l.ID, "a"); told != c.old+1 {
			t.Errorf("%s: with one start more the copy has %d", name, told)
		}
		if l.kept != len(l.ended["a"])+len(l.ended["stays"]) {
			t.Errorf("%s: %d procs are counted", name, l.kept)
		}
	}
}

// tellsNobodyYet checks that a ledger and its copy, just read from their files, tell no realm of
// what may be another's, and the provider all.
func tellsNobodyYet(t *testing.T, name string, l *Ledger, cs *Copies) {
	t.Helper()
	copied := Copy{ID: l.ID, Machine: "m2"}
	for what, page := range map[string]func(sigma.RealmID) error{
		"ledger": func(r sigma.RealmID) error { _, _, _, err := l.Page(ByHour, "m2", r, ""); return err },
		"procs":  func(r sigma.RealmID) error { _, _, _, err := l.Page("usage-procs", "m2", r, ""); return err },
		"copy":   func(r sigma.RealmID) error { _, _, _, err := cs.Page(copied, r, ""); return err },
	} {
		if err := page("a"); sigma.KindOf(err) != sigma.KindUnavailable || err == nil {
			t.Errorf("%s: the %s tells a realm of what may be another's: %v", name, what, err)
		}
		if err := page(""); err != nil {
			t.Errorf("%s: the %s tells the provider nothing: %v", name, what, err)
		}
	}
}

// Goal: a machine that comes back and tells of a realm that was removed meanwhile tells nothing of
// the realm that has its name now; and one that knows the new realm makes what was told of the
// former vanish.
func TestToldOfAFormerRealm(t *testing.T) {
	at := time.Now().Truncate(time.Hour)
	c, err := OpenCopies(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	old, now := MadeAt(at.Add(-9*time.Hour)), MadeAt(at.Add(-time.Minute))
	version := uint64(0)
	take := func(of Made, hour time.Time) {
		t.Helper()
		version++
		text, err := report.Line(toldHour{report.RealmUsage{Realm: "a", From: hour, Starts: 1}, of})
		if err != nil {
			t.Fatal(err)
		}
		if _, odd, err := c.Take(at, "m2", &Telling{Ledger: 3, Since: version - 1, Version: version,
			Text: text}); err != nil || odd {
			t.Fatal(odd, err)
		}
	}
	want := func(n uint64) {
		t.Helper()
		if got := starts(c, "m2", 3, ""); got != n {
			t.Errorf("%d starts are kept, want %d", got, n)
		}
	}
	take(old, at.Add(-2*time.Hour))
	take(0, at.Add(-time.Hour)) // which it did not know, or a former version of sigmad
	want(2)
	take(now, at)
	want(1)
	take(old, at.Add(-3*time.Hour))
	want(1)
	c.Heard(at, map[sigma.RealmID]Made{"a": now})
	take(old, at.Add(-2*time.Hour))
	take(0, at.Add(-2*time.Hour))
	want(1)
	take(0, at)
	want(1)
}

// Goal: a proc of the new realm that runs when its machine hears of it goes on to be counted,
// though what the former realm used is forgotten.
func TestUsageOfTheNewRealmGoesOn(t *testing.T) {
	dir, at := t.TempDir(), time.Now().Truncate(time.Hour)
	l, err := OpenLedger(dir, at)
	if err != nil {
		t.Fatal(err)
	}
	l.Started(at, "a", "old", "", 1, sigma.BestEffort)
	l.Heard(at, map[sigma.RealmID]Made{"a": MadeAt(at.Add(-time.Hour))})
	l.Started(at.Add(time.Minute), "a", "new", "", 1, sigma.BestEffort)
	l.Heard(at.Add(2*time.Minute), map[sigma.RealmID]Made{"a": MadeAt(at.Add(30 * time.Second))})
	if u := l.list("a"); len(u) != 0 {
		t.Errorf("the former realm's use is there: %+v", u)
	}
	l.Uses(at.Add(3*time.Minute), "old", time.Second, true)
	l.Uses(at.Add(3*time.Minute), "new", time.Second, true)
	if u := l.list("a"); len(u) != 1 || u[0].Ended != 1 || u[0].CPU != 1 {
		t.Errorf("the new realm has %+v", u)
	}
}
