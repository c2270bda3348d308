package kernel

import (
	"bytes"
	"testing"

	"sigmaos.dev/kernel/binfs"
	"sigmaos.dev/sigma"
)

// TestPartOfProgram: a machine asks another for what is in its cache, and is told in words what is
// not.
func TestPartOfProgram(t *testing.T) {
	w := newWorld(t, control, part{name: "m2"})
	m1, m2 := w.machines["m1"].k, w.machines["m2"].k
	ctx := t.Context()
	program := append(program(), bytes.Repeat([]byte("0123456789"), 500)...)
	tree, err := m1.realms.Tree(sigma.DefaultRealm)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Put(ctx, "/bin/x", program, sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	st, err := tree.Stat(ctx, "/bin/x")
	if err != nil {
		t.Fatal(err)
	}
	n := binfs.Name{Realm: sigma.DefaultRealm, Path: "/bin/x", ID: st.ID, Size: int64(st.Size)}
	if got := m2.bin.holders.Candidates(n); len(got) != 0 {
		t.Errorf("without a hint %v", got)
	}
	m2.bin.holders.Hint(n.Realm, n.Path, "m2")
	m2.bin.holders.Hint(n.Realm, n.Path, "m1")
	if got := m2.bin.holders.Candidates(n); len(got) != 1 || got[0] != "m1" {
		t.Errorf("with a hint %v", got)
	}
	if _, err := m2.bin.holders.Part(ctx, "m1", n, 0, 100); err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("before anybody started it: %v", err)
	}
	_, release, err := m1.bin.Open(ctx, n.Realm, tree, n.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	for _, at := range []int{0, 1234} {
		got, err := m2.bin.holders.Part(ctx, "m1", n, int64(at), 500)
		if err != nil || !bytes.Equal(got, program[at:at+500]) {
			t.Errorf("at %d: %d bytes, %v", at, len(got), err)
		}
	}
	for _, bad := range [][2]int{{-1, 10}, {0, 0}, {0, binfs.PartMax + 1}, {len(program) - 5, 10}} {
		if _, err := m2.bin.holders.Part(ctx, "m1", n, int64(bad[0]), bad[1]); err == nil ||
			sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%v: %v", bad, err)
		}
	}
	other := n
	other.Realm = "other"
	if _, err := m2.bin.holders.Part(ctx, "m1", other, 0, 100); err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("of another realm: %v", err)
	}
	w.lose("m1")
	if got := m2.bin.holders.Candidates(n); len(got) != 0 {
		t.Errorf("of a machine that is lost: %v", got)
	}
}
