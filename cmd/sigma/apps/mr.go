// Package apps runs the applications that come with sigmaOS.
package apps

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/mr"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// app gives the commands of this package what all commands share.
type app struct{ *cli.App }

// Commands are those of this package.
func Commands(base *cli.App) []*cobra.Command {
	a := &app{base}
	return []*cobra.Command{
		newMRCommand(a), newKVCommand(a),
	}
}

func newMRCommand(a *app) *cobra.Command {
	return cli.Parent("mr", "Run MapReduce jobs",
		`Run MapReduce jobs: many procs that each work on a part of the input. A job goes on by itself
once it has begun, whatever becomes of this command and its machine: "sigma mr attach" follows
it from anywhere. ^C at a terminal asks whether to end it; elsewhere it ends it.`,
		newWordCountCommand(a), newMRRunCommand(a), newMRLsCommand(a), newMRAttachCommand(a))
}

func newWordCountCommand(a *app) *cobra.Command {
	var job mr.Job
	cmd := &cobra.Command{
		Use:   "wordcount {--input PATH | --prefix PATH | --manifest FILE} --output PATH [--maps N] [--reduces N]",
		Short: "Count the words of files of the realm",
		Long: `Count the words of a file, or of all files below a directory, of the realm. A word is a
run of the letters A-Z and a-z, as long as possible, case kept. The counts go to files
part-00000, part-00001 and so on in the output directory, in lines WORD<TAB>COUNT, sorted
within each part; a word is in one part only. Symbolic links below the input directory
are not followed. The program mr, which does this, must lie beside sigma.

The output directory must be missing or empty. A job that is ended kills its procs and removes
what they wrote, within 20 s. A proc that fails is run again, up to five times.`,
		Example: `  sudo sigma mkdir /s3/in
  sudo sigma put -r texts /s3/in/texts
  sudo sigma mr wordcount --input /s3/in/texts --output /s3/in/counts
  sudo sigma cat /s3/in/counts/part-00000`,
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE: func(cmd *cobra.Command, _ []string) error {
			local, err := programs.Beside("mr")
			if err != nil {
				return err
			}
			defer local.Close()
			return a.mapReduce(cmd, job, "wordcount", func(ctx context.Context, c sigma.Namespace) (string, error) {
				return programs.Put(ctx, a.App, c, local)
			})
		},
	}
	mrFlags(cmd, &job)
	return cmd
}

func newMRRunCommand(a *app) *cobra.Command {
	var job mr.Job
	cmd := &cobra.Command{
		Use: "run {--input PATH | --prefix PATH | --manifest FILE} --output PATH [--maps N] [--reduces N] PROGRAM " +
			"[ARG...]",
		Short: "Run a job of a program of your own",
		Long: `Run a MapReduce job whose map and reduce functions are in PROGRAM, which calls mr.Run
(docs/reference/mr.md) and is found as by "sigma run". ARGs are the program's (mr.Args).`,
		Example: `  CGO_ENABLED=0 go build -o grep ./examples/grep
  sudo sigma mr run --input /s3/in/texts --output /s3/in/found ./grep fish`,
		Args:        cli.Between(1, -1),
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			local, err := programs.Local(args[0])
			if err != nil {
				return err
			}
			if local != nil {
				defer local.Close()
			}
			job.Args = args[1:]
			return a.mapReduce(cmd, job, "job", func(ctx context.Context, c sigma.Namespace) (string, error) {
				return programs.Find(ctx, a.App, c, args[0], local)
			})
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows PROGRAM is the program's
	mrFlags(cmd, &job)
	return cmd
}

// mrFlags adds the flags of a job, which are checked before anything else.
func mrFlags(cmd *cobra.Command, job *mr.Job) {
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return checkMRFlags(cmd) }
	f := cmd.Flags()
	f.StringVar(&job.Input, "input", "", "`PATH` of a file, or of a directory with all below it")
	f.StringVar(&job.Prefix, "prefix", "", "`PATH` that the paths of all files of the input begin with")
	f.StringVar(&job.Manifest, "manifest", "", "`FILE` of the realm with a path of the input in each line")
	f.StringVar(&job.Output, "output", "", "`PATH` of the directory for the output")
	f.IntVar(&job.Maps, "maps", 0, "`N` mapper procs (default: by size and cores)")
	f.IntVar(&job.Reduces, "reduces", 0, "`N` reducer procs and parts of output (default: one per core)")
}

