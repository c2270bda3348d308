package view

import "testing"

// FuzzName: each key has a name that leads back to it, and no two names lead to one key.
func FuzzName(f *testing.F) {
	for _, s := range []string{"a", ".", "..", "a/b", "\x00", "%2F", "%2f", "ü", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 0 && len(s) <= 1024 {
			if key, ok := Key(Name(s)); !ok || key != s {
				t.Errorf("%q became %q, and %q again", s, Name(s), key)
			}
		}
		if key, ok := Key(s); ok && Name(key) != s {
			t.Errorf("%q and %q are names of %q", s, Name(key), key)
		}
	})
}
