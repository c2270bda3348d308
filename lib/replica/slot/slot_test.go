package slot

import (
	"context"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
	"sigmaos.dev/trees/ux"
)

// world is a realm with procs.
type world struct {
	sigma.Namespace
	running map[sigma.ProcID]bool
}

func (w world) List(context.Context, bool) (all []sigma.ProcInfo, err error) {
	for id := range w.running {
		all = append(all, sigma.ProcInfo{ID: id})
	}
	return all, nil
}

// A slot goes from proc to proc with its ID and log. Without its log it has another ID, and is an
// error if it is the only one.
func TestClaim(t *testing.T) {
	tree, err := ux.New(ux.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	root, err := tree.Attach(t.Context(), sigma.Principal{Realm: "r"}, "")
	if err != nil {
		t.Fatal(err)
	}
	w := world{resolve.New(resolve.Config{Root: root}), map[sigma.ProcID]bool{}}
	claim := func(proc sigma.ProcID, machine sigma.MachineID, alone bool) (*Slot, error) {
		return Claim(t.Context(), Config{Realm: w, File: "/slot", Self: sigma.Principal{Proc: proc, Machine: machine},
			Logs: func(m sigma.MachineID) string { return "/" + string(m) }, Alone: alone})
	}
	first, err := claim("a", "m1", false)
	if err != nil || first.Dir()[:4] != "/m1/" {
		t.Fatal(first, err)
	}
	w.running["a"] = true
	if _, err := claim("b", "m2", false); sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("its proc runs: %v", err)
	}
	delete(w.running, "a")
	// Nothing was opened, so nothing is missing.
	if s, err := claim("b", "m2", true); err != nil || s.Dir() != first.Dir() {
		t.Fatal(s, err)
	}
	s, err := claim("c", "m2", false)
	if err == nil {
		err = w.MkdirAll(t.Context(), s.Dir()+"/log", 0o755)
	}
	if err == nil {
		err = s.NoteOpened(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if s, err := claim("d", "m2", true); err != nil || s.ID != first.ID || s.Machine != "m1" {
		t.Error(s, err)
	}
	if err := w.RemoveAll(t.Context(), s.Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := claim("e", "m2", true); sigma.KindOf(err) != sigma.KindLost {
		t.Errorf("the only log is gone: %v", err)
	}
	if s, err := claim("e", "m2", false); err != nil || s.ID == first.ID || s.Machine != "m2" || s.Opened {
		t.Error(s, err)
	}
}
