package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/sigma"
)

const (
	kvMoveClients = 16          // as in 000 Fig 6-2
	kvMoveValue   = 12_500      // bytes of each of 1,000 keys of a client
	kvMoveMemory  = sigma.GiB   // of which keys may take two fifths
	kvMoveMax     = time.Minute // for which clients go on at most
	kvGrowClients = 64
	// kvGrowPart of the processors is a scaled core.
	kvGrowPart = 16
)

// kvSeries is what clients did in the course of time, as programs/kv prints it.
type kvSeries struct {
	Bucket float64   `json:"bucket_s"`
	Began  float64   `json:"began"`
	Ops    []float64 `json:"ops"`
	Slow   []float64 `json:"slow_ms"`
	Failed float64   `json:"failed"`
}

// perSecond is the mean rate from one time to another, in seconds of Began.
func (s *kvSeries) perSecond(from, to float64) float64 {
	some := s.between(s.Ops, from, to)
	sum := 0.0
	for _, n := range some {
		sum += n
	}
	return sum / s.Bucket / float64(len(some))
}

// between gives the buckets from one time to another, at least one.
func (s *kvSeries) between(all []float64, from, to float64) []float64 {
	i := min(max(int((from-s.Began)/s.Bucket), 0), len(all)-1)
	j := min(max(int(math.Ceil((to-s.Began)/s.Bucket)), i+1), len(all))
	return all[i:j]
}

// move is the part of a store that grows from one group to two while clients go on.
func (k *kvStores) move(ctx context.Context) error {
	const store = "move"
	around := 5 * time.Second // the time that is measured before and after the move
	if k.Quick {
		around = 1500 * time.Millisecond
	}
	if err := k.create(ctx, k.layout(store, 1, 1, kvMoveMemory, 300)); err != nil {
		return err
	}
	defer k.drop(ctx, store)
	type told struct {
		out []byte
		err error
	}
	done := make(chan told, 1)
	go func() { // which ends with the proc, that is with kvMoveMax or ctx
		out, _, err := k.client(ctx, "follow", "ring", store, strconv.Itoa(kvMoveClients), kvMoveMax.String(),
			strconv.Itoa(kvMoveValue))
		done <- told{out, err}
	}()
	began, scaled, failed := k.moveHalf(ctx, store, around)
	is := <-done
	var s kvSeries
	if failed == nil {
		failed = is.err
	}
	if failed == nil {
		failed = json.Unmarshal(is.out, &s)
	}
	if failed != nil {
		return failed
	}
	from, to := float64(began.UnixMicro())/1e6, float64(scaled.UnixMicro())/1e6
	end := s.Began + s.Bucket*float64(len(s.Ops))
	if to > end {
		return fmt.Errorf("the move took until %.1f s after the clients had ended", to-end)
	}
	rate := s.perSecond(s.Began, from)
	least := slices.Min(s.between(s.Ops, from, to)) / s.Bucket
	longest := slices.Max(s.between(s.Slow, from, to))
	after := s.perSecond(to, end)
	for _, m := range []Line{{Metric: "move_before_ops_per_s", Unit: "1/s", Ours: rate},
		{Metric: "move_least_of_before", Ours: least / rate},
		{Metric: "move_after_of_before", Ours: after / rate},
		{Metric: "move_s", Unit: "s", Ours: to - from},
		{Metric: "move_longest_request_ms", Unit: "ms", Ours: longest},
		{Metric: "move_failed_requests", Ours: s.Failed}} {
		m.N = 1
		k.sample("sigma_ring", m.Metric, m.Ours)
		if err := k.print(m); err != nil {
			return err
		}
	}
	return k.plotMove(&s, from, to)
}

// moveHalf has half of the keys of a store move, between two times as long as around, and then has
// the clients stop.
func (k *kvStores) moveHalf(ctx context.Context, store string, around time.Duration) (began, ended time.Time,
	err error) {
	clerk, err := kv.Open(k.s.Client, store)
	if err != nil {
		return began, ended, err
	}
	defer clerk.Close()
	pause := func() {
		select {
		case <-time.After(around):
		case <-ctx.Done():
		}
	}
	if err = k.filled(ctx, clerk); err == nil {
		pause()
		began = time.Now()
		err = k.s.command(ctx, "kv", "scale", store, "2")
		ended = time.Now()
		pause()
	}
	_, stop := clerk.Put(ctx, "stop", nil, kv.Options{})
	return began, ended, errors.Join(err, stop)
}

