package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/balancer"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/sigma"
)

// kvBench: how many gets and puts a second does a kv store answer, beside Redis and etcd? Clients
// make one request at a time, of values of 100 bytes among 10,000 keys. The same program,
// programs/kv, is the client of all arms: a proc of sigmaOS, an ordinary process for the peers.
//
// Part one: a group of one member, beside one redis-server (Debian's, without snapshots or log)
// over the loopback (redis) and its UNIX socket (redis_unix). Ours are three arms: clients that
// have a clerk each, over the rings that dials give (no prefix) and over sockets (socket_); and
// clients that share the clerk of their program, as goroutines do (shared_). What Redis'
// clients share is a pool, of which each request under way has a connection, so that its clients
// have one each. All keep what they have in memory only.
//
// A program has rings for 64 connections, so that of 200 clerks the others use sockets.
//
// Part three: a group of three members, beside an etcd of three members (three_). The clients of
// both share one connection. All keep what they have in memory only: etcd's log is on a tmpfs,
// where a sync costs nothing. Gets are linearizable in both: our leader answers by its lease, as
// long as clocks run at about the same rate; etcd asks a majority.
//
// Part move: 16 clients put and get 1,000 keys each, 200 MB in all, while the store grows from one
// group to two (000 Fig 6-2). Half of the keys move. The plot is what clients got done.
//
// Part grow: 64 clients of a store of one, two and four groups. Each member has a scaled core: a
// sixteenth of this machine's processors by a quota, so that four members and the clients do not
// take from each other what they need.
//
// Expected: a request is two wake-ups and system calls on sockets at both, of which Redis has one
// core; on rings it needs no system call while both sides have a processor. With as many processors
// as this machine has, clients and server share them, so the processors' time is told too. Clients
// that share a ring share wake-ups as well.
func kvBench() Bench {
	b := Bench{Name: "kv", Question: "how many gets and puts a second does a kv store answer, beside Redis and etcd?",
		Parts: []string{"one", "three", "move", "grow"}, run: runKV}
	for _, prefix := range []string{"", kvSharedPrefix, kvSocketPrefix} {
		for _, n := range kvClients {
			for _, m := range kvMetrics {
				b.Metrics = append(b.Metrics, kvMetric(prefix, n, m.name))
			}
		}
	}
	for _, n := range kvThreeClients {
		for _, m := range kvMetrics {
			b.Metrics = append(b.Metrics, kvMetric(kvThreePrefix, n, m.name))
		}
	}
	b.Metrics = append(b.Metrics, "move_before_ops_per_s", "move_least_of_before", "move_after_of_before", "move_s",
		"move_longest_request_ms", "move_failed_requests", "grow_1_ops_per_s", "grow_2_of_1", "grow_4_of_1")
	return b
}

const (
	kvSharedPrefix = "shared_"
	kvSocketPrefix = "socket_"
	kvThreePrefix  = "three_"
	kvMemory       = 512 * sigma.MiB
	kvReadyMax     = 30 * time.Second
	kvShards       = 16
)

var (
	kvClients      = []int{1, 16, 50, 200}
	kvThreeClients = []int{1, 16, 64}
	kvMetrics      = []struct {
		name, unit string
		more       bool
	}{{"get_per_s", "1/s", true}, {"put_per_s", "1/s", true}, {"get_p50_us", "us", false}, {"put_p50_us", "us", false},
		{"cpu_us_per_op", "us", false}}
)

func kvMetric(prefix string, clients int, metric string) string {
	return fmt.Sprintf("%s%d_clients_%s", prefix, clients, metric)
}

// kvArm is one service, by one way.
type kvArm struct {
	queueArm
}

// kvStores makes stores, and runs their clients.
type kvStores struct {
	*Run
	s       *system
	local   string // the program, as a file
	program string // and as the realm has it
	blocks  int
	span    string // of one measurement
}

