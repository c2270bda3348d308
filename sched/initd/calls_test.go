package initd

import (
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func FuzzCodes(f *testing.F) {
	l := Look{Epoch: 1, Questions: []Question{{"r", "p"}}}
	b, _ := sigmap.Payload(l.Code)
	f.Add(b)
	s := Spawning{1, "r", "p", sigma.Descriptor{Program: "/bin/x"}}
	b, _ = sigmap.Payload(s.Code)
	f.Add(b)
	ss := []Seen{{Ended, 1, sigma.Status{Code: sigma.StatusOK}}}
	b, _ = sigmap.Payload(func(c *sigmap.Coder) { CodeSeen(c, &ss) })
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var l Look
		var s Spawning
		var ss []Seen
		var g sigma.Registration
		errs := []error{sigmap.Parse(b, l.Code), sigmap.Parse(b, s.Code), sigmap.Parse(b, func(c *sigmap.Coder) {
			CodeSeen(c, &ss)
		}), sigmap.Parse(b, func(c *sigmap.Coder) { c.Registration(&g) })}
		if len(l.Questions) > LookMax || len(ss) > LookMax {
			t.Error("more than may be", errs)
		}
	})
}
