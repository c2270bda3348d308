// Package traffic tells how fast the procs of a realm talk with one another, by two or more reads
// of /sys/traffic. It promises no more than the meters that it reads: what a proc counted itself is
// its own word. It reads nothing itself. Users: lib/fleet/coordinator, cmd/sigma.
package traffic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"sigmaos.dev/sigma"
)

// File is where pairs are read.
const File = "/sys/traffic"

// Ends are the two that talk.
type Ends struct {
	From   sigma.ProcID    `json:"from"` // that dialled; "" = a program outside
	FromOn sigma.MachineID `json:"from_on"`
	To     sigma.ProcID    `json:"to"`
	On     sigma.MachineID `json:"on"`
}

// Pair is a line of the file.
type Pair struct {
	Ends
	At          time.Time `json:"at"` // by the clock of the machine that tells it
	Sent        uint64    `json:"sent_bytes"`
	Received    uint64    `json:"received_bytes"`
	Connections int       `json:"connections"`
}

// Rate is how fast two talk.
type Rate struct {
	Ends
	Sent        float64 `json:"sent_per_second"` // bytes, by who dialled
	Received    float64 `json:"received_per_second"`
	Connections int     `json:"connections"`
}

// Both is the bytes a second of both directions.
func (r *Rate) Both() float64 { return r.Sent + r.Received }

// Missing is a machine that did not answer.
type Missing struct {
	Machine sigma.MachineID `json:"machine"`
	Why     string          `json:"missing"`
}

// Parse reads the file.
func Parse(text []byte) (pairs []Pair, missing []Missing, err error) {
	for line := range bytes.Lines(text) {
		var l struct {
			Pair
			Missing
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return nil, nil, sigma.Errorf("traffic.Parse", sigma.KindInvalid, "%s has a line that is none", File)
		}
		if l.Why != "" {
			missing = append(missing, l.Missing)
		} else {
			pairs = append(pairs, l.Pair)
		}
	}
	return pairs, missing, nil
}

// Meter makes rates of several reads. Not safe for concurrent use.
type Meter struct {
	last  map[Ends]Pair
	rates map[Ends]Rate
}

// Add takes a read. A pair has a rate from its second read on, the mean of its last rates, of which
// each counts half as much as the one after it. A pair that carried less than before has lost a
// connection, and counts as nothing that once.
func (m *Meter) Add(pairs []Pair) {
	last, rates := make(map[Ends]Pair, len(pairs)), make(map[Ends]Rate, len(pairs))
	for _, p := range pairs {
		last[p.Ends] = p
		before, known := m.last[p.Ends]
		rate, rated := m.rates[p.Ends]
		span := p.At.Sub(before.At).Seconds()
		switch {
		case !known:
			continue
		case span <= 0: // the same answer again
			last[p.Ends] = before
		default:
			now := Rate{Ends: p.Ends, Sent: grown(before.Sent, p.Sent) / span,
				Received: grown(before.Received, p.Received) / span}
			if rated {
				now.Sent, now.Received = (now.Sent+rate.Sent)/2, (now.Received+rate.Received)/2
			}
			rate, rated = now, true
		}
		if rated {
			rate.Connections = p.Connections
			rates[p.Ends] = rate
		}
	}
	m.last, m.rates = last, rates
}

func grown(before, now uint64) float64 { return float64(now - min(now, before)) }

// Rates are those of all pairs, the fastest first.
func (m *Meter) Rates() []Rate {
	out := make([]Rate, 0, len(m.rates))
	for _, r := range m.rates {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Rate) int {
		return cmp.Or(cmp.Compare(b.Both(), a.Both()), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To),
			cmp.Compare(a.FromOn, b.FromOn))
	})
	return out
}