func runKV(ctx context.Context, r *Run) error {
	k := &kvStores{Run: r, blocks: 5, span: "2s", local: filepath.Join(r.dir, "kv")}
	if r.Quick {
		k.blocks, k.span = 3, "100ms"
	}
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", k.local,
		"./bench/programs/kv"); err != nil {
		return err
	}
	var err error
	if k.s, err = r.boot(ctx); err != nil {
		return err
	}
	defer k.s.down()
	if k.program, err = k.s.install(ctx, k.local, "kv-bench"); err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{"one", k.one}, {"three", k.three}, {"move", k.move}, {"grow", k.grow}} {
		if r.Only != "" && r.Only != part.name {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("part %s: %w", part.name, err)
		}
	}
	return nil
}

// create makes a store, which is not empty then. drop removes it.
func (k *kvStores) create(ctx context.Context, cfg *layout.Config) error {
	s, name := k.s, cfg.Name
	if err := s.MkdirAll(ctx, layout.Dir(name), 0o755); err != nil {
		return err
	}
	if _, err := s.Put(ctx, layout.File(name), cfg.Text(), sigma.PutOptions{MustMake: true}); err != nil {
		return err
	}
	for i := range balancer.Procs {
		if err := s.Register(ctx, sigma.Registration{Name: layout.BalancerProc(name, i),
			Descriptor: sigma.Descriptor{Program: k.program, Name: "kv-balancer", Start: sigma.StartedByCall,
				Args: []string{"balancer", name}}}); err != nil {
			return err
		}
	}
	clerk, err := kv.Open(s.Client, name)
	if err != nil {
		return err
	}
	defer clerk.Close()
	within, cancel := context.WithTimeout(ctx, kvReadyMax)
	defer cancel()
	if _, err := clerk.Put(within, "ready", nil, kv.Options{}); err != nil {
		return fmt.Errorf("store %s: %w", name, err)
	}
	return nil
}

func (k *kvStores) drop(ctx context.Context, name string) {
	if err := k.s.command(context.WithoutCancel(ctx), "kv", "rm", name); err != nil {
		k.note("%v", err)
	}
}

// layout is the configuration of a store. Each member reserves cpu thousandths of a core.
func (k *kvStores) layout(name string, groups, replicas int, memory sigma.Bytes, cpu uint32) *layout.Config {
	cfg := layout.New(name, k.program, kvShards, groups, replicas)
	cfg.Memory, cfg.CPU = memory.String(), cpu
	return cfg
}

// arm gives the clients of a kind of a store.
func (k *kvStores) arm(name, kind, store string) *kvArm {
	return &kvArm{queueArm{name: name, client: k.client, kind: kind, address: store, cpu: k.s.cpu,
		figures: map[string][]float64{}}}
}

// client runs the client as a proc.
func (k *kvStores) client(ctx context.Context, args ...string) ([]byte, time.Duration, error) {
	out, err := k.s.output(ctx, sigma.Descriptor{Program: k.program, Name: "kv-client", Args: args, Memory: kvMemory})
	return out, 0, err
}

// one is the part of groups of one member.
func (k *kvStores) one(ctx context.Context) error {
	for _, kind := range []string{"ring", "socket"} {
		if err := k.create(ctx, k.layout(kind, 1, 1, kvMemory, 500)); err != nil {
			return err
		}
		defer k.drop(ctx, kind)
	}
	ours := []*kvArm{k.arm("sigma_ring", "ring", "ring"), k.arm("sigma_shared", "shared", "ring"),
		k.arm("sigma_socket", "socket", "socket")}
	peers, end, err := k.kvRedis(ctx, k.local)
	if err != nil {
		k.note("redis is skipped: %v", err)
	} else {
		defer end()
	}
	if err := k.measureAll(ctx, append(ours, peers...), kvClients); err != nil {
		return err
	}
	for i, prefix := range []string{"", kvSharedPrefix, kvSocketPrefix} {
		if err := k.printKV(prefix, kvClients, ours[i], peers); err != nil {
			return err
		}
	}
	return k.plotClients(append(ours, peers...))
}

