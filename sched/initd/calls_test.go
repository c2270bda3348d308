package initd

import (
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func FuzzCodes(f *testing.F) {
	b, _ := CallLook.Payload(Look{Epoch: 1, Questions: []Question{{"r", "p"}}})
	f.Add(b)
	b, _ = CallSpawn.Payload(Spawning{1, "r", "p", sigma.Descriptor{Program: "/bin/x"}})
	f.Add(b)
	ss := []Seen{{Ended, 1, sigma.Status{Code: sigma.StatusOK}}}
	b, _ = sigmap.Payload(func(c *sigmap.Coder) { CodeSeen(c, &ss) })
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var ss []Seen
		var g sigma.Registration
		l, err := CallLook.Parse(b)
		_, err2 := CallSpawn.Parse(b)
		errs := []error{err, err2, sigmap.Parse(b, func(c *sigmap.Coder) {
			CodeSeen(c, &ss)
		}), sigmap.Parse(b, func(c *sigmap.Coder) { c.Registration(&g) })}
		if len(l.Questions) > LookMax || len(ss) > LookMax {
			t.Error("more than may be", errs)
		}
	})
}
