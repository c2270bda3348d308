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
// anew. Expected: an endpoint on one machine is a UNIX socket pair that sigmad is not on the way of, so it is as fast as one.
func endpointBench() Bench {
	return Bench{Name: "endpoint", Question: "how fast are connections between procs of one machine, beside plain sockets?", Metrics: []string{"unix_rtt_us", "unix_rtt_p99_us", "unix_bytes_per_s"}, run: runEndpoint}
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
	address map[string]string    // by network
	ends    []func()             // of the servers
	figures map[string][]float64 // one for each block, by arm and metric
}

// networks are the arms, ours first.
var networks = [...]string{"sigma", "unix", "tcp"}

const connectionMemory = 64 * sigma.MiB

func (r *Run) newConnections(ctx context.Context) (a *connections, err error) {
	a = &connections{r: r, local: filepath.Join(r.dir, "connection"), address: map[string]string{"sigma": "/connection"}, figures: map[string][]float64{}}
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
	ids, err := a.s.Spawn(ctx, sigma.Descriptor{Program: a.path, Args: []string{"serve", "sigma", a.address["sigma"]}, Start: sigma.StartedByCall, Memory: connectionMemory})
	if err == nil {
		err = a.s.WaitStart(ctx, ids[0])
	}
	if err == nil {
		err = a.serve(ctx, "unix", filepath.Join(r.dir, "socket"))
	}
	if err == nil {
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
	if network != "sigma" {
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
	for _, network := range networks {
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

// print puts out a metric beside each peer; more says that more is better.
func (a *connections) print(metric, unit string, more bool, n int) error {
	ours := a.figures["sigma "+metric]
	for _, peer := range networks[1:] {
		theirs := a.figures[peer+" "+metric]
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
		blocks, trips, streamed = 8, 3000, 2048
	}
	a, err := r.newConnections(ctx)
	if err != nil {
		return err
	}
	defer a.end()
	if err := a.measure(ctx, blocks, trips, "echo", microseconds("unix_rtt_us", "unix_rtt_p99_us")); err != nil {
		return err
	}
	if err := a.print("unix_rtt_us", "us", false, trips); err != nil {
		return err
	}
	if err := a.print("unix_rtt_p99_us", "us", false, trips); err != nil {
		return err
	}
	bytes := float64(streamed) * 64 * 1024
	err = a.measure(ctx, blocks, streamed, "stream", func(ns []float64) map[string]float64 {
		return map[string]float64{"unix_bytes_per_s": bytes / time.Duration(ns[0]).Seconds()}
	})
	if err != nil {
		return err
	}
	return a.print("unix_bytes_per_s", "B/s", true, 1)
}

func runDial(ctx context.Context, r *Run) error {
	blocks, dials := 20, 1000
	if r.Quick {
		blocks, dials = 8, 500
	}
	a, err := r.newConnections(ctx)
	if err != nil {
		return err
	}
	defer a.end()
	if err := a.measure(ctx, blocks, dials, "dial", microseconds("dial_p50_us", "dial_p99_us")); err != nil {
		return err
	}
	if err := a.print("dial_p50_us", "us", false, dials); err != nil {
		return err
	}
	return a.print("dial_p99_us", "us", false, dials)
}
