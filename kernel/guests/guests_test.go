package guests

import (
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Goal: who has one credential, or all but the owners' of a realm, leaves its owners places;
// programs that are refused are told why, a bounded number at a time.
func TestGuestsBounds(t *testing.T) {
	g := newGuests(Config{})
	guest := func(realm sigma.RealmID, name string, role sigma.Role) *Granted {
		return &Granted{Role: role, Presented: sigmap.Presented{Realm: realm, Name: name}}
	}
	var all []*Granted
	fill := func(realm sigma.RealmID, name string, role sigma.Role) (n int) {
		for ; n < 2*guestsOf; n++ {
			t := guest(realm, name, role)
			if g.enter(t) != nil {
				break
			}
			all = append(all, t)
		}
		return n
	}
	if n := fill("a", "v", sigma.RoleViewer); n != guestsOfOne {
		t.Errorf("a credential holds %d sessions", n)
	}
	if n := fill("b", "v", sigma.RoleViewer); n != guestsOfOne {
		t.Errorf("one of another realm, of the same name, holds %d", n)
	}
	n := guestsOfOne
	for i := range 64 {
		n += fill("a", fmt.Sprint("v", i), sigma.RoleDeveloper-sigma.Role(i%2))
	}
	if n != guestsShort {
		t.Errorf("without owners a realm has %d sessions", n)
	}
	if err := g.enter(guest("a", "new", sigma.RoleDeveloper)); sigma.KindOf(err) != sigma.KindBusy ||
		sigma.HintOf(err) == "" {
		t.Errorf("one more: %v", err)
	}
	for i := range 64 {
		n += fill("a", fmt.Sprint("o", i), sigma.RoleOwner)
	}
	if n != guestsOf {
		t.Errorf("with owners it has %d", n)
	}
	for _, t := range all {
		g.leave(t)
	}
	if len(g.sessions)+len(g.of)+len(g.short)+len(g.ofOne) != 0 {
		t.Errorf("all have left, and %v, %v, %v are counted", g.of, g.short, g.ofOne)
	}

	told := 0
	for g.beginRefusal(1000) {
		told++
	}
	if told != refusalsOf || !g.beginRefusal(1001) {
		t.Errorf("%d programs of a user are told why they are refused, and none of another's", told)
	}
	for range told {
		g.endRefusal(1000)
	}
	if g.endRefusal(1001); g.refusals+len(g.refusing) != 0 {
		t.Errorf("all were told, and %v are counted", g.refusing)
	}

	if g.Stale != verdictStale {
		t.Errorf("sessions go on for %v without an answer", g.Stale)
	}
}

// Goal: wrong credentials are counted for each user: one who guesses is kept off for a while and no
// other is, however many users guess, or connect and say nothing.
func TestGuesses(t *testing.T) {
	g := newGuests(Config{})
	now := time.Unix(1_700_000_000, 0)
	greet := func(uid uint32, now time.Time) (x *greeting, cut *bool, err error) {
		cut = new(bool)
		x, err = g.greet(uid, now, func() { *cut = true })
		return x, cut, err
	}
	heard := func(what string, uid uint32, now time.Time) {
		t.Helper()
		x, _, err := greet(uid, now)
		if err != nil {
			t.Errorf("%s is not heard: %v", what, err)
			return
		}
		g.bye(x)
	}
	for range guessesMax {
		heard("who has guesses left", 7, now)
		g.guesses.count(now, 7)
	}
	if _, _, err := greet(7, now.Add(guessesTime-1)); sigma.KindOf(err) != sigma.KindBusy || sigma.HintOf(err) == "" {
		t.Errorf("a guesser is heard: %v", err)
	}
	heard("another user", 8, now)
	heard("a guesser, later", 7, now.Add(guessesTime))
	for uid := range uint32(3 * guessersMax) {
		for range guessesMax {
			g.guesses.count(now, 1000+uid)
		}
	}
	if len(g.guesses) > guessersMax {
		t.Errorf("%d users are remembered", len(g.guesses))
	}
	heard("who has not guessed, while thousands do", 8, now)
	if g.guesses.count(now.Add(2*guessesTime), 5); len(g.guesses) > 2 {
		t.Errorf("%d users are remembered for ever", len(g.guesses))
	}

	now = now.Add(time.Hour)
	var first, second *greeting
	var firstCut, secondCut *bool
	for i := range greetingsMax { // of many users, who say nothing
		x, cut, err := greet(2000+uint32(i/greetingsOf), now)
		if err != nil {
			t.Fatal(err)
		}
		switch i {
		case 0:
			first, firstCut = x, cut
		case 1:
			second, secondCut = x, cut
		}
	}
	if _, _, err := greet(2000, now); sigma.KindOf(err) != sigma.KindBusy || len(g.greetings) != greetingsMax {
		t.Errorf("one user begins to connect without an end: %v", err)
	}
	if !g.hear(first) {
		t.Error("a greeting comes too late")
	}
	heard("another user", 10, now)
	if *firstCut || !*secondCut || g.hear(second) {
		t.Errorf("the oldest that says nothing is not the one that is cut off: %v %v", *firstCut, *secondCut)
	}
	g.bye(second)
	if n := len(g.greetings); n != greetingsMax-1 || g.greeting[2000] != greetingsOf-1 {
		t.Errorf("%d are under way, %d of a user", n, g.greeting[2000])
	}
	for _, x := range g.greetings {
		g.hear(x)
	}
	if _, _, err := greet(11, now); err != nil {
		t.Error(err)
	}
	g.hear(g.greetings[greetingsMax-1])
	if _, _, err := greet(12, now); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("more are judged at once than can be: %v", err)
	}
}
