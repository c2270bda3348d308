package runner

import (
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sched/schedd"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/launch"
)

// TestHistogram: each duration is counted in the buckets of all bounds that it does not exceed, and
// the text says so.
func TestHistogram(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{0, 10 * time.Microsecond, 11 * time.Microsecond, time.Second, time.Hour} {
		h.observe(d)
	}
	var b strings.Builder
	h.write(&b, "x_seconds", `phase="exec"`)
	for _, line := range []string{`x_seconds_bucket{phase="exec",le="1e-05"} 2`,
		`x_seconds_bucket{phase="exec",le="2e-05"} 3`, `x_seconds_bucket{phase="exec",le="1"} 4`,
		`x_seconds_bucket{phase="exec",le="10"} 4`, `x_seconds_bucket{phase="exec",le="+Inf"} 5`,
		`x_seconds_sum{phase="exec"} 3601.000021`, `x_seconds_count{phase="exec"} 5`} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no line %s in\n%s", line, &b)
		}
	}
}

// BenchmarkTrace: what tells the phases of one start costs: reading the clock for what the launcher
// told, and counting in the histograms.
func BenchmarkTrace(b *testing.B) {
	x := &Runner{cfg: Config{Start: time.Now(), StartMono: Monotonic()}}
	e := launch.Started{Cloned: Monotonic(), Contained: Monotonic(), Executed: Monotonic()}
	b.ReportAllocs()
	for b.Loop() {
		l := schedd.Launched{Cloned: x.wallTime(e.Cloned), Contained: x.wallTime(e.Contained),
			Executed: x.wallTime(e.Executed)}
		x.Timings.Count(&sigma.Timing{sigma.PhaseExec: l.Executed.Sub(l.Contained),
			sigma.PhaseRestrict: l.Contained.Sub(l.Cloned)})
	}
}