// filled waits until the clients of a store have put all their keys.
func (k *kvStores) filled(ctx context.Context, clerk *kv.Clerk) error {
	for {
		st, err := clerk.Group(ctx, 1)
		if err != nil || st.Bytes >= kvMoveClients*1000*kvMoveValue {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// plotMove draws what the clients got done (000 Fig 6-2).
func (k *kvStores) plotMove(s *kvSeries, from, to float64) error {
	ops, moving := curve{name: "16 clients"}, curve{name: "shards move"}
	most := 0.0
	for i, n := range s.Ops {
		ops.x = append(ops.x, float64(i)*s.Bucket)
		ops.y = append(ops.y, n/s.Bucket/1e3)
		most = max(most, n/s.Bucket/1e3)
	}
	moving.x = []float64{from - s.Began, from - s.Began, to - s.Began, to - s.Began}
	moving.y = []float64{0, most, most, 0}
	return k.keepPlot(plotCurves(axes{title: "a store grows from one group to two (000 Fig 6-2)", x: "s",
		y: "thousand/s"}, []curve{ops, moving}), "move")
}

// grow is the part of stores of one, two and four groups on scaled cores.
func (k *kvStores) grow(ctx context.Context) error {
	const store = "grow"
	rates := map[int][]float64{}
	if err := k.create(ctx, k.layout(store, 1, 1, kvMemory, 100)); err != nil {
		return err
	}
	defer k.drop(ctx, store)
	for _, groups := range []int{1, 2, 4} {
		if groups > 1 {
			if err := k.s.command(ctx, "kv", "scale", store, strconv.Itoa(groups)); err != nil {
				return err
			}
		}
		if err := k.scaleMembers(store, groups); err != nil {
			return err
		}
		for range k.blocks {
			out, _, err := k.client(ctx, "run", "shared", store, strconv.Itoa(kvGrowClients), k.spanOf(4))
			var got map[string]float64
			if err == nil {
				err = json.Unmarshal(out, &got)
			}
			if err != nil {
				return err
			}
			rate := 2 / (1/got["get_per_s"] + 1/got["put_per_s"])
			rates[groups] = append(rates[groups], k.sample(fmt.Sprintf("sigma_%d", groups), "grow_ops_per_s", rate))
		}
	}
	one := median(rates[1])
	if err := k.print(Line{Metric: "grow_1_ops_per_s", Unit: "1/s", Ours: one, N: len(rates[1])}); err != nil {
		return err
	}
	for _, groups := range []int{2, 4} {
		if err := k.print(Line{Metric: fmt.Sprintf("grow_%d_of_1", groups), Ours: median(rates[groups]) / one,
			N: len(rates[groups])}); err != nil {
			return err
		}
	}
	return nil
}

// spanOf is some times as long as a measurement: quotas are of 10 ms, so that short ones are rough.
func (k *kvStores) spanOf(times int) string {
	d, err := time.ParseDuration(k.span)
	if err != nil {
		return k.span
	}
	return (time.Duration(times) * d).String()
}

// scaleMembers gives each member of a store a scaled core by a quota of its group of processes.
func (k *kvStores) scaleMembers(store string, want int) error {
	found := 0
	for _, p := range k.s.family() {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		args := strings.Split(string(line), "\x00")
		if err != nil || len(args) < 3 || args[1] != "member" || args[2] != store {
			continue
		}
		if err := limitProcessor(p.pid, float64(runtime.NumCPU())/kvGrowPart); err != nil {
			return err
		}
		found++
	}
	if found != want {
		return fmt.Errorf("store %s has %d members, not %d", store, found, want)
	}
	return nil
}

// limitProcessor gives the control group of a process a quota of cores.
func limitProcessor(pid int, cores float64) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	defer f.Close()
	const period = 10_000 // microseconds
	quota := strconv.Itoa(int(cores * period))
	for lines := bufio.NewScanner(f); lines.Scan(); {
		part := strings.SplitN(lines.Text(), ":", 3)
		if len(part) < 3 || part[2] == "/" {
			continue
		}
		if slices.Contains(strings.Split(part[1], ","), "cpu") { // version 1
			dir := filepath.Join("/sys/fs/cgroup/cpu", part[2])
			if err := os.WriteFile(filepath.Join(dir, "cpu.cfs_period_us"), fmt.Append(nil, period), 0); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), []byte(quota), 0)
		}
		if part[0] == "0" && part[1] == "" {
			return os.WriteFile(filepath.Join("/sys/fs/cgroup", part[2], "cpu.max"),
				fmt.Appendf(nil, "%s %d", quota, period), 0)
		}
	}
	return fmt.Errorf("process %d is in no control group of processors", pid)
}
