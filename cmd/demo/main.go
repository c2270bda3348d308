// Command demo shows sigmaOS on one machine: it boots a system in a temporary directory, makes a
// realm, stores the source tree of the Go distribution in it, counts its words with MapReduce,
// compares the result with an independent count, and shuts down. `make demo` builds and runs it; it
// needs root, because making procs does.
//
// It uses the sigma command only, as a person would.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	keep := flag.Bool("keep", false, "leave the system running")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	d := &demo{keep: *keep}
	err := d.run(ctx)
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// Where things are in the realm.
const (
	realm  = "demo"
	input  = "/s3/in/src"
	output = "/s3/in/counts"
)

type demo struct {
	keep  bool
	sigma string // path of the command
	dir   string // temporary directory
	data  string // DATA of the system
	up    bool
}

func (d *demo) run(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("making procs needs root: run it as root, or with: sudo make demo")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d.sigma = filepath.Join(filepath.Dir(self), "sigma")
	texts, err := goSource(ctx)
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "sigma-demo-"); err != nil {
		return err
	}
	if err := os.Chmod(d.dir,
		0o711); err != nil { // services with uids of their own reach their parts of DATA through it
		return err
	}
	d.data = filepath.Join(d.dir, "data")
	defer func() {
		if d.keep && d.up && ctx.Err() == nil {
			return
		}
		err = errors.Join(err, d.end())
	}()
	if err := d.count(ctx, texts); err != nil {
		return err
	}
	d.next()
	return nil
}

// goSource finds real text that every machine with Go has.
func goSource(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("cannot ask the go command where its source tree is: %w", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "src")
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return "", fmt.Errorf("the Go distribution has no source tree at %s; install Go from go.dev/dl", dir)
	}
	return filepath.EvalSymlinks(dir)
}

// count does the steps, each a command that is shown.
func (d *demo) count(ctx context.Context, texts string) error {
	title("1. Boot a one-machine sigmaOS in " + d.dir)
	if err := d.do(ctx, "up", "--detach", "--machine", "demo"); err != nil {
		return err
	}
	d.up = true
	title("2. Make a tenant's realm and store " + texts + " in it")
	for _, args := range [][]string{{"realm", "create", realm}, {"mkdir", "/s3/in"}, {"put", "-r", texts, input}} {
		if err := d.do(ctx, args...); err != nil {
			return err
		}
	}
	title("3. Count its words: a coordinator, mappers and reducers, each an isolated proc")
	if err := d.do(ctx, "mr", "wordcount", "--input", input, "--output", output); err != nil {
		return err
	}
	title("4. The ten most frequent words")
	got, err := d.fetch(ctx)
	if err != nil {
		return err
	}
	for _, w := range top(got, 10) {
		fmt.Printf("  %10d  %s\n", got[w], w)
	}
	title("5. Compare with coreutils on the same files: tr -cs 'A-Za-z' '\\n' | sort | uniq -c")
	begin := time.Now()
	want, err := countWithCoreutils(ctx, texts)
	if err != nil {
		return err
	}
	if err := compare(got, want); err != nil {
		return err
	}
	fmt.Printf("  equal: %d different words (%.1f s)\n", len(want), time.Since(begin).Seconds())
	return nil
}

func title(s string) { fmt.Printf("\n== %s\n", s) }

// command makes a sigma command that acts on the demo's system. It is in a process group of its
// own, so that ^C reaches it once, through us.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, d.sigma, args...)
	cmd.Env = append(os.Environ(), "SIGMA_DATA="+d.data, "SIGMA_REALM="+realm)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 40 * time.Second
	return cmd
}

func (d *demo) do(ctx context.Context, args ...string) error {
	fmt.Println("$ sigma " + strings.Join(args, " "))
	cmd := d.command(ctx, args...)
	cmd.Stdout = os.Stdout
	if args[0] == "up" {
		var said strings.Builder // what it suggests to do next is ours to say
		cmd.Stderr = &said
		if err := cmd.Run(); err != nil {
			fmt.Fprint(os.Stderr, said.String())
			return fmt.Errorf("sigma up: %w", err)
		}
		return nil
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("sigma %s: %w", args[0], err)
	}
	return nil
}

// fetch gets the result out of the realm.
func (d *demo) fetch(ctx context.Context) (map[string]uint64, error) {
	local := filepath.Join(d.dir, "counts")
	cmd := d.command(ctx, "get", "-r", output, local)
	cmd.Stderr = nil
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("sigma get: %w: %s", err, out)
	}
	parts, err := filepath.Glob(filepath.Join(local, "part-*"))
	if err != nil || len(parts) == 0 {
		return nil, fmt.Errorf("the job left no output in %s", output)
	}
	counts := map[string]uint64{}
	for _, part := range parts {
		if err := readCounts(part, counts); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

func top(counts map[string]uint64, n int) []string {
	words := make([]string, 0, len(counts))
	for w := range counts {
		words = append(words, w)
	}
	slices.SortFunc(words, func(a, b string) int {
		if counts[a] != counts[b] {
			return int(counts[b]) - int(counts[a])
		}
		return strings.Compare(a, b)
	})
	return words[:min(n, len(words))]
}

// next says what a person may do now.
func (d *demo) next() {
	if !d.keep {
		title("Done. The result was in " + output + " of the realm; to look around:")
		fmt.Println("  make demo KEEP=1")
		return
	}
	title("sigmaOS is still running. The result is in " + output + "; to look around:")
	fmt.Printf("  export SIGMA_DATA=%s SIGMA_REALM=%s\n", d.data, realm)
	for _, args := range []string{"ls -l " + output, "ls /", "ls /mr", "ps -a", "status", "run ./PROGRAM"} {
		fmt.Printf("  %s %s\n", d.sigma, args)
	}
	fmt.Printf("\nto stop it:\n  %s down && rm -r %s\n", d.sigma, d.dir)
}

// end stops the system and removes the directory. It runs after an interrupt too.
func (d *demo) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := os.Stat(filepath.Join(d.data, "lock")); err == nil {
		cmd := d.command(ctx, "down")
		cmd.Stderr = nil
		out, err := cmd.CombinedOutput()
		if err != nil && d.up {
			return fmt.Errorf("sigma down: %w: %s\nwhat is left is in %s", err, out, d.dir)
		}
	}
	return os.RemoveAll(d.dir)
}
