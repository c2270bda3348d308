package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// Goal: topo makes rates of two reads, names the procs, and shows who is how far, in words and as
// JSON; a machine that is away is told of.
func TestTopo(t *testing.T) {
	f := newFake(t)
	first, _ := pausing(t, f)
	reads := 0
	f.mu.Lock()
	f.texts = map[string]func() string{
		"traffic": func() string {
			reads++
			return fmt.Sprintf(`{"machine":"m1","at":"2026-01-01T00:00:%02dZ","realm":"default","from":%q,"from_on":"m1",`+
				`"to":"other","on":"m2","sent_bytes":%d,"received_bytes":0,"connections":3}
{"machine":"m3","missing":"the machine is away"}
`, reads, first, reads*5_000_000)
		},
		"distances": func() string {
			return `{"machine":"m1","to":"m2","rtt_seconds":0.000042}
{"machine":"m2","to":"m1","rtt_seconds":null}
{"machine":"m3","missing":"the machine is away"}
`
		},
	}
	f.mu.Unlock()
	got := f.sigma("topo", "--over", "1.1s")
	for _, want := range []string{"42µs", "?", first + "@m1", "first", "other@m2", "5.0 MB/s", "0 B/s"} {
		if got.code != 0 || !strings.Contains(got.out, want) {
			t.Errorf("it lacks %q: %+v", want, got)
		}
	}
	if !strings.Contains(got.err, "m3") {
		t.Errorf("it does not say that m3 is away: %+v", got)
	}
	var said struct {
		Talks []struct {
			FromName string  `json:"from_name"`
			Sent     float64 `json:"sent_per_second"`
		} `json:"talks"`
		Distances []any `json:"distances"`
	}
	if err := json.Unmarshal([]byte(f.sigma("topo", "--over", "1.1s", "--json").out), &said); err != nil {
		t.Fatal(err)
	}
	if len(said.Talks) != 1 || said.Talks[0].FromName != "first" || said.Talks[0].Sent != 5e6 ||
		len(said.Distances) != 2 {
		t.Errorf("got %+v", said)
	}
	if got := f.sigma("topo", "--over", "1ms"); got.code == 0 {
		t.Errorf("it looks for 1ms: %+v", got)
	}
}
