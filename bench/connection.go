package bench

import (
	"context"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// endpointBench: what does a connection between two procs cost, once it is there, beside plain
// sockets? The same program, programs/connection, is server and client of all arms
// (connectionarms.go). Round trips are of 64 bytes, one after another; streams are of 64 KiB
// blocks, until the server has read all. Each block starts a client of each arm anew, placed by the
// bench: both sides where the scheduler has them, each on a processor of its own, or both on one.
// Endpoints are measured with each transport forced, and with the automatic choice; first_N_us is
// what a connection and its first N round trips cost together (002 Fig 7), the median of 13
// connections of a client (3 from the 257th on), and up to 10,000 of one of another client; a quick
// run measures them on sockets in one block of three only, as they take ten times as long there and
// vary little, and has ten blocks of streams, which last 5 ms each, and seven connections of 10,000
// messages, as five and three said little; cpu_us is the processor time of both sides for a round
// trip; many_us is a message to and from each of 1,000 connections, divided by 1,000. Expected: on
// the socket an endpoint is as fast as a UNIX socket between two processes in cgroups as deep as
// ours, which is slower than one between processes in none; in the ring it is ten times as fast
// while both sides have a processor each, and no slower where they share one. Between machines it
// is as fast as TCP on the same way once no sigmad relays.
func endpointBench() Bench {
	return Bench{Name: "endpoint",
		Question: "how fast are connections between procs, beside plain sockets, containers and overlays?",
		Metrics: []string{"ring_rtt_us", "unix_rtt_us", "auto_rtt_us", "ring_apart_rtt_us", "ring_together_rtt_us",
			"ring_bytes_per_s", "unix_bytes_per_s", "auto_bytes_per_s", "ring_cpu_us",
			"first_1_us", "first_64_us", "first_1024_us", "first_10000_us", "auto_beside_best", "auto_many_us",
			"machines_rtt_us", "machines_bytes_per_s", "machines_apart_rtt_us", "machines_apart_bytes_per_s",
			"machines_together_rtt_us", "machines_together_bytes_per_s"}, run: runEndpoint}
}

// dialBench: how long does it take to be connected? From the call of Dial until the first byte of a
// server that sends one when it has accepted; the endpoint is known, as the address of the peers
// is. Arms as in endpointBench. Expected: slower than connect(2) by the way through sigmad, which
// passes each side its socket.
func dialBench() Bench {
	return Bench{Name: "dial", Question: "how long does it take to connect to a proc, beside plain connect and accept?",
		Metrics: []string{"dial_p50_us", "dial_p99_us", "machines_dial_p50_us", "machines_dial_p99_us",
			"machines_dial_cpu_us",
			"revoke_ms", "revoke_far_ms", "encrypted_dial_p50_us", "encrypted_rtt_us", "encrypted_bytes_per_s"},
		run: runDial}
}

// ours are the networks that are endpoints on one machine, with the name of each in metrics.
var ours = map[string]string{"sigma": "auto", "ring": "ring", "socket": "unix"}

const connectionMemory = 64 * sigma.MiB

// figure finds a block's figures.
type figure struct{ arm, placement, metric string }

// series is a figure of each block in which it was measured.
type series map[int]float64

func (s series) median() float64 { return median(slices.Collect(maps.Values(s))) }

// over divides block by block, where both were measured.
func (s series) over(under series) (out []float64) {
	for block, v := range s {
		if by, both := under[block]; both {
			out = append(out, v/by)
		}
	}
	return out
}

// with keeps the blocks in which the others were measured too: figures that stand side by side are
// of the same ones.
func (s series) with(others ...series) series {
	out := maps.Clone(s)
	for _, o := range others {
		maps.DeleteFunc(out, func(block int, _ float64) bool { _, is := o[block]; return !is })
	}
	return out
}

// connections are the arms, and what they gave.
type connections struct {
	r       *Run
	local   string // the program
	all     unix.CPUSet
	arms    []*arm
	turn    int      // of the last client
	ends    []func() // of servers and what they run in
	figures map[figure]series

	at, from *system // machines of servers and clients, the same or two
	path     string  // the program there
}

func (a *connections) end() {
	for i := range a.ends {
		a.ends[len(a.ends)-1-i]()
	}
}

// prefix is a placement as part of a metric's name.
func prefix(placement string) string {
	if placement == free {
		return ""
	}
	return placement + "_"
}

// client runs a client and gives its figures, and last the processor time of both sides for each of
// count.
func (a *connections) client(ctx context.Context, what string, on *arm, placement string, count, want int) ([]float64,
	error) {
	args := []string{what, on.network, on.address, strconv.Itoa(count)}
	server, client := a.all, a.all
	switch placement {
	case apart:
		server, client = nth(a.all, 0), nth(a.all, 1)
	case together:
		server, client = nth(a.all, 0), nth(a.all, 0)
	}
	a.turn++
	mark := fmt.Sprintf("placed-%d", a.turn)
	if placement != free {
		args = append(args, mark)
	}
	if on.server != server {
		if err := place(server, "serve", on.network, on.listens); err != nil {
			return nil, err
		}
		on.server = server
	}
	text, err := on.run(ctx, args, func() error {
		if placement == free {
			return nil
		}
		return place(client, mark)
	})
	if err != nil {
		return nil, fmt.Errorf("%s over %s: %w", what, on.name, err)
	}
	var figures []float64
	for word := range strings.FieldsSeq(string(text)) {
		ns, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, fmt.Errorf("%s over %s: %w", what, on.name, err)
		}
		figures = append(figures, ns)
	}
	if len(figures) != want+1 {
		return nil, fmt.Errorf("%s over %s: %d figures, not %d", what, on.name, len(figures), want+1)
	}
	figures[want] /= float64(count)
	return figures, nil
}

