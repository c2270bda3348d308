//go:build system

package machine

import (
	"bytes"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: what a proc writes by a passed descriptor is bounded by the kernel, as quotas assume; what it writes beyond goes by messages; and nothing is seen of files that a proc which died was writing, in ux and in s3.
func TestHiddenFiles(t *testing.T) {
	c := connect(t, defaultRealm)
	ctx := c.ctx
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.MkdirAll(ctx, "/s3/hidden", 0o755))
	must(c.MkdirAll(ctx, "/ux/~local/hidden", 0o755))
	run := func(args ...string) sigma.Status {
		t.Helper()
		id := c.spawn(c.descriptor("hidden", args...))[0]
		st, err := c.WaitExit(ctx, id)
		must(err)
		if text, _, _ := c.Get(ctx, "/proc/"+string(id)+"/stderr"); len(text) > 0 {
			t.Errorf("%q says: %s", args, text)
		}
		return st
	}
	for _, dir := range []string{"/ux/~local/hidden", "/s3/hidden"} {
		if st := run("die", dir+"/half"); st.ExitCode != 3 {
			t.Errorf("the proc ended as %+v", st)
		}
		if _, err := c.Stat(ctx, dir+"/half"); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("%s/half of a proc that died: %v", dir, err)
		}
	}
	if st := run("limit", "/ux/~local/hidden/f"); !st.OK() {
		t.Errorf("the proc ended as %+v", st)
	}
	h, err := c.Open(ctx, "/ux/~local/hidden/f", sigma.OpenRead)
	must(err)
	defer h.Close()
	block, got := bytes.Repeat([]byte("hidden "), 30_000), make([]byte, 210_000)
	for _, at := range []int64{0, int64(sigma.WriteDescriptorMax) - 7} {
		if n, err := h.ReadAt(got, at); n != len(got) || !bytes.Equal(got, block) {
			t.Errorf("at %d: %d bytes, %v", at, n, err)
		}
	}
	must(c.Remove(ctx, "/ux/~local/hidden/f"))
}
