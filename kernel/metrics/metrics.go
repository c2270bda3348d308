// Package metrics is /sys/metrics: what a machine's sigmad counts, in the Prometheus text format.
// It has no lock. Users: kernel/sysfs.
package metrics

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/binfs"
	"sigmaos.dev/kernel/cluster"
	"sigmaos.dev/kernel/connect"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/realms"
	"sigmaos.dev/kernel/runner"
	"sigmaos.dev/kernel/shares"

	"sigmaos.dev/sigma"
)

// Metrics is what counts.
type Metrics struct {
	Procs    *procs.Table
	Runner   *runner.Runner
	Programs *binfs.Cache
	Shares   *shares.Groups
	Cluster  *cluster.Cluster
	Reach    *reach.Reach
	Connect  *connect.Connect
	Realms   *realms.Realms
	Traffic  *meter.Traffic
	Worked   *meter.Works
}

// recall prints what is remembered of the realms' names.
func (x *Metrics) recall(b *strings.Builder) {
	n := x.Realms.Recalled.Counts()
	for _, m := range []struct {
		name, kind string
		value      uint64
	}{{"hits_total", "counter", n.Hits}, {"misses_total", "counter", n.Misses}, {"invalidations_total", "counter",
		n.Forgotten}, {"entries", "gauge", n.Entries}, {"bytes", "gauge", n.Bytes}, {"feeds", "gauge", n.Feeds}} {
		fmt.Fprintf(b, "# TYPE sigma_names_cache_%s %s\nsigma_names_cache_%s %d\n", m.name, m.kind, m.name, m.value)
	}
}

// yields prints how best-effort procs stood aside for latency-critical ones (docs/adr/0021).
func (x *Metrics) yields(b *strings.Builder) {
	y := x.Shares.Sum()
	fmt.Fprintf(b,
		"# TYPE sigma_yield_looks_total counter\nsigma_yield_looks_total %d\n# TYPE sigma_yield_pushes_total "+
			"counter\nsigma_yield_pushes_total %d\n", y.Looks, y.Pushes)
	fmt.Fprintf(b,
		"# TYPE sigma_yield_waited_seconds_total counter\nsigma_yield_waited_seconds_total %g\n# TYPE "+
			"sigma_yield_cpu_seconds_total counter\nsigma_yield_cpu_seconds_total %g\n", y.Waited.Seconds(),
		y.CPU.Seconds())
}

// carried prints what connections of the realms' procs carried since this sigmad began.
func (x *Metrics) carried(b *strings.Builder) {
	all := x.Traffic.Totals()
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

// members prints this machine's place in its system, when it has one.
func (x *Metrics) members(b *strings.Builder) {
	if !x.Cluster.Registered() {
		return
	}
	registered := 1
	if x.Cluster.Between() {
		registered = 0
	}
	fmt.Fprintf(b,
		"# TYPE sigma_machine_registered gauge\nsigma_machine_registered %d\n# TYPE sigma_machine_incarnation "+
			"gauge\nsigma_machine_incarnation %d\n", registered, x.Cluster.Identity().Self().Incarnation)
	fmt.Fprintf(b, "# TYPE sigma_machine_lives_ended_total counter\nsigma_machine_lives_ended_total %d\n",
		x.Cluster.LivesEnded())
	fmt.Fprintf(b, "# TYPE sigma_identity_expiry_seconds gauge\n")
	for _, e := range x.Cluster.Identity().Expiries() {
		fmt.Fprintf(b, "sigma_identity_expiry_seconds{what=%q} %d\n", e.What, int64(time.Until(e.At).Seconds()))
	}
	alive, lost := 0, 0
	for _, m := range x.Cluster.Members() {
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
	links := x.Cluster.Node().Count()
	for _, m := range slices.Sorted(maps.Keys(links)) {
		fmt.Fprintf(b, "sigma_link_open{machine=%q} %d\n", m, links[m])
	}
}

// Text is the file.
func (x *Metrics) Text(context.Context) ([]byte, error) {
	capacity, free := x.Procs.Memory()
	bin := x.Programs.Stats()
	var b strings.Builder
	for _, m := range []struct {
		name, kind string
		value      uint64
	}{
		{"sigma_schedd_procs_started_total", "counter", x.Runner.Timings.Started.Load()},
		{"sigma_schedd_procs_failed_total", "counter", x.Runner.Timings.Failed.Load()},
		{"sigma_schedd_procs_ended_total", "counter", x.Runner.Timings.Exited.Load()},
		{"sigma_kernel_procs_kept_total", "counter", x.Runner.Timings.Kept.Load()}, // they outlive sigmad
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
	x.yields(&b)
	x.members(&b)
	x.recall(&b)
	x.links(&b)
	x.carried(&b)
	x.Worked.Text(&b)
	x.Runner.Timings.Text(&b)
	return []byte(b.String()), nil
}

// links prints what goes over links: connections of procs that are relayed, and sessions that
// are kept.
func (x *Metrics) links(b *strings.Builder) {
	if !x.Cluster.Registered() {
		return
	}
	kept := x.Reach.Sessions()
	relayed, _ := x.Connect.Relayed()
	for _, g := range []struct {
		name  string
		value int
	}{{"sigma_link_relays", relayed}, {"sigma_link_sessions_kept", kept}} {
		fmt.Fprintf(b, "# TYPE %s gauge\n%s %d\n", g.name, g.name, g.value)
	}
}
