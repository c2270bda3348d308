package diskfs

import (
	"testing"

	"sigmaos.dev/sigma"
)

// A removed file that somebody has open is opened again, and its attributes are changed, by
// handles of it; with its last close it is gone.
func TestRemovedFileIsOpenedAgain(t *testing.T) {
	ctx := t.Context()
	x := newFixture(t, Config{Policy: Policy{Attributes: true}})
	root := x.attach("r")
	f, err := root.Create(ctx, "f", sigma.OpenReadWrite, 0o644)
	x.ok(err)
	_, err = f.WriteAt(ctx, []byte("abc"), 0)
	x.ok(err)
	x.ok(root.Remove(ctx, "f"))
	again, _, err := f.Walk(ctx, nil)
	x.ok(err)
	perm, size := uint32(0o600), uint64(2)
	x.ok(again.SetStat(ctx, sigma.StatChange{Perm: &perm, Size: &size}))
	if st, err := again.Stat(ctx); err != nil || st.Perm != perm || st.Size != size {
		t.Errorf("got %+v, %v, want mode %o and %d bytes", st, err, perm, size)
	}
	x.ok(again.Open(ctx, sigma.OpenRead))
	f.Close()
	buf := make([]byte, 9)
	if n, err := again.ReadAt(ctx, buf, 0); err != nil || string(buf[:n]) != "ab" {
		t.Errorf("got %q, %v, want ab", buf[:n], err)
	}
	late, _, err := again.Walk(ctx, nil)
	x.ok(err)
	again.Close()
	x.want(late.Open(ctx, sigma.OpenRead), sigma.KindNotFound)
	late.Close()
	if charged, disk := x.used("r"); charged != disk || charged != 0 {
		t.Errorf("%d bytes are charged and %d on the disk, want none", charged, disk)
	}
}
