package kernel

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/state"
)

// Goal: what a proc uses is counted once, in the hours in which it ran, also over another sigmad; a removed realm leaves nothing; what is old or too much is forgotten; a damaged file is said to be one.
func TestLedger(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 59, 0, 0, time.UTC)
	open := func() *ledger {
		l, err := newLedger(dir, at.Add(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	l.started(at, "a", "p", "sleep", 100, sigma.BestEffort)
	l.started(at, "b", "q", "", 1, sigma.BestEffort)
	l.uses(at.Add(30*time.Second), "p", 3*time.Second, false)
	l.uses(at.Add(30*time.Second), "p", 2*time.Second, false) // later than it was asked: nothing is given back
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	l = open() // another sigmad
	if n := len(l.some(at.Add(time.Hour))); n != 2 {
		t.Errorf("%d procs run", n)
	}
	l.uses(at.Add(2*time.Minute), "p", 5*time.Second, true)
	l.uses(at.Add(2*time.Minute), "p", 5*time.Second, true) // no more
	want := []state.RealmUsage{{Realm: "a", From: at.Truncate(time.Hour), Starts: 1, CPU: 3, Memory: 3000}, {Realm: "a", From: at.Truncate(time.Hour).Add(time.Hour), Ended: 1, CPU: 2, Memory: 9000}}
	got := l.list("a")
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if all := l.list(""); len(all) != 3 || all[2].Realm != "b" {
		t.Errorf("all are %+v", all)
	}
	l.drop("b")
	if all := l.list("b"); len(all) != 0 || len(l.some(at.Add(time.Hour))) != 0 {
		t.Errorf("a removed realm has %+v", all)
	}
	l.started(at.Add(2*ledgerAge), "c", "r", "", 1, sigma.BestEffort)
	if all := l.list(""); len(all) != 1 {
		t.Errorf("what is old is there: %+v", all)
	}
	for i := range ledgerMost + 1 {
		l.started(at.Add(2*ledgerAge), sigma.RealmID(rune(i+1000)), "x", "", 1, sigma.BestEffort)
	}
	if n := len(l.list("")); n > ledgerMost {
		t.Errorf("%d hours are kept", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "usage"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := newLedger(dir, at); err == nil || l == nil {
		t.Errorf("a damaged file: %v, %v", l, err)
	}
}

// Goal: what one proc used is remembered past its end and over another sigmad, egress and the work of daemons count for the realm; each realm keeps its latest procs, however many another has; pages tell each line once.
func TestLedgerProcs(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := newLedger(dir, at)
	if err != nil {
		t.Fatal(err)
	}
	l.started(at, "a", "p", "sleep", 100, sigma.BestEffort)
	l.egress(at, "a", "p", 7)
	l.egress(at, "b", "p", 7) // says another realm: not the proc's
	l.served(at, serviceSigmad, sigma.Work{Realm: "a", Requests: 3, CPU: time.Second})
	l.uses(at.Add(10*time.Second), "p", 2*time.Second, true)
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	if l, err = newLedger(dir, at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if u := l.list("a"); len(u) != 1 || u[0].Egress != 7 || u[0].Requests != 3 || u[0].Served != 1 {
		t.Errorf("the realm has %+v", u)
	}
	p := l.ended["a"]
	if len(p) != 1 {
		t.Fatalf("the realm has %d ended procs", len(p))
	}
	if s := p[0].spent("m"); s.Proc != "p" || s.Name != "sleep" || s.CPU != 2 || s.Memory != 1000 || s.Egress != 7 || s.Ended == nil || !s.Ended.Equal(at.Add(10*time.Second)) {
		t.Errorf("the proc has %+v", s)
	}
	for i := range 2 * ledgerProcs {
		id := sigma.ProcID(fmt.Sprint(i))
		l.started(at.Add(time.Duration(i)), "b", id, "", 1, sigma.BestEffort)
		l.uses(at.Add(time.Hour), id, 0, true)
	}
	if len(l.ended["a"]) != 1 || len(l.ended["b"]) != ledgerProcs/2 {
		t.Errorf("%d and %d ended procs", len(l.ended["a"]), len(l.ended["b"]))
	}
	seen, pages, after := map[string]bool{}, 0, ""
	for more := true; more; pages++ {
		var text []byte
		if text, after, more, err = l.page(nameUsageProcs, "m", "", after); err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			if seen[string(line)] {
				t.Fatalf("twice: %s", line)
			}
			seen[string(line)] = true
		}
	}
	if len(seen) != 1+ledgerProcs/2 || pages < 2 {
		t.Errorf("%d lines on %d pages", len(seen), pages)
	}
}

// Goal: however many realms there are, what is remembered of ended procs is bounded, also what another sigmad has kept.
func TestLedgerManyRealms(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := newLedger(dir, at)
	if err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, of := range l.ended {
			n += len(of)
		}
		return n
	}
	for i := range 6 * ledgerProcs {
		realm, id := sigma.RealmID(fmt.Sprint("r", i%1000)), sigma.ProcID(fmt.Sprint(i))
		if i >= 3*ledgerProcs { // realms with one each
			realm = sigma.RealmID(fmt.Sprint("s", i))
		}
		l.started(at, realm, id, "", 1, sigma.BestEffort)
		l.uses(at, id, 0, true)
		if i%500 == 0 {
			clear(l.hours) // or each new one has all looked at
		}
		if n := l.kept; i%997 == 0 && (n != count() || n >= 2*ledgerProcs) || i < 3*ledgerProcs && len(l.ended[realm]) == 0 {
			t.Fatalf("after %d: %d are remembered, %d counted, %d of the realm", i, count(), n, len(l.ended[realm]))
		}
	}
	for i := range 3 * ledgerProcs { // as one without the bound has kept
		realm := sigma.RealmID(fmt.Sprint("t", i))
		l.ended[realm] = []*ledgerProc{{Realm: realm, Ended: true}}
	}
	if err := l.save(); err != nil {
		t.Fatal(err)
	}
	if l, err = newLedger(dir, at); err != nil || count() >= 2*ledgerProcs || count() != l.kept || l.kept < ledgerProcs/2 {
		t.Errorf("another sigmad has %d, counted %d, %v", count(), l.kept, err)
	}
}

// Goal: what a realm used of all machines is told at each, each machine's once; of one that is lost it is said that its procs are not told.
func TestFarUsage(t *testing.T) {
	x := newThree(t)
	for _, at := range []sigma.MachineID{"m1", "m2", "m3"} {
		x.burst(at, 4)
	}
	starts := func(at sigma.MachineID) (n int) {
		seen := map[string]bool{}
		for _, u := range objects[state.RealmUsage](t, x.m[at].connect(sigma.SystemRealm), "/sys/usage") {
			if key := u.Machine + u.Realm + u.From.String(); seen[key] {
				t.Errorf("twice: %+v", u)
			} else {
				seen[key] = true
			}
			n += int(u.Starts)
		}
		return n
	}
	for at := range x.m {
		if n := starts(at); n != 12 {
			t.Errorf("%s tells of %d starts", at, n)
		}
	}
	procs := map[string]bool{}
	for _, p := range objects[state.ProcSpent](t, x.m["m2"].connect(sigma.SystemRealm), "/sys/usage-procs") {
		procs[p.Proc] = true
	}
	if len(procs) != 12 {
		t.Errorf("%d procs are told of", len(procs))
	}
	x.lose("m3")
	eventually(t, "the loss is told", func() bool {
		text, _, err := x.m["m1"].connect(sigma.SystemRealm).Get(t.Context(), "/sys/usage-procs")
		return err == nil && strings.Contains(string(text), `{"machine":"m3","missing":`)
	})
}

type usageLines = lines[usageCursor]

// Goal: what one read tells of a machine is the machine's own word, or a copy of it, whatever becomes of the machine between its pages: never some of both. What cannot be read to its end is said to be missing.
func TestUsageOfOneSource(t *testing.T) {
	x := newThree(t)
	const hours = 400 // more than a page; of a realm that is older than they are
	for i := range hours {
		x.m["m3"].k.ledger.started(time.Now().Add(-time.Duration(i)*time.Hour), sigma.SystemRealm, "p", "", 1, sigma.BestEffort)
	}
	eventually(t, "the control machine is told", func() bool {
		return starts(x.m["m1"].k.copies, "m3", x.m["m3"].k.ledger.id, "") == hours
	})
	lost := func(is bool) {
		x.change(func(m *identity.Member) { m.Lost = is && m.Machine == "m3" })
	}
	// read tells of m3's lines: how many there are, how many of them were told, and whether one says that something is missing. between runs once some are read.
	read := func(between func()) (lines, told int, missing bool) {
		f := (&root{tree: &tree{k: x.m["m1"].k, principal: sigma.Principal{Realm: sigma.SystemRealm, System: true}}, realm: sigma.SystemRealm}).usageFile(nameUsage).(*usageLines)
		var at usageCursor
		for more := true; more; {
			var text []byte
			var err error
			if text, at, more, err = f.page(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(text) {
				var u struct {
					state.RealmUsage
					Missing string `json:"missing"`
				}
				if err := json.Unmarshal(line, &u); err != nil {
					t.Fatal(err)
				}
				if u.Machine != "m3" {
					continue
				}
				missing = missing || u.Missing != ""
				if u.Missing == "" {
					lines++
				}
				if u.Told != nil {
					told++
				}
			}
			if lines > 0 && between != nil {
				between()
				between = nil
			}
		}
		return lines, told, missing
	}
	if lines, told, missing := read(nil); lines != hours || told != 0 || missing {
		t.Errorf("%d lines of m3 are read, %d of them told, missing %v", lines, told, missing)
	}
	if lines, told, missing := read(func() { lost(true) }); lines == 0 || lines == hours || told != 0 || !missing {
		t.Errorf("lost between the pages: %d lines of m3, %d of them told, missing %v", lines, told, missing)
	}
	if lines, told, missing := read(func() { lost(false) }); lines != hours || told != hours || missing {
		t.Errorf("back between the pages: %d lines of m3, %d of them told, missing %v", lines, told, missing)
	}
	if lines, _, missing := read(func() {
		x.mu.Lock()
		x.members = slices.DeleteFunc(x.members, func(m identity.Member) bool { return m.Machine == "m3" })
		x.mu.Unlock()
		lost(false)
	}); lines > hours || (lines < hours) != missing {
		t.Errorf("removed between the pages: %d lines of m3, missing %v", lines, missing)
	}
}

// Goal: /sys/usage tells a tenant of its own realm, the provider of all.
func TestUsageFile(t *testing.T) {
	m := boot(t)
	admin := m.connect(sigma.SystemRealm)
	if err := admin.Realms().Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	for _, realm := range []sigma.RealmID{"default", "other"} {
		c := m.connect(realm)
		id := m.spawn(c, sigma.Descriptor{Memory: 8 * sigma.MiB})
		(<-m.procs).exit(0)
		m.status(c, id)
	}
	of := func(g getter) (out []string) {
		for _, u := range objects[state.RealmUsage](t, g, "/sys/usage") {
			if u.Starts != 1 || u.Ended != 1 || u.Memory <= 0 || u.Machine != "m1" {
				t.Errorf("the usage is %+v", u)
			}
			out = append(out, u.Realm)
		}
		return out
	}
	if got := of(admin); len(got) != 2 || got[0] != "default" || got[1] != "other" {
		t.Errorf("the provider is told of %v", got)
	}
	worker := m.worker(m.connect("other")) // one more start
	for _, u := range objects[state.RealmUsage](t, worker, "/sys/usage") {
		if u.Realm != "other" || u.Starts != 2 || u.Ended != 1 {
			t.Errorf("a tenant is told of %+v", u)
		}
	}
}
