package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// endpointBench: what does a connection between two procs of one machine cost, once it is there, beside plain sockets? The same program, programs/connection, is server and client of all arms: as procs over an endpoint, and as
// ordinary processes over a UNIX and over a TCP socket of the host's loopback. Round trips are of 64 bytes, one after another; streams are of 64 KiB blocks, until the server has read all. Each block starts a client of each arm
// anew. Endpoints are measured with each transport forced, and with the automatic choice; first_N_us is what a connection and its first N round trips cost together (002 Fig 7). Expected: on the socket an endpoint is as fast as a UNIX socket,
// since sigmad is not on its way; in the ring it is ten times as fast while both sides have a processor each, and as fast where they share one. On a busy host the medians say which of the two prevailed.
func endpointBench() Bench {
	return Bench{Name: "endpoint", Question: "how fast are connections between procs of one machine, beside plain sockets?", Metrics: []string{"ring_rtt_us", "unix_rtt_us", "auto_rtt_us", "ring_bytes_per_s", "unix_bytes_per_s", "auto_bytes_per_s", "first_1_us", "first_64_us", "first_1024_us", "first_10000_us", "auto_beside_best"}, run: runEndpoint}
}

// dialBench: how long does it take to be connected? From the call of Dial until the first byte of a server that sends one when it has accepted; the endpoint is known, as the address of the peers is. Arms as in endpointBench.
// Expected: slower than connect(2) by the two calls to sigmad, which passes each side its socket.
func dialBench() Bench {
	return Bench{Name: "dial", Question: "how long does it take to connect to a proc of the same machine, beside plain connect and accept?", Metrics: []string{"dial_p50_us", "dial_p99_us"}, run: runDial}
}

// connections are servers of all arms, and the program that is their client.
type connections struct {
	r       *Run
	s       *system
	local   string
	path    string               // in the realm
	arms    []string             // networks that are measured
	address map[string]string    // by network
	ends    []func()             // of the servers
	figures map[string][]float64 // one for each block, by arm and metric
}

// ours are the networks that are endpoints, with the name of each in metrics.
var ours = map[string]string{"sigma": "auto", "ring": "ring", "socket": "unix"}

// peers of all of them.
var plain = [...]string{"unix", "tcp"}

const connectionMemory = 64 * sigma.MiB

func (r *Run) newConnections(ctx context.Context, own ...string) (a *connections, err error) {
	a = &connections{r: r, local: filepath.Join(r.dir, "connection"), arms: append(own, plain[:]...), address: map[string]string{}, figures: map[string][]float64{}}
	defer func() {
		if err != nil {
			a.end()
		}
	}()
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", a.local, "./bench/programs/connection")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return a, fmt.Errorf("cannot build the program (run it in a clone): %w\n%s", err, out)
	}
	if a.s, err = r.boot(ctx); err != nil {
		return a, err
	}
	if a.path, err = a.s.install(ctx, a.local, "connection"); err != nil {
		return a, err
	}
	for _, network := range own {
		a.address[network] = "/connection-" + network
		ids, err := a.s.Spawn(ctx, sigma.Descriptor{Program: a.path, Args: []string{"serve", network, a.address[network]}, Start: sigma.StartedByCall, Memory: connectionMemory})
		if err == nil {
			err = a.s.WaitStart(ctx, ids[0])
		}
		if err != nil {
			return a, err
		}
	}
	if err = a.serve(ctx, "unix", filepath.Join(r.dir, "socket")); err == nil {
		err = a.serve(ctx, "tcp", "127.0.0.1:0")
	}
	return a, err
}

func (a *connections) end() {
	for _, f := range a.ends {
		f()
	}
	if a.s != nil {
		a.s.down()
	}
}

// serve starts a peer's server.
func (a *connections) serve(ctx context.Context, network, address string) error {
	cmd := exec.CommandContext(ctx, a.local, "serve", network, address)
	cmd.Stderr = a.r.Notes
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	a.ends = append(a.ends, func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	a.address[network] = strings.TrimSpace(line)
	return err
}

// client runs a client and gives its figures.
func (a *connections) client(ctx context.Context, what, network string, count int) ([]float64, error) {
	args := []string{what, network, a.address[network], strconv.Itoa(count)}
	var out []byte
	var err error
	if ours[network] == "" {
		out, err = exec.CommandContext(ctx, a.local, args...).Output()
	} else {
		out, err = a.s.output(ctx, sigma.Descriptor{Program: a.path, Args: args, Memory: connectionMemory})
	}
	if err != nil {
		return nil, fmt.Errorf("%s over %s: %w", what, network, err)
	}
	var figures []float64
	for word := range strings.FieldsSeq(string(out)) {
		ns, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, fmt.Errorf("%s over %s: %w", what, network, err)
		}
		figures = append(figures, ns)
	}
	if want := count; len(figures) != want && what != "stream" || len(figures) == 0 {
		return nil, fmt.Errorf("%s over %s: %d figures, not %d", what, network, len(figures), want)
	}
	return figures, nil
}

