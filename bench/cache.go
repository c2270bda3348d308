package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

// cacheBench: what does a cache do on one core, beside memcached and Redis (Debian's)? All are
// ordinary processes that listen on the loopback, pinned to the first core; cmd/cache is the
// program that members of fleets run, with --listen. programs/cache is the client of all, on the
// last core: one thread for 50 connections. Nine of ten commands are gets. memcached is compared in
// its protocol, Redis in its own, and ours speaks both.
//
// ops_per_s is what comes out of client and server together. On two cores the client may be what
// bounds it, so cpu_us_per_op tells what an operation costs the server.
//
// bytes_per_item: a server with a limit of 64 MiB gets more items of 100 bytes than fit; its
// resident memory is divided by the items that it has then. hit_ratio: a trace by Zipf's law with
// skew 1.01 over many more keys than fit into 16 MiB; a miss stores the item.
// hit_ratio_SKEW_of_KEYS is of shorter traces in 8 MiB, beside an exact LRU that holds as many
// items (lru).
//
// clerk_: 50 goroutines of a proc share a clerk of a cache that is a proc, by calls over a ring,
// one operation at a time each. Neither is pinned. It is beside what the other servers do
// unpipelined.
//
// Expected: unpipelined, the kernel's part is most of an operation and the same for all; pipelined,
// what is left is parsing and finding.
func cacheBench() Bench {
	b := Bench{Name: "cache", Question: "what does a cache do on one core, beside memcached and Redis?",
		Metrics: slices.Clone(cacheMetrics), run: runCache}
	for _, t := range cacheTraces() {
		b.Metrics = append(b.Metrics, t.metric())
	}
	b.Metrics = append(b.Metrics, "clerk_100B_ops_per_s", "clerk_4KiB_ops_per_s")
	return b
}

// cacheMetrics are those that servers are compared in.
var cacheMetrics = []string{"100B_ops_per_s", "100B_cpu_us_per_op", "100B_p99_us", "100B_pipelined_ops_per_s",
	"100B_pipelined_cpu_us_per_op", "4KiB_ops_per_s", "4KiB_cpu_us_per_op", "4KiB_pipelined_ops_per_s",
	"4KiB_pipelined_cpu_us_per_op", "bytes_per_item", "hit_ratio"}

const (
	cacheConnections = 50
	cacheDepth       = 16 // pipelined, as of redis-benchmark -P 16
	cacheLimit       = 64 * sigma.MiB
	cacheKeys        = 50_000 // of 100 bytes; of 4 KiB a fifth
	cacheTraceKeys   = 4_000_000
	cacheSkew        = "1.01"
	cacheTracePart   = 4 // of the limit, which a quick run's trace is enough for
)

// cacheServer is one server.
type cacheServer struct {
	name, protocol string
	peer           string // the server that it is beside; "" = it is one
	start          func(port, memory string) *exec.Cmd
	figures        map[string][]float64
}

func runCache(ctx context.Context, r *Run) error {
	blocks, millis, uses, short := 5, 2000, 8_000_000, 2_000_000
	if r.Quick {
		blocks, millis, uses, short = 2, 300, 1_000_000, 200_000
	}
	local := filepath.Join(r.dir, "cache-load")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", local,
		"./bench/programs/cache"); err != nil {
		return err
	}
	servers, err := r.cacheServers(ctx)
	if err != nil {
		return err
	}
	var runs []func() error
	for _, s := range servers {
		runs = append(runs, func() error { return r.measureCache(ctx, s, local, millis) })
	}
	clerk, err := r.clerk(ctx, local, millis)
	if err != nil {
		return err
	}
	defer clerk.s.down()
	runs = append(runs, func() error { return clerk.measure(ctx, r) })
	if err := interleave(blocks, runs...); err != nil {
		return err
	}
	for _, s := range servers {
		if err := r.measureItems(ctx, s, local, uses); err != nil {
			return err
		}
	}
	if err := r.printCaches(servers); err != nil {
		return err
	}
	if err := clerk.print(r, servers); err != nil {
		return err
	}
	return r.traces(ctx, servers[0], local, short)
}

