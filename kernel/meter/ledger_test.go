package meter

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: what a proc uses is counted once, in the hours in which it ran, also over another sigmad; a
// removed realm leaves nothing; what is old or too much is forgotten; a damaged file is said to be
// one.
func TestLedger(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 59, 0, 0, time.UTC)
	open := func() *Ledger {
		l, err := OpenLedger(dir, at.Add(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	l.Started(at, "a", "p", "sleep", 100, sigma.BestEffort)
	l.Started(at, "b", "q", "", 1, sigma.BestEffort)
	l.Uses(at.Add(30*time.Second), "p", 3*time.Second, false)
	l.Uses(at.Add(30*time.Second), "p", 2*time.Second, false) // later than it was asked: nothing is given back
	if err := l.Save(); err != nil {
		t.Fatal(err)
	}
	l = open() // another sigmad
	if n := len(l.Some(at.Add(time.Hour))); n != 2 {
		t.Errorf("%d procs run", n)
	}
	l.Uses(at.Add(2*time.Minute), "p", 5*time.Second, true)
	l.Uses(at.Add(2*time.Minute), "p", 5*time.Second, true) // no more
	want := []report.RealmUsage{{Realm: "a", From: at.Truncate(time.Hour), Starts: 1, CPU: 3, Memory: 3000},
		{Realm: "a", From: at.Truncate(time.Hour).Add(time.Hour), Ended: 1, CPU: 2, Memory: 9000}}
	got := l.list("a")
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if all := l.list(""); len(all) != 3 || all[2].Realm != "b" {
		t.Errorf("all are %+v", all)
	}
	l.Drop("b")
	if all := l.list("b"); len(all) != 0 || len(l.Some(at.Add(time.Hour))) != 0 {
		t.Errorf("a removed realm has %+v", all)
	}
	l.Started(at.Add(2*ledgerAge), "c", "r", "", 1, sigma.BestEffort)
	if all := l.list(""); len(all) != 1 {
		t.Errorf("what is old is there: %+v", all)
	}
	for i := range ledgerMost + 1 {
		l.Started(at.Add(2*ledgerAge), sigma.RealmID(rune(i+1000)), "x", "", 1, sigma.BestEffort)
	}
	if n := len(l.list("")); n > ledgerMost {
		t.Errorf("%d hours are kept", n)
	}
	if err := os.WriteFile(filepath.Join(dir, "usage"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := OpenLedger(dir, at); err == nil || l == nil {
		t.Errorf("a damaged file: %v, %v", l, err)
	}
}

// Goal: what one proc used is remembered past its end and over another sigmad, egress and the work
// of daemons count for the realm; each realm keeps its latest procs, however many another has;
// pages tell each line once.
func TestLedgerProcs(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := OpenLedger(dir, at)
	if err != nil {
		t.Fatal(err)
	}
	l.Started(at, "a", "p", "sleep", 100, sigma.BestEffort)
	l.egress(at, "a", "p", 7)
	l.egress(at, "b", "p", 7) // says another realm: not the proc's
	l.Served(at, Sigmad, sigma.Work{Realm: "a", Requests: 3, CPU: time.Second})
	l.Uses(at.Add(10*time.Second), "p", 2*time.Second, true)
	if err := l.Save(); err != nil {
		t.Fatal(err)
	}
	if l, err = OpenLedger(dir, at.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if u := l.list("a"); len(u) != 1 || u[0].Egress != 7 || u[0].Requests != 3 || u[0].Served != 1 {
		t.Errorf("the realm has %+v", u)
	}
	p := l.ended["a"]
	if len(p) != 1 {
		t.Fatalf("the realm has %d ended procs", len(p))
	}
	if s := p[0].spent("m"); s.Proc != "p" || s.Name != "sleep" || s.CPU != 2 || s.Memory != 1000 || s.Egress != 7 ||
		s.Ended == nil || !s.Ended.Equal(at.Add(10*time.Second)) {
		t.Errorf("the proc has %+v", s)
	}
	for i := range 2 * ledgerProcs {
		id := sigma.ProcID(fmt.Sprint(i))
		l.Started(at.Add(time.Duration(i)), "b", id, "", 1, sigma.BestEffort)
		l.Uses(at.Add(time.Hour), id, 0, true)
	}
	if len(l.ended["a"]) != 1 || len(l.ended["b"]) != ledgerProcs/2 {
		t.Errorf("%d and %d ended procs", len(l.ended["a"]), len(l.ended["b"]))
	}
	seen, pages, after := map[string]bool{}, 0, ""
	for more := true; more; pages++ {
		var text []byte
		if text, after, more, err = l.Page("usage-procs", "m", "", after); err != nil {
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

// Goal: however many realms there are, what is remembered of ended procs is bounded, also what
// another sigmad has kept.
func TestLedgerManyRealms(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l, err := OpenLedger(dir, at)
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
		l.Started(at, realm, id, "", 1, sigma.BestEffort)
		l.Uses(at, id, 0, true)
		if i%500 == 0 {
			clear(l.hours) // or each new one has all looked at
		}
		if n := l.kept; i%997 == 0 && (n != count() || n >= 2*ledgerProcs) || i < 3*ledgerProcs &&
			len(l.ended[realm]) == 0 {
			t.Fatalf("after %d: %d are remembered, %d counted, %d of the realm", i, count(), n, len(l.ended[realm]))
		}
	}
	for i := range 3 * ledgerProcs { // as one without the bound has kept
		realm := sigma.RealmID(fmt.Sprint("t", i))
		l.ended[realm] = []*Proc{{Realm: realm, Ended: true}}
	}
	if err := l.Save(); err != nil {
		t.Fatal(err)
	}
	if l, err = OpenLedger(dir, at); err != nil || count() >= 2*ledgerProcs || count() != l.kept ||
		l.kept < ledgerProcs/2 {
		t.Errorf("another sigmad has %d, counted %d, %v", count(), l.kept, err)
	}
}
