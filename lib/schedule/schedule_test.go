package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/inprocess"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

// Goal: lines are read, and what is wrong with one is said with its number.
func TestParse(t *testing.T) {
	es, err := Parse("# comment\n\nreport once 30 4 * * *\ntick skip @every 10m\n" +
		"berlin all TZ=Europe/Berlin 0 9 * * MON\n")
	if err != nil || len(es) != 3 || es[0].Name != "report" || es[0].Missed != Once || es[1].When != "@every 10m" {
		t.Fatal(es, err)
	}
	for text, want := range map[string]string{"a once": "line 1", "\na never * * * * *": "line 2",
		"a all 61 * * * *":                 "line 1",
		"a all * * * * *\na all * * * * *": "there twice", "a all TZ=": "line 1", "a once 0 0 30 2 *": "line 1"} {
		if _, err := Parse(text); sigma.KindOf(err) != sigma.KindInvalid || !strings.Contains(err.Error(), want) ||
			sigma.HintOf(err) == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Goal: of times that were missed those are fired that the policy wants, and what was recorded is
// the last in any case.
func TestMissed(t *testing.T) {
	last := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for policy, want := range map[Missed]string{All: "01:00 02:00 03:00 04:00 05:00", Once: "05:00",
		Skip: "(05:00)"} {
		es, err := Parse("x " + string(policy) + " @hourly")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range es[0].due(last, last.Add(5*time.Hour+30*time.Minute)) {
			text := m.UTC().Format("15:04")
			if !m.fire {
				text = "(" + text + ")"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", policy, got, want)
		}
		late := es[0].due(last, last.Add(time.Hour+30*time.Second))
		if len(late) != 1 || !late[0].fire {
			t.Errorf("%s: a time that was 30 s ago: %v", policy, late)
		}
	}
	es, err := Parse("x all * * * * *")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(es[0].due(last, last.Add(10000*time.Minute))); n != missedMost {
		t.Errorf("%d of 10,000 missed times are fired", n)
	}
}

// Goal: each time is fired until that succeeds, and once, by whichever program leads, while they
// come and go; a change of the entries is followed.
func TestRun(t *testing.T) {
	tree := memfs.New(memfs.Config{})
	defer tree.Close()
	ctx, realm := t.Context(), inprocess.Serve(t, tree)
	if err := Set(ctx, realm.Connect(t), "/s", "a all @every 1s"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	count := map[string]int{}
	fired := make(chan string, 1000)
	run := func() (stop func()) {
		c := realm.Connect(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- Run(ctx, c, Config{Dir: "/s", TTL: time.Second}, func(_ context.Context, f Firing) error {
				mu.Lock()
				defer mu.Unlock()
				count[f.Key()]++
				if count[f.Key()] == 1 {
					return errors.New("not yet")
				}
				fired <- f.Key()
				return nil
			})
		}()
		return func() {
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
	}
	first, second := run(), run()
	<-fired
	first()
	<-fired
	if err := Set(ctx, realm.Connect(t), "/s", "b all @every 1s"); err != nil {
		t.Fatal(err)
	}
	for !strings.HasPrefix(<-fired, "b@") {
	}
	second()
	mu.Lock()
	defer mu.Unlock()
	if len(count) < 3 {
		t.Errorf("fired %v", count)
	}
	for key, n := range count {
		if n > 2 {
			t.Errorf("%s was fired %d times", key, n)
		}
	}
	if err := Set(ctx, realm.Connect(t), "/s", "nonsense"); sigma.KindOf(err) != sigma.KindInvalid {
		t.Error(err)
	}
}

// FuzzParse: no schedule and no record is a panic, and what is accepted has a next time.
func FuzzParse(f *testing.F) {
	f.Add("report once 30 4 * * *")
	f.Add("x all TZ=UTC @every 1s")
	f.Fuzz(func(t *testing.T, text string) {
		es, err := Parse(text)
		for _, e := range es {
			if err == nil && e.next.Next(time.Unix(0, 0)).IsZero() {
				t.Error(fmt.Sprint(e))
			}
		}
		decodeFired([]byte(text))
	})
}
