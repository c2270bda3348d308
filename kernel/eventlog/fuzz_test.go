package eventlog

import (
	"bytes"
	"testing"
)

// FuzzParse: whatever a machine tells, only events of its own are taken, and no more than a page.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"at":"m1","seq":2,"event":"proc-ended","realm":"a"}` + "\n"))
	f.Add([]byte(`{"at":"m2"}` + "\n" + `{"at":"m1"}`))
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, lines []byte) {
		es, err := Parse(lines, "m1")
		if len(es) > PageMax || err != nil && len(es) > 0 {
			t.Errorf("%d events, %v", len(es), err)
		}
		for _, e := range es {
			if e.At != "m1" || bytes.ContainsRune([]byte(e.At), '\n') {
				t.Errorf("an event of %q was taken", e.At)
			}
		}
	})
}
