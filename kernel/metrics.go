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
	} {
		fmt.Fprintf(&b, "# TYPE %s %s\n%s %d\n", m.name, m.kind, m.name, m.value)
	}
	return []byte(b.String()), nil
}
