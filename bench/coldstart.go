package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
)

//go:embed programs/coldstart.c
var coldstartSource string

// coldstartBench: how long does it take from Spawn to the first line of main of a program that this
// machine has never seen? Each start is of a copy with bytes of its own, which lies in the object
// store; each message between the machine and the store takes 0.2 ms longer, in each direction. The
// large program is of 30 MB and reads 64 KiB from its middle before it says that it has started;
// what was fetched by then (in truth: by its end) is told as a fraction. A program's own warm
// start, of the same copy once all of it is here, is the floor. The peer copies the program from
// one file to another, without any delay, and posix_spawns it without any isolation: what a machine
// does that fetches whole. Expected: a few round trips over the warm start; the peer's time grows
// with the size.
func coldstartBench() Bench {
	return Bench{Name: "coldstart",
		Question: "how long from Spawn to the first line of main of a program that was never on the machine?",
		Metrics: []string{"small_p50_ms", "small_warm_p50_ms", "large_p50_ms", "large_warm_p50_ms",
			"large_fetched_fraction"}, run: runColdstart}
}

const (
	storeDelay = "200us" // in each direction
	blobSize   = 30 << 20
)

var coldstartMark = []byte("sigma-coldstart-mark-0000000000000000")

// coldProgram is one of the two sizes.
type coldProgram struct {
	name     string
	text     []byte
	cold     []float64 // ms
	warm     []float64 // ms
	copied   []float64 // ms, the peer
	fraction []float64
	serial   int
}

func runColdstart(ctx context.Context, r *Run) error {
	rounds := 40
	if r.Quick {
		rounds = 12
	}
	small, large := &coldProgram{name: "small"}, &coldProgram{name: "large"}
	for _, p := range []*coldProgram{small, large} {
		if err := r.buildCold(ctx, p); err != nil {
			return err
		}
	}
	spawner, err := r.buildStart(ctx)
	if err != nil {
		return err
	}
	s, err := r.bootFar(ctx)
	if err != nil {
		return err
	}
	defer s.down()
	r.note("%d cold starts of each size, each of bytes never seen before; the store is 2 x %s away", rounds, storeDelay)
	if err := s.coldStart(ctx, small, false); err != nil { // so that sessions are there
		return err
	}
	err = interleave(rounds, func() error {
		return s.coldStart(ctx, small, true)
	}, func() error { return s.coldStart(ctx, large, true) },
		func() error {
			return r.copyStart(ctx, small, spawner)
		}, func() error { return r.copyStart(ctx, large, spawner) })
	if err != nil {
		return err
	}
	for _, p := range []*coldProgram{small, large} {
		for _, l := range []Line{
			{Metric: p.name + "_p50_ms", Ours: median(p.cold), Theirs: pointer(median(p.copied)),
				Ratio: pointer(median(ratios(p.copied, p.cold))), Floor: pointer(median(p.warm)),
				Peer: "copy_and_spawn"},
			{Metric: p.name + "_warm_p50_ms", Ours: median(p.warm)},
		} {
			l.Unit, l.N = "ms", len(p.cold)
			if err := r.print(l); err != nil {
				return err
			}
		}
	}
	return r.print(Line{Metric: "large_fetched_fraction", Unit: "1", Ours: median(large.fraction),
		N: len(large.fraction)})
}

// buildCold compiles the program; the large one has random bytes in it.
func (r *Run) buildCold(ctx context.Context, p *coldProgram) error {
	source, out := filepath.Join(r.dir, "coldstart.c"), filepath.Join(r.dir, p.name)
	if err := os.WriteFile(source, []byte(coldstartSource), 0o644); err != nil {
		return err
	}
	args := []string{"-static", "-O2", "-o", out, source}
	if p.name == "large" {
		blob := filepath.Join(r.dir, "blob")
		data := make([]byte, blobSize)
		rand.Read(data)
		if err := os.WriteFile(blob, data, 0o644); err != nil {
			return err
		}
		args = append(args, `-DBLOB="`+blob+`"`)
	}
	if text, err := exec.CommandContext(ctx, "cc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the program to start: %w\n%s", err, text)
	}
	var err error
	p.text, err = os.ReadFile(out)
	if err == nil && bytes.Count(p.text, coldstartMark) != 1 {
		err = errors.New("the program to start has no mark")
	}
	return err
}

