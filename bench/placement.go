package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sched/besched"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
)

// placementBench: how many best-effort procs can one besched place in a second (001 §6.1, Table 4)?
// The procs are never run: a machine that is given one says at once that it ended, and what it
// used. First the pure core alone, in one goroutine; then a besched in a process of its own over
// one machine's session, with machine and besched on the same cores. Expected: the core is bound by
// maps and heaps, a few hundred nanoseconds each; the process by the codec, since calls carry many.
// Then whole machines (placementload.go).
func placementBench() Bench {
	metrics := []string{"core_placements_per_s", "besched_placements_per_s", "machines_starts_per_s"}
	for _, part := range placementLoads {
		for _, q := range [...]string{"p50", "p99"} {
			metrics = append(metrics, fmt.Sprintf("besched_%s_us_at_%.0f", q, 100*part))
		}
		for _, q := range [...]string{"p50", "p90"} {
			metrics = append(metrics, fmt.Sprintf("machines_start_%s_ms_at_%.0f", q, 100*part))
		}
	}
	return Bench{Name: "placement",
		Question: "how many procs does one besched place in a second, and how long does a start take on several " +
			"machines at 10, 50 and 90 % of their load?", Metrics: metrics, AnyMachines: true, run: runPlacement}
}

// Of the benchmark's load.
const (
	placementRealms   = 1000
	placementMachines = 100
	placementSlots    = 32 // procs that fit on a machine
	placementBatch    = 256
	paperPlacements   = 53306 // 001 §6.1, one besched for 24 machines
)

func runPlacement(ctx context.Context, r *Run) error {
	blocks, each := 10, 3*time.Second
	if r.Quick {
		blocks, each = 3, 1500*time.Millisecond
	}
	if err := r.placements(ctx, blocks, each); err != nil {
		return err
	}
	return r.placementLoads(ctx)
}

// placements is the core alone and one besched.
func (r *Run) placements(ctx context.Context, blocks int, each time.Duration) error {
	var core, process []float64
	b, err := r.startBesched(ctx)
	if err != nil {
		return err
	}
	defer b.stop()
	pure := newCoreLoad()
	err = interleave(blocks, func() error {
		core = append(core, r.sample("core", "placements_per_s", pure.run(each)))
		return ctx.Err()
	}, func() error {
		rate, err := b.run(ctx, each)
		process = append(process, r.sample("besched", "placements_per_s", rate))
		return err
	})
	if err != nil {
		return err
	}
	if err := r.print(Line{Metric: "core_placements_per_s", Unit: "1/s/core, none run", Ours: median(core),
		N: len(core)}); err != nil {
		return err
	}
	theirs := float64(paperPlacements)
	over := make([]float64, len(process))
	for i := range over {
		over[i] = process[i] / theirs
	}
	if err := r.print(Line{Metric: "besched_placements_per_s", Unit: "1/s, none run", Ours: median(process),
		Peer: "paper_24_machines", Theirs: &theirs, N: len(process)}.between(over)); err != nil {
		return err
	}
	return r.printLatencies(ctx, b, median(process), each)
}

// coreLoad is a core whose machines are full: one ends some procs, tells what they used, and offers
// its room again, while others spawn.
type coreLoad struct {
	c       *besched.Core
	running [placementMachines][]besched.Job
	parked  [placementMachines]besched.Ticket
	where   map[besched.Ticket]int
	ticket  besched.Ticket
	number  int
	placed  int
	seed    uint32
}

func newCoreLoad() *coreLoad {
	l := &coreLoad{c: besched.NewCore(), where: map[besched.Ticket]int{}, seed: 1}
	shares := map[sigma.RealmID]uint32{}
	for i := range placementRealms {
		shares[placementRealm(i)] = uint32(1 + i%4)
	}
	l.c.Shares(shares)
	for m := range placementMachines {
		l.c.Attend(placementLife(m), 8000, placementSlots*sigma.MiB)
	}
	l.spawn(20000)
	for m := range placementMachines {
		l.park(m)
	}
	return l
}

func placementRealm(i int) sigma.RealmID { return sigma.RealmID("r" + strconv.Itoa(i)) }

func placementLife(m int) sigma.Life {
	return sigma.Life{Machine: sigma.MachineID("m" + strconv.Itoa(m)), Incarnation: 1}
}

// random is cheap and the same in each run.
func (l *coreLoad) random(n int) int {
	l.seed = l.seed*1664525 + 1013904223
	return int(l.seed>>8) % n
}

func (l *coreLoad) spawn(n int) {
	jobs := make([]besched.Job, n)
	for i := range jobs {
		l.number++
		jobs[i] = besched.Job{ID: sigma.ProcID("p" + strconv.Itoa(l.number)),
			Realm: placementRealm(l.random(placementRealms)), Memory: sigma.Bytes(1+l.random(4)) * sigma.MiB / 2,
			Home: placementLife(l.random(placementMachines))}
	}
	gs, _ := l.c.Enqueue(jobs)
	l.granted(gs)
}

func (l *coreLoad) granted(gs []besched.Grant) {
	for _, g := range gs {
		m := l.where[g.Ticket]
		delete(l.where, g.Ticket)
		l.parked[m] = 0
		l.running[m] = append(l.running[m], g.Jobs...)
		l.placed += len(g.Jobs)
	}
}

func (l *coreLoad) park(m int) {
	if t := l.parked[m]; t != 0 {
		l.c.Leave(t)
		delete(l.where, t)
	}
	free := sigma.Bytes(placementSlots * sigma.MiB)
	for _, j := range l.running[m] {
		free -= j.Memory
	}
	l.ticket++
	l.parked[m] = l.ticket
	l.where[l.ticket] = m
	l.granted(l.c.Park(l.ticket, placementLife(m).Machine,
		besched.Offer{Memory: free, Load: uint32(len(l.running[m]))}))
}