// cacheServers gives ours in both protocols, each with its peer after it. A peer that is not there
// is skipped.
func (r *Run) cacheServers(ctx context.Context) (servers []*cacheServer, err error) {
	ours := func(port, memory string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, filepath.Join(r.Bin, "cache"), "--listen", "127.0.0.1:"+port,
			"--memory", memory+"MiB")
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		return cmd
	}
	for _, protocol := range []string{"memcached", "resp"} {
		servers = append(servers, &cacheServer{name: "sigma_" + protocol, protocol: protocol, start: ours,
			figures: map[string][]float64{}})
	}
	if path, err := find(ctx, "memcached", "memcached"); err != nil {
		r.note("memcached is skipped: %v", err)
	} else {
		servers = append(servers, &cacheServer{name: "memcached", protocol: "memcached", peer: "sigma_memcached",
			figures: map[string][]float64{}, start: func(port, memory string) *exec.Cmd {
				return exec.CommandContext(ctx, path, "-l", "127.0.0.1", "-p", port, "-t", "1", "-m", memory, "-u",
					"root")
			}})
	}
	if path, err := find(ctx, redisProgram, "redis-tools"); err != nil {
		r.note("redis is skipped: %v", err)
	} else {
		servers = append(servers, &cacheServer{name: "redis", protocol: "resp", peer: "sigma_resp",
			figures: map[string][]float64{}, start: func(port, memory string) *exec.Cmd {
				cmd := exec.CommandContext(ctx, path)
				cmd.Args = []string{"redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "",
					"--appendonly", "no",
					"--daemonize", "no", "--maxmemory", memory + "mb", "--maxmemory-policy", "allkeys-lru"}
				return cmd
			}})
	}
	return servers, nil
}

// with runs a server on the first core while do uses it.
func (s *cacheServer) with(ctx context.Context, memory int, do func(address string, pid int) error) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	cmd := s.start(strconv.Itoa(port), strconv.Itoa(memory))
	if runtime.NumCPU() > 1 { // bash's exec can give a program another name
		cmd.Args = append([]string{"taskset", "-c", "0", "bash", "-c",
			`name=$1 path=$2; shift 2; exec -a "$name" "$path" "$@"`,
			"bash", cmd.Args[0], cmd.Path}, cmd.Args[1:]...)
		if cmd.Path, err = exec.LookPath("taskset"); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	address := fmt.Sprint("127.0.0.1:", port)
	if err := awaitPort(ctx, address); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return do(address, cmd.Process.Pid)
}

// cacheReport is what the client prints.
type cacheReport struct {
	Ops     float64   `json:"ops"`
	Seconds float64   `json:"seconds"`
	Hits    float64   `json:"hits"`
	Micros  []float64 `json:"us"`
}

// cacheClient runs the client on the last core.
func (r *Run) cacheClient(ctx context.Context, local string, args ...string) (rep cacheReport, err error) {
	cmd := exec.CommandContext(ctx, local, args...)
	if n := runtime.NumCPU(); n > 1 {
		cmd = exec.CommandContext(ctx, "taskset", append([]string{"-c", strconv.Itoa(n - 1), local}, args...)...)
	}
	cmd.Stderr = r.Notes
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &rep)
	}
	return rep, err
}

// measureCache is one block of a server.
func (r *Run) measureCache(ctx context.Context, s *cacheServer, local string, millis int) error {
	return s.with(ctx, int(4*cacheLimit/sigma.MiB), func(address string, pid int) error {
		for _, size := range []int{100, 4096} {
			first, keys := "100B_", cacheKeys
			if size == 4096 {
				first, keys = "4KiB_", cacheKeys/5
			}
			if _, err := r.cacheClient(ctx, local, "fill", s.protocol, address, strconv.Itoa(size),
				strconv.Itoa(keys)); err != nil {
				return err
			}
			for _, depth := range []int{1, cacheDepth} {
				metric := first
				if depth > 1 {
					metric += "pipelined_"
				}
				used := ownTime(pid)
				rep, err := r.cacheClient(ctx, local, "load", s.protocol, address, strconv.Itoa(cacheConnections),
					strconv.Itoa(depth), strconv.Itoa(size), strconv.Itoa(keys), strconv.Itoa(millis))
				if err != nil {
					return fmt.Errorf("%s%s: %w", metric, s.name, err)
				}
				used = ownTime(pid) - used
				s.add(r, metric+"ops_per_s", rep.Ops/rep.Seconds)
				s.add(r, metric+"cpu_us_per_op", used.Seconds()*1e6/rep.Ops)
				if depth == 1 && size == 100 {
					s.add(r, metric+"p99_us", quantile(rep.Micros, 0.99))
				}
			}
		}
		return nil
	})
}