// A quick run of more than blocksQuick blocks has an arm that is spare, and sockets' first
// messages, in one of seldom only: these take ten times as long as a ring's, and change little from
// block to block.
const (
	blocksQuick = 5
	seldom      = 3
)

// measure runs blocks of one kind of client over all arms, want figures each beside the processor
// time; use makes a block's figures of what it printed.
func (a *connections) measure(ctx context.Context, blocks, count, want int, what, placement string,
	use func([]float64) map[string]float64) error {
	var arms []func() error
	for _, on := range a.arms {
		if on.spare && (placement != free || what == "first" || what == "many") || on.network == "ring" &&
			what == "many" { // which is not printed
			continue
		}
		rare := a.r.Quick && blocks > blocksQuick && (on.spare || what == "first" &&
			(on.network == "socket" || on.network == "unix"))
		next := 0
		arms = append(arms, func() error {
			block := next
			next++
			if rare && block%seldom != 0 {
				return nil
			}
			ns, err := a.client(ctx, what, on, placement, count, want)
			if err != nil {
				return err
			}
			add := func(metric string, v float64) {
				at := figure{on.name, placement, metric}
				if a.figures[at] == nil {
					a.figures[at] = series{}
				}
				a.figures[at][block] = a.r.sample(on.name, prefix(placement)+metric, v)
			}
			for metric, v := range use(ns[:want]) {
				add(metric, v)
			}
			add(what+"_cpu_us", ns[want]/1e3)
			return nil
		})
	}
	return interleave(blocks, arms...)
}

// print puts out a figure of one of ours as a metric beside each of the peers that was measured so;
// more says that more is better.
func (a *connections) print(name, placement, metric, as, unit string, more bool, n int, peers ...string) error {
	for _, peer := range peers {
		ours, theirs := a.figures[figure{name, placement, metric}], a.figures[figure{peer, placement, metric}]
		ours, theirs = ours.with(theirs), theirs.with(ours)
		if len(ours) == 0 || len(theirs) == 0 {
			continue
		}
		rs := theirs.over(ours)
		if more {
			rs = ours.over(theirs)
		}
		if err := a.r.print(Line{Metric: as, Unit: unit, Ours: ours.median(), Peer: peer,
			Theirs: pointer(theirs.median()), N: n * len(ours)}.between(rs)); err != nil {
			return err
		}
	}
	return nil
}

// microseconds makes the quantiles of a block.
func microseconds(p50, p99 string) func([]float64) map[string]float64 {
	return func(ns []float64) map[string]float64 {
		return map[string]float64{p50: quantile(ns, 0.5) / 1e3, p99: quantile(ns, 0.99) / 1e3}
	}
}

// The peers that a metric of ours stands beside.
var (
	onHost       = []string{"unix", "contained", "tcp"}
	betweenHosts = []string{"veth", "vxlan", "docker"}
)

