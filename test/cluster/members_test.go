//go:build system

package cluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Goal: net/http servers on two machines are members of one directory, and a client finds them all.
// Each request is made over a connection of its own and none fails: while all members run, when
// those of one machine have left, and after that machine's plug is pulled while members run there.
func TestMembersAcross(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 2})
	local := testenv.BuildGo(t, t.TempDir(), "../../examples/httpserver")
	m := newProbes(ctx, t, cluster, sigma.DefaultRealm, local)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: m.clients["m1"].Dialer("/web").DialContext}}

	far := m.members(2)
	answers := requests(ctx, t, client, 4*len(m.all(t)))
	for _, id := range m.all(t) {
		if answers[id] == 0 {
			t.Errorf("%s was asked nothing, of %v", id, answers)
		}
	}
	for _, id := range far {
		must(t, m.clients["m1"].Evict(ctx, id, 0))
	}
	requests(ctx, t, client, 20) // while they leave
	for _, id := range far {
		if st, err := m.clients["m1"].WaitExit(ctx, id); err != nil || !st.OK() {
			t.Errorf("%s ended with %+v, %v", id, st, err)
		}
	}
	answers = requests(ctx, t, client, 20)
	for _, id := range far {
		if answers[id] > 0 {
			t.Errorf("%s has left, and answered", id)
		}
	}
	m.members(1)
	must(t, cluster.Machine(1).PowerOff())
	requests(ctx, t, client, 20)
	must(t, cluster.Machine(1).Restart())
}

// members starts servers until so many run on the second machine, and one on the first. It gives
// those of the second that it started.
func (p *probes) members(most int) (far []sigma.ProcID) {
	p.t.Helper()
	near := 0
	for range 40 {
		id, at := p.serve("/web")
		if at == "m2" {
			far = append(far, id)
		} else {
			near++
		}
		if len(far) >= most && near > 0 {
			return far
		}
	}
	p.t.Fatalf("of 40 servers %d run on the second machine", len(far))
	return nil
}

// all lists who is a member.
func (p *probes) all(t *testing.T) (ids []sigma.ProcID) {
	t.Helper()
	entries, err := p.clients["m2"].ReadDir(p.ctx, "/web")
	must(t, err)
	for _, e := range entries {
		ids = append(ids, sigma.ProcID(e.Name))
	}
	return ids
}

// requests makes requests one after another and counts who answered them.
func requests(ctx context.Context, t *testing.T, client *http.Client, n int) map[sigma.ProcID]int {
	t.Helper()
	out := map[sigma.ProcID]int{}
	for i := range n {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil)
		must(t, err)
		answer, err := client.Do(r)
		if err != nil {
			t.Errorf("request %d of %d: %v", i+1, n, err)
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		var from, by string
		if _, scan := fmt.Sscanf(string(text), "GET of 0 bytes by %s to %s with HTTP/1.1", &from, &by); err != nil ||
			scan != nil || from != (sdk.CallerAddr{Principal: sigma.Principal{Machine: "m1"}}).String() {
			t.Errorf("request %d of %d: answered %q, %v", i+1, n, text, err)
		}
		out[sigma.ProcID(by)]++
	}
	return out
}
