package kernel

import (
	"runtime"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: a realm's procs have no more sessions and handles at a machine than its limits say, in all
// together, and are told which limit it is; what is given back can be had again; others, and the
// provider, have all they want meanwhile.
func TestQuota(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	if err := m.connect(sigma.SystemRealm).Realms().Create(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	of := func(realm sigma.RealmID) sigma.Principal {
		return sigma.Principal{Realm: realm, Proc: sigma.NewProcID()}
	}
	refused := func(err error, limit string) {
		t.Helper()
		if sigma.KindOf(err) != sigma.KindNoSpace || err == nil || !strings.Contains(err.Error(),
			"limit of "+limit+" at machine m1") || !strings.Contains(sigma.HintOf(err), "--limit-"+limit) {
			t.Errorf("beyond the limit of %s: %v (%s)", limit, err, sigma.HintOf(err))
		}
	}
	first := m.proc(of("default"))
	m.k.quotas.Learn("default", sigma.RealmLimits{Sessions: 2, Handles: 10})
	clone := func(f sigma.File) (sigma.File, error) {
		out, _, err := f.Walk(ctx, nil)
		return out, err
	}

	second, end := m.session(of("default"))
	root, err := second.Attach(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	third, _ := m.session(of("default"))
	_, err = third.Attach(ctx, "")
	refused(err, "sessions")
	var last sigma.File
	for i := range 8 { // besides the roots
		from := []sigma.File{first, root}[i%2]
		if last, err = clone(from); err != nil {
			t.Fatalf("handle %d: %v", i, err)
		}
	}
	_, err = clone(first)
	refused(err, "handles")
	for _, p := range []sigma.Principal{of("other"), {Realm: sigma.SystemRealm, System: true}} {
		f := m.proc(p)
		for i := range 20 {
			if _, err := clone(f); err != nil {
				t.Fatalf("another realm's handle %d: %v", i, err)
			}
		}
	}
	last.Close()
	for _, handles := m.k.quotas.Held("default"); handles == 10; _,
		handles = m.k.quotas.Held("default") { // nobody waits for the answer to a close
		runtime.Gosched()
	}
	if _, err = clone(first); err != nil {
		t.Errorf("a handle after one was closed: %v", err)
	}
	end()
	if _, err := third.Attach(ctx, ""); err != nil {
		t.Errorf("a session after one has ended: %v", err)
	}
	if sessions, handles := m.k.quotas.Held("default"); sessions != 2 || handles != 1+5+1 {
		t.Errorf("there are %d sessions and %d handles", sessions, handles)
	}
}
