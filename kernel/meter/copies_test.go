package meter

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// tell has c take what is new in l since a version, as machine m's, page by page.
func tell(t *testing.T, c *Copies, now time.Time, m sigma.MachineID, l *Ledger, version uint64) uint64 {
	t.Helper()
	for more := true; more; {
		one := Telling{Ledger: l.ID, Since: version}
		var err error
		if one.Text, one.Gone, one.Version, more, err = l.Since(version); err != nil {
			t.Fatal(err)
		}
		wire, err := sigmap.Payload(func(c *sigmap.Coder) { CodeTelling(c, &one) })
		if err != nil {
			t.Fatal(err)
		}
		var came Telling
		if err := sigmap.Parse(wire, func(c *sigmap.Coder) { CodeTelling(c, &came) }); err != nil {
			t.Fatal(err)
		}
		if held, odd, err := c.Take(now, m, &came); err != nil || odd || held != one.Version {
			t.Fatalf("told up to %d, held is %d, odd %v, %v", one.Version, held, odd, err)
		}
		version = one.Version
	}
	return version
}

// Starts adds up the starts of a ledger's copy.
func starts(c *Copies, m sigma.MachineID, id uint64, realm sigma.RealmID) (n uint64) {
	hours, _ := c.hours(m, id, "") // of none there are none
	for _, h := range hours {
		if realm == "" || h.Realm == string(realm) {
			n += h.Starts
		}
	}
	return n
}

