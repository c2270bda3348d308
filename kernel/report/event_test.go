package report

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

func TestCursor(t *testing.T) {
	c := Cursor{"m1": 7, "m2": 1<<64 - 1}
	for text, want := range map[string]Cursor{"": {}, "\n": {}, c.String(): c, c.String() + "\n": c} {
		if got, err := ParseCursor(text); err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"m1", "m1:", "m1:x", "m1:1,", "M 1:1", "m1:-1", ":1"} {
		if got, err := ParseCursor(text); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("m1:7,m2:8")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCursor(text)
		if err != nil {
			return
		}
		if again, err := ParseCursor(c.String()); err != nil || !maps.Equal(c, again) {
			t.Errorf("%q means %v, and then %v, %v", text, c, again, err)
		}
	})
}

// Goal: Events has each event that there is a constant for, and the page of /sys/events tells of
// each.
func TestEventsAreAll(t *testing.T) {
	source, err := os.ReadFile("event.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^\tEvent\w+ += "([^"]+)"`).FindAllSubmatch(source, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 13 || !slices.Equal(names, Events) {
		t.Errorf("Events are %q, the constants %q", Events, names)
	}
	page, err := os.ReadFile("../../docs/reference/paths/sys-events.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Events {
		if !strings.Contains(string(page), "`"+e+"`") {
			t.Errorf("the page does not tell of %s", e)
		}
	}
}
