package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// sdkBench: what does linking the SDK add to the start of a Go program? Two programs are started by
// turns outside any container and waited for: an empty one, and one that links the SDK and does
// nothing. Expected: the pages and initialisers of net and context, a few hundred microseconds. It
// builds the programs, so it runs in a clone.
func sdkBench() Bench {
	return Bench{Name: "sdk", Question: "how much longer does a Go program start because it links the SDK?",
		Metrics: []string{"sdk_extra_ms"}, run: runSDK}
}

func runSDK(ctx context.Context, r *Run) error {
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", r.dir+"/", "./bench/programs/sdkempty",
		"./bench/programs/sdkuser")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build the programs (run it in a clone): %w\n%s", err, out)
	}
	blocks, n := 20, 200
	if r.Quick {
		blocks, n = 8, 100
	}
	var with, without, extra []float64
	arm := func(name string, all *[]float64) func() error {
		program := filepath.Join(r.dir, name)
		return func() error {
			var block []float64
			for range n {
				began := time.Now()
				p, err := os.StartProcess(program, []string{name}, &os.ProcAttr{})
				if err != nil {
					return err
				}
				if _, err := p.Wait(); err != nil {
					return err
				}
				block = append(block, r.sample(name, "start_ms", time.Since(began).Seconds()*1e3))
			}
			*all = append(*all, quantile(block, 0.5))
			return nil
		}
	}
	if err := interleave(blocks, arm("sdkuser", &with), arm("sdkempty", &without)); err != nil {
		return err
	}
	for i := range with {
		extra = append(extra, with[i]-without[i])
	}
	theirs := median(without)
	return r.print(Line{Metric: "sdk_extra_ms", Unit: "ms", Ours: median(extra), Peer: "empty_go_program",
		Theirs: &theirs, Floor: pointer(0), N: blocks * n})
}
