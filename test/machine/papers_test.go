//go:build system

package machine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// 001 §3.4: a proc that fails is not started again; its parent is told how it ended, and another
// Spawn of the same is another proc.
func TestPaperFailedProcIsNotStartedAgain(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, d := range []sigma.Descriptor{r.descriptor("probe.c", "crash"), r.reserved(100, sigma.MemoryDefault,
		"crash")} {
		d.Name = "fails"
		first := r.spawn(d)[0]
		if st := r.wait(first); st.Code != sigma.StatusCrashed {
			t.Fatalf("%v: got %+v, want crashed", d.Class, st)
		}
		again := r.spawn(d)[0]
		if st := r.wait(again); again == first || st.Code != sigma.StatusCrashed {
			t.Errorf("%v: another is %s, %+v", d.Class, again, st)
		}
	}
	all, err := r.List(r.ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range all {
		if p.Name == "fails" {
			n++
			if p.State != sigma.ProcEnded {
				t.Errorf("%s is %v", p.ID, p.State)
			}
		}
	}
	if n != 4 {
		t.Errorf("there are %d procs, 4 were spawned", n)
	}
}

// 001 §4.3: best-effort procs use processors that latency-critical ones have reserved, all that
// there are, and leave idle.
func TestPaperBestEffortUsesReservedProcessorsThatAreIdle(t *testing.T) {
	r := connect(t, defaultRealm)
	cores := sigma.MilliCPU(1000 * runtime.NumCPU())
	critical := r.spawn(r.reserved(cores, 32*sigma.MiB, "leave"))[0]
	r.wrote(critical, "ready")
	best := r.spawn(r.descriptor("probe.c", "compute"))[0]
	r.started(best)
	testenv.Eventually(t, "a best-effort proc computes where all is reserved", func() error {
		us, err := r.Usage(r.ctx, best)
		if err == nil && us[0].UserTime+us[0].SystemTime < 300*time.Millisecond {
			err = fmt.Errorf("it had %v", us[0].UserTime+us[0].SystemTime)
		}
		return err
	})
	for _, id := range []sigma.ProcID{critical, best} {
		if err := r.Kill(r.ctx, id); err != nil {
			t.Error(err)
		}
		r.wait(id)
	}
}

// 001 §3.1, and bad input of scheduling: a spawn whose parent is gone. The child that waits for
// room keeps its place, starts when there is some, and who waits for it is answered.
func TestPaperSpawnWhoseParentIsGone(t *testing.T) {
	r := connect(t, defaultRealm)
	d := r.descriptor("probe.c", "leave")
	d.Memory = sigma.Bytes(r.metric("sigma_schedd_memory_capacity_bytes")) / 3 * 2 &^ 0xffff // one of them runs
	holder := r.spawn(d)[0]
	r.wrote(holder, "ready")
	st, out := r.run("goprobe", "parent-of-waiting", fmt.Sprint(uint64(d.Memory)), d.Program, "exit", "5")
	if !st.OK() {
		t.Fatalf("the parent: %+v %s", st, out)
	}
	child := sigma.ProcID(out)
	if p := r.info(child); p.State != sigma.ProcQueued || p.Parent == "" {
		t.Errorf("the child is %v, of %q", p.State, p.Parent)
	}
	if err := r.Kill(r.ctx, holder); err != nil {
		t.Fatal(err)
	}
	if st := r.wait(child); st.ExitCode != 5 {
		t.Errorf("the child: %+v", st)
	}
	r.wait(holder)
}
