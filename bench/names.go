package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// namesBench: what do names cost a program, beside the services that people keep names in? The same
// program, programs/names, is the client of all arms: as a proc of sigmaOS, and as an ordinary
// process that uses etcd (of the version that named embeds, with its settings, by its own client)
// or ZooKeeper (Debian's, as it comes). All are one server on this machine, and answer a write when
// it is on disk. Each block starts a client of each arm anew. A get is what the service's clients
// usually do: sigmaOS what the machine knows, etcd what its majority knows, ZooKeeper what the
// server knows; newest is the read that is linearizable at all three. same_etcd has the names in
// that same etcd (sigma up --etcd). Expected: a get is one round trip to sigmad; newest and put are
// that and a round trip to named, which answers reads from memory and writes when etcd has.
func namesBench() Bench {
	metrics := []string{"get_per_s", "put_per_s", "cpu_us_per_get", "cpu_us_per_put", "watch_fanout_ms"}
	for _, i := range namesItems {
		metrics = append(metrics, i.metric+"_p50_us", i.metric+"_p99_us")
	}
	return Bench{Name: "names", Question: "what do names cost, beside etcd and ZooKeeper?",
		Metrics: append(metrics, "same_etcd_get_p50_us", "same_etcd_put_p50_us"), run: runNames}
}

// namesItems are measured one operation after another. Writes wait for the disk, so there are fewer
// of them.
var namesItems = []struct {
	item, metric string
	count        int
}{{"bare", "bare_call", 5000}, {"get", "cached_get", 5000}, {"newest", "get", 1000}, {"put", "put", 150},
	{"create", "create", 100}, {"ephemeral", "ephemeral_create", 100},
	{"list", "list_100", 300}, {"rename", "rename", 100}, {"resolve", "resolve_4", 2000}}

const (
	watchers    = 1000
	namesMemory = 256 * sigma.MiB
)

// nameService is one arm.
type nameService struct {
	name    string
	kind    string  // as programs/names knows it
	s       *system // nil if it is not ours
	address string
	cpu     func() time.Duration // of its servers
	figures map[string][]float64 // one for each block, by metric
}

// nameServices are all arms, ours first.
type nameServices struct {
	r     *Run
	local string
	arms  []*nameService
	ends  []func()
}

// sameEtcd is the arm that is measured by the items of these names alone.
const sameEtcd = "same_etcd"

var sameItems = []string{"newest", "put"}

func runNames(ctx context.Context, r *Run) error {
	blocks, share, seconds := 10, 1, 3
	if r.Quick {
		blocks, share, seconds = 3, 3, 1
	}
	a := &nameServices{r: r, local: filepath.Join(r.dir, "names")}
	defer a.end()
	if err := a.start(ctx); err != nil {
		return err
	}
	for _, i := range namesItems {
		if err := a.measure(ctx, blocks, i.item, i.count/share, microseconds(i.metric+"_p50_us",
			i.metric+"_p99_us")); err != nil {
			return err
		}
	}
	for _, what := range []string{"get", "put"} {
		if err := a.measure(ctx, blocks, what+"-rate", seconds, func(f []float64) map[string]float64 {
			return map[string]float64{what + "_per_s": median(f)}
		}); err != nil {
			return err
		}
	}
	if err := a.measure(ctx, blocks, "fanout", watchers, func(ns []float64) map[string]float64 {
		return map[string]float64{"watch_fanout_ms": median(ns) / 1e6}
	}); err != nil {
		return err
	}
	return a.print(blocks, share)
}

