package kernel

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/resolve"
)

// Goal: a realm has no more in ux at a machine than its limit says, whoever writes; who is refused
// learns the path, the machine, the limit and who raises it; other realms have all they want, and
// what is removed makes room.
func TestScratchQuota(t *testing.T) {
	m := boot(t)
	ctx := t.Context()
	if err := m.connect(sigma.SystemRealm).Realms().Create(ctx, "other"); err != nil {
		t.Fatal(err)
	}
	names := func(realm sigma.RealmID) *resolve.Tree { return m.names(realm, sigma.NewProcID()) }
	mine, other := names("default"), names("other")
	learn := func(n sigma.Bytes) {
		m.k.quotas.Learn("default", sigma.RealmLimits{Sessions: sigma.LimitSessionsDefault,
			Handles: sigma.LimitHandlesDefault, Scratch: n})
	}
	byDefault := m.k.quotas.Scratch.InForce(0)
	if n := m.k.quotas.Scratch.Limit("default", false); n != byDefault || n == 0 || n > sigma.LimitScratchDefault {
		t.Errorf("the default is %v", n)
	}
	learn(64 << 10)
	put := func(tree *resolve.Tree, name string, n int) error {
		_, err := tree.Put(ctx, "/ux/~local/"+name, make([]byte, n), sigma.PutOptions{})
		return err
	}
	if err := put(mine, "a", 40<<10); err != nil {
		t.Fatal(err)
	}
	err := put(mine, "b", 40<<10)
	text := ""
	if err != nil {
		text = err.Error()
	}
	if sigma.KindOf(err) != sigma.KindNoSpace || !strings.Contains(text, "/ux/~local/b") ||
		!strings.Contains(text, "limit of scratch files at machine m1") || !strings.Contains(sigma.HintOf(err),
		"--limit-scratch") {
		t.Errorf("beyond the limit: %v (%s)", err, sigma.HintOf(err))
	}
	if err := put(other, "b", 40<<10); err != nil {
		t.Errorf("another realm: %v", err)
	}
	limits, _, err := mine.Get(ctx, "/sys/limits")
	if err != nil || !strings.Contains(string(limits), `"limit":"scratch_bytes"`) {
		t.Errorf("/sys/limits is %s, %v", limits, err)
	}
	if err := mine.Remove(ctx, "/ux/~local/a"); err != nil {
		t.Fatal(err)
	}
	if err := put(mine, "b", 40<<10); err != nil {
		t.Errorf("after another was removed: %v", err)
	}
	learn(256 << 10)
	if err := put(mine, "a", 40<<10); err != nil {
		t.Errorf("after the limit was raised: %v", err)
	}
	if err := m.k.quotas.Scratch.Remove(ctx, "default"); err != nil {
		t.Fatal(err)
	}
	if n := m.k.quotas.Scratch.Limit("default", false); n != byDefault {
		t.Error("the limit of a realm that was removed is remembered")
	}
}