// endpointSizes are how many blocks of each kind there are, and how much a client of one does.
type endpointSizes struct {
	blocks, streams,
	longs int // of round trips and short connections, of streams, of connections of 10,000 messages
	trips, streamed, machinesStreamed int // round trips; blocks of 64 KiB on one machine and between two
}

func runEndpoint(ctx context.Context, r *Run) error {
	n := endpointSizes{blocks: 20, streams: 20, longs: 10, trips: 5000, streamed: 4096, machinesStreamed: 4096}
	if r.Quick {
		n = endpointSizes{blocks: blocksQuick, streams: 10, longs: 7, trips: 1500, streamed: 256,
			machinesStreamed: 1024}
	}
	a, err := r.newConnections(ctx, "ring", "socket", "sigma")
	if err != nil {
		return err
	}
	defer a.end()
	for _, on := range a.arms { // but for a round trip and a stream anywhere, the plain socket is the peer that matters
		on.spare = r.Quick && (on.name == "contained" || on.name == "tcp")
	}
	if err := a.trips(ctx, n); err != nil {
		return err
	}
	if err := a.firsts(ctx, n); err != nil {
		return err
	}
	if err := a.many(ctx, n.blocks); err != nil {
		return err
	}
	b, err := r.newMachines(ctx, a.local)
	if err != nil {
		return err
	}
	defer b.end()
	for _, on := range b.arms { // the same way without a machine is the peer that matters
		on.spare = r.Quick && on.name != "sigma" && on.name != "veth"
	}
	// anywhere, it is chance which of two programs the scheduler has on one processor
	for _, placement := range b.placements() {
		if err := b.measure(ctx, n.blocks, n.trips, n.trips, "echo", placement,
			microseconds("rtt_us", "rtt_p99_us")); err != nil {
			return err
		}
		if err := b.measure(ctx, n.streams, n.machinesStreamed, 1, "stream", placement,
			perSecond(n.machinesStreamed)); err != nil {
			return err
		}
		for _, metric := range []string{"rtt_us", "rtt_p99_us", "echo_cpu_us", "stream_cpu_us"} {
			if err := b.print("sigma", placement, metric, "machines_"+prefix(placement)+metric, "us", false, n.trips,
				betweenHosts...); err != nil {
				return err
			}
		}
		if err := b.print("sigma", placement, "bytes_per_s", "machines_"+prefix(placement)+"bytes_per_s", "B/s", true,
			1, betweenHosts...); err != nil {
			return err
		}
	}
	return nil
}

// perSecond makes the throughput of a stream's block.
func perSecond(streamed int) func([]float64) map[string]float64 {
	return func(ns []float64) map[string]float64 {
		return map[string]float64{"bytes_per_s": float64(streamed) * 64 * 1024 / time.Duration(ns[0]).Seconds()}
	}
}

// trips measures round trips and streams in all placements.
func (a *connections) trips(ctx context.Context, n endpointSizes) error {
	for _, placement := range a.placements() {
		if err := a.measure(ctx, n.blocks, n.trips, n.trips, "echo", placement,
			microseconds("rtt_us", "rtt_p99_us")); err != nil {
			return err
		}
		if err := a.measure(ctx, n.streams, n.streamed, 1, "stream", placement, perSecond(n.streamed)); err != nil {
			return err
		}
		for _, network := range []string{"ring", "socket", "sigma"} {
			name := ours[network] + "_" + prefix(placement)
			for _, metric := range []string{"rtt_us", "rtt_p99_us", "echo_cpu_us", "stream_cpu_us"} {
				if err := a.print(network, placement, metric, name+metric, "us", false, n.trips,
					onHost...); err != nil {
					return err
				}
			}
			if err := a.print(network, placement, "bytes_per_s", name+"bytes_per_s", "B/s", true, 1,
				onHost...); err != nil {
				return err
			}
		}
	}
	return nil
}

// placements are those that this machine can show.
func (a *connections) placements() []string {
	if a.all.Count() < 2 {
		a.r.note("SKIPPED: no placement of both sides on processors of their own, since there is only one")
		return []string{free, together}
	}
	return []string{free, apart, together}
}

