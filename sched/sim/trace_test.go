package sim

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

var sampleTrace = Trace{
	Sizes:  []Size{{2000, sigma.GiB}, {500, 512 * sigma.MiB}},
	Shares: map[sigma.RealmID]uint32{"a": 4},
	Arrivals: []Arrival{{Realm: "a", Run: 1500 * time.Millisecond, Start: 3 * time.Millisecond, Memory: 64 * sigma.MiB,
		Waited: 20 * time.Millisecond},
		{At: time.Second, Realm: "b", Run: time.Hour, Memory: 128 * sigma.MiB, CPU: 250, Waited: -1}},
}

// What is written is read again.
func TestTraceRoundTrip(t *testing.T) {
	var b bytes.Buffer
	if err := sampleTrace.Write(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	got, err := ReadTrace(&b)
	if err != nil || !reflect.DeepEqual(*got, sampleTrace) {
		t.Errorf("got %+v, %v\nof %s", got, err, text)
	}
}

func TestTraceRefused(t *testing.T) {
	const head = `{"trace":1}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "is empty"},
		{head, "has no procs"},
		{`{"trace":2}`, "version 2"},
		{`{"trace":1,"machines":[{"cores":0,"memory_bytes":1073741824}]}`, "machine 0"},
		{`{"trace":1,"machines":[{"cores":1,"memory_bytes":1}]}`, "machine 0"},
		{head + "x", "line 2 of the trace is no proc"},
		{head + `{"realm":"","memory_bytes":67108864}`, "line 2"},
		{head + `{"realm":"a","memory_bytes":1}`, "memory_bytes 1"},
		{head + `{"realm":"a","memory_bytes":67108864,"run_s":-1}`, "run_s -1"},
		{head + `{"realm":"a","memory_bytes":67108864,"wait_s":1e300}`, "wait_s"},
		{head + `{"realm":"a","memory_bytes":67108864,"cores":-1}`, "cores"},
		{head + strings.Repeat(" ", traceLineMax+1), "longer than"},
	} {
		_, err := ReadTrace(strings.NewReader(c.text))
		if sigma.KindOf(err) != sigma.KindInvalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: got %v, want %q", c.text, err, c.want)
		}
	}
}

// Whatever a trace says is refused or can be written and read again.
func FuzzReadTrace(f *testing.F) {
	var b bytes.Buffer
	if err := sampleTrace.Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.String())
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ReadTrace(strings.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := got.Write(&b); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadTrace(&b); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}

// Machines of different sizes and realms with shares of a trace are simulated as they are: a proc
// that fits only the largest runs there, and that with four shares has four parts.
func TestSizesAndShares(t *testing.T) {
	c := Config{Seed: 8, Machines: 8, Sizes: []Size{{8000, 4 * sigma.GiB}, {2000, sigma.GiB}},
		SharesOf: map[sigma.RealmID]uint32{"many": 4}}
	for i := range 4000 {
		c.Trace = append(c.Trace, Arrival{At: time.Duration(i) * time.Millisecond, Realm: []sigma.RealmID{"many",
			"few"}[i%2], Run: time.Second, Memory: 128 * sigma.MiB, Waited: -1})
	}
	c.Trace = append(c.Trace, Arrival{At: 2 * time.Second, Realm: "few", Run: time.Second, Memory: 3 * sigma.GiB,
		Waited: -1})
	r, err := New(c).Run()
	if err != nil || r.Jain < 0.98 || r.Worst < 0.85 || r.Unplaced > 0 {
		t.Errorf("Jain %.4f, worst %.3f, %d never placed, %v", r.Jain, r.Worst, r.Unplaced, err)
	}
}

// Goal: of a trace of procs that all found room at once the waits are predicted, though they are
// only messages, daemons' work and waits for a processor.
func TestLightTrace(t *testing.T) {
	for _, waited := range []time.Duration{100 * time.Microsecond, 5 * time.Millisecond} {
		c := Config{Seed: 9, Machines: 4}
		for i := range 400 {
			c.Trace = append(c.Trace, Arrival{At: time.Duration(i) * 50 * time.Millisecond, Realm: "r",
				Run: 20 * time.Millisecond, Memory: 16 * sigma.MiB,
				Waited: waited + time.Duration(i%10)*waited/10})
		}
		r, err := New(c).Run()
		if err != nil {
			t.Fatal(err)
		}
		if off := r.Predicted.P50.Seconds()/r.Recorded.P50.Seconds() - 1; off < -0.2 || off > 0.2 {
			t.Errorf("the median of the waits was %v, predicted %v", r.Recorded.P50, r.Predicted.P50)
		}
	}
}
