//go:build system

package machine

import (
	"context"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// reserved is a descriptor of a latency-critical proc.
func (r *realm) reserved(cpu sigma.MilliCPU, memory sigma.Bytes, args ...string) sigma.Descriptor {
	d := r.descriptor("probe.c", args...)
	d.Class, d.CPU, d.Memory = sigma.LatencyCritical, cpu, memory
	return d
}

// lessons: two LC procs that each need most of a machine run one after the other. 001 §4.3: what
// can never fit is told so; what does not fit now waits; and a lcsched that was killed learns again
// what is reserved.
func TestPaperLCProcsRunOneAfterTheOther(t *testing.T) {
	r := connect(t, defaultRealm)
	memory := sigma.Bytes(r.metric("sigma_schedd_memory_capacity_bytes"))
	most := memory/3*2&^0xffff + 1<<16
	first := r.spawn(r.reserved(100, most, "leave"))[0]
	r.wrote(first, "ready")
	second := r.spawn(r.reserved(100, most, "leave"))[0]
	never := r.spawn(r.reserved(900_000, sigma.MemoryDefault, "leave"))[0]
	if st := r.wait(never); st.Kind != sigma.KindTooBig ||
		!strings.Contains(st.Msg, "reserves 900 cores; no machine has more than") {
		t.Errorf("900 cores: %+v", st)
	}
	r.s.Kill9(t, "lcsched")
	third := r.spawn(r.reserved(100, sigma.MemoryDefault, "leave"))[0] // placed by the next, beside the first
	r.wrote(third, "ready")
	if p := r.info(second); p.State != sigma.ProcQueued {
		t.Errorf("the second is %v though the first holds what it needs", p.State)
	}
	for _, id := range []sigma.ProcID{first, second, third} {
		r.wrote(id, "ready")
		if err := r.Evict(r.ctx, id, 0); err != nil {
			t.Fatal(err)
		}
		if st := r.wait(id); st.ExitCode != 3 {
			t.Errorf("%s: %+v", id, st)
		}
	}
	r.restarted("lcsched")
}

// 001 §4.3: best-effort procs cannot use memory that LC procs reserved; those that hold it are
// asked to go, the youngest first.
func TestPaperLCReservationTakesMemoryOfBestEffort(t *testing.T) {
	r := connect(t, defaultRealm)
	memory := sigma.Bytes(r.metric("sigma_schedd_memory_capacity_bytes"))
	d := r.descriptor("probe.c", "leave")
	d.Memory = memory / 5 * 2 &^ 0xffff
	old := r.spawn(d)[0]
	r.wrote(old, "ready")
	newer := r.spawn(d)[0]
	r.wrote(newer, "ready")
	lc := r.spawn(r.reserved(100, memory/2&^0xffff, "leave"))[0]
	r.wrote(lc, "ready")
	if st := r.wait(newer); st.ExitCode != 3 {
		t.Errorf("the youngest was not asked to go: %+v", st)
	}
	if p := r.info(old); p.State != sigma.ProcRunning {
		t.Errorf("the oldest is %v", p.State)
	}
	queued := r.spawn(d)[0]
	ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	if err := r.WaitStart(ctx, queued); sigma.KindOf(err) != sigma.KindTimeout {
		t.Errorf("best effort started where memory is reserved: %v", err)
	}
	for _, id := range []sigma.ProcID{old, lc, queued} {
		r.Kill(r.ctx, id)
		r.wait(id)
	}
}
