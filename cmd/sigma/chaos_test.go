package main

import (
	"encoding/json"
	"strings"
	"testing"

	"sigmaos.dev/lib/chaos"
	"sigmaos.dev/lib/history"
)

// Goal: chaos does faults to the procs that are named and to no others, tells each as a line that
// a history may have, and leaves nothing frozen; a plan of the same seed is the same and does
// nothing.
func TestChaos(t *testing.T) {
	f := newFake(t)
	first, second := pausing(t, f)
	plan := f.sigma("chaos", "--proc", "first", "--for", "1s", "--every", "20ms", "--seed", "5", "--plan")
	again := f.sigma("chaos", "--proc", first, "--for", "1s", "--every", "20ms", "--seed", "5", "--plan")
	if plan.code != 0 || plan.out != again.out || !strings.Contains(plan.out, `"fault":"kill","target":"first"`) ||
		!strings.HasPrefix(plan.err, "seed 5: ") {
		t.Errorf("%+v and %+v", plan, again)
	}
	got := f.sigma("chaos", "--proc", "first", "--for", "200ms", "--every", "20ms", "--faults", "pause", "--pause",
		"50ms")
	h, err := history.Decode(strings.NewReader(got.out))
	if got.code != 0 || err != nil || len(h.Faults) < 3 {
		t.Fatalf("%+v: %v", got, err)
	}
	done := 0
	for _, fault := range h.Faults {
		if fault.Error == "" {
			done++
		}
		if fault.Error == "" && (fault.Fault != "pause" || fault.Proc != first || fault.Until <= fault.At) {
			t.Errorf("%+v", fault)
		}
	}
	if done == 0 || strings.Contains(f.sigma("ps").out, "frozen") {
		t.Errorf("%d pauses; ps: %+v", done, f.sigma("ps"))
	}
	want(t, f.sigma("chaos", "--proc", first, "--for", "1s", "--spare", "1"), 1, "", "match: 1; to be spared: 1")
	want(t, f.sigma("chaos", "--proc", second, "--for", "1s"), 1, "", "match: 0") // it is another realm's
}

// Goal: a line of chaos is a fault of a history.
func TestFaultLines(t *testing.T) {
	b, err := json.Marshal(chaos.Fault{Fault: chaos.Pause, Target: "web@1", Proc: "p", At: 3, Until: 4, Error: "e"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := history.Decode(strings.NewReader(string(b)))
	if err != nil || len(h.Faults) != 1 || h.Faults[0] !=
		(history.Fault{Fault: "pause", Target: "web@1", Proc: "p", At: 3, Until: 4, Error: "e"}) {
		t.Errorf("%+v, %v", h, err)
	}
}
