package sigma

import "testing"

// Goal: roles print and parse alike, and there are no others.
func TestRole(t *testing.T) {
	for _, r := range []Role{RoleViewer, RoleDeveloper, RoleOwner} {
		if got, err := ParseRole(r.String()); err != nil || got != r || r.Check() != nil {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	for _, bad := range []string{"", "none", "Owner", "admin", "owner "} {
		if got, err := ParseRole(bad); KindOf(err) != KindInvalid {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
	for _, bad := range []Role{RoleNone, RoleOwner + 1, 255} {
		if bad.Check() == nil {
			t.Errorf("%v is a role", bad)
		}
	}
}

// FuzzParseRole: whatever is read as a role prints the same.
func FuzzParseRole(f *testing.F) {
	f.Add("owner")
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if r, err := ParseRole(s); err == nil && (r.String() != s || r.Check() != nil) {
			t.Errorf("%q became %v", s, r)
		}
	})
}
