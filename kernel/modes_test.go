package kernel

import (
	"testing"

	"sigmaos.dev/sigma"
)

// TestModes: what modes withhold from the owner of files, all programs of the realm are refused, a
// child with a view as its parent without; the provider passes. Who may not, may change the mode.
func TestModes(t *testing.T) {
	m := boot(t)
	ctx, admin := t.Context(), m.connect(sigma.DefaultRealm)
	write(t, admin, "/d/", "/d/f", "/p/", "/p/secret", "/shut/", "/shut/f")
	mode := func(ns sigma.Namespace, path string, perm uint32) {
		t.Helper()
		if err := ns.SetStat(ctx, path, sigma.StatChange{Perm: &perm}); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	refused := func(who, what string, err error) {
		t.Helper()
		if sigma.KindOf(err) != sigma.KindPermission || err == nil {
			t.Errorf("%s: %s: %v", who, what, err)
		} else if sigma.HintOf(err) == "" {
			t.Errorf("%s: %s: no hint in %v", who, what, err)
		}
	}
	get := func(ns sigma.Namespace, path string) error { _, _, err := ns.Get(ctx, path); return err }
	put := func(ns sigma.Namespace, path string) error {
		_, err := ns.Put(ctx, path, []byte("x"), sigma.PutOptions{})
		return err
	}
	mode(admin, "/p/secret", 0o066)
	mode(admin, "/d", 0o577)
	mode(admin, "/shut", 0o677)
	parent := m.startProg(sigma.Descriptor{})
	ids, err := parent.spawn(ctx, sigma.Descriptor{Program: "/bin/x", View: viewOf("/d=/d:rw", "/p=/p:rw",
		"/shut=/shut:rw")})
	if err != nil {
		t.Fatal(err)
	}
	child := m.started(ids[0])
	for who, ns := range map[string]sigma.Namespace{"parent": parent, "child": child} {
		refused(who, "reading without r", get(ns, "/p/secret"))
		refused(who, "making without w", put(ns, "/d/new"))
		refused(who, "removing without w", ns.Remove(ctx, "/d/f"))
		refused(who, "passing without x", get(ns, "/shut/f"))
		refused(who, "writing beyond without x", put(ns, "/shut/f"))
		if err := get(ns, "/d/f"); err != nil {
			t.Errorf("%s: %v", who, err)
		}
		if err := put(ns, "/d/f"); err != nil {
			t.Errorf("%s: %v", who, err)
		}
	}
	for what, err := range map[string]error{"get": get(admin, "/p/secret"), "put": put(admin, "/d/new"),
		"remove": admin.Remove(ctx, "/d/new"), "pass": get(admin, "/shut/f")} {
		if err != nil {
			t.Errorf("the provider: %s: %v", what, err)
		}
	}
	mode(child, "/p/secret", 0o600)
	for who, ns := range map[string]sigma.Namespace{"parent": parent, "child": child} {
		if err := get(ns, "/p/secret"); err != nil {
			t.Errorf("%s, when the mode was changed: %v", who, err)
		}
	}
}