// next gives the program's bytes as nobody has seen them.
func (p *coldProgram) next() []byte {
	p.serial++
	text := bytes.Clone(p.text)
	copy(text[bytes.Index(text, coldstartMark):], fmt.Sprintf("%037d", p.serial))
	return text
}

// bootFar boots a system whose object store is some way off.
func (r *Run) bootFar(ctx context.Context) (*system, error) {
	s := &system{r: r, data: filepath.Join(r.dir, "data")}
	err := s.command(ctx, "up", "--detach", "--machine", "bench") // makes the directory
	s.down()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(s.data, "sigmad", "store-delay"), []byte(storeDelay), 0o644); err != nil {
		return nil, err
	}
	return r.boot(ctx)
}

// coldStart puts a new copy into the store and starts it, and then again when all of it is here.
func (s *system) coldStart(ctx context.Context, p *coldProgram, count bool) error {
	path := fmt.Sprintf("/bin/%s-%d", p.name, p.serial)
	text := p.next()
	if _, err := s.Put(ctx, path, text, sigma.PutOptions{Perm: 0o755}); err != nil {
		return err
	}
	before, err := s.metric(ctx, "sigma_binfs_fetched_bytes_total")
	if err != nil {
		return err
	}
	cold, err := s.timedStart(ctx, path)
	if err != nil {
		return err
	}
	after, err := s.metric(ctx, "sigma_binfs_fetched_bytes_total")
	if err != nil {
		return err
	}
	for now := after; now-before < float64(len(text)); { // the rest comes by itself
		if now, err = s.metric(ctx, "sigma_binfs_fetched_bytes_total"); err != nil {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	var warm []float64
	for range 5 {
		ms, err := s.timedStart(ctx, path)
		if err != nil {
			return err
		}
		warm = append(warm, ms)
	}
	if count {
		p.cold = append(p.cold, s.r.sample(p.name, "cold_ms", cold))
		p.warm = append(p.warm, s.r.sample(p.name, "warm_ms",
			median(warm[1:]))) // the first may find the last chunk just arrived
		p.fraction = append(p.fraction, s.r.sample(p.name, "fetched_fraction", (after-before)/float64(len(text))))
	}
	return s.Remove(ctx, path)
}

// timedStart starts a program and tells the ms from Spawn until it has started.
func (s *system) timedStart(ctx context.Context, path string) (float64, error) {
	begin := monotonic()
	ids, err := s.Spawn(ctx, sigma.Descriptor{Program: path, Name: "cold", Memory: 16 * sigma.MiB})
	if err != nil {
		return 0, err
	}
	st, err := s.WaitExit(ctx, ids[0])
	if err == nil && !st.OK() {
		err = errors.New(st.Msg)
	}
	if err != nil {
		return 0, fmt.Errorf("proc %s ended badly: %w", ids[0], err)
	}
	text, _, err := s.Get(ctx, "/proc/"+string(ids[0])+"/stdout")
	if err != nil {
		return 0, err
	}
	return startedAfter(string(text), begin)
}

// startedAfter reads what the program printed: its first line of main, and when it had read what it
// reads.
func startedAfter(text string, begin int64) (float64, error) {
	_, touched, _ := strings.Cut(strings.TrimSpace(text), " ")
	ns, err := strconv.ParseInt(touched, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("a program printed %q", text)
	}
	return float64(ns-begin) / 1e6, nil
}

// metric reads one figure of /sys/metrics.
func (s *system) metric(ctx context.Context, name string) (float64, error) {
	text, _, err := s.Get(ctx, "/sys/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// copyStart is the peer: a whole copy, then posix_spawn by the C program, so that nothing of this
// one's size is forked.
func (r *Run) copyStart(ctx context.Context, p *coldProgram, spawner string) error {
	from, to := filepath.Join(r.dir, "peer-from"), filepath.Join(r.dir, "peer-to")
	if err := os.WriteFile(from, p.next(), 0o755); err != nil {
		return err
	}
	begin := monotonic()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	copied := float64(monotonic()-begin) / 1e6
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, spawner, "spawn", "1", to).Output()
	if err != nil {
		return fmt.Errorf("copy_and_spawn: %w", err)
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return fmt.Errorf("copy_and_spawn: printed %q", out)
	}
	p.copied = append(p.copied, r.sample("copy_and_spawn", p.name+"_ms", copied+float64(ns)/1e6))
	return errors.Join(os.Remove(from), os.Remove(to))
}