// plotClients draws what all got done by how many clients (000 Fig 6-4).
func (k *kvStores) plotClients(arms []*kvArm) error {
	var curves []curve
	for _, a := range arms {
		c := curve{name: a.name}
		for _, n := range kvClients {
			gets := median(a.figures[kvMetric("", n, "get_per_s")])
			puts := median(a.figures[kvMetric("", n, "put_per_s")])
			c.x, c.y = append(c.x, float64(n)), append(c.y, 2/(1/gets+1/puts)/1e3)
		}
		curves = append(curves, c)
	}
	return k.keepPlot(plotCurves(axes{title: "as many gets as puts of one server (000 Fig 6-4)", x: "clients",
		y: "thousand/s"}, curves), "one")
}

// measureAll has arms take turns with each number of clients.
func (k *kvStores) measureAll(ctx context.Context, arms []*kvArm, clients []int) error {
	for _, n := range clients {
		var runs []func() error
		for _, a := range arms {
			runs = append(runs, func() error { return a.measure(ctx, k.Run, n, k.span) })
		}
		if err := interleave(k.blocks, runs...); err != nil {
			return err
		}
	}
	return nil
}

// kvRedis starts a Redis, which is two arms.
func (r *Run) kvRedis(ctx context.Context, local string) (arms []*kvArm, end func(), err error) {
	path := filepath.Join(r.dir, "redis.sock")
	a, end, err := r.redis(ctx, "redis", local, []string{"--save", "", "--appendonly", "no", "--unixsocket", path})
	if err != nil {
		return nil, nil, err
	}
	unix := *a
	unix.name, unix.address, unix.figures = "redis_unix", "unix:"+path, map[string][]float64{}
	a.address = "tcp:" + a.address
	return []*kvArm{{*a}, {unix}}, end, nil
}

// measure is one block of an arm.
func (a *kvArm) measure(ctx context.Context, r *Run, clients int, span string) error {
	used := a.cpu()
	out, client, err := a.client(ctx, "run", a.kind, a.address, strconv.Itoa(clients), span)
	got := map[string]float64{}
	if err == nil {
		err = json.Unmarshal(out, &got)
	}
	if err == nil && got["ops"] == 0 {
		err = errors.New("nothing was done")
	}
	if err != nil {
		return fmt.Errorf("%d clients of %s: %w", clients, a.name, err)
	}
	got["cpu_us_per_op"] = (a.cpu() + client - used).Seconds() * 1e6 / got["ops"]
	for _, m := range kvMetrics {
		metric := kvMetric("", clients, m.name)
		a.figures[metric] = append(a.figures[metric], r.sample(a.name, metric, got[m.name]))
	}
	return nil
}

// printKV puts out the figures of ours, beside peers.
func (r *Run) printKV(prefix string, clients []int, ours *kvArm, peers []*kvArm) error {
	for _, n := range clients {
		for _, m := range kvMetrics {
			metric := kvMetric("", n, m.name)
			all := ours.figures[metric]
			l := Line{Metric: kvMetric(prefix, n, m.name), Unit: m.unit, Ours: median(all), N: len(all)}
			if err := r.printBeside(l, peers, metric, all, m.more); err != nil {
				return err
			}
		}
	}
	return nil
}

// printBeside puts out a line for each peer, or one if there are none.
func (r *Run) printBeside(l Line, peers []*kvArm, metric string, ours []float64, more bool) error {
	for _, peer := range peers {
		theirs := peer.figures[metric]
		rs := ratios(theirs, ours)
		if more {
			rs = ratios(ours, theirs)
		}
		p := l
		p.Peer, p.Theirs = peer.name, pointer(median(theirs))
		if err := r.print(p.between(rs)); err != nil {
			return err
		}
	}
	if len(peers) == 0 {
		return r.print(l)
	}
	return nil
}
