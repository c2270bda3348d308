package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sigmaos.dev/sigma"
)

// queueBench: how many tasks a second go through a work queue, beside a stream of Redis? The same
// program, programs/queue, is the client of all arms: as a proc of sigmaOS, whose queue two more
// procs serve (lib/queue), and as an ordinary process that speaks to one Redis over the loopback
// (Debian's). A task of 100 bytes is submitted, acquired under a lease and done; in Redis XADD,
// XREADGROUP, XACK, with what was not acknowledged pending. Eight programs' parts submit and eight
// work; tasks_per_s with 64 tasks in a request, alone_tasks_per_s with one.
//
// Durability: a queue of sigmaOS has each submission, hold and end in names, which etcd has synced
// to disk, before it is acknowledged. redis_always does the same (appendonly, appendfsync always).
// redis_default acknowledges what it has in memory and writes snapshots: what Debian's package
// does, and no equal. Redis keeps no results and enters a submission that is repeated twice.
//
// Expected: ours and redis_always wait for the disk, which all requests of a moment share; Redis
// syncs once for each round of its loop, ours has four puts under way. redis_default is bound by
// its one core.
func queueBench() Bench {
	return Bench{Name: "queue", Question: "how many tasks a second go through a work queue, beside Redis?",
		Metrics: []string{"tasks_per_s", "alone_tasks_per_s", "lone_task_p50_us", "cpu_us_per_task"}, run: runQueue}
}

const (
	queueBatch   = 64
	queueMembers = 8 // that submit, and as many that work
	queueMemory  = 512 * sigma.MiB
	redisProgram = "redis-check-rdb" // of Debian's redis-tools, which starts nothing; by another name the server itself
)

// queueArm is one service.
type queueArm struct {
	name    string
	client  func(ctx context.Context, args ...string) (out []byte, cpu time.Duration, err error)
	address string
	kind    string               // as programs/queue knows it
	cpu     func() time.Duration // of its servers
	figures map[string][]float64 // one for each block, by metric
}

// queueReport is what the client prints.
type queueReport struct {
	PerSecond float64   `json:"tasks_per_s"`
	Lone      []float64 `json:"lone_us"`
	Tasks     float64   `json:"tasks"`
}

func runQueue(ctx context.Context, r *Run) error {
	blocks, seconds := 5, 6
	if r.Quick {
		blocks, seconds = 3, 1
	}
	local := filepath.Join(r.dir, "queue")
	if err := r.make(ctx, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", local,
		"./bench/programs/queue"); err != nil {
		return err
	}
	s, err := r.boot(ctx)
	if err != nil {
		return err
	}
	defer s.down()
	ours, err := newQueueArm(ctx, s, local)
	if err != nil {
		return err
	}
	arms := []*queueArm{ours}
	for name, flags := range map[string][]string{"redis_always": {"--appendonly", "yes", "--appendfsync", "always"},
		"redis_default": nil} {
		arm, end, err := r.redis(ctx, name, local, flags)
		if err != nil {
			r.note("%s is skipped: %v", name, err)
			continue
		}
		defer end()
		arms = append(arms, arm)
	}
	var runs []func() error
	for _, a := range arms {
		runs = append(runs, func() error { return a.measure(ctx, r, seconds) })
	}
	if err := interleave(blocks, runs...); err != nil {
		return err
	}
	return r.printQueues(arms)
}

// newQueueArm starts the servers of our queue.
func newQueueArm(ctx context.Context, s *system, local string) (*queueArm, error) {
	program, err := s.install(ctx, local, "queue")
	if err != nil {
		return nil, err
	}
	const dir = "/jobs"
	for range 2 {
		if _, err := s.Spawn(ctx, sigma.Descriptor{Program: program, Name: "queue-server", Args: []string{"serve", dir},
			Memory: queueMemory}); err != nil {
			return nil, err
		}
	}
	return &queueArm{name: "sigma", kind: "sigma", address: dir, cpu: s.cpu, figures: map[string][]float64{},
		client: func(ctx context.Context, args ...string) ([]byte, time.Duration, error) {
			out, err := s.output(ctx, sigma.Descriptor{Program: program, Name: "queue-client", Args: args,
				Memory: queueMemory})
			return out, 0, err
		}}, nil
}

// redis starts a server of Redis until end is called.
func (r *Run) redis(ctx context.Context, name, local string, flags []string) (a *queueArm, end func(), err error) {
	path, err := find(ctx, redisProgram, "redis-tools")
	if err != nil {
		return nil, nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	dir := filepath.Join(r.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = append([]string{"redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", dir,
		"--daemonize", "no"}, flags...)
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	end = func() {
		cmd.Process.Kill()
		cmd.Wait()
	}
	address := fmt.Sprint("127.0.0.1:", port)
	if err := awaitPort(ctx, address); err != nil {
		end()
		return nil, nil, err
	}
	return &queueArm{name: name, kind: "redis", address: address, figures: map[string][]float64{},
		cpu: func() time.Duration {
			p, _ := readProcess(cmd.Process.Pid)
			return p.own + p.children
		},
		client: func(ctx context.Context, args ...string) ([]byte, time.Duration, error) {
			client := exec.CommandContext(ctx, local, args...)
			client.Stderr = r.Notes
			out, err := client.Output()
			if err != nil {
				return nil, 0, err
			}
			return out, client.ProcessState.UserTime() + client.ProcessState.SystemTime(), nil
		}}, end, nil
}

// measure is one block of an arm.
func (a *queueArm) measure(ctx context.Context, r *Run, seconds int) error {
	for _, m := range []struct {
		metric string
		batch  int
	}{{"tasks_per_s", queueBatch}, {"alone_tasks_per_s", 1}} {
		used := a.cpu()
		out, client, err := a.client(ctx, "run", a.kind, a.address, strconv.Itoa(m.batch), strconv.Itoa(queueMembers),
			strconv.Itoa(seconds))
		var rep queueReport
		if err == nil {
			err = json.Unmarshal(out, &rep)
		}
		if err != nil {
			return fmt.Errorf("%s of %s: %w", m.metric, a.name, err)
		}
		used = a.cpu() + client - used
		got := map[string]float64{m.metric: rep.PerSecond}
		if m.batch == 1 {
			got["lone_task_p50_us"] = median(rep.Lone)
		} else {
			got["cpu_us_per_task"] = used.Seconds() * 1e6 / rep.Tasks
		}
		for metric, v := range got {
			a.figures[metric] = append(a.figures[metric], r.sample(a.name, metric, v))
		}
	}
	return nil
}

func (r *Run) printQueues(arms []*queueArm) error {
	ours := arms[0].figures
	for _, m := range []struct {
		metric, unit string
		more         bool
	}{{"tasks_per_s", "1/s", true}, {"alone_tasks_per_s", "1/s", true}, {"lone_task_p50_us", "us", false},
		{"cpu_us_per_task", "us", false}} {
		l := Line{Metric: m.metric, Unit: m.unit, Ours: median(ours[m.metric]), N: len(ours[m.metric])}
		for _, peer := range arms[1:] {
			theirs := peer.figures[m.metric]
			rs := ratios(theirs, ours[m.metric])
			if m.more {
				rs = ratios(ours[m.metric], theirs)
			}
			p := l
			p.Peer, p.Theirs = peer.name, pointer(median(theirs))
			if err := r.print(p.between(rs)); err != nil {
				return err
			}
		}
		if len(arms) == 1 {
			if err := r.print(l); err != nil {
				return err
			}
		}
	}
	return nil
}