// start starts all arms.
func (a *nameServices) start(ctx context.Context) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", a.local, "./bench/programs/names")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the program (run it in a clone): %w\n%s", err, out)
	}
	if err := a.ours(ctx, "sigma"); err != nil {
		return err
	}
	for _, peer := range []struct {
		name  string
		start func(context.Context) (*exec.Cmd, string, error)
	}{{"etcd", a.etcd}, {"zookeeper", a.zookeeper}} {
		cmd, address, err := peer.start(ctx)
		if err != nil {
			a.r.note("%s is skipped: %v", peer.name, err)
			continue
		}
		a.arms = append(a.arms, &nameService{peer.name, peer.name, nil, address, func() time.Duration {
			p, _ := readProcess(cmd.Process.Pid)
			return p.own
		}, map[string][]float64{}})
		if peer.name == "etcd" {
			if err := a.ours(ctx, sameEtcd, "--etcd", address); err != nil {
				return err
			}
		}
	}
	return nil
}

// ours boots a system for an arm of that name.
func (a *nameServices) ours(ctx context.Context, name string, flags ...string) error {
	s, err := a.r.bootIn(ctx, "data-"+name, flags...)
	if err != nil {
		return err
	}
	a.ends = append(a.ends, s.down)
	if _, err = s.install(ctx, a.local, "names"); err == nil {
		err = s.Mkdir(ctx, "/names", 0o755)
	}
	a.arms = append(a.arms, &nameService{name, "sigma", s, "/names", s.cpu, map[string][]float64{}})
	return err
}

func (a *nameServices) end() {
	for _, f := range slices.Backward(a.ends) { // what uses a peer's server before that
		f()
	}
}

// etcd starts one server, which is this program.
func (a *nameServices) etcd(ctx context.Context) (*exec.Cmd, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	return a.server(ctx, exec.CommandContext(ctx, self, "serve-etcd", filepath.Join(a.r.dir, "etcd")), "")
}

// zookeeperJar is where Debian's package has it; its manifest names the others.
const zookeeperJar = "/usr/share/java/zookeeper.jar"

func (a *nameServices) zookeeper(ctx context.Context) (*exec.Cmd, string, error) {
	java, err := find(ctx, "java", "default-jre-headless")
	if err == nil {
		if _, err = os.Stat(zookeeperJar); err != nil {
			_, err = find(ctx, "zookeeper", "zookeeper") // puts no program of that name anywhere
			if _, there := os.Stat(zookeeperJar); there == nil {
				err = nil
			}
		}
	}
	if err != nil {
		return nil, "", err
	}
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	dir := filepath.Join(a.r.dir, "zookeeper")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", err
	}
	address := "127.0.0.1:" + strconv.Itoa(port)
	config :=
		fmt.Sprintf(
			"dataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%d\nadmin.enableServer=false\nmaxClientCnxns=0\n", dir,
			port)
	file := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, "", err
	}
	return a.server(ctx, exec.CommandContext(ctx, java, "-cp", zookeeperJar, "-Dzookeeper.jmx.log4j.disable=true",
		"org.apache.zookeeper.server.quorum.QuorumPeerMain", file), address)
}

// server runs a peer's server, which is known by address or else prints it, until the bench ends.
func (a *nameServices) server(ctx context.Context, cmd *exec.Cmd, address string) (*exec.Cmd, string, error) {
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, "", err
	}
	a.ends = append(a.ends, func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if address == "" {
		if _, err := fmt.Fscanln(out, &address); err != nil {
			return nil, "", fmt.Errorf("it does not say where it listens: %w", err)
		}
	}
	go discard(out)
	return cmd, address, awaitPort(ctx, address)
}

// measure runs blocks of one item over all arms.
func (a *nameServices) measure(ctx context.Context, blocks int, item string, count int,
	use func([]float64) map[string]float64) error {
	var arms []func() error
	for _, arm := range a.arms {
		if arm.name == sameEtcd && !slices.Contains(sameItems, item) {
			continue
		}
		arms = append(arms, func() error {
			used := arm.cpu()
			figures, client, err := a.client(ctx, arm, item, count)
			if err != nil || len(figures) == 0 { // the service lacks it
				return err
			}
			used = arm.cpu() + client - used
			got := use(figures)
			if what, is := strings.CutSuffix(item, "-rate"); is {
				operations := median(figures) * (float64(count) + 0.2) // the client warms up for 0.2 s
				got["cpu_us_per_"+what] = used.Seconds() * 1e6 / operations
			}
			for metric, v := range got {
				arm.figures[metric] = append(arm.figures[metric], a.r.sample(arm.name, metric, v))
			}
			return nil
		})
	}
	return interleave(blocks, arms...)
}

