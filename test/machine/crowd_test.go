//go:build system

package machine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
)

// Bad input of scheduling: 100,000 spawns of one realm while another wants one proc. The other has
// it at once, the first is told what its limit is, and all of it goes with the realm.
func TestCrowdOfOneRealm(t *testing.T) {
	crowd, other := newRealm(t, "crowd"), newRealm(t, "modest")
	other.run("probe.c", "exit", "0") // so that what a first proc brings with it is there
	before := censused(t, crowd.s)
	d := crowd.descriptor("probe.c", "stay")
	d.Memory = sigma.Bytes(crowd.metric("sigma_schedd_memory_capacity_bytes")) / 3 * 2 &^ 0xffff // one of them runs
	burst := slices.Repeat([]sigma.Descriptor{d}, sigma.BurstMax/4)
	n := 0
	for ; n <= schedd.QueuedMax; n += len(burst) {
		if _, err := crowd.Spawn(crowd.ctx, burst...); err != nil {
			if sigma.KindOf(err) != sigma.KindBusy || !strings.Contains(err.Error(), fmt.Sprint(schedd.QueuedMax)) {
				t.Fatalf("after %d: %v", n, err)
			}
			break
		}
	}
	if n > schedd.QueuedMax || n < schedd.QueuedMax-len(burst) {
		t.Errorf("%d procs were taken; the limit is %d", n, schedd.QueuedMax)
	}
	began := time.Now()
	if st, _ := other.run("probe.c", "exit", "0"); !st.OK() {
		t.Errorf("the other realm's proc: %+v", st)
	}
	t.Logf("%d procs wait; the other realm's proc ended after %v", n, time.Since(began))
	out := crowd.s.Must(t, "realm", "ls", "--json")
	var rs []report.Realm
	if err := json.Unmarshal([]byte(out), &rs); err != nil || !slices.ContainsFunc(rs, func(r report.Realm) bool {
		return r.ID == "crowd" && r.Procs == n
	}) {
		t.Errorf("the realm does not count %d procs: %s", n, out)
	}
	crowd.Close()
	crowd.s.Must(t, "realm", "rm", "--force", "crowd")
	crowd.s.NoLeaks(t, before)
}

// Bad input of scheduling: removal of a realm with 1,000 running procs. Everything of it is gone
// from the host.
func TestRemoveRealmOfThousandProcs(t *testing.T) {
	r := newRealm(t, "thousand")
	before := censused(t, r.s)
	d := r.descriptor("probe.c", "stay")
	d.Memory = sigma.MemoryLeast
	const procs = 1000
	var ids []sigma.ProcID
	for range 4 {
		ids = append(ids, r.spawn(slices.Repeat([]sigma.Descriptor{d}, procs/4)...)...)
	}
	began := time.Now()
	for _, id := range ids {
		r.started(id)
	}
	t.Logf("%d started in %v", procs, time.Since(began))
	if list, err := r.List(r.ctx, false); err != nil || len(list) != procs {
		t.Fatalf("%d procs are listed, %v", len(list), err)
	}
	r.Close()
	began = time.Now()
	r.s.Must(t, "realm", "rm", "--force", "thousand")
	t.Logf("removed in %v", time.Since(began))
	if out := r.s.Must(t, "realm", "ls", "-q"); strings.Contains(out, "thousand") {
		t.Errorf("it is listed: %s", out)
	}
	r.s.NoLeaks(t, before)
}

// Bad input of scheduling: a proc that forks to escape accounting. What its descendants use is its,
// in whatever session they are, and they end with it.
func TestForksDoNotEscapeAccounting(t *testing.T) {
	r := connect(t, defaultRealm)
	r.s.RequireLimits(t)
	r.run("probe.c", "exit", "0") // so that what a first proc brings with it is there
	before := r.s.Census()
	const worked = 300 * time.Millisecond
	id := r.spawn(r.descriptor("probe.c", "escape", fmt.Sprint(worked.Milliseconds())))[0]
	r.wrote(id, "worked")
	us, err := r.Usage(r.ctx, id)
	if err != nil || us[0].UserTime+us[0].SystemTime < worked*9/10 || us[0].Tasks != 2 {
		t.Errorf("while it runs: %+v, %v", us, err)
	}
	if err := r.Kill(r.ctx, id); err != nil {
		t.Fatal(err)
	}
	r.wait(id)
	if p := r.info(id); p.Usage.UserTime+p.Usage.SystemTime < worked*9/10 {
		t.Errorf("after its end: %+v", p.Usage)
	}
	r.s.NoLeaks(t, before)
}