// firsts measures what a connection and its first messages cost together, and the automatic choice
// beside the better of the two transports at each number of messages.
func (a *connections) firsts(ctx context.Context, n endpointSizes) error {
	short, long := []int{1, 64, 256, 1024}, []int{10000}
	metric := func(n int) string { return fmt.Sprintf("first_%d_us", n) }
	for _, placement := range a.placements() {
		for blocks, numbers := range map[int][]int{2*n.blocks - 1: short, n.longs: long} {
			most := numbers[len(numbers)-1]
			err := a.measure(ctx, blocks, most, most, "first", placement, func(ns []float64) map[string]float64 {
				out := map[string]float64{}
				for _, n := range numbers {
					out[metric(n)] = ns[n-1] / 1e3
				}
				return out
			})
			if err != nil {
				return err
			}
		}
		for _, n := range slices.Concat(short, long) {
			if err := a.print("sigma", placement, metric(n), prefix(placement)+metric(n), "us", false, 1,
				onHost...); err != nil {
				return err
			}
			figures := func(name string) series { return a.figures[figure{name, placement, metric(n)}] }
			of := func(name string) series {
				return figures(name).with(figures("sigma"), figures("ring"), figures("socket"))
			}
			best := "ring"
			if of("socket").median() < of("ring").median() {
				best = "socket"
			}
			if err := a.r.print(Line{Metric: "auto_beside_best", Unit: prefix(placement) + metric(n),
				Ours: of("sigma").median(), Peer: best, Theirs: pointer(of(best).median()),
				N: len(of("sigma"))}.between(of(best).over(of("sigma")))); err != nil {
				return err
			}
		}
	}
	return nil
}

// many measures a message on each of many connections.
func (a *connections) many(ctx context.Context, blocks int) error {
	const conns, rounds = 1000, 20 // as programs/connection has it
	if blocks = min(blocks, 5); a.r.Quick {
		blocks = 3
	}
	err := a.measure(ctx, blocks, conns, rounds, "many", free, func(ns []float64) map[string]float64 {
		return map[string]float64{"many_us": quantile(ns, 0.5) / conns / 1e3}
	})
	if err != nil {
		return err
	}
	for _, network := range []string{"socket", "sigma"} {
		if err := a.print(network, free, "many_us", ours[network]+"_many_us", "us", false, rounds,
			onHost...); err != nil {
			return err
		}
	}
	return nil
}

func runDial(ctx context.Context, r *Run) error {
	blocks, dials := 20, 1000
	if r.Quick {
		blocks, dials = 8, 500
	}
	a, err := r.newConnections(ctx, "sigma")
	if err != nil {
		return err
	}
	defer a.end()
	if err := a.measure(ctx, blocks, dials, dials, "dial", free,
		microseconds("dial_p50_us", "dial_p99_us")); err != nil {
		return err
	}
	for _, metric := range []string{"dial_p50_us", "dial_p99_us", "dial_cpu_us"} {
		if err := a.print("sigma", free, metric, metric, "us", false, dials, onHost...); err != nil {
			return err
		}
	}
	b, err := r.newMachines(ctx, a.local)
	if err != nil {
		return err
	}
	defer b.end()
	if err := b.measure(ctx, blocks/2, dials, dials, "dial", free,
		microseconds("dial_p50_us", "dial_p99_us")); err != nil {
		return err
	}
	for _, metric := range []string{"dial_p50_us", "dial_p99_us", "dial_cpu_us"} {
		if err := b.print("sigma", free, metric, "machines_"+metric, "us", false, dials, betweenHosts...); err != nil {
			return err
		}
	}
	if err := r.revocations(ctx, a, b); err != nil {
		return err
	}
	b.end()
	b.ends = nil
	return r.encrypted(ctx, a.local)
}

// buildConnection makes the program that is server and client.
func (r *Run) buildConnection(ctx context.Context) (string, error) {
	local := filepath.Join(r.dir, "connection")
	return local, r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", local,
		"./bench/programs/connection")
}

// output is what a command prints; placed is called when it runs.
func output(cmd *exec.Cmd, placed func() error) ([]byte, error) {
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err := placed()
	if err != nil {
		cmd.Process.Kill()
	}
	if e := cmd.Wait(); err == nil && e != nil {
		err = fmt.Errorf("%w: %.300s", e, errs.String())
	}
	return []byte(out.String()), err
}