// Goal: what a machine tells of its ledger counts once however often it is told, over pages,
// another sigmad and a file; a removed realm is gone, also if it is made anew; a machine with
// another ledger, and a ledger at another machine, are told apart.
func TestCopies(t *testing.T) {
	dir, of := t.TempDir(), t.TempDir()
	at := time.Now().Truncate(time.Hour)
	l, err := OpenLedger(of, at)
	if err != nil {
		t.Fatal(err)
	}
	c, err := OpenCopies(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		l.Started(at.Add(-time.Duration(i)*time.Hour), "a", "p", "", 1, sigma.BestEffort)
	}
	l.Started(at, "b", "q", "", 1, sigma.BestEffort)
	if _, _, _, more, err := l.Since(0); !more || err != nil {
		t.Errorf("it goes on one page: %v", err)
	}
	v := tell(t, c, at, "m2", l, 0)
	tell(t, c, at, "m2", l, 0)
	l.Started(at, "a", "r", "", 1, sigma.BestEffort)
	if text, _, _, _, _ := l.Since(v); len(text) == 0 || len(text) > 1000 {
		t.Errorf("one hour has changed, and %d bytes are told", len(text))
	}
	v = tell(t, c, at, "m2", l, v)
	if a, b := starts(c, "m2", l.ID, "a"), starts(c, "m2", l.ID, "b"); a != 401 || b != 1 {
		t.Errorf("the copy has %d and %d starts", a, b)
	}
	if err := c.Save(at); err != nil {
		t.Fatal(err)
	}
	if c, err = OpenCopies(dir); err != nil || starts(c, "m2", l.ID, "") != 402 {
		t.Errorf("after a file: %d starts, %v", starts(c, "m2", l.ID, ""), err)
	}
	if err := l.Save(); err != nil {
		t.Fatal(err)
	}
	again, err := OpenLedger(of, at.Add(time.Minute)) // another sigmad
	if err != nil || again.ID != l.ID || again.version <= v {
		t.Errorf("another sigmad has ledger %d at %d, %v; it was %d at %d", again.ID, again.version, err, l.ID, v)
	}
	v = tell(t, c, at, "m2", again, 0)
	again.Drop("a")
	again.Started(at, "a", "s", "", 1, sigma.BestEffort)
	tell(t, c, at, "m2", again, v)
	if a, b := starts(c, "m2", l.ID, "a"), starts(c, "m2", l.ID, "b"); a != 1 || b != 1 {
		t.Errorf("of the realm that was removed and made anew %d starts are known, of the other %d", a, b)
	}
	other, err := OpenLedger(t.TempDir(), at)
	if err != nil {
		t.Fatal(err)
	}
	other.Started(at, "b", "q", "", 1, sigma.BestEffort)
	tell(t, c, at, "m2", other, 0)
	tell(t, c, at, "m5", again, 0)
	if one, two := c.of[CopyKey("m5", again.ID)], c.of[CopyKey("m2", other.ID)]; one.Machine != "m5" || one.Former ||
		two.Machine != "m2" || two.Former {
		t.Errorf("the ledgers are %+v and %+v", one, two)
	}
	fresh, err := OpenLedger(t.TempDir(), at)
	if err != nil {
		t.Fatal(err)
	}
	tell(t, c, at, "m5", fresh, 0)
	if !c.of[CopyKey("m5", again.ID)].Former || c.of[CopyKey("m5", fresh.ID)].Former ||
		!c.of[CopyKey("m2", again.ID)].Former || c.of[CopyKey("m2", other.ID)].Former {
		t.Error("a machine that begins a ledger keeps the one before")
	}
	tell(t, c, at, "m5", again, 0)
	if c.of[CopyKey("m5", again.ID)].Former || !c.of[CopyKey("m5", fresh.ID)].Former {
		t.Error("a machine that goes on with the ledger before does not")
	}
	c.Drop("b")
	if starts(c, "m5", again.ID, "b")+starts(c, "m2", again.ID, "b")+starts(c, "m2", other.ID, "b") != 0 {
		t.Error("a removed realm is there")
	}
	if err := os.WriteFile(filepath.Join(dir, "usage-told"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := OpenCopies(dir); err == nil || c == nil {
		t.Errorf("a damaged file: %v, %v", c, err)
	}
}

// Goal: however much is told, what is kept is bounded, and no usage is lost while sums have room:
// older hours become one; what is older than the ledgers' is forgotten; nonsense is refused.
func TestCopiesBounded(t *testing.T) {
	c, err := OpenCopies(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Truncate(time.Hour)
	hour := func(realm string, back int) report.RealmUsage {
		return report.RealmUsage{Realm: realm, From: at.Add(-time.Duration(back) * time.Hour), Starts: 1, CPU: 1}
	}
	machine := func(ledger uint64) sigma.MachineID { return sigma.MachineID("m" + strconv.FormatUint(ledger, 10)) }
	take := func(now time.Time, ledger uint64, hours ...report.RealmUsage) error {
		text, err := report.Lines(hours)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = c.Take(now, machine(ledger), &Telling{Ledger: ledger, Text: text})
		return err
	}
	realms := []string{"a", "b", "c", "d"}
	const machines, hours = 26, 700
	for m := range uint64(machines) {
		for _, realm := range realms {
			for from := hours; from > 0; from -= 100 {
				var all []report.RealmUsage
				for i := range 100 {
					all = append(all, hour(realm, from-1-i))
				}
				if err := take(at, m+1, all...); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	c.tidyLocked(at)
	lines, n := 0, uint64(0)
	for _, one := range c.of {
		n += starts(c, one.Machine, one.ID, "")
		for _, r := range one.Realms {
			lines += r.lines()
		}
	}
	if lines > copyLines || n != machines*hours*uint64(len(realms)) {
		t.Errorf("%d lines are kept, with %d starts", lines, n)
	}
	if err := take(at, 1, hour("a", hours-1), hour("a", 0)); err != nil || starts(c, "m1", 1, "a") != hours {
		t.Errorf("told again it is %d, %v", starts(c, "m1", 1, "a"), err)
	}
	for i := range uint64(copyLines/40 + 1) { // more realms at machines than lines
		var all []report.RealmUsage
		for r := range 40 {
			all = append(all, hour("r"+strconv.Itoa(r), 0))
		}
		if err := take(at.Add(time.Duration(i+1)*time.Second), 1000+i, all...); err != nil {
			t.Fatal(err)
		}
	}
	c.tidyLocked(at)
	if len(c.of) > copyLines/40 || starts(c, machine(1000+copyLines/40), 1000+copyLines/40, "") != 40 {
		t.Errorf("%d ledgers are kept", len(c.of))
	}
	for m := range uint64(machines) { // they were heard of longest ago, and have few lines
		if got := starts(c, machine(m+1), m+1, ""); got != hours*uint64(len(realms)) {
			t.Errorf("%d starts of machine %d are kept", got, m+1)
		}
	}
	if err := take(at.Add(time.Minute), 1000, hour("r", 0)); sigma.KindOf(err) != sigma.KindBusy ||
		starts(c, machine(1000), 1000, "") != 0 {
		t.Errorf("a machine for which there is no room: %v", err)
	}
	if err := take(at.Add(copyPause+time.Hour), 1000, hour("r", 0)); err != nil || starts(c, machine(1000), 1000,
		"") != 1 {
		t.Errorf("and later: %v", err)
	}
	c.tidyLocked(at.Add(ledgerAge + 2*time.Hour))
	if len(c.of) != 0 {
		t.Errorf("%d old ledgers are kept", len(c.of))
	}
	ahead, negative, huge, odd := hour("a", -100), hour("a", 0), hour("a", 0), hour("a", 0)
	negative.CPU, huge.Memory, odd.From = -1, 1e300, odd.From.Add(time.Second)
	for name, h := range map[string]report.RealmUsage{"an hour to come": ahead, "less than nothing": negative,
		"more than there is": huge, "no hour": odd, "no realm": hour("../x", 0)} {
		for i, first := range []bool{true, false} {
			text, err := report.Lines([]report.RealmUsage{h, hour("a", 0)})
			if err != nil {
				t.Fatal(err)
			}
			held, odd, err := c.Take(at, "odd", &Telling{Ledger: 7, Version: 9, Text: text})
			if err != nil || held != 9 || odd != first || starts(c, "odd", 7, "") != 1 {
				t.Errorf("%s beside an hour, told %d: held %d, odd %v, %v, %d starts", name, i, held, odd, err,
					starts(c, "odd", 7, ""))
			}
		}
		delete(c.of, CopyKey("odd", 7))
	}
	if _, _, err := c.Take(at, "m1", &Telling{Ledger: 1,
		Text: []byte("{}\nx")}); sigma.KindOf(err) != sigma.KindInvalid || err == nil || len(c.of) != 0 {
		t.Errorf("what is no line: %v, %d ledgers", err, len(c.of))
	}
}

// Goal: who tells goes on from what is held: what another one was told, or what was forgotten, is
// told again, and no part is taken for all; no machine changes what another one told, whatever
// number it says.
func TestCopiesHeld(t *testing.T) {
	dir, at := t.TempDir(), time.Now().Truncate(time.Hour)
	c, err := OpenCopies(dir)
	if err != nil {
		t.Fatal(err)
	}
	take := func(m sigma.MachineID, since, version uint64, realm string, gone ...sigma.RealmID) uint64 {
		t.Helper()
		text, err := report.Line(report.RealmUsage{Realm: realm, From: at, Starts: 1})
		if err != nil {
			t.Fatal(err)
		}
		held, _, err := c.Take(at, m, &Telling{Ledger: 5, Since: since, Version: version, Gone: gone, Text: text})
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	if held := take("m2", 10, 20, "a"); held != 0 || len(c.of) != 0 {
		t.Errorf("of what nothing was told %d is held, with %d ledgers", held, len(c.of))
	}
	if held := take("m2", 0, 10, "a"); held != 10 {
		t.Errorf("%d is held", held)
	}
	if err := c.Save(at); err != nil {
		t.Fatal(err)
	}
	take("m2", 10, 20, "b")
	if c, err = OpenCopies(dir); err != nil {
		t.Fatal(err)
	}
	if held := take("m2", 20, 30, "c"); held != 10 || starts(c, "m2", 5, "") != 1 {
		t.Errorf("after a file %d is held, with %d starts", held, starts(c, "m2", 5, ""))
	}
	if held := take("m2", 10, 30, "b"); held != 30 || starts(c, "m2", 5, "") != 2 {
		t.Errorf("%d is held, with %d starts", held, starts(c, "m2", 5, ""))
	}
	take("m3", 0, 1<<63, "x", "a", "b")
	if one := c.of[CopyKey("m2", 5)]; starts(c, "m2", 5, "") != 2 || one.Machine != "m2" || one.Former ||
		one.Version != 30 {
		t.Errorf("another machine has changed it: %+v", one)
	}
	if err := os.Mkdir(c.path+"~", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Save(at); err == nil || !c.dirty {
		t.Errorf("a file that cannot be written: %v, to be written %v", err, c.dirty)
	}
}

// Goal: each ledger counts once: of members what they say, with what they told for when they are
// lost; of a machine that is no member any more what it told, until another one has its ledger; and
// of a member that lost its ledger what it had told of that.
func TestUsageSources(t *testing.T) {
	at := time.Now()
	told := func(m sigma.MachineID, id uint64, former bool, ago time.Duration) Copy {
		return Copy{ID: id, Machine: m, Former: former, Told: at.Add(-ago)}
	}
	got := SourcesOf([]sigma.MachineID{"m1", "m2", "m3"}, 1, []Copy{
		told("m2", 2, false, 0), told("m2", 9, true, time.Hour), // m2 has lost its disk
		told("m3", 3, false, 0), told("x3", 3, false, time.Hour), // m3 was x3
		told("x1", 1, false, time.Hour), // and m1 was x1
		told("x4", 4, false, 2*time.Hour), told("y4", 4, false, time.Hour),
		told("x2", 2, false, 0), // as if it were m2's
	})
	var lines []string
	for _, s := range got {
		lines = append(lines, fmt.Sprintf("%s %d %d %v", s.Machine, s.Copy.ID, s.Lost.ID, s.Copy.Told.IsZero()))
	}
	if want := []string{"m1 0 0 true", "m2 0 2 true", "m2 9 0 true", "m3 0 3 true", "y4 4 0 true"}; !slices.Equal(lines,
		want) {
		t.Errorf("the sources are %q, not %q", lines, want)
	}
}

// FuzzTelling: whatever another machine tells, it is taken or refused, and what is kept of it is
// read as it was written.
func FuzzTelling(f *testing.F) {
	line, err := report.Line(report.RealmUsage{Realm: "a", From: time.Unix(3600, 0)})
	if err != nil {
		f.Fatal(err)
	}
	good := Telling{Ledger: 1, Version: 1, Gone: []sigma.RealmID{"b"}, Text: line}
	wire, err := sigmap.Payload(func(c *sigmap.Coder) { CodeTelling(c, &good) })
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Fuzz(func(t *testing.T, b []byte) {
		var one Telling
		if sigmap.Parse(b, func(c *sigmap.Coder) { CodeTelling(c, &one) }) != nil {
			return
		}
		empty := func() *Copies {
			return &Copies{of: map[string]*ledgerCopy{}, full: map[sigma.MachineID]time.Time{}}
		}
		c, now := empty(), time.Unix(7200, 0)
		_, _, err := c.Take(now, "m1", &one)
		if _, bad := ParseLines[toldHour](one.Text); bad != nil && err == nil {
			t.Fatalf("lines that cannot be read were taken: %v", bad)
		}
		if err != nil {
			return
		}
		c.Heard(now, map[sigma.RealmID]Made{"a": 1})
		text, err := c.text(now)
		if err != nil {
			t.Fatal(err)
		}
		read := empty()
		if err := read.parse(text); err != nil {
			t.Fatal(err)
		}
		if again, err := read.text(now); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("%s is read as %s, %v", text, again, err)
		}
	})
}

// Goal: of a file that something else has written, what is no usage is left out, and nothing fails
// at the next telling.
func TestCopiesDamaged(t *testing.T) {
	dir := t.TempDir()
	text :=
		`{"m1/1": null, "m2/2": {"Machine": "m2"}, "m3/3": {"Machine": "m3", "Realms": {"a": null, "b": {}, "c": {"Hours": {"1": null}}}}}`
	if err := os.WriteFile(filepath.Join(dir, "usage-told"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCopies(dir)
	if err != nil || len(c.of) != 2 {
		t.Fatal(c.of, err)
	}
	for _, one := range c.of {
		if one.Realms == nil || one.Realms["a"] != nil || one.Realms["b"] != nil {
			t.Errorf("%+v", one)
		}
		for _, r := range one.Realms {
			if len(r.Hours) != 0 {
				t.Errorf("%+v", r)
			}
		}
	}
}
