package named

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// What modes keep the realm's programs from is tested by the kit (TestConformance); here, whom they
// keep out: a machine's session that says that it acts for the owner, and not one that acts for the
// provider.
func TestWhomModesKeepOut(t *testing.T) {
	s, _ := serve(t, Config{Store: newMemStore()})
	attach(t, s)
	ctx := t.Context()
	as := func(p sigma.Principal, name string) *file {
		t.Helper()
		f, err := s.Attach(ctx, p, name)
		if err != nil {
			t.Fatal(err)
		}
		return f.(*file)
	}
	machine := sigma.Principal{Realm: sigma.SystemRealm, Machine: "m1", System: true}
	system := as(machine, string(testRealm))
	if err := system.Mkdir(ctx, "d", 0); err != nil {
		t.Fatal(err)
	}
	d := walk(t, system, "d")
	put(t, d, "f", "x")
	none := uint32(0)
	if err := walk(t, d, "f").SetStat(ctx, sigma.StatChange{Perm: &none}); err != nil {
		t.Fatal(err)
	}
	all := map[string]func(root *file) error{
		"walk": func(r *file) error { _, _, err := r.Walk(ctx, []string{"d", "f"}); return err },
		"get":  func(r *file) error { _, _, err := r.Get(ctx, []string{"d", "f"}, 0, 1); return err },
		"put": func(r *file) error {
			_, _, err := r.Put(ctx, []string{"d", "f"}, nil, sigma.PutOptions{})
			return err
		},
		"list": func(r *file) error { return walk(t, r, "d").Open(ctx, sigma.OpenRead) },
		"make": func(r *file) error { return walk(t, r, "d").Mkdir(ctx, "x", 0) },
		"rm":   func(r *file) error { return walk(t, r, "d").Remove(ctx, "x") },
		"find": func(r *file) error {
			f, err := r.Find(ctx, d.id)
			if err != nil {
				t.Fatal(err)
			}
			return f.Open(ctx, sigma.OpenRead)
		},
	}
	for _, what := range []string{"walk", "get", "put", "list", "make", "rm", "find"} {
		if err := all[what](system); err != nil {
			t.Errorf("the provider: %s: %v", what, err)
		}
		err := all[what](as(machine, string(testRealm)+sigmap.AsOwner))
		wantKind(t, err, sigma.KindPermission)
		if err != nil && (!strings.Contains(err.Error(), `"d"`) || !strings.Contains(sigma.HintOf(err), "chmod")) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A program's own session is the owner's, whatever it says.
	wantKind(t, all["get"](as(sigma.Principal{Realm: testRealm}, "")), sigma.KindPermission)
	_, err := s.Attach(ctx, sigma.Principal{Realm: testRealm}, string(testRealm)+sigmap.AsOwner)
	wantKind(t, err, sigma.KindPermission)
	_, err = s.Attach(ctx, machine, sigmap.AsOwner)
	wantKind(t, err, sigma.KindNotFound)
}
