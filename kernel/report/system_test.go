package report

import (
	"reflect"
	"testing"

	"sigmaos.dev/sigma"
)

// Each limit of a realm is told.
func TestOfRealmLimits(t *testing.T) {
	limits := reflect.TypeFor[sigma.RealmLimits]()
	if n := reflect.TypeFor[RealmLimits]().NumField(); n != limits.NumField() {
		t.Fatalf("%d fields of %d limits", n, limits.NumField())
	}
	for i := range limits.NumField() {
		var r sigma.RealmInfo
		reflect.ValueOf(&r.Limits).Elem().Field(i).SetUint(5000)
		if told := OfRealm(r).Limits; told == (RealmLimits{}) {
			t.Errorf("%s is not told", limits.Field(i).Name)
		}
	}
}
