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

// kvBench: how many gets and puts a second does a kv store of one group of one member answer,
// beside one redis-server? Clients make one request at a time, each on a connection of its own, of
// values of 100 bytes among 10,000 keys. The same program, programs/kv, is the client of all arms:
// as a proc, over the ring that a dial gives, and in the arm of the socket_ metrics over a socket;
// and as an ordinary process that asks Redis (Debian's, without snapshots or log) over the loopback
// (redis) or its UNIX socket (redis_unix).
//
// Durability: all keep what they have in memory only.
//
// Expected: a request is two wake-ups and system calls on sockets at both, of which Redis has one
// core; on rings it needs no system call while both sides have a processor. With as many processors
// as this machine has, clients and server share them, so the processors' time is told too.
func kvBench() Bench {
	b := Bench{Name: "kv", Question: "how many gets and puts a second does a kv store answer, beside Redis?",
		run: runKV}
	for _, prefix := range []string{"", kvSocketPrefix} {
		for _, n := range kvClients {
			for _, m := range kvMetrics {
				b.Metrics = append(b.Metrics, kvMetric(prefix, n, m.name))
			}
		}
	}
	return b
}

const (
	kvSocketPrefix = "socket_"
	kvMemory       = 512 * sigma.MiB
	kvReadyMax     = 30 * time.Second
)

var (
	kvClients = []int{1, 16, 50}
	kvMetrics = []struct {
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

func runKV(ctx context.Context, r *Run) error {
	blocks, span := 5, "2s"
	if r.Quick {
		blocks, span = 3, "200ms"
	}
	local := filepath.Join(r.dir, "kv")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", local,
		"./bench/programs/kv"); err != nil {
		return err
	}
	s, err := r.boot(ctx)
	if err != nil {
		return err
	}
	defer s.down()
	program, err := s.install(ctx, local, "kv-bench")
	if err != nil {
		return err
	}
	var arms []*kvArm
	for _, kind := range []string{"ring", "socket"} {
		a, err := newKVArm(ctx, s, program, kind)
		if err != nil {
			return fmt.Errorf("store %s: %w", kind, err)
		}
		arms = append(arms, a)
	}
	peers, end, err := r.kvRedis(ctx, local)
	if err != nil {
		r.note("redis is skipped: %v", err)
	} else {
		defer end()
		arms = append(arms, peers...)
	}
	for _, n := range kvClients {
		var runs []func() error
		for _, a := range arms {
			runs = append(runs, func() error { return a.measure(ctx, r, n, span) })
		}
		if err := interleave(blocks, runs...); err != nil {
			return err
		}
	}
	return r.printKV(arms)
}

// newKVArm makes a store, whose name says what its connections are.
func newKVArm(ctx context.Context, s *system, program, kind string) (*kvArm, error) {
	cfg := layout.New(kind, program, 16, 1, 1)
	cfg.Memory, cfg.CPU = kvMemory.String(), 500
	if err := s.MkdirAll(ctx, layout.Dir(kind), 0o755); err != nil {
		return nil, err
	}
	if _, err := s.Put(ctx, layout.File(kind), cfg.Text(), sigma.PutOptions{MustMake: true}); err != nil {
		return nil, err
	}
	for i := range balancer.Procs {
		if err := s.Register(ctx, sigma.Registration{Name: layout.BalancerProc(kind, i),
			Descriptor: sigma.Descriptor{Program: program, Name: "kv-balancer", Start: sigma.StartedByCall,
				Args: []string{"balancer", kind}}}); err != nil {
			return nil, err
		}
	}
	clerk, err := kv.Open(s.Client, kind)
	if err != nil {
		return nil, err
	}
	defer clerk.Close()
	within, cancel := context.WithTimeout(ctx, kvReadyMax)
	defer cancel()
	if _, err := clerk.Put(within, "ready", nil, kv.Options{}); err != nil {
		return nil, err
	}
	client := func(ctx context.Context, args ...string) ([]byte, time.Duration, error) {
		out, err := s.output(ctx, sigma.Descriptor{Program: program, Name: "kv-client", Args: args,
			Memory: kvMemory})
		return out, 0, err
	}
	return &kvArm{queueArm{name: "sigma_" + kind, client: client, kind: kind, address: kind, cpu: s.cpu,
		figures: map[string][]float64{}}}, nil
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

func (r *Run) printKV(arms []*kvArm) error {
	for i, prefix := range []string{"", kvSocketPrefix} {
		for _, n := range kvClients {
			for _, m := range kvMetrics {
				metric := kvMetric("", n, m.name)
				ours := arms[i].figures[metric]
				l := Line{Metric: kvMetric(prefix, n, m.name), Unit: m.unit, Ours: median(ours), N: len(ours)}
				if err := r.printBeside(l, arms[2:], metric, ours, m.more); err != nil {
					return err
				}
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
