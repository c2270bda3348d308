package sigma

import (
	"reflect"
	"testing"
)

// Each field of RealmLimits is a row of the table, and what is done with all is done with it.
func TestRealmLimitTable(t *testing.T) {
	fields := reflect.TypeFor[RealmLimits]().NumField()
	if len(realmLimits) != fields {
		t.Fatalf("RealmLimits has %d fields, the table %d rows", fields, len(realmLimits))
	}
	for i, r := range realmLimits {
		var l RealmLimits
		r.set(&l, 7)
		for j := range fields {
			if f := reflect.ValueOf(l).Field(j); (f.Uint() == 7) != (i == j) {
				t.Errorf("row %d (%s) sets %s to %v; rows are in the order of the fields", i, r.what,
					reflect.TypeFor[RealmLimits]().Field(j).Name, f.Uint())
			}
		}
		var byDefault, other RealmLimits
		r.set(&byDefault, LimitDefault)
		r.set(&other, 9)
		for _, c := range []struct {
			what      string
			got, want RealmLimits
		}{
			{"nothing, or a default", RealmLimits{}.Or(l), l},
			{"a limit, or a default", l.Or(other), l},
			{"a limit with nothing", l.With(RealmLimits{}), l},
			{"a limit with another", l.With(other), other},
			{"a limit with its default", l.With(byDefault), RealmLimits{}},
		} {
			if c.got != c.want {
				t.Errorf("row %d (%s): %s: got %+v, want %+v", i, r.what, c.what, c.got, c.want)
			}
		}
		if l.Computes() != (r.of == ofComputing) {
			t.Errorf("row %d (%s) computes: %v", i, r.what, l.Computes())
		}
		var most, beyond RealmLimits
		r.set(&most, r.most)
		r.set(&beyond, r.most+1)
		if byDefault.Check() != nil || most.Check() != nil || KindOf(beyond.Check()) != KindInvalid {
			t.Errorf("row %d (%s): default %v, most %v, more %v", i, r.what, byDefault.Check(), most.Check(),
				beyond.Check())
		}
	}
}
