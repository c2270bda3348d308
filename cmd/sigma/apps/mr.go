package apps

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"sigmaos.dev/apps/mr"
	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/programs"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

func newMRCommand(a *app) *cobra.Command {
	return cli.Parent("mr", "Run MapReduce jobs",
		`Run MapReduce jobs: many procs, spawned by a coordinator proc, that each work on a part
of the input. The program of these procs, mr, must lie beside sigma.`,
		newWordCountCommand(a))
}

func newWordCountCommand(a *app) *cobra.Command {
	var job mr.Job
	cmd := &cobra.Command{
		Use:   "wordcount --input PATH --output PATH [--maps N] [--reduces N]",
		Short: "Count the words of files of the realm",
		Long: `Count the words of a file, or of all files below a directory, of the realm. A word is a
run of the letters A-Z and a-z, as long as possible, case kept. The counts go to files
part-00000, part-00001 and so on in the output directory, in lines WORD<TAB>COUNT, sorted
within each part; a word is in one part only. Symbolic links below the input directory
are not followed.

The output directory must be missing or empty. ^C kills the job's procs and removes what
they wrote, within 20 s; a second ^C does not hasten it. A proc that fails is run again, up to five times; so is the coordinator, which
then goes on where it was.`,
		Example: `  sudo sigma mkdir /s3/in
  sudo sigma put -r texts /s3/in/texts
  sudo sigma mr wordcount --input /s3/in/texts --output /s3/in/counts
  sudo sigma cat /s3/in/counts/part-00000`,
		Args:        cli.Between(0, 0),
		Annotations: map[string]string{cli.TidiesUp: ""},
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"input", "output"} {
				if !cmd.Flags().Changed(name) {
					return cli.UsageError(cmd, "", "--%s is missing", name)
				}
			}
			for _, name := range []string{"maps", "reduces"} {
				if n, err := cmd.Flags().GetInt(name); err == nil && cmd.Flags().Changed(name) && n < 1 {
					return cli.UsageError(cmd, "", "--%s is %d, but must be at least 1", name, n)
				}
			}
			return a.wordCount(cmd.Context(), job)
		},
	}
	f := cmd.Flags()
	f.StringVar(&job.Input, "input", "", "`PATH` of the file or directory to count")
	f.StringVar(&job.Output, "output", "", "`PATH` of the directory for the counts")
	f.IntVar(&job.Maps, "maps", 0, "`N` mapper procs (default: by size and cores)")
	f.IntVar(&job.Reduces, "reduces", 0, "`N` reducer procs and parts of output (default: one per core)")
	return cmd
}

func (a *app) wordCount(ctx context.Context, job mr.Job) (err error) {
	if job.Input, err = cli.CleanPath(job.Input); err != nil {
		return err
	}
	if job.Output, err = cli.CleanPath(job.Output); err != nil {
		return err
	}
	job.Program = cli.BinDir + "/mr" // until it is known under which name it is stored
	if err := job.Check(); err != nil {
		return cli.WithCode(cli.ExitUsage, err)
	}
	c, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	job.Cores = mr.Cores(ctx, c, runtime.NumCPU())
	local, err := programs.Beside("mr")
	if err != nil {
		return err
	}
	defer local.Close()
	if job.Program, err = programs.Put(ctx, a.App, c, local); err != nil {
		return err
	}
	bar := a.newJobBar()
	client := mr.Client{Names: c, Procs: c, Progress: bar.show}
	s, err := client.Run(ctx, "wordcount-"+string(sigma.NewProcID()[:8]), job)
	bar.done()
	if err != nil {
		if errors.Is(err, context.Canceled) {
			a.Remark("sigma: stopped; the job's procs are killed and what they wrote is removed")
			return cli.ExitCode(cli.ExitInterrupted)
		}
		return err
	}
	if a.JSON {
		return a.PrintJSON(s)
	}
	return a.printJob(s)
}

func (a *app) printJob(s mr.Summary) error {
	fmt.Fprintf(a.Out, "counted %d words (%d different) in %d files, %s in %.2f s: %s/s\n", s.Words, s.Different,
		s.Files, sigma.Bytes(s.Bytes), s.Seconds, sigma.Bytes(s.BytesPerS))
	if s.Skipped > 0 {
		fmt.Fprintf(a.Out, "skipped %d links and devices\n", s.Skipped)
	}
	again := ""
	if n := s.MapsRun - s.Maps; n > 0 {
		again += fmt.Sprintf(", %d maps repeated", n)
	}
	if s.Coordinators > 1 {
		again += fmt.Sprintf(", coordinator started %d times", s.Coordinators)
	}
	fmt.Fprintf(a.Out, "%d procs (%d maps, %d reduces%s); start latency p50 %.2f ms, p99 %.2f ms\n", s.Procs, s.Maps,
		s.Reduces, again, s.StartP50, s.StartP99)
	for _, w := range s.Machines {
		fmt.Fprintf(a.Out, "machine %s: %s (%s), %s (%d words)\n", w.Machine, cli.Count(int(w.Maps), "map"),
			sigma.Bytes(w.Bytes), cli.Count(int(w.Reduces), "reduce"), w.Words)
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
