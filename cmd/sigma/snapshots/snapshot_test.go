package snapshots

import (
	"os"
	"path/filepath"
	"testing"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/sigma"
)

// Goal: no snapshot is left for a machine that could not begin with it: one that has an identity
// and no authority over others is told where to restore. A control machine becomes one that has the
// stores, an ordinary one never.
func TestWhoRestores(t *testing.T) {
	dir := t.TempDir()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := os.Mkdir(filepath.Join(dir, "sigmad"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sigmad", "identity"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := putSnapshot(t.Context(), dir, in, true); sigma.KindOf(err) != sigma.KindUnsupported ||
		sigma.HintOf(err) == "" {
		t.Errorf("a machine without authority: %v", err)
	}
	for role, want := range map[string]string{datadir.RoleControl: datadir.RoleFounder,
		datadir.RoleFounder:  datadir.RoleFounder,
		datadir.RoleOrdinary: datadir.RoleOrdinary} {
		r := &datadir.Record{Machine: "m2", Role: role}
		if err := r.Write(dir); err != nil {
			t.Fatal(err)
		}
		if err := becomeFirst(dir); err != nil {
			t.Fatal(err)
		}
		if r, err := datadir.ReadRecord(dir); err != nil || r.Role != want {
			t.Errorf("%s becomes %+v, %v", role, r, err)
		}
	}
}
