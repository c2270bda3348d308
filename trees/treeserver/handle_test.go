package treeserver

import (
	"reflect"
	"testing"

	"sigmaos.dev/wire/sigmap"
)

// Each request about a file names it to fidOf, but for those that do handles it before.
func TestFidOf(t *testing.T) {
	before := map[string]bool{"Tattach": true, "Tclunk": true, "Tremove": true, "Tcall": true}
	for i := range 256 {
		m := sigmap.New(sigmap.Type(i))
		if m == nil || before[sigmap.Type(i).String()] {
			continue
		}
		fid := reflect.ValueOf(m).Elem().FieldByName("Fid")
		if !fid.IsValid() || sigmap.Type(i).String()[0] != 'T' {
			continue
		}
		fid.SetUint(7)
		if n, ok := fidOf(m); n != 7 || !ok {
			t.Errorf("fidOf lacks %s", m.Type())
		}
	}
}
