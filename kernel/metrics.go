package kernel

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// metrics counts what the machine did; /sys/metrics prints them in the Prometheus text format.
type metrics struct {
	started, failed, exited, kept atomic.Uint64
	phases                        [sigma.PhaseCount]histogram
	total                         histogram
}

// bounds of the histograms' buckets: from what a hand-over takes to what is an outage.
var bounds = [...]time.Duration{10 * time.Microsecond, 20 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond,
	200 * time.Millisecond, 500 * time.Millisecond, time.Second, 10 * time.Second}

// histogram counts durations. Safe for concurrent use, without a lock: what is read while others
// count may lack some of what they add.
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

// timed counts the phases of a start.
func (m *metrics) timed(t *sigma.Timing) {
	for p := range t {
		m.phases[p].observe(t[p])
	}
	m.total.observe(t.Total())
}

// text prints the histogram under a name and a label, which is empty or as in phase="exec".
func (h *histogram) text(b *strings.Builder, name, label string) {
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

// recallMetrics prints what is remembered of the realms' names.
func (k *Kernel) recallMetrics(b *strings.Builder) {
	n := k.recalled.Counts()
	for _, m := range []struct {
		name, kind string
		value      uint64
	}{{"hits_total", "counter", n.Hits}, {"misses_total", "counter", n.Misses}, {"invalidations_total", "counter",
		n.Forgotten}, {"entries", "gauge", n.Entries}, {"bytes", "gauge", n.Bytes}, {"feeds", "gauge", n.Feeds}} {
		fmt.Fprintf(b, "# TYPE sigma_names_cache_%s %s\nsigma_names_cache_%s %d\n", m.name, m.kind, m.name, m.value)
	}
}

// yieldMetrics prints how best-effort procs stood aside for latency-critical ones (docs/adr/0021).
func (k *Kernel) yieldMetrics(b *strings.Builder) {
	y := k.shares.Sum()
	fmt.Fprintf(b,
		"# TYPE sigma_yield_looks_total counter\nsigma_yield_looks_total %d\n# TYPE sigma_yield_pushes_total "+
			"counter\nsigma_yield_pushes_total %d\n", y.Looks, y.Pushes)
	fmt.Fprintf(b,
		"# TYPE sigma_yield_waited_seconds_total counter\nsigma_yield_waited_seconds_total %g\n# TYPE "+
			"sigma_yield_cpu_seconds_total counter\nsigma_yield_cpu_seconds_total %g\n", y.Waited.Seconds(),
		y.CPU.Seconds())
}

// trafficMetrics prints what connections of the realms' procs carried since this sigmad began.
func (k *Kernel) trafficMetrics(b *strings.Builder) {
	all := k.traffic.Totals()
	realms := slices.Sorted(maps.Keys(all))
	for _, m := range []struct {
		name  string
		value func(t sigma.Traffic) uint64
	}{
		{"sent_bytes", func(t sigma.Traffic) uint64 { return uint64(t.Sent) }},
		{"received_bytes", func(t sigma.Traffic) uint64 { return uint64(t.Received) }},
		{"messages", func(t sigma.Traffic) uint64 { return t.Messages }},
		{"egress_bytes", func(t sigma.Traffic) uint64 { return uint64(t.Egress) }},
		{"ingress_bytes", func(t sigma.Traffic) uint64 { return uint64(t.Ingress) }},
	} {
		if len(realms) > 0 {
			fmt.Fprintf(b, "# TYPE sigma_connections_%s_total counter\n", m.name)
		}
		for _, id := range realms {
			fmt.Fprintf(b, "sigma_connections_%s_total{realm=%q} %d\n", m.name, id, m.value(all[id]))
		}
	}
}

// memberMetrics prints this machine's place in its system, when it has one.
func (k *Kernel) memberMetrics(b *strings.Builder) {
	if !k.cluster.Registered() {
		return
	}
	registered := 1
	if k.cluster.Between() {
		registered = 0
	}
	fmt.Fprintf(b,
		"# TYPE sigma_machine_registered gauge\nsigma_machine_registered %d\n# TYPE sigma_machine_incarnation "+
			"gauge\nsigma_machine_incarnation %d\n", registered, k.cluster.Identity().Self().Incarnation)
	fmt.Fprintf(b, "# TYPE sigma_machine_lives_ended_total counter\nsigma_machine_lives_ended_total %d\n",
		k.cluster.LivesEnded())
	fmt.Fprintf(b, "# TYPE sigma_identity_expiry_seconds gauge\n")
	for _, e := range k.cluster.Identity().Expiries() {
		fmt.Fprintf(b, "sigma_identity_expiry_seconds{what=%q} %d\n", e.What, int64(time.Until(e.At).Seconds()))
	}
	alive, lost := 0, 0
	for _, m := range k.cluster.Members() {
		if m.Lost {
			lost++
		} else {
			alive++
		}
	}
	fmt.Fprintf(b,
		"# TYPE sigma_machines gauge\nsigma_machines{state=\"alive\"} %d\nsigma_machines{state=\"lost\"} %d\n", alive,
		lost)
	fmt.Fprintf(b, "# TYPE sigma_link_open gauge\n")
	links := k.cluster.Node().Count()
	for _, m := range slices.Sorted(maps.Keys(links)) {
		fmt.Fprintf(b, "sigma_link_open{machine=%q} %d\n", m, links[m])
	}
}

func (k *Kernel) metricsText(context.Context) ([]byte, error) {
	capacity, free := k.procs.Memory()
	bin := k.bin.Stats()
	var b strings.Builder
	for _, m := range []struct {
		name, kind string
		value      uint64
	}{
		{"sigma_schedd_procs_started_total", "counter", k.metrics.started.Load()},
		{"sigma_schedd_procs_failed_total", "counter", k.metrics.failed.Load()},
		{"sigma_schedd_procs_ended_total", "counter", k.metrics.exited.Load()},
		{"sigma_kernel_procs_kept_total", "counter", k.metrics.kept.Load()}, // they outlive sigmad
		{"sigma_schedd_memory_free_bytes", "gauge", uint64(free)},
		{"sigma_schedd_memory_capacity_bytes", "gauge", uint64(capacity)},
		{"sigma_binfs_starts_paged_total", "counter", bin.Paged},
		{"sigma_binfs_starts_plain_total", "counter", bin.Plain},
		{"sigma_binfs_fetched_bytes_total", "counter", bin.FetchedBytes},
		{"sigma_binfs_fetched_chunks_total", "counter", bin.FetchedChunks},
		{"sigma_binfs_peer_bytes_total", "counter", bin.PeerBytes},
		{"sigma_binfs_peer_chunks_total", "counter", bin.PeerChunks},
		{"sigma_binfs_peer_failed_chunks_total", "counter", bin.PeerFailed},
		{"sigma_binfs_corrupt_peer_chunks_total", "counter", bin.CorruptPeer},
		{"sigma_binfs_given_bytes_total", "counter", bin.GivenBytes},
		{"sigma_binfs_corrupt_fetched_chunks_total", "counter", bin.CorruptFetched},
		{"sigma_binfs_corrupt_stored_chunks_total", "counter", bin.CorruptStored},
		{"sigma_binfs_unstored_chunks_total", "counter", bin.Unstored},
		{"sigma_binfs_evicted_programs_total", "counter", bin.Evicted},
		{"sigma_binfs_cached_bytes", "gauge", bin.Bytes},
		{"sigma_binfs_cached_programs", "gauge", bin.Programs},
	} {
		fmt.Fprintf(&b, "# TYPE %s %s\n%s %d\n", m.name, m.kind, m.name, m.value)
	}
	k.yieldMetrics(&b)
	k.memberMetrics(&b)
	k.recallMetrics(&b)
	k.linksText(&b)
	k.trafficMetrics(&b)
	k.worked.Text(&b)
	const start, phase = "sigma_schedd_start_seconds", "sigma_schedd_start_phase_seconds"
	fmt.Fprintf(&b, "# TYPE %s histogram\n", start)
	k.metrics.total.text(&b, start, "")
	fmt.Fprintf(&b, "# TYPE %s histogram\n", phase)
	for p := range sigma.PhaseCount {
		k.metrics.phases[p].text(&b, phase, fmt.Sprintf("phase=%q", p))
	}
	return []byte(b.String()), nil
}

// linksText prints what goes over links: connections of procs that are relayed, and sessions that
// are kept.
func (k *Kernel) linksText(b *strings.Builder) {
	if !k.cluster.Registered() {
		return
	}
	kept := k.reach.Sessions()
	relayed, _ := k.connect.Relayed()
	for _, g := range []struct {
		name  string
		value int
	}{{"sigma_link_relays", relayed}, {"sigma_link_sessions_kept", kept}} {
		fmt.Fprintf(b, "# TYPE %s gauge\n%s %d\n", g.name, g.name, g.value)
	}
}
