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

	"sigmaos.dev/kernel/binfs"
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

// metric is one number that is printed.
type metric struct {
	name, kind string
	value      any
}

func print(b *strings.Builder, all ...metric) {
	for _, m := range all {
		fmt.Fprintf(b, "# TYPE %s %s\n%s %v\n", m.name, m.kind, m.name, m.value)
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
	print(b, metric{"sigma_machine_registered", "gauge", registered},
		metric{"sigma_machine_incarnation", "gauge", uint64(x.Cluster.Identity().Self().Incarnation)},
		metric{"sigma_machine_lives_ended_total", "counter", x.Cluster.LivesEnded()})
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

// Text is the file.
func (x *Metrics) Text(context.Context) ([]byte, error) {
	capacity, free := x.Procs.Memory()
	bin := x.Programs.Stats()
	var b strings.Builder
	y, n := x.Shares.Sum(), x.Realms.Recalled.Counts()
	print(&b, []metric{
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
		// how best-effort procs stood aside for latency-critical ones (docs/adr/0021)
		{"sigma_yield_looks_total", "counter", y.Looks},
		{"sigma_yield_pushes_total", "counter", y.Pushes},
		{"sigma_yield_waited_seconds_total", "counter", y.Waited.Seconds()},
		{"sigma_yield_cpu_seconds_total", "counter", y.CPU.Seconds()},
	}...)
	x.members(&b)
	print(&b, []metric{ // what is remembered of the realms' names
		{"sigma_names_cache_hits_total", "counter", n.Hits},
		{"sigma_names_cache_misses_total", "counter", n.Misses},
		{"sigma_names_cache_invalidations_total", "counter", n.Forgotten},
		{"sigma_names_cache_entries", "gauge", n.Entries},
		{"sigma_names_cache_bytes", "gauge", n.Bytes},
		{"sigma_names_cache_feeds", "gauge", n.Feeds},
	}...)
	if x.Cluster.Registered() {
		relayed, _ := x.Connect.Relayed()
		print(&b, metric{"sigma_link_relays", "gauge", relayed},
			metric{"sigma_link_sessions_kept", "gauge", x.Reach.Sessions()})
	}
	x.carried(&b)
	x.Worked.Text(&b)
	x.Runner.Timings.Text(&b)
	return []byte(b.String()), nil
}
