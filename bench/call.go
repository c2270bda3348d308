package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// callBench: how many calls per second does package call make, beside grpc-go and net/http, and
// what does one cost the processors? Two machines joined by a veth pair (sigma up --machines 2);
// the same program, programs/calls, is client and server of all arms: as procs, and as ordinary
// processes over a UNIX socket, which on one machine is the fastest that they have, or over TCP
// from one machine's network to the other's. One client calls, alone or from 64 goroutines;
// arguments come back as they are. On one machine ours is what a dial gives (ring), and the same
// forced to its socket (unix_); between the machines what a dial gives (veth_). The processors'
// time counts both sides and the machines' daemons. On a busy host best-effort procs have what is
// left; the peers therefore run in groups beside those of the procs, which have no more. Expected:
// alone ours costs a wake-up for each side and no goroutine hand-over, or none of both in the ring
// while each side has a processor; many share system calls and wake-ups. Large arguments are
// copied, by all the same.
func callBench() Bench {
	b := Bench{Name: "call",
		Question: "how many calls per second are made on one machine and between two, beside grpc-go and net/http?",
		run:      runCall}
	for _, i := range callItems() {
		b.Metrics = append(b.Metrics, i.metric("calls_per_s"), i.metric("cpu_us_per_call"))
	}
	return b
}

const callMemory = 256 * sigma.MiB

// callItem is one thing that is measured.
type callItem struct {
	prefix string // of its metrics
	kind   string // of ours, as programs/calls knows it
	server string // "here" or "there"
	flight int
	size   int
}

func callItems() (out []callItem) {
	for _, x := range []callItem{{"", "sigma", "here", 0, 0}, {"unix_", "socket", "here", 0, 0},
		{"veth_", "sigma", "there", 0, 0}} {
		for _, size := range []int{64, 64 << 10} {
			for _, flight := range []int{1, 64} {
				x.size, x.flight = size, flight
				out = append(out, x)
			}
		}
	}
	return out
}

func (i callItem) metric(figure string) string {
	size := ""
	if i.size != 64 {
		size = "64KiB_"
	}
	return fmt.Sprintf("%s%d_in_flight_%s%s", i.prefix, i.flight, size, figure)
}

var callPeers = [...]string{"grpc-go", "nethttp"}

// callArms is one run.
type callArms struct {
	r       *Run
	s       *system // of the first machine
	c       *testenv.Cluster
	local   string            // the program
	path    string            // and in the realm
	address map[string]string // of servers, by kind and place
	ends    []func()
	groups  [2]string     // where the peers run, on each machine
	span    time.Duration // of one block
	calls   map[string][]float64
	cpu     map[string][]float64
}

func runCall(ctx context.Context, r *Run) (err error) {
	blocks := 10
	a := &callArms{r: r, span: time.Second, address: map[string]string{}, calls: map[string][]float64{},
		cpu: map[string][]float64{}}
	if r.Quick {
		blocks, a.span = 3, 200*time.Millisecond
	}
	if a.c, err = testenv.StartCluster(testenv.ClusterOptions{Kind: testenv.Local, Machines: 2, Bin: r.Bin,
		Realms: []sigma.RealmID{realm}}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.c.Close()) }()
	defer func() {
		for _, f := range slices.Backward(a.ends) {
			f()
		}
	}()
	if err := a.prepare(ctx); err != nil {
		return err
	}
	for _, size := range []int{64, 64 << 10} {
		for _, flight := range []int{1, 64} {
			for _, server := range []string{"here", "there"} {
				if err := a.measure(ctx, server, flight, size, blocks); err != nil {
					return err
				}
			}
		}
	}
	for _, i := range callItems() {
		if err := a.print(i); err != nil {
			return err
		}
	}
	return nil
}

// prepare starts all servers.
func (a *callArms) prepare(ctx context.Context) error {
	a.local = filepath.Join(a.r.dir, "calls")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", a.local, "./bench/programs/calls")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the program (run it in a clone): %w\n%s", err, out)
	}
	client, err := a.c.Machine(0).Client(ctx, realm)
	if err != nil {
		return err
	}
	a.s = &system{r: a.r, Client: client}
	a.ends = append(a.ends, client.Close)
	if a.path, err = a.s.install(ctx, a.local, "calls"); err != nil {
		return err
	}
	members, err := a.c.Machine(0).Members(ctx)
	if err != nil {
		return err
	}
	there, _, _ := strings.Cut(members[a.c.Machine(1).Name].Address, ":")
	for _, x := range []struct {
		kind, server string
		near         sigma.MachineID
	}{{"sigma", "there", a.c.Machine(1).Name}, {"sigma", "here", a.c.Machine(0).Name},
		{"socket", "here", a.c.Machine(0).Name}} {
		path := "/calls-" + x.kind + "-" + x.server
		ids, err := a.s.Spawn(ctx, sigma.Descriptor{Program: a.path, Args: []string{"serve", x.kind, path},
			Start: sigma.StartedByCall, Memory: callMemory, Near: x.near})
		if err == nil {
			err = a.s.WaitStart(ctx, ids[0])
		}
		if err != nil {
			return err
		}
		a.address[x.kind+" "+x.server] = path
	}
	if out, err := a.c.Machine(0).Command(ctx, "machine", "cordon",
		"m2").CombinedOutput(); err != nil { // clients are at m1
		return fmt.Errorf("cordon: %w\n%s", err, out)
	}
	for machine, path := range []string{a.address["sigma here"], a.address["sigma there"]} {
		if err := a.group(machine, path); err != nil {
			return err
		}
	}
	for n, kind := range callPeers {
		if err := a.serve(ctx, 0, kind, "here", "unix:"+filepath.Join(a.r.dir, kind)); err != nil {
			return err
		}
		if err := a.serve(ctx, 1, kind, "there", fmt.Sprintf("tcp:%s:%d", there, 9001+n)); err != nil {
			return err
		}
	}
	return nil
}