// client runs programs/names once and gives its figures, and the CPU time that it used if it is no
// proc.
func (a *nameServices) client(ctx context.Context, arm *nameService, item string, count int) (figures []float64,
	cpu time.Duration, err error) {
	args := []string{arm.kind, arm.address, item, strconv.Itoa(count)}
	var out []byte
	if arm.s != nil {
		out, err = arm.s.output(ctx, sigma.Descriptor{Program: "/bin/names", Args: args, Memory: namesMemory})
	} else {
		cmd := exec.CommandContext(ctx, a.local, args...)
		cmd.Stderr = a.r.Notes
		if out, err = cmd.Output(); err == nil {
			cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%s of %s: %w", item, arm.name, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, 0, fmt.Errorf("%s of %s: %w", item, arm.name, err)
		}
		figures = append(figures, v)
	}
	return figures, cpu, nil
}

// print puts out each metric beside each peer. The floor of a get is a call that looks at nothing.
func (a *nameServices) print(blocks, share int) error {
	ours := a.arms[0].figures
	by := map[string]map[string][]float64{}
	for _, arm := range a.arms {
		by[arm.name] = arm.figures
	}
	line := func(metric, unit string, more bool, n int) error {
		l := Line{Metric: metric, Unit: unit, Ours: median(ours[metric]), N: n}
		if unit == "us" && strings.HasSuffix(metric, "_p50_us") {
			l.Floor = pointer(median(ours["bare_call_p50_us"]))
		}
		alone := true
		for _, peer := range a.arms[1:] {
			theirs := peer.figures[metric]
			if len(theirs) == 0 || peer.s != nil {
				continue
			}
			rs := ratios(theirs, ours[metric])
			if more {
				rs = ratios(ours[metric], theirs)
			}
			p := l
			p.Peer, p.Theirs, alone = peer.name, pointer(median(theirs)), false
			if err := a.r.print(p.between(rs)); err != nil {
				return err
			}
		}
		if alone {
			return a.r.print(l)
		}
		return nil
	}
	for _, i := range namesItems {
		for _, q := range []string{"_p50_us", "_p99_us"} {
			if err := line(i.metric+q, "us", false, blocks*i.count/share); err != nil {
				return err
			}
		}
	}
	bare := Line{Metric: "cached_get_p50_us", Unit: "us", Ours: median(ours["cached_get_p50_us"]), Peer: "bare_call",
		Theirs: pointer(median(ours["bare_call_p50_us"])), N: blocks * namesItems[1].count / share}
	if err := a.r.print(bare.between(ratios(ours["bare_call_p50_us"], ours["cached_get_p50_us"]))); err != nil {
		return err
	}
	if same, etcd := by[sameEtcd], by["etcd"]; same != nil {
		for _, m := range []string{"get_p50_us", "put_p50_us"} {
			l := Line{Metric: sameEtcd + "_" + m, Unit: "us", Ours: median(same[m]), Peer: "etcd",
				Theirs: pointer(median(etcd[m])), N: len(same[m])}
			if err := a.r.print(l.between(ratios(etcd[m], same[m]))); err != nil {
				return err
			}
		}
	}
	for _, m := range []struct {
		metric, unit string
		more         bool
	}{{"get_per_s", "1/s", true}, {"put_per_s", "1/s", true}, {"cpu_us_per_get", "us", false},
		{"cpu_us_per_put", "us", false}, {"watch_fanout_ms", "ms", false}} {
		if err := line(m.metric, m.unit, m.more, blocks); err != nil {
			return err
		}
	}
	return nil
}
