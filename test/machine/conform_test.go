//go:build system

package machine

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: the tree that a proc finds at its file descriptor 3, the tree that another proc serves, and
// /proc keep the contract of trees, as a proc sees them.
func TestTreesConform(t *testing.T) {
	r := connect(t, defaultRealm)
	d := r.descriptor("../../../examples/tree", "/conform-tree")
	d.Start = sigma.StartedByCall
	server := r.spawn(d)[0]
	r.started(server)
	for _, what := range []string{"all", "path /conform-tree", "proc " + string(server)} {
		t.Run(strings.Fields(what)[0], func(t *testing.T) {
			if st, out := r.run("conform", strings.Fields(what)...); !st.OK() {
				t.Errorf("%+v\n%s", st, out)
			}
		})
	}
	r.Kill(r.ctx, server)
	r.RemoveAll(r.ctx, "/conform")
}
