package figures

import (
	"fmt"

	"sigmaos.dev/kernel/hostsetup"
)

// Bound is the side on which a figure has to be.
type Bound bool

// The two sides.
const (
	AtMost  Bound = false
	AtLeast Bound = true
)

// AnyPeer stands for each peer that a metric is beside.
const AnyPeer = "any peer"

// Goal is what one metric shall reach.
//
// Without a Peer it bounds our figure. With one it bounds how ours compares with the peer's in the
// same run: AtLeast 5 says that ours is at least five times as good, AtMost 1.4 that it is at most
// 1.4 times as bad. Good is what the bench says: a high rate, a short time.
type Goal struct {
	Bench, Metric string
	Peer          string
	Bound         Bound
	Value         float64
}

// kept is the part of an earlier ratio that has to be there again where the goal is to keep it. The
// rest is what quiet runs of one version differ by.
const kept = 0.9

// Goals gives all goals, in the order in which pages have them. Seeds are cited as the vocabulary
// has it (package sigma); a ratio that is kept is the one measured on 2026-11-23.
func Goals() []Goal {
	all := []Goal{
		// A start is beside what makes a process with fewer protections, or with as many.
		{"start", "warm_start_p50_ms", "posix_spawn", AtMost, 1.4},
		{"start", "warm_start_p50_ms", "bwrap", AtLeast, 5},
		{"start", "cpu_ms_per_start", "", AtMost, 0.8}, // of all processes
		{"coldstart", "small_p50_ms", "", AtMost, 3},   // 001: 7.7 ms
		{"coldstart", "large_p50_ms", "", AtMost, 8},
		{"startrate", "saturated_starts_per_s", "posix_spawn", AtLeast, 0.6}, // 001: 1,590/s on 20 cores
		{"density", "kib_per_proc", "", AtMost, 300},
		{"mr", "large_bytes_per_s_per_core", "", AtLeast, 300e6},
		{"mr", "bytes_per_s_per_core", "", AtLeast, 100e6}, // 000: 28 MB/s per core
		{"sdk", "sdk_extra_ms", "", AtMost, 0.5},

		// Placements: 001 §6.1 has 53,306/s with one besched, and 36,650 starts/s on 24 machines.
		{"placement", "besched_placements_per_s", "paper_24_machines", AtLeast, kept * 6.1},
		{"placement", "core_placements_per_s", "", AtLeast, kept * 602e3},
		{"placement", "machines_starts_per_s", "", AtLeast, 0.9 * 2200}, // 0.9 x one machine
		{"placement", "machines_start_p50_ms_at_50", "", AtMost, 8},
		{"placement", "machines_start_p50_ms_at_90", "", AtMost, 40},

		// Connections: 002 Table 1 has 858 ns for a null call, 002 Fig 7 the automatic choice.
		{"endpoint", "ring_apart_rtt_us", "", AtMost, 0.858},
		{"endpoint", "ring_apart_rtt_us", "unix", AtLeast, 4},
		{"endpoint", "auto_beside_best", AnyPeer, AtLeast, 0.9},
		{"endpoint", "machines_bytes_per_s", "tcp", AtLeast, 0.98}, // 001: 1.00 x
		{"endpoint", "machines_rtt_us", "tcp", AtMost, 1.02},
		{"dial", "revoke_ms", "", AtMost, 10}, // 002 §2.2

		{"call", "64_in_flight_calls_per_s", "grpc-go", AtLeast, 10},
		{"call", "64_in_flight_64KiB_calls_per_s", "grpc-go", AtLeast, 4},
		{"call", "unix_64_in_flight_calls_per_s", "grpc-go", AtLeast, 5},
		{"call", "veth_1_in_flight_calls_per_s", "grpc-go", AtLeast, kept * 4.1},
		{"call", "veth_64_in_flight_calls_per_s", "grpc-go", AtLeast, kept * 8.3},

		{"names", "put_p50_us", "etcd", AtMost, 1},
		{"names", "put_per_s", "etcd", AtLeast, 1.2}, // 16 at once
		{"names", "get_per_s", "etcd", AtLeast, kept * 7},
		{"names", "get_per_s", "zookeeper", AtLeast, kept * 9.6},

		{"files", "ux_read_bytes_per_s", "native", AtLeast, 0.9},
		{"files", "s3_read_streamed_bytes_per_s", "native", AtLeast, 0.7},
		{"files", "mount_read_bytes_per_s", "native", AtLeast, 0.85},

		// Tenants beside each other: 001 Fig 10 has equal parts; 004 RE2 bounds the p99.
		{"lc-be", "lc_p99_of_solo", "", AtMost, 1.10},
		{"lc-be", "io_lc_p99_of_solo", "", AtMost, 1.15},
		{"fair", "jain_least", "", AtLeast, 0.99},

		// Fleets: 002 Fig 10 has the load in five phases, 002 §2.3 what names may cost.
		{"fleet", "failed_transactions", "", AtMost, 0},
		{"fleet", "throughput_of_offered", "", AtLeast, 0.9},
		{"fleet", "member_seconds_of_oracle", "", AtMost, 1.3},
		{"fleet", "reversals_most", "", AtMost, 2},
		{"fleet", "grow_reaction_ms", "", AtMost, 1000}, // Kubernetes looks every 15 s
		{"fleet", "from_zero_p50_ms", "", AtMost, 10},
		{"fleet", "through_fleet_of_direct", "", AtLeast, 0.99},
		{"roll", "failed_requests", "", AtMost, 0},
		{"queue", "tasks_per_s", "redis_always", AtLeast, 1}, // as durable as ours

		// 000 has 0.44 x of Redis for a store of one replica.
		{"kv", "socket_16_clients_get_per_s", "redis", AtLeast, 1},
		{"kv", "socket_16_clients_put_per_s", "redis", AtLeast, 1},
		{"kv", "socket_50_clients_get_per_s", "redis", AtLeast, 1},
		{"kv", "socket_50_clients_put_per_s", "redis", AtLeast, 1},
		{"kv", "16_clients_get_per_s", "redis", AtLeast, 3},
		{"kv", "16_clients_put_per_s", "redis", AtLeast, 3},
		{"kv", "50_clients_get_per_s", "redis", AtLeast, 3},
		{"kv", "50_clients_put_per_s", "redis", AtLeast, 3},
		{"kv", "shared_16_clients_get_per_s", "redis", AtLeast, 3},
		{"kv", "shared_16_clients_put_per_s", "redis", AtLeast, 3},
		{"kv", "shared_50_clients_get_per_s", "redis", AtLeast, 3},
		{"kv", "shared_50_clients_put_per_s", "redis", AtLeast, 3},
		{"kv", "three_64_clients_put_per_s", "etcd_memory", AtLeast, 2},
		// A store that grows while clients go on.
		{"kv", "move_longest_request_ms", "", AtMost, 200},
		{"kv", "move_failed_requests", "", AtMost, 0},
		{"kv", "grow_4_of_1", "", AtLeast, 3.2},
		// A cache on one core, unpipelined.
		{"cache", "100B_ops_per_s", "memcached", AtLeast, 1},
		{"cache", "4KiB_ops_per_s", "memcached", AtLeast, 1},
		{"cache", "bytes_per_item", "memcached", AtMost, 1.3},
		{"cache", "hit_ratio", "memcached", AtLeast, 1},
	}
	for _, skew := range []string{"1.01", "1.1", "1.3"} {
		for _, keys := range []string{"60k", "250k", "1000k"} {
			all = append(all, Goal{"cache", "hit_ratio_" + skew + "_of_" + keys, "lru", AtLeast, 1})
		}
	}
	// Whoever waits hears of a failure in time.
	for _, m := range []string{"machine_killed_ms", "machine_cut_ms", "machine_paused_ms", "keeper_killed_ms"} {
		all = append(all, Goal{"recover", m, "", AtMost, 2000})
	}
	for _, d := range append(hostsetup.BootSet(), "launcher") {
		all = append(all, Goal{"recover", d + "_killed_ms", "", AtMost, 500})
	}
	return all
}

// about says whether a line of the goal's metric, the first of them or not, answers the goal.
func (g Goal) about(l line, first bool) bool {
	switch g.Peer {
	case "":
		return first
	case AnyPeer:
		return l.Peer != ""
	}
	return g.Peer == l.Peer
}

// judge says what a line says of the goal.
func (g Goal) judge(l line) state {
	v := l.Ours
	switch {
	case g.Peer == "":
	case l.Ratio == nil || *l.Ratio <= 0:
		return open
	case g.Bound == AtMost:
		v = 1 / *l.Ratio
	default:
		v = *l.Ratio
	}
	if g.Bound == AtLeast && v >= g.Value || g.Bound == AtMost && v <= g.Value {
		return met
	}
	return missed
}

// String is the goal as tables have it.
func (g Goal) String() string {
	sign := "<="
	if g.Bound == AtLeast {
		sign = ">="
	}
	if g.Peer == "" {
		return sign + " " + number(g.Value)
	}
	return fmt.Sprintf("%s %s x %s", sign, number(g.Value), g.Peer)
}