// measure runs blocks of one kind of client over all arms; use makes a block's figures of what it printed.
func (a *connections) measure(ctx context.Context, blocks, count int, what string, use func([]float64) map[string]float64) error {
	var arms []func() error
	for _, network := range a.arms {
		arms = append(arms, func() error {
			ns, err := a.client(ctx, what, network, count)
			if err != nil {
				return err
			}
			for metric, v := range use(ns) {
				a.figures[network+" "+metric] = append(a.figures[network+" "+metric], a.r.sample(network, metric, v))
			}
			return nil
		})
	}
	return interleave(blocks, arms...)
}

// print puts out a figure of one of ours as a metric beside each peer; more says that more is better.
func (a *connections) print(network, figure, metric, unit string, more bool, n int) error {
	ours := a.figures[network+" "+figure]
	for _, peer := range plain {
		theirs := a.figures[peer+" "+figure]
		rs := ratios(theirs, ours)
		if more {
			rs = ratios(ours, theirs)
		}
		if err := a.r.print(Line{Metric: metric, Unit: unit, Ours: median(ours), Peer: peer, Theirs: pointer(median(theirs)), N: n * len(ours)}.between(rs)); err != nil {
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

func runEndpoint(ctx context.Context, r *Run) error {
	blocks, trips, streamed := 20, 5000, 4096
	if r.Quick {
		blocks, trips, streamed = 5, 3000, 1024
	}
	a, err := r.newConnections(ctx, "ring", "socket", "sigma")
	if err != nil {
		return err
	}
	defer a.end()
	if err := a.measure(ctx, blocks, trips, "echo", microseconds("rtt_us", "rtt_p99_us")); err != nil {
		return err
	}
	bytes := float64(streamed) * 64 * 1024
	err = a.measure(ctx, blocks, streamed, "stream", func(ns []float64) map[string]float64 {
		return map[string]float64{"bytes_per_s": bytes / time.Duration(ns[0]).Seconds()}
	})
	if err != nil {
		return err
	}
	for _, network := range []string{"ring", "socket", "sigma"} {
		for _, figure := range []string{"rtt_us", "rtt_p99_us"} {
			if err := a.print(network, figure, ours[network]+"_"+figure, "us", false, trips); err != nil {
				return err
			}
		}
		if err := a.print(network, "bytes_per_s", ours[network]+"_bytes_per_s", "B/s", true, 1); err != nil {
			return err
		}
	}
	return a.firsts(ctx, blocks)
}

// firsts measures what a connection and its first messages cost together, and the automatic choice beside the better of the two transports at each number of messages.
func (a *connections) firsts(ctx context.Context, blocks int) error {
	numbers := []int{1, 64, 256, 1024, 10000}
	metric := func(n int) string { return fmt.Sprintf("first_%d_us", n) }
	err := a.measure(ctx, blocks, numbers[len(numbers)-1], "first", func(ns []float64) map[string]float64 {
		out := map[string]float64{}
		for _, n := range numbers {
			out[metric(n)] = ns[n-1] / 1e3
		}
		return out
	})
	if err != nil {
		return err
	}
	for _, n := range numbers {
		if err := a.print("sigma", metric(n), metric(n), "us", false, 1); err != nil {
			return err
		}
		auto, inRing, onSocket := a.figures["sigma "+metric(n)], a.figures["ring "+metric(n)], a.figures["socket "+metric(n)]
		best := "ring"
		theirs := inRing
		if median(onSocket) < median(inRing) {
			best, theirs = "socket", onSocket
		}
		if err := a.r.print(Line{Metric: "auto_beside_best", Unit: metric(n), Ours: median(auto), Peer: best, Theirs: pointer(median(theirs)), N: len(auto)}.between(ratios(theirs, auto))); err != nil {
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
	if err := a.measure(ctx, blocks, dials, "dial", microseconds("dial_p50_us", "dial_p99_us")); err != nil {
		return err
	}
	if err := a.print("sigma", "dial_p50_us", "dial_p50_us", "us", false, dials); err != nil {
		return err
	}
	return a.print("sigma", "dial_p99_us", "dial_p99_us", "us", false, dials)
}
