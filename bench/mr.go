package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/apps/mr"
	"sigmaos.dev/sigma"
)

// mrBench: how fast does MapReduce on sigmaOS count words, end to end? Two inputs: the source tree
// of the Go distribution (11,000 small files, where requests count), and the same text in four
// large files (where the reading of bytes counts). Ours is from the start of the job until its
// result is recorded: spawning, listing, mapping, shuffling through ux, reducing, writing. The
// peers read the same files from the local disk: an optimised counter in one process on one core,
// and coreutils. All files are in the page cache. Results of all arms must be equal. Expected: on
// large files about cores times the single process; on small files, which mappers ask for 16 at a
// time, the requests are most of the work.
func mrBench() Bench {
	return Bench{Name: "mr", Question: "how fast does MapReduce count words, end to end?",
		Metrics: []string{"bytes_per_s", "bytes_per_s_per_core", "large_bytes_per_s", "large_bytes_per_s_per_core"},
		run:     runMR}
}

// input is one of the inputs.
type mrInput struct {
	prefix string // of the metrics' names
	local  string
	remote string
	files  []string // local paths
	bytes  int64
	total  uint64 // words, as the first arm counted them; 0 = not yet
}

func runMR(ctx context.Context, r *Run) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("cannot ask go for its source tree: %w", err)
	}
	tree, err := newInput("", filepath.Join(strings.TrimSpace(string(out)), "src"), "/s3/in/tree")
	if err != nil {
		return err
	}
	large, err := concatenate(tree, filepath.Join(r.dir, "large"), 4)
	if err != nil {
		return err
	}
	s, err := r.boot(ctx)
	if err != nil {
		return err
	}
	defer s.down()
	program, err := s.install(ctx, filepath.Join(r.Bin, "mr"), "mr")
	if err != nil {
		return err
	}
	if err := s.command(ctx, "mkdir", "/s3/in"); err != nil {
		return err
	}
	for _, in := range []*mrInput{tree, large} {
		r.note("storing %s: %d files, %v", in.local, len(in.files), sigma.Bytes(in.bytes))
		if err := s.command(ctx, "--realm", realm, "put", "-r", in.local, in.remote); err != nil {
			return err
		}
	}
	for _, in := range []*mrInput{tree, large} {
		if err := r.compareMR(ctx, s, program, in); err != nil {
			return err
		}
	}
	return nil
}

// compareMR runs the arms on one input.
func (r *Run) compareMR(ctx context.Context, s *system, program string, in *mrInput) error {
	blocks := 9
	if r.Quick {
		blocks = 3
	}
	if _, err := countFiles(in.files); err != nil { // into the page cache
		return err
	}
	var ours, single []float64
	jobs := 0
	oursArm := func() error {
		jobs++
		v, err := r.runJob(ctx, s, program, in, fmt.Sprintf("%sblock%d", in.prefix, jobs))
		ours = append(ours, r.sample("ours", in.prefix+"bytes_per_s", v))
		return err
	}
	singleArm := func() error {
		begin := time.Now()
		n, err := countFiles(in.files)
		if err != nil {
			return err
		}
		single = append(single, r.sample("single_process", in.prefix+"bytes_per_s",
			float64(in.bytes)/time.Since(begin).Seconds()))
		return in.check("single_process", n)
	}
	if err := interleave(blocks, oursArm, singleArm); err != nil {
		return err
	}
	cores := float64(runtime.NumCPU())
	theirs := median(single)
	lines := []Line{
		{Metric: in.prefix + "bytes_per_s", Ours: median(ours), Peer: "single_process", Theirs: &theirs,
			Ratio: pointer(median(ratios(ours, single))), Floor: pointer(theirs * cores)},
		{Metric: in.prefix + "bytes_per_s_per_core", Ours: median(ours) / cores, Peer: "single_process",
			Theirs: pointer(theirs), Ratio: pointer(median(ratios(ours, single)) / cores), Floor: pointer(theirs)},
	}
	if in.prefix == "" { // coreutils take ten times as long
		v, err := r.runCoreutils(ctx, in)
		if err != nil {
			return err
		}
		lines = append(lines, Line{Metric: "bytes_per_s", Ours: median(ours), Peer: "coreutils", Theirs: &v,
			Ratio: pointer(median(ours) / v), Floor: pointer(theirs * cores)})
	}
	for _, l := range lines {
		l.Unit, l.N = "B/s", len(ours)
		if err := r.print(l); err != nil {
			return err
		}
	}
	return nil
}

// runJob counts once and gives bytes per second.
func (r *Run) runJob(ctx context.Context, s *system, program string, in *mrInput, id string) (float64, error) {
	output := "/s3/in/out"
	if err := s.RemoveAll(ctx, output); err != nil {
		return 0, err
	}
	c := mr.Client{Names: s, Procs: s, Init: s}
	sum, err := c.Run(ctx, id, mr.Job{Input: in.remote, Output: output, Cores: runtime.NumCPU(), Program: program})
	if err != nil {
		return 0, err
	}
	return sum.BytesPerS, in.check("ours", uint64(sum.Records))
}

// runCoreutils counts once with the pipeline that defines the result.
func (r *Run) runCoreutils(ctx context.Context, in *mrInput) (float64, error) {
	begin := time.Now()
	cmd := exec.CommandContext(ctx, "sh", "-c", `LC_ALL=C tr -cs 'A-Za-z' '\n' | LC_ALL=C sort | LC_ALL=C uniq -c`)
	cmd.Stdin = newChain(in.files)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	total := uint64(0)
	lines := bufio.NewReaderSize(out, 1<<20)
	for err == nil {
		var line string
		line, err = lines.ReadString('\n')
		if number, _, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			n, _ := strconv.ParseUint(number, 10, 64)
			total += n
		}
	}
	if err = cmd.Wait(); err != nil {
		return 0, fmt.Errorf("coreutils: %w", err)
	}
	v := r.sample("coreutils", in.prefix+"bytes_per_s", float64(in.bytes)/time.Since(begin).Seconds())
	return v, in.check("coreutils", total)
}

// check compares how many words an arm counted with what the first arm did.
func (in *mrInput) check(arm string, total uint64) error {
	if in.total == 0 {
		in.total = total
	}
	if in.total != total {
		return fmt.Errorf("%s counted %d words in %s, another arm %d", arm, total, in.local, in.total)
	}
	return nil
}

func newInput(prefix, local, remote string) (*mrInput, error) {
	in := &mrInput{prefix: prefix, local: local, remote: remote}
	err := filepath.WalkDir(local, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		st, err := e.Info()
		if err == nil {
			in.files, in.bytes = append(in.files, path), in.bytes+st.Size()
		}
		return err
	})
	if err == nil && len(in.files) == 0 {
		err = errors.New("no files in " + local)
	}
	return in, err
}

// concatenate makes n files, each with all text of another input.
func concatenate(from *mrInput, dir string, n int) (*mrInput, error) {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	for i := range n {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("text-%d", i)))
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(f, newChain(from.files))
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
	return newInput("large_", dir, "/s3/in/large")
}

// chain reads files one after another, with a newline after each.
type chain struct {
	files []string
	text  []byte
}

func newChain(files []string) *chain { return &chain{files: files} }

func (c *chain) Read(p []byte) (int, error) {
	for len(c.text) == 0 {
		if len(c.files) == 0 {
			return 0, io.EOF
		}
		text, err := os.ReadFile(c.files[0])
		if err != nil {
			return 0, err
		}
		c.text, c.files = append(text, '\n'), c.files[1:]
	}
	n := copy(p, c.text)
	c.text = c.text[n:]
	return n, nil
}
