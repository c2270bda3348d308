//go:build system

package machine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
)

// Goal: what a proc writes by a passed descriptor is bounded by the kernel, as quotas assume; what
// it writes beyond goes by messages; and nothing is seen of files that a proc which died was
// writing, in ux and in s3.
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

// Goal: the provider bounds what a realm has in ux at a machine, and no proc gets beyond that by
// descriptors for writing, of which each costs what it can write. Who is refused learns which path,
// limit and machine it is; what is removed makes room, and a limit that is raised holds.
func TestScratchLimit(t *testing.T) {
	c := newRealm(t, "scratch-limit")
	ctx := c.ctx
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const most = 2*sigma.GiB + sigma.MiB
	c.s.Must(t, "realm", "set", "--limit-scratch", fmt.Sprint(uint64(most)), "scratch-limit")
	held := func() (of, used uint64) {
		t.Helper()
		text, _, err := c.Get(ctx, "/sys/limits")
		must(err)
		for line := range strings.Lines(string(text)) {
			var l report.Limit
			must(json.Unmarshal([]byte(line), &l))
			if l.Realm == "scratch-limit" && l.Limit == "scratch_bytes" {
				return l.Max, *cmp.Or(l.Used, new(uint64))
			}
		}
		return 0, 0
	}
	testenv.Eventually(t, "the limit is known", func() error { // sigmad asks once a second at most
		h, err := c.Create(ctx, "/ux/~local/f", sigma.OpenWrite, 0o644)
		must(err)
		_, err = h.WriteAt([]byte{1}, int64(most))
		h.Close()
		must(c.Remove(ctx, "/ux/~local/f"))
		if sigma.KindOf(err) != sigma.KindNoSpace {
			return fmt.Errorf("a file of more than the limit: %v", err)
		}
		return nil
	})
	must(c.Mkdir(ctx, "/ux/~local/full", 0o755))
	id := c.spawn(c.descriptor("hidden", "fill", "/ux/~local/full"))[0]
	if st := c.wait(id); !st.OK() || strings.TrimSpace(c.output(id)) != "2" {
		t.Fatalf("the proc that fills the quota ended as %+v and wrote %s", st, c.output(id))
	}
	testenv.Eventually(t, "/sys/limits says so", func() error { // within a second
		if of, used := held(); of != uint64(most) || used < 2*uint64(sigma.GiB) || used > of {
			return fmt.Errorf("%d bytes of %d are charged", used, of)
		}
		return nil
	})
	_, err := c.Put(ctx, "/ux/~local/full/more", make([]byte, 2*sigma.MiB), sigma.PutOptions{})
	if text := fmt.Sprint(err); sigma.KindOf(err) != sigma.KindNoSpace ||
		!strings.Contains(text, "/ux/~local/full/more") ||
		!strings.Contains(text, "limit of scratch files at machine") || !strings.Contains(text, "of 2GiB") ||
		!strings.Contains(sigma.HintOf(err), "--limit-scratch") {
		t.Errorf("more than the limit: %v (%s)", err, sigma.HintOf(err))
	}
	if _, err := connect(t, defaultRealm).Put(ctx, "/ux/~local/others", make([]byte, 2*sigma.MiB),
		sigma.PutOptions{}); err != nil {
		t.Errorf("another realm: %v", err)
	}
	must(c.Remove(ctx, "/ux/~local/full/0"))
	_, err = c.Put(ctx, "/ux/~local/full/more", make([]byte, 2*sigma.MiB), sigma.PutOptions{})
	must(err)
}
