//go:build system

// Package mr tests MapReduce jobs on a real system, with procs that are killed while they work.
package mr

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/apps/mr"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// block is a text of about 1 MB that ends between words, and its counts.
func block() ([]byte, map[string]uint64) {
	r := rand.New(rand.NewPCG(7, 8))
	counts := map[string]uint64{}
	var text []byte
	for len(text) < 1<<20 {
		word := fmt.Sprintf("w%c%c%c", 'a'+r.IntN(26), 'A'+r.IntN(26), 'a'+r.IntN(26))
		counts[word]++
		text = append(append(text, word...), " ,.\n0"[r.IntN(5)])
	}
	return text, counts
}

// Copies of the block per file, and files: enough work that a map is met while it runs.
const copies, files = 48, 4

// TestKilled kills a mapper, the leader and another coordinator with SIGKILL in the middle of jobs
// with 1, 4 and 16 maps. The counts must be right, and no map that had finished repeated.
func TestKilled(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	ctx := t.Context()
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	counts := store(ctx, t, c)
	program := s.Install(ctx, t, c, filepath.Join(binDir(t), "mr"))
	for _, maps := range []int{1, 4, 16} {
		t.Run(fmt.Sprintf("%d maps", maps), func(t *testing.T) {
			id := fmt.Sprintf("killed-%d", maps)
			killed := make(chan int, 1)
			go func() { killed <- killSome(ctx, c, id, maps) }()
			client := mr.Client{Names: c, Procs: c, Init: c}
			sum, err := client.Run(ctx, id, mr.Job{Input: "/s3/in", Output: "/s3/" + id, Maps: maps, Cores: 2,
				Program: program})
			if err != nil {
				t.Fatal(err)
			}
			n := <-killed
			t.Logf("%d procs were killed; %+v", n, sum)
			if n < 3 || sum.Leaders < 2 {
				t.Errorf("the test killed %d procs, want a mapper and two coordinators; %d have led", n, sum.Leaders)
			}
			if sum.Maps != int64(maps) || sum.MapsRun > sum.Maps+1 {
				t.Errorf("%d maps were spawned for %d, want at most the killed one again", sum.MapsRun, sum.Maps)
			}
			check(ctx, t, c, "/s3/"+id, counts)
			nothingLeft(ctx, t, c)
		})
	}
}

