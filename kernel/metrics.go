package kernel

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
)

// metrics counts what the machine did; /sys/metrics prints them in the Prometheus text format.
type metrics struct{ started, failed, exited atomic.Uint64 }

func (k *Kernel) metricsText(context.Context) ([]byte, error) {
	k.mu.Lock()
	free, capacity := k.core.Free(), k.core.Capacity()
	k.mu.Unlock()
	bin := k.bin.Stats()
	var b strings.Builder
	for _, m := range []struct {
		name, kind string
		value      uint64
	}{
		{"sigma_schedd_procs_started_total", "counter", k.metrics.started.Load()},
		{"sigma_schedd_procs_failed_total", "counter", k.metrics.failed.Load()},
		{"sigma_schedd_procs_ended_total", "counter", k.metrics.exited.Load()},
		{"sigma_schedd_memory_free_bytes", "gauge", uint64(free)},
		{"sigma_schedd_memory_capacity_bytes", "gauge", uint64(capacity)},
		{"sigma_binfs_starts_paged_total", "counter", bin.Paged},
		{"sigma_binfs_starts_plain_total", "counter", bin.Plain},
		{"sigma_binfs_fetched_bytes_total", "counter", bin.FetchedBytes},
		{"sigma_binfs_fetched_chunks_total", "counter", bin.FetchedChunks},
		{"sigma_binfs_corrupt_fetched_chunks_total", "counter", bin.CorruptFetched},
		{"sigma_binfs_corrupt_stored_chunks_total", "counter", bin.CorruptStored},
		{"sigma_binfs_unstored_chunks_total", "counter", bin.Unstored},
		{"sigma_binfs_evicted_programs_total", "counter", bin.Evicted},
		{"sigma_binfs_cached_bytes", "gauge", bin.Bytes},
		{"sigma_binfs_cached_programs", "gauge", bin.Programs},
	} {
		fmt.Fprintf(&b, "# TYPE %s %s\n%s %d\n", m.name, m.kind, m.name, m.value)
	}
	return []byte(b.String()), nil
}
