//go:build system

package cluster

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// Goal: sigma sim, given the trace of a real run of five machines whose procs wait for memory, says
// how long they waited: median and 90th percentile within 20 %. Method: two realms spawn procs that
// sleep, so that how busy the host is changes little, at two machines, four times as many as there
// is memory for; they wait seconds, which is what is compared.
func TestSimPredictsWaits(t *testing.T) {
	ctx := testContext(t)
	const each, mean = 60, 1500 * time.Millisecond
	realms := []sigma.RealmID{"a", "b"}
	c := testenv.NewCluster(t, testenv.ClusterOptions{Kind: testenv.Local, Machines: 5, Memory: 512 * sigma.MiB,
		Realms: realms})
	local := testenv.BuildC(t, t.TempDir(), "../machine/testdata/probe.c")
	var all sync.WaitGroup
	for i, realm := range realms {
		client, err := c.Machine(i).Client(ctx, realm)
		must(t, err)
		defer client.Close()
		program := c.Machine(0).Install(ctx, t, client, local)
		r := rand.New(rand.NewPCG(7, uint64(i)))
		var ds []sigma.Descriptor
		for range each {
			sleep := mean/2 + time.Duration(r.Int64N(int64(mean)))
			ds = append(ds, sigma.Descriptor{Program: program,
				Args:   []string{"doze", strconv.Itoa(int(sleep.Milliseconds()))},
				Memory: sigma.Bytes(48+r.IntN(97)) * sigma.MiB})
		}
		all.Go(func() {
			ids, err := client.Spawn(ctx, ds...)
			if err != nil {
				t.Errorf("spawn: %v", err)
			}
			for _, id := range ids {
				if s := exit(ctx, t, client, id); !s.OK() {
					t.Errorf("a proc ended as %+v", s)
				}
			}
		})
	}
	all.Wait()
	trace := filepath.Join(t.TempDir(), "trace")
	c.Machine(0).Must(t, "trace", "record", trace)
	var reports []struct {
		Procs               int
		Recorded, Predicted struct {
			P50 float64 `json:"p50_s"`
			P90 float64 `json:"p90_s"`
		}
	}
	must(t, json.Unmarshal([]byte(c.Machine(0).Must(t, "sim", "--trace", trace, "--json")), &reports))
	r := reports[0]
	t.Logf("recorded %+v, predicted %+v", r.Recorded, r.Predicted)
	if r.Procs != each*len(realms) {
		t.Errorf("%d procs were recorded", r.Procs)
	}
	for _, x := range []struct {
		name      string
		was, said float64
	}{{"median", r.Recorded.P50, r.Predicted.P50}, {"90th percentile", r.Recorded.P90, r.Predicted.P90}} {
		if x.was < 1 {
			t.Errorf("the %s of the waits was %.2f s: memory was not what they waited for", x.name, x.was)
		}
		if off := math.Abs(x.said/x.was - 1); !(off <= 0.2) {
			t.Errorf("the %s of the waits was %.2f s, and sim said %.2f s", x.name, x.was, x.said)
		}
	}
}