// group makes a group of processes beside that of our server at path, as far as processors are
// concerned.
func (a *callArms) group(machine int, path string) error {
	pids, err := commanded("serve", "sigma", path)
	if err != nil || len(pids) == 0 {
		return fmt.Errorf("there is no server of %s: %w", path, err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pids[0]))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[2] == "/" || f[1] != "" && !slices.Contains(strings.Split(f[1], ","), "cpu") {
			continue
		}
		dir := filepath.Join("/sys/fs/cgroup", f[1], filepath.Dir(f[2]), "peers-"+filepath.Base(a.r.dir))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		a.groups[machine] = dir
		a.ends = append(a.ends, func() { os.Remove(dir) })
		a.r.note("peers of %s run in %s", path, dir)
		return nil
	}
	return errors.New("procs are in no groups with a share of the processors")
}

// inside is the program as a process of the host in a machine's network, in the group beside our
// procs'.
func (a *callArms) inside(ctx context.Context, machine int, args ...string) *exec.Cmd {
	const enter = `echo $$ > "$0/cgroup.procs" && exec "$@"`
	space := fmt.Sprintf("--net=/proc/%d/ns/net", a.c.Machine(machine).PID("keeper"))
	return exec.CommandContext(ctx, "sh", append([]string{"-c", enter, a.groups[machine], "nsenter", space, a.local},
		args...)...)
}

// serve starts a peer's server.
func (a *callArms) serve(ctx context.Context, machine int, kind, server, address string) error {
	cmd := a.inside(ctx, machine, "serve", kind, address)
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
	a.address[kind+" "+server] = address
	_, err = bufio.NewReader(out).ReadString('\n')
	return err
}

func callArm(kind, server string, flight, size int) string {
	return fmt.Sprintf("%s %s %d %d", kind, server, flight, size)
}

// measure runs blocks of all arms whose server is in one place.
func (a *callArms) measure(ctx context.Context, server string, flight, size, blocks int) error {
	kinds := append([]string{"sigma"}, callPeers[:]...)
	if server == "here" {
		kinds = append(kinds, "socket")
	}
	var arms []func() error
	for _, kind := range kinds {
		arm := callArm(kind, server, flight, size)
		arms = append(arms, func() error {
			calls, cpu, err := a.client(ctx, kind, server, flight, size)
			if err != nil {
				return fmt.Errorf("%s: %w", arm, err)
			}
			a.calls[arm] = append(a.calls[arm], a.r.sample(arm, "calls_per_s", calls))
			a.cpu[arm] = append(a.cpu[arm], a.r.sample(arm, "cpu_us_per_call", cpu))
			return nil
		})
	}
	return interleave(blocks, arms...)
}

// client runs a client and gives its calls per second and the microseconds of the processors that
// each cost.
func (a *callArms) client(ctx context.Context, kind, server string, flight, size int) (calls, cpu float64, err error) {
	args := []string{"call", kind, a.address[kind+" "+server], strconv.Itoa(size), strconv.Itoa(flight),
		strconv.FormatInt(a.span.Milliseconds(), 10)}
	var out []byte
	daemons := a.daemons()
	ours := kind == "sigma" || kind == "socket"
	if ours {
		out, err = a.s.output(ctx, sigma.Descriptor{Program: a.path, Args: args, Memory: callMemory,
			Near: a.c.Machine(0).Name})
	} else {
		out, err = a.inside(ctx, 0, args...).Output()
		if e := (*exec.ExitError)(nil); errors.As(err, &e) {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
	}
	if err != nil {
		return 0, 0, err
	}
	var created, took, used float64
	if _, err := fmt.Sscan(string(out), &created, &took, &used); err != nil {
		return 0, 0, fmt.Errorf("%q: %w", out, err)
	}
	if ours &&
		server == "there" {
		// theirs only if they carry the bytes; it counts calls of the warm-up too, and the start of
		// the client
		used += float64(a.daemons() - daemons)
	}
	return created / took * 1e9, used / created / 1e3, nil
}

// daemons is what has been used so far by the machines' daemons.
func (a *callArms) daemons() (sum time.Duration) {
	for _, m := range a.c.Machines() {
		if p, ok := readProcess(m.PID("sigmad")); ok {
			sum += p.own
		}
	}
	return sum
}

func (a *callArms) print(i callItem) error {
	own := callArm(i.kind, i.server, i.flight, i.size)
	for _, peer := range callPeers {
		theirs := callArm(peer, i.server, i.flight, i.size)
		n := len(a.calls[own])
		err := a.r.print(Line{Metric: i.metric("calls_per_s"), Unit: "1/s", Ours: median(a.calls[own]), Peer: peer,
			Theirs: pointer(median(a.calls[theirs])), N: n}.between(ratios(a.calls[own], a.calls[theirs])))
		if err == nil {
			err = a.r.print(Line{Metric: i.metric("cpu_us_per_call"), Unit: "us", Ours: median(a.cpu[own]), Peer: peer,
				Theirs: pointer(median(a.cpu[theirs])), N: n}.between(ratios(a.cpu[theirs], a.cpu[own])))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