// checkMRFlags checks a job's flags.
func checkMRFlags(cmd *cobra.Command) error {
	given := 0
	for _, name := range []string{"input", "prefix", "manifest"} {
		if cmd.Flags().Changed(name) {
			given++
		}
	}
	switch {
	case given == 0:
		return cli.UsageError(cmd, "or --prefix, or --manifest", "--input is missing")
	case given > 1:
		return cli.UsageError(cmd, "", "one of --input, --prefix and --manifest says what the input is, not more")
	case !cmd.Flags().Changed("output"):
		return cli.UsageError(cmd, "", "--output is missing")
	}
	for _, name := range []string{"maps", "reduces"} {
		if n, err := cmd.Flags().GetInt(name); err == nil && cmd.Flags().Changed(name) && n < 1 {
			return cli.UsageError(cmd, "", "--%s is %d, but must be at least 1", name, n)
		}
	}
	return nil
}

// mapReduce submits a job and follows it. find puts its program into the realm.
func (a *app) mapReduce(cmd *cobra.Command, job mr.Job, kind string, find func(ctx context.Context,
	c sigma.Namespace) (string, error)) (err error) {
	for _, p := range []*string{&job.Input, &job.Manifest, &job.Output} {
		if *p != "" {
			if *p, err = cli.CleanPath(*p); err != nil {
				return err
			}
		}
	}
	job.Program = cli.BinDir + "/mr" // until it is known
	if err := job.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	c, err := a.Client(cmd.Context())
	if err != nil {
		return err
	}
	if job.Program, err = find(ctx, c); err != nil {
		return err
	}
	job.Cores = mr.Cores(ctx, c, runtime.NumCPU())
	id := kind + "-" + string(sigma.NewProcID()[:8])
	f := a.newFollower(c, id)
	defer f.close()
	interrupted := ctx.Err() != nil
	if stop(); interrupted {
		return cli.ExitCode(cli.ExitInterrupted)
	}
	if err := f.client.Submit(cmd.Context(), id, job); err != nil {
		return err
	}
	return f.follow(cmd.Context(), kind)
}

func newMRLsCommand(a *app) *cobra.Command {
	return cli.Listing(a.App, &cobra.Command{Use: "ls", Short: "List MapReduce jobs",
		Long: `List the jobs that run, and those that have ended while nobody followed them, until "sigma mr
attach" has shown their result.`,
		Example: "  sudo sigma mr ls"}, func(ctx context.Context, _ []string) ([]mr.JobInfo, error) {
		c, err := a.Client(ctx)
		if err != nil {
			return nil, err
		}
		return (&mr.Client{Names: c}).Jobs(ctx)
	}, func(j mr.JobInfo) []any {
		return []any{j.ID, j.State, fmt.Sprintf("%d/%d", j.Progress.MapsDone, j.Progress.Maps),
			fmt.Sprintf("%d/%d", j.Progress.ReducesDone, j.Progress.Reduces), term.Ago(j.Begun), j.Job.Output}
	}, "JOB", "STATE", "MAPS", "REDUCES", "AGE", "OUTPUT")
}

func newMRAttachCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "attach JOB", Short: "Follow a MapReduce job to its result",
		Long: `Follow a job that runs, or show the result of one that has ended, after which "sigma mr ls"
lists it no more. ^C is as at the command that began it.`,
		Example: "  sudo sigma mr attach job-k2v9x4qa", Args: cli.Between(1, 1),
		Annotations: map[string]string{cli.OwnSignals: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sigma.CheckName(args[0]); err != nil {
				return cli.WithCode(cli.ExitUsage, err)
			}
			c, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			f := a.newFollower(c, args[0])
			defer f.close()
			kind, _, _ := strings.Cut(args[0], "-")
			return f.follow(cmd.Context(), kind)
		},
	}
}

// follower follows one job and decides what signals do to it.
type follower struct {
	*app
	id      string
	client  mr.Client
	bar     *jobBar
	signals chan os.Signal
}

func (a *app) newFollower(c *sdk.Client, id string) *follower {
	f := &follower{app: a, id: id, bar: a.newJobBar(), signals: make(chan os.Signal, 2)}
	f.client = mr.Client{Names: c, Procs: c, Init: c, Progress: f.bar.show}
	signal.Notify(f.signals, syscall.SIGINT, syscall.SIGTERM)
	return f
}

