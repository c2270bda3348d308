package runner

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// Timings counts what the machine did; /sys/metrics prints them in the Prometheus text format.
type Timings struct {
	Started, Failed, Exited, Kept atomic.Uint64
	phases                        [sigma.PhaseCount]histogram
	total                         histogram
}

// bounds of the histograms' buckets: from what a hand-over takes to what is an outage.
var bounds = [...]time.Duration{10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 10 * time.Second}

// histogram counts durations. Prometheus's own would bring its registry and protobuf into sigmad
// for these lines. Safe for concurrent use, without a lock: what is read while others count may
// lack some of what they add.
type histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64
	sum     atomic.Uint64 // ns
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i].Add(1)
	h.sum.Add(uint64(d))
}

// Count counts the phases of a start.
func (m *Timings) Count(t *sigma.Timing) {
	for p := range t {
		m.phases[p].observe(t[p])
	}
	m.total.observe(t.Total())
}

// write prints the histogram under a name and a label, which is empty or as in phase="exec".
func (h *histogram) write(b *strings.Builder, name, label string) {
	joint := label
	if label != "" {
		joint = label + ","
		label = "{" + label + "}"
	}
	count := uint64(0)
	for i := range h.buckets {
		count += h.buckets[i].Load()
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i].Seconds(), 'g', -1, 64)
		}
		fmt.Fprintf(b, "%s_bucket{%sle=%q} %d\n", name, joint, bound, count)
	}
	fmt.Fprintf(b, "%s_sum%s %g\n%s_count%s %d\n", name, label, time.Duration(h.sum.Load()).Seconds(), name, label,
		count)
}

// Text prints how long starts took, and their phases.
func (m *Timings) Text(b *strings.Builder) {
	const start, phase = "sigma_schedd_start_seconds", "sigma_schedd_start_phase_seconds"
	fmt.Fprintf(b, "# TYPE %s histogram\n", start)
	m.total.write(b, start, "")
	fmt.Fprintf(b, "# TYPE %s histogram\n", phase)
	for p := range sigma.PhaseCount {
		m.phases[p].write(b, phase, fmt.Sprintf("phase=%q", p))
	}
}