// TestCommandAndMachineLost kills the machine where the command runs, with the command, and two of
// three coordinators, in the middle of a job. The result is there for who attaches elsewhere, and
// nothing else is left.
func TestCommandAndMachineLost(t *testing.T) {
	ctx := t.Context()
	cluster := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3})
	m1, m3 := cluster.Machine(0), cluster.Machine(2)
	c, err := m1.Client(ctx, sigma.DefaultRealm)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	counts := store(ctx, t, c)
	command := m3.Command(ctx, "mr", "wordcount", "--input", "/s3/in", "--output", "/s3/out", "--maps", "12",
		"--reduces", "2")
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	id := ""
	testenv.Eventually(t, "the job has a record and three coordinators", func() error {
		jobs, err := (&mr.Client{Names: c}).Jobs(ctx)
		if err != nil || len(jobs) == 0 {
			return fmt.Errorf("%d jobs, %v", len(jobs), err)
		}
		id = jobs[0].ID
		if _, coordinators := processes(id); len(coordinators) < mr.Coordinators {
			return fmt.Errorf("%d coordinators", len(coordinators))
		}
		return nil
	})
	if err := c.WaitFor(ctx, "/mr/"+id+"/out"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a map has finished", func() error {
		if done, err := c.ReadDir(ctx, "/mr/"+id+"/out"); len(done) == 0 {
			return fmt.Errorf("none has: %v", err)
		}
		return nil
	})
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	command.Wait()
	_, coordinators := processes(id)
	leader := leaderOf(ctx, c, id)
	killed := 0
	for _, index := range []int{leader, (leader + 1) % mr.Coordinators} {
		if pid := coordinators[index]; pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if err := m3.PowerOff(); err != nil {
		t.Fatal(err)
	}
	if killed < 2 {
		t.Errorf("%d coordinators were killed, want 2: the leader is %d of %v", killed, leader, coordinators)
	}
	client := mr.Client{Names: c, Procs: c, Init: c}
	sum, err := client.Follow(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", sum)
	if sum.Leaders < 2 {
		t.Errorf("%d coordinators have led", sum.Leaders)
	}
	check(ctx, t, c, "/s3/out", counts)
	nothingLeft(ctx, t, c)
	if err := m3.Restart(); err != nil {
		t.Fatal(err)
	}
}

// TestPrograms runs the three short programs on real input, given in three ways, against coreutils.
func TestPrograms(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	c := s.Connect(t.Context(), t, sigma.DefaultRealm)
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	texts := filepath.Join(root, "sdk") // Go, with empty lines and lines that are there often
	s.Must(t, "mkdir", "/s3/in")
	s.Must(t, "put", "-r", texts, "/s3/in/texts")
	files, err := c.ReadDir(t.Context(), "/s3/in/texts")
	if err != nil {
		t.Fatal(err)
	}
	var manifest bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&manifest, "/s3/in/texts/%s\n", f.Name)
	}
	if _, err := c.Put(t.Context(), "/manifest", manifest.Bytes(), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		input []string
		args  []string // of the program
		want  string   // a shell's, with the files of the directory $0
	}{
		"wordcount": {[]string{"--input", "/s3/in"}, nil,
			`find $0 -type f | xargs cat | tr -cs A-Za-z '\n' | grep . | sort | uniq -c | awk '{print $2 "\t" $1}'`},
		"grep": {[]string{"--manifest", "/manifest"}, []string{"err.*nil"},
			`find $0 -type f | xargs grep -h 'err.*nil' | sort`},
		"sort": {[]string{"--prefix", "/s3/in/texts/s"}, nil, `find $0/s* -type f | xargs cat | sort`},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"mr", "run"}
			program := filepath.Join(binDir(t), "mr")
			if name != "wordcount" {
				program = testenv.BuildGo(t, t.TempDir(), filepath.Join(root, "examples", name))
			}
			args = append(args, test.input...)
			args = append(args, "--output", "/s3/"+name, "--maps", "5", "--reduces", "3", program)
			t.Log(s.Must(t, append(args, test.args...)...))
			shell := exec.Command("sh", "-c", test.want, texts)
			shell.Env = append(os.Environ(), "LC_ALL=C")
			want, err := shell.Output()
			if err != nil {
				t.Fatal(err)
			}
			got := s.Must(t, "cat", "/s3/"+name+"/part-00000", "/s3/"+name+"/part-00001", "/s3/"+name+"/part-00002")
			if name != "sort" { // whose parts are in order
				lines := strings.SplitAfter(strings.TrimSuffix(got, "\n"), "\n")
				lines[len(lines)-1] += "\n"
				slices.Sort(lines)
				got = strings.Join(lines, "")
			}
			if len(want) == 0 || got != string(want) {
				t.Errorf("got %d bytes, want %d", len(got), len(want))
			}
			nothingLeft(t.Context(), t, c)
		})
	}
}

