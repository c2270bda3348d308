// Command bench runs the benches of package bench: `bench list` names them, `bench NAME [--quick]`
// runs one, `bench all [--quick]` all. Results are JSON lines on standard output; remarks go to
// standard error; raw samples to bench/results beside bin. `bench table` makes the page of figures
// from those.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"sigmaos.dev/bench"
	"sigmaos.dev/bench/figures"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "bench: interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	cfg := bench.Config{Out: os.Stdout, Notes: os.Stderr}
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measure sigmaOS side by side with its peers",
		Example:       "  sudo bin/bench start --quick\n  sudo bin/bench all",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.PersistentFlags().BoolVar(&cfg.Quick, "quick", false, "end each bench within 50 s")
	root.PersistentFlags().StringVar(&cfg.Results, "results", "",
		"`DIR` for raw samples (default: bench/results beside bin)")
	list := &cobra.Command{Use: "list", Short: "Name the benches and their metrics", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for _, b := range bench.List() {
				fmt.Printf("%-12s %s\n", b.Name, b.Question)
				for _, m := range b.Metrics {
					fmt.Printf("%-12s   %s\n", "", m)
				}
			}
			return nil
		}}
	all := &cobra.Command{Use: "all", Short: "Run all benches", Args: cobra.NoArgs, RunE: func(cmd *cobra.Command,
		_ []string) error {
		return run(cmd.Context(), cfg, bench.List()...)
	}}
	serve := &cobra.Command{Use: "serve-besched", Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command,
		_ []string) error {
		return bench.ServeBesched(cmd.Context())
	}}
	root.AddCommand(list, all, table(&cfg), serve, serveEtcd())
	for _, b := range bench.List() {
		cmd := &cobra.Command{Use: b.Name, Short: b.Question, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command,
			_ []string) error {
			if cfg.Machines < 0 || cfg.Machines > 50 {
				return fmt.Errorf("--machines %d is not between 1 and 50", cfg.Machines)
			}
			if cfg.Only != "" && !slices.Contains(b.Parts, cfg.Only) {
				return fmt.Errorf("--only %q is none of %s", cfg.Only, strings.Join(b.Parts, ", "))
			}
			return run(cmd.Context(), cfg, b)
		}}
		if b.Parts != nil {
			cmd.Flags().StringVar(&cfg.Only, "only", "", "run one `PART` of it: "+strings.Join(b.Parts, ", "))
		}
		if b.AnyMachines {
			cmd.Flags().IntVar(&cfg.Machines, "machines", 0,
				"have `N` machines on this host (default: the bench's choice)")
		}
		root.AddCommand(cmd)
	}
	return root
}

// serveEtcd is the command that is a member of an etcd.
func serveEtcd() *cobra.Command {
	var m bench.EtcdMember
	cmd := &cobra.Command{Use: "serve-etcd DIR", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command,
		args []string) error {
		m.Dir = args[0]
		return bench.ServeEtcd(cmd.Context(), m, os.Stdout)
	}}
	cmd.Flags().IntVar(&m.Number, "member", 0, "be the member of this `NUMBER`")
	cmd.Flags().StringSliceVar(&m.Peers, "peers", nil, "`ADDRESSES` of all members for each other")
	cmd.Flags().StringSliceVar(&m.Clients, "clients", nil, "`ADDRESSES` of all members for clients")
	return cmd
}

// table is the command that makes the page of figures.
func table(cfg *bench.Config) *cobra.Command {
	out := ""
	cmd := &cobra.Command{Use: "table [RESULTS...]", Short: "Make the page of figures from result files",
		Long: "Table writes what the benches measured last, beside goals and peers, as a Markdown page.\n" +
			"It takes each metric from the newest of the result files that has it; without names of\n" +
			"files, of those in bench/results.",
		RunE: func(_ *cobra.Command, files []string) error {
			bin, err := binDir()
			if err != nil {
				return err
			}
			if out == "" {
				out = filepath.Join(bin, "..", "docs", "reference", "figures.md")
			}
			if len(files) == 0 {
				dir := cmp.Or(cfg.Results, filepath.Join(bin, "..", "bench", "results"))
				if files, err = figures.Files(dir); err != nil {
					return err
				}
			}
			results, err := figures.Read(files)
			if err != nil {
				return err
			}
			page := figures.Page(results, bench.List(), figures.Goals())
			if out == "-" {
				_, err = os.Stdout.Write(page)
				return err
			}
			return os.WriteFile(out, page, 0o644)
		}}
	cmd.Flags().StringVar(&out, "out", "",
		"`FILE` to write, - is standard output (default: docs/reference/figures.md beside bin)")
	return cmd
}

// binDir is the directory of this program, where those of sigmaOS are.
func binDir() (string, error) {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	return filepath.Dir(self), err
}

// run runs benches one after another; one that fails does not keep the others from running.
func run(ctx context.Context, cfg bench.Config, benches ...bench.Bench) error {
	bin, err := binDir()
	if err != nil {
		return err
	}
	cfg.Bin = bin
	if cfg.Results == "" {
		cfg.Results = filepath.Join(cfg.Bin, "..", "bench", "results")
	}
	var failed error
	for _, b := range benches {
		if ctx.Err() == nil {
			failed = errors.Join(failed, b.Do(ctx, cfg))
		}
	}
	return failed
}
