package identity

import (
	"bytes"
	"testing"

	"sigmaos.dev/sigma"
)

// TestGrantRoster: with only the control machines known, others are not yet known rather than
// removed.
func TestGrantRoster(t *testing.T) {
	g := &Grant{Control: []Member{{Machine: "m1", Key: Fingerprint{1}, Address: "10.0.0.1:7700", Incarnation: 2,
		Control: true}}}
	r := g.Roster()
	if err := r.Check(Subject{Machine: "m1", Key: Fingerprint{1}, Incarnation: 2, Epoch: 2}); err != nil {
		t.Error(err)
	}
	if err := r.Check(Subject{Machine: "m2", Key: Fingerprint{2}, Incarnation: 3,
		Epoch: 3}); sigma.KindOf(err) != sigma.KindUnavailable {
		t.Errorf("got %v", err)
	}
}

func FuzzParseGrant(f *testing.F) {
	g := &Grant{Certificate: []byte("x"), Authorities: [][]byte{[]byte("y")},
		Control: []Member{{Machine: "m1", Address: "10.0.0.1:7700", Incarnation: 2, Control: true}}}
	payload, err := g.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add(payload[:20])
	f.Fuzz(func(t *testing.T, payload []byte) {
		g, err := ParseGrant(payload)
		if err != nil {
			return
		}
		if again, err := g.Encode(); err != nil || !bytes.Equal(again, payload) {
			t.Errorf("%x became %x, %v", payload, again, err)
		}
		g.Roster()
	})
}
