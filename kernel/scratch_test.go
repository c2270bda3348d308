package kernel

import (
	"testing"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// TestScratchOfOldRealm: files of a realm that was removed while their machine was lost are shown
// to nobody, least of all to another realm of the same name; those of realms that stayed, stay.
func TestScratchOfOldRealm(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	m1, m2 := w.machines["m1"].k, w.machines["m2"].k
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range []sigma.RealmID{"kept", "again", "gone"} {
		must(m1.realms.For(nil).Create(ctx, r))
		_, err := w.machines["m2"].names(r, sigma.ProcID("p-"+r)).Put(ctx, "/ux/m2/f", []byte("of "+r),
			sigma.PutOptions{})
		must(err)
	}
	w.lose("m2")
	for _, r := range []sigma.RealmID{"again", "gone"} {
		must(m1.realms.For(nil).Remove(ctx, r))
	}
	must(m1.realms.For(nil).Create(ctx, "again"))
	must(m2.quotas.Scratch.Reload()) // what it knows after a restart
	w.change(func(m *identity.Member) { m.Lost = false })
	m2.realms.Drop("again") // what its sessions were
	for r, want := range map[sigma.RealmID]string{"kept": "of kept", "again": ""} {
		got, _, err := w.machines["m2"].names(r, sigma.ProcID("q-"+r)).Get(ctx, "/ux/m2/f")
		if string(got) != want || want == "" && (err == nil || sigma.KindOf(err) != sigma.KindNotFound) {
			t.Errorf("%s: got %q, %v", r, got, err)
		}
	}
	if m2.quotas.Scratch.Has("gone") {
		t.Error("a realm that is gone is remembered")
	}
}
