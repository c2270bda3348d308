//go:build system

package machine

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// TestRevoke: an endpoint that is taken back ends the connections that procs have by it, on sockets
// and in memory, while they are used, and nobody dials it any more, nor begins what was made in
// advance; those to another endpoint go on.
func TestRevoke(t *testing.T) {
	r := connect(t, defaultRealm)
	hold := func(word, path string) sigma.ProcID {
		d := r.descriptor("goprobe", word, path)
		d.Start = sigma.StartedByCall
		id := r.spawn(d)[0]
		r.started(id)
		return id
	}
	r.serve("echo", "/stays")
	control := hold("hold", "/stays")
	for _, c := range []struct{ serve, hold, path string }{{"echo", "hold", "/revoked"},
		{"echo-ring", "hold-ring", "/revoked-ring"}} {
		r.serve(c.serve, c.path)
		text, err := r.ReadLink(r.ctx, c.path)
		if err != nil {
			t.Fatal(err)
		}
		e, err := sigma.ParseEndpoint(text)
		if err != nil {
			t.Fatal(err)
		}
		holders := []sigma.ProcID{hold(c.hold, c.path), hold(c.hold, c.path)}
		often := hold("dial-often", c.path)
		begun := time.Now()
		if err := r.Client.Revoke(r.ctx, e); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %v", c.path, time.Since(begun))
		for _, id := range holders {
			st := r.wait(id)
			if out := r.output(id); !st.OK() || out != "it ended, after answers: true\n" {
				t.Errorf("%s: %+v, %q", c.path, st, out)
			}
		}
		if st, out := r.wait(often), r.output(often); !st.OK() || out != "refused, after dials: true\n" {
			t.Errorf("%s, by connections made in advance: %+v, %q", c.path, st, out)
		}
		if st, out := r.run("goprobe", "dial", text); st.OK() ||
			out != "unavailable: nobody listens at the endpoint\n" {
			t.Errorf("%s is dialled again: %+v, %q", c.path, st, out)
		}
	}
	if err := r.Kill(r.ctx, control); err != nil {
		t.Error(err)
	}
	if st := r.wait(control); st.OK() {
		t.Errorf("the connection to another endpoint ended too: %+v", st)
	}
}