func (f *follower) close() { signal.Stop(f.signals) }

func (f *follower) follow(ctx context.Context, kind string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		s   mr.Summary
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		s, err := f.client.Follow(ctx, f.id)
		ended <- outcome{s, err}
	}()
	for {
		select {
		case r := <-ended:
			f.bar.done()
			if r.err != nil {
				return r.err
			}
			if f.JSON {
				return f.PrintJSON(r.s)
			}
			return f.printJob(r.s, kind)
		case s := <-f.signals:
			code := cli.ExitCode(cli.ExitBySignal + int(s.(syscall.Signal)))
			answer := 'y'
			if s == syscall.SIGINT {
				answer = f.ask()
			}
			switch answer {
			case 'n':
				cancel()
				f.Remark("sigma: the job goes on; follow it with: sigma mr attach %s", f.id)
				return code
			case 'y':
				cancel()
				<-ended
				f.bar.done()
				if err := f.client.End(context.WithoutCancel(ctx), f.id); err != nil {
					return err
				}
				f.Remark("sigma: stopped; the job's procs are killed and what they wrote is removed")
				return code
			}
		}
	}
}

// ask asks whether to end the job: y, n or something else, which means to go on watching. Without a
// terminal, and at a second ^C, the answer is y.
func (f *follower) ask() rune {
	if in, ok := f.In.(*os.File); !ok || term.Width(in) == 0 || term.Width(f.Err) == 0 {
		return 'y'
	}
	f.Remark("\nEnd the job? y: end it; n: leave, and let it go on; Enter: go on watching")
	answer := make(chan rune, 1)
	go func() {
		line, err := bufio.NewReader(f.In).ReadString('\n')
		if err != nil {
			line = "n"
		}
		answer <- rune(strings.ToLower(line + " ")[0])
	}()
	select {
	case r := <-answer:
		return r
	case <-f.signals:
		return 'y'
	}
}

func (a *app) printJob(s mr.Summary, kind string) error {
	done, things := "emitted", "keys"
	if kind == "wordcount" {
		done, things = "counted", "words"
	}
	fmt.Fprintf(a.Out, "%s %d %s (%d different) in %s, %s in %.2f s: %s/s\n", done, s.Records, things, s.Keys,
		cli.Count(int(s.Files), "file"), sigma.Bytes(s.Bytes), s.Seconds, sigma.Bytes(s.BytesPerS))
	if s.Skipped > 0 {
		fmt.Fprintf(a.Out, "skipped %d links and devices\n", s.Skipped)
	}
	again := ""
	if n := s.MapsRun - s.Maps; n > 0 {
		again += fmt.Sprintf(", %s repeated", cli.Count(int(n), "map"))
	}
	if s.Leaders > 1 {
		again += fmt.Sprintf(", %d coordinators have led", s.Leaders)
	}
	fmt.Fprintf(a.Out, "%d procs (%s, %s%s); start latency p50 %.2f ms, p99 %.2f ms\n", s.Procs,
		cli.Count(int(s.Maps), "map"), cli.Count(int(s.Reduces), "reduce"), again, s.StartP50, s.StartP99)
	for _, w := range s.Machines {
		fmt.Fprintf(a.Out, "machine %s: %s (%s), %s (%d %s)\n", w.Machine, cli.Count(int(w.Maps), "map"),
			sigma.Bytes(w.Bytes), cli.Count(int(w.Reduces), "reduce"), w.Records, things)
	}
	_, err := fmt.Fprintf(a.Out, "output: %s\n", s.Output)
	return err
}

// jobBar shows the progress of a job: the input bytes of finished maps, then the reduces.
type jobBar struct {
	a       *app
	current term.Progress
	reduces bool
}

func (a *app) newJobBar() *jobBar { return &jobBar{a: a} }

func (b *jobBar) show(p mr.Progress) {
	if b.current == nil {
		b.current = b.a.ProgressBytes("mapping", p.Bytes)
	}
	if !b.reduces {
		b.current.Set(p.BytesDone)
	}
	if p.Maps > 0 && p.MapsDone == p.Maps && !b.reduces {
		b.current.Done()
		b.current, b.reduces = b.a.Progress("reducing", p.Reduces), true
	}
	if b.reduces {
		b.current.Set(p.ReducesDone)
	}
}

func (b *jobBar) done() {
	if b.current != nil {
		b.current.Done()
	}
}