// store puts the files of a count into /s3/in and returns the counts of one block.
func store(ctx context.Context, t *testing.T, c *sdk.Client) map[string]uint64 {
	t.Helper()
	if err := c.Mkdir(ctx, "/s3/in", 0o755); err != nil {
		t.Fatal(err)
	}
	text, counts := block()
	for i := range files {
		if _, err := c.Put(ctx, fmt.Sprintf("/s3/in/text%d", i), bytes.Repeat(text, copies),
			sigma.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return counts
}

// nothingLeft wants no record, intermediate file, registration or proc of a job.
func nothingLeft(ctx context.Context, t *testing.T, c *sdk.Client) {
	t.Helper()
	for _, dir := range []string{"/mr", "/ux/~local/mr"} {
		if entries, _ := c.ReadDir(ctx, dir); len(entries) > 0 {
			t.Errorf("%s has %v", dir, entries)
		}
	}
	if procs, err := c.List(ctx, false); err != nil || len(procs) > 0 {
		t.Errorf("procs are left: %v %v", procs, err)
	}
	if list, _, err := c.Get(ctx, "/sys/init"); err != nil || len(list) > 0 {
		t.Errorf("still registered: %s %v", list, err)
	}
}

// Who interrupts a job again and again still finds nothing of it: no record, no intermediate file,
// no output, no proc.
func TestInterruptedTwice(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	ctx := t.Context()
	c := s.Connect(ctx, t, sigma.DefaultRealm)
	if err := c.Mkdir(ctx, "/s3/in", 0o755); err != nil {
		t.Fatal(err)
	}
	text, _ := block()
	if _, err := c.Put(ctx, "/s3/in/text", bytes.Repeat(text, copies), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	job := s.Command(ctx, "mr", "wordcount", "--input", "/s3/in", "--output", "/s3/out")
	if err := job.Start(); err != nil {
		t.Fatal(err)
	}
	left := func(dir string) (names []string) {
		entries, _ := c.ReadDir(ctx, dir)
		for _, e := range entries {
			names = append(names, e.Name)
		}
		return names
	}
	testenv.Eventually(t, "the job has a record", func() error {
		if len(left("/mr")) == 0 {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	ended := make(chan error, 1)
	go func() { ended <- job.Wait() }()
	testenv.Eventually(t, "the interrupted job ends", func() error {
		job.Process.Signal(syscall.SIGINT)
		select {
		case err := <-ended:
			if err == nil {
				t.Error("it was not interrupted")
			}
			return nil
		default:
			return fmt.Errorf("it tidies up")
		}
	})
	nothingLeft(ctx, t, c)
	if _, err := c.Stat(ctx, "/s3/out"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("the output directory is left: %v", err)
	}
}

func binDir(t *testing.T) string {
	if dir := os.Getenv("SIGMA_TEST_BIN"); dir != "" {
		return dir
	}
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "bin")
}

// killSome stops the first mapper of the job that it meets, so that it cannot finish, waits until
// another one has finished if there are several, and kills it, the leader and another coordinator.
// It returns how many it killed.
func killSome(ctx context.Context, c *sdk.Client, id string, maps int) (killed int) {
	held, begun := 0, false
	for ctx.Err() == nil {
		mappers, coordinators := processes(id)
		if held == 0 && len(mappers) > 0 && syscall.Kill(mappers[0], syscall.SIGSTOP) == nil {
			held = mappers[0]
		}
		if !slices.Contains(mappers, held) { // It had ended before it could be stopped.
			held = 0
		}
		finished, _ := c.ReadDir(ctx, "/mr/"+id+"/out")
		_, err := c.Stat(ctx, "/mr/"+id+"/job")
		if begun && sigma.KindOf(err) == sigma.KindNotFound { // it has ended
			return killed
		}
		begun = begun || err == nil
		if held == 0 || len(coordinators) < mr.Coordinators || maps > 1 && len(finished) == 0 {
			continue
		}
		leader := leaderOf(ctx, c, id)
		if leader < 0 {
			continue
		}
		for _, pid := range []int{held, coordinators[leader], coordinators[(leader+1)%mr.Coordinators]} {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
		return killed
	}
	return killed
}

// leaderOf is which coordinator leads, -1 if none does.
func leaderOf(ctx context.Context, c *sdk.Client, id string) int {
	leader, _, err := c.Get(ctx, "/mr/"+id+"/leader")
	procs, err2 := c.List(ctx, false)
	if err != nil || err2 != nil {
		return -1
	}
	for _, p := range procs {
		if string(p.ID) == string(leader) {
			n, _ := strconv.Atoi(p.Args[2])
			return n
		}
	}
	return -1
}

// processes finds the processes of the job's mappers, and of its coordinators by their numbers, on
// this host.
func processes(id string) (mappers []int, coordinators map[int]int) {
	coordinators = map[int]int{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if args := strings.Split(string(cmdline), "\x00"); len(args) > 3 && args[2] == "/mr/"+id {
			switch args[1] {
			case mr.RoleMap:
				mappers = append(mappers, pid)
			case mr.RoleCoordinate:
				n, _ := strconv.Atoi(args[3])
				coordinators[n] = pid
			}
		}
	}
	return mappers, coordinators
}

// check compares the output with the counts of all copies.
func check(ctx context.Context, t *testing.T, c *sdk.Client, dir string, counts map[string]uint64) {
	t.Helper()
	parts, err := c.ReadDir(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, p := range parts {
		data, _, err := c.Get(ctx, dir+"/"+p.Name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			word, number, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
			if want := strconv.FormatUint(counts[word]*copies*files, 10); number != want {
				t.Fatalf("%s: %q: got %s, want %s", p.Name, word, number, want)
			}
			seen++
		}
	}
	if seen != len(counts) {
		t.Fatalf("got %d words, want %d", seen, len(counts))
	}
}
