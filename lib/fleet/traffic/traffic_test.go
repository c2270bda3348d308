package traffic

import (
	"fmt"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

func at(second int, sent, received uint64) Pair {
	return Pair{Ends: Ends{From: "p", FromOn: "m1", To: "q", On: "m2"}, At: time.Unix(int64(second), 0), Sent: sent,
		Received: received, Connections: 1}
}

// Goal: a rate is what came between two reads, then the mean with those before; neither the same
// answer twice nor a connection that ended makes one.
func TestRates(t *testing.T) {
	var m Meter
	for i, c := range []struct {
		read           Pair
		sent, received float64
		none           bool
	}{
		{read: at(0, 1000, 1000), none: true},
		{read: at(2, 3000, 1000), sent: 1000},
		{read: at(2, 3000, 1000), sent: 1000},
		{read: at(3, 6000, 5000), sent: 2000, received: 2000},
		{read: at(4, 10, 10), sent: 1000, received: 1000},
	} {
		m.Add([]Pair{c.read})
		rates := m.Rates()
		if c.none {
			if len(rates) != 0 {
				t.Errorf("read %d: %+v", i, rates)
			}
			continue
		}
		if len(rates) != 1 || rates[0].Sent != c.sent || rates[0].Received != c.received {
			t.Errorf("read %d: %+v, want %v and %v", i, rates, c.sent, c.received)
		}
	}
	if m.Add(nil); len(m.Rates()) != 0 {
		t.Error("a pair that is gone has a rate")
	}
}

func TestParse(t *testing.T) {
	pairs, missing, err := Parse([]byte(`{"machine":"m1","at":"2026-01-01T00:00:00Z","realm":"a","from":"p","from_on":"m1",` +
		`"to":"q","on":"m2","sent_bytes":7,"received_bytes":8,"connections":2}` + "\n" +
		`{"machine":"m3","missing":"it is away"}` + "\n"))
	if err != nil || len(pairs) != 1 || pairs[0].Sent != 7 || pairs[0].On != "m2" || len(missing) != 1 ||
		missing[0].Machine != "m3" {
		t.Errorf("got %+v, %+v, %v", pairs, missing, err)
	}
	if _, _, err := Parse([]byte("no\n")); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"from":"p","at":"2026-01-01T00:00:00Z","sent_bytes":18446744073709551615}` + "\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		pairs, _, err := Parse(text)
		if err != nil {
			return
		}
		var m Meter
		m.Add(pairs)
		m.Add(pairs)
		for _, r := range m.Rates() {
			if !(r.Both() >= 0) {
				t.Error(fmt.Sprint(r))
			}
		}
	})
}