// run places for a time and returns how many in a second of CPU time, with what the load and the
// collection of garbage take.
func (l *coreLoad) run(d time.Duration) float64 {
	before, cpu, began := l.placed, cpuUsed(), time.Now()
	for time.Since(began) < d {
		for range 64 {
			m := l.random(placementMachines)
			n := min(len(l.running[m]), 8)
			for _, j := range l.running[m][:n] {
				used := time.Duration(1+l.random(50)) * time.Millisecond
				l.c.Charge(placementLife(m).Machine, []besched.Charge{{Realm: j.Realm, Used: used, Prepaid: j.Prepaid,
					Ended: 1, Whole: used, Held: -int64(j.Memory)}})
			}
			l.running[m] = append(l.running[m][:0], l.running[m][n:]...)
			l.park(m)
		}
		if w := l.c.Waiting(); w < 20000 {
			l.spawn(20000 - w)
		}
	}
	return float64(l.placed-before) / (cpuUsed() - cpu).Seconds()
}

// cpuUsed is the CPU time of this process.
func cpuUsed() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// beschedProcess is a besched in a process of its own, and the machine's session to it.
type beschedProcess struct {
	cmd    *exec.Cmd
	client *session.Client
	b      sigma.Caller
	number atomic.Int64
	cancel context.CancelFunc
	failed chan error
}

// startBesched starts the bench program as besched.
func (r *Run) startBesched(ctx context.Context) (*beschedProcess, error) {
	ours, theirs, err := session.FilePair(syscall.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := session.FromFile(ours)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(r.Bin, "bench"), "serve-besched")
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return nil, err
	}
	p := &beschedProcess{cmd: cmd, failed: make(chan error, 1), cancel: func() {}}
	if p.client, err = session.Dial(ctx, conn); err != nil {
		conn.Close()
		p.stop()
		return nil, err
	}
	root, err := p.client.Attach(ctx, "")
	if err != nil {
		p.stop()
		return nil, err
	}
	p.b = root.(sigma.Caller)
	actx, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	go func() {
		err := besched.CallAttend.Tell(actx, p.b, besched.Attendance{Incarnation: 1,
			CPU: sigma.MilliCPU(1000 * runtime.NumCPU()), Memory: sigma.GiB})
		if actx.Err() == nil {
			p.failed <- err
		}
	}()
	return p, nil
}

func (p *beschedProcess) stop() {
	p.cancel()
	if p.client != nil {
		p.client.Close()
	}
	p.cmd.Process.Kill()
	p.cmd.Wait()
}

// run spawns and takes as many as besched places, for a time. Room comes back at once, and what is
// spawned is never more than some thousands ahead of what is placed.
func (p *beschedProcess) run(ctx context.Context, d time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var placed, spawned atomic.Int64
	var over atomic.Bool
	var all sync.WaitGroup
	room := make(chan struct{}, 16) // batches that may be ahead
	fail := func(err error) {
		if err != nil && ctx.Err() == nil { // else what is under way when the run is over ends with it
			select {
			case p.failed <- err:
			default:
			}
			over.Store(true)
			cancel()
		}
	}
	began := time.Now()
	for range 2 {
		all.Go(func() {
			for !over.Load() {
				select {
				case room <- struct{}{}:
				case <-ctx.Done():
					return
				}
				jobs := make([]besched.Job, placementBatch)
				for i := range jobs {
					n := p.number.Add(1)
					jobs[i] = besched.Job{ID: sigma.ProcID(fmt.Sprintf("p%019d", n)),
						Realm: placementRealm(int(n) % placementRealms), Memory: sigma.MiB}
				}
				fail(besched.CallEnqueue.Tell(ctx, p.b, jobs))
				spawned.Add(placementBatch)
			}
		})
	}
	var pulls sync.WaitGroup
	for range 4 {
		pulls.Go(func() {
			for {
				got, err := besched.CallPull.Ask(ctx, p.b, besched.Offer{Memory: besched.GrantMax * sigma.MiB})
				if ctx.Err() != nil {
					return
				}
				fail(err)
				before := placed.Load() / placementBatch
				after := placed.Add(int64(len(got.Jobs))) / placementBatch
				for range after - before {
					select {
					case <-room:
					default:
					}
				}
				charges := make([]besched.Charge, len(got.Jobs))
				for i, j := range got.Jobs {
					charges[i] = besched.Charge{Realm: j.Realm, Used: j.Prepaid, Prepaid: j.Prepaid, Ended: 1,
						Whole: j.Prepaid, Held: -int64(j.Memory)}
				}
				fail(besched.CallCharge.Tell(ctx, p.b, charges))
			}
		})
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	rate := float64(placed.Load()) / time.Since(began).Seconds()
	over.Store(true)
	for ctx.Err() == nil && placed.Load() < spawned.Load() { // the next run starts with an empty queue
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
	cancel()
	all.Wait()
	pulls.Wait()
	select {
	case err := <-p.failed:
		return 0, err
	default:
		return rate, nil
	}
}

// ServeBesched is the process that placement measures: a besched that serves the session on its
// file descriptor 3.
func ServeBesched(ctx context.Context) error {
	conn, err := session.FromFile(os.NewFile(3, "session"))
	if err != nil {
		return err
	}
	return treeserver.Serve(ctx, conn, treeserver.Config{Tree: besched.NewService(),
		Principal: sigma.Principal{Realm: sigma.SystemRealm, Machine: "m", System: true}})
}
