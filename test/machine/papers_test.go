//go:build system

package machine

import (
	"testing"

	"sigmaos.dev/sigma"
)

// 001 §3.4: a proc that fails is not started again; its parent is told how it ended, and another Spawn of the same is another proc.
func TestPaperFailedProcIsNotStartedAgain(t *testing.T) {
	r := connect(t, defaultRealm)
	for _, d := range []sigma.Descriptor{r.descriptor("probe.c", "crash"), r.reserved(100, sigma.MemoryDefault, "crash")} {
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