func (s *cacheServer) add(r *Run, metric string, v float64) {
	s.figures[metric] = append(s.figures[metric], r.sample(s.name, metric, v))
}

// ownTime is the processor time of a process.
func ownTime(pid int) time.Duration {
	p, _ := readProcess(pid)
	return p.own
}

// measureItems fills a server, and lets it see a trace.
func (r *Run) measureItems(ctx context.Context, s *cacheServer, local string, uses int) error {
	if s.name == "sigma_resp" { // the same store as of sigma_memcached
		return nil
	}
	limit := int(cacheLimit / sigma.MiB)
	fill := strconv.Itoa(int(cacheLimit) / 128)
	if err := s.with(ctx, limit, func(address string, pid int) error {
		if _, err := r.cacheClient(ctx, local, "fill", s.protocol, address, "100", fill); err != nil {
			return err
		}
		items, err := itemsOf(ctx, s.protocol, address)
		if err != nil || items == 0 {
			return fmt.Errorf("%s tells of %v items: %w", s.name, items, err)
		}
		s.add(r, "bytes_per_item", resident(pid)/items)
		return nil
	}); err != nil {
		return err
	}
	return s.with(ctx, limit/cacheTracePart, func(address string, _ int) error {
		rep, err := r.cacheClient(ctx, local, "trace", s.protocol, address, "100",
			strconv.Itoa(cacheTraceKeys), cacheSkew, strconv.Itoa(uses))
		if err == nil {
			s.add(r, "hit_ratio", rep.Hits/rep.Ops)
		}
		return err
	})
}

// resident is the memory of a process, in bytes.
func resident(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if f := strings.Fields(string(b)); err == nil && len(f) > 1 {
		n, _ := strconv.ParseFloat(f[1], 64)
		return n * float64(os.Getpagesize())
	}
	return 0
}

// itemsOf asks a server how many items it has.
func itemsOf(ctx context.Context, protocol, address string) (n float64, err error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ask, format, end := "DBSIZE\r\n", ":%g", ":"
	if protocol == "memcached" {
		ask, format, end = "stats\r\n", "STAT curr_items %g", "END"
	}
	if _, err := c.Write([]byte(ask)); err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(c); lines.Scan(); {
		fmt.Sscanf(lines.Text(), format, &n)
		if strings.HasPrefix(lines.Text(), end) {
			break
		}
	}
	return n, nil
}

func (r *Run) printCaches(servers []*cacheServer) error {
	ours := map[string]*cacheServer{}
	for _, s := range servers {
		ours[s.name] = s
	}
	less := func(metric string) bool {
		return strings.HasSuffix(metric, "_us") || strings.HasSuffix(metric, "us_per_op") || metric == "bytes_per_item"
	}
	for _, metric := range cacheMetrics {
		unit := "1/s"
		switch {
		case metric == "bytes_per_item":
			unit = "B"
		case metric == "hit_ratio":
			unit = ""
		case less(metric):
			unit = "us"
		}
		alone := true
		for _, peer := range servers {
			theirs, mine := peer.figures[metric], []float64(nil)
			if peer.peer != "" {
				if mine = ours[peer.peer].figures[metric]; mine == nil {
					mine = ours["sigma_memcached"].figures[metric]
				}
			}
			if theirs == nil || mine == nil {
				continue
			}
			rs := ratios(mine, theirs)
			if less(metric) {
				rs = ratios(theirs, mine)
			}
			l := Line{Metric: metric, Unit: unit, Ours: median(mine), N: len(mine), Peer: peer.name,
				Theirs: pointer(median(theirs))}
			if err := r.print(l.between(rs)); err != nil {
				return err
			}
			alone = false
		}
		if mine := ours["sigma_memcached"].figures[metric]; alone {
			if err := r.print(Line{Metric: metric, Unit: unit, Ours: median(mine), N: len(mine)}); err != nil {
				return err
			}
		}
	}
	return nil
}
