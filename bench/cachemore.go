package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// cacheTrace is a trace by Zipf's law.
type cacheTrace struct {
	skew string
	keys int
}

// cacheTraces are those of the test of apps/cache/store: all keys fit, a fifth does, a twentieth.
func cacheTraces() (all []cacheTrace) {
	for _, skew := range []string{cacheSkew, "1.1", "1.3"} {
		for _, keys := range []int{60_000, 250_000, 1_000_000} {
			all = append(all, cacheTrace{skew, keys})
		}
	}
	return all
}

func (t cacheTrace) metric() string { return fmt.Sprintf("hit_ratio_%s_of_%dk", t.skew, t.keys/1000) }

const cacheTraceLimit = 8 // MiB

// traces lets our cache see each trace, and an exact LRU of as many items as the cache had in the
// end.
func (r *Run) traces(ctx context.Context, s *cacheServer, local string, uses int) error {
	for _, t := range cacheTraces() {
		var ours, theirs float64
		args := []string{strconv.Itoa(t.keys), t.skew, strconv.Itoa(uses)}
		if err := s.with(ctx, cacheTraceLimit, func(address string, _ int) error {
			rep, err := r.cacheClient(ctx, local, append([]string{"trace", s.protocol, address, "100"}, args...)...)
			if err != nil {
				return err
			}
			items, err := itemsOf(ctx, s.protocol, address)
			if err != nil {
				return err
			}
			lru, err := r.cacheClient(ctx, local, append([]string{"lru", "-", "-", fmt.Sprint(int(items))}, args...)...)
			ours, theirs = rep.Hits/rep.Ops, lru.Hits/lru.Ops
			return err
		}); err != nil {
			return fmt.Errorf("%s: %w", t.metric(), err)
		}
		r.sample(s.name, t.metric(), ours)
		r.sample("lru", t.metric(), theirs)
		l := Line{Metric: t.metric(), Ours: ours, Peer: "lru", Theirs: &theirs, N: 1}
		if err := r.print(l.between([]float64{ours / theirs})); err != nil {
			return err
		}
	}
	return nil
}

// clerkArm is a cache that is a proc, loaded by a proc whose goroutines share a clerk.
type clerkArm struct {
	s       *system
	dir     string
	client  string // the program's path in the realm
	millis  int
	figures map[string][]float64
}

const cacheProcMemory = 512 * sigma.MiB

// clerk starts the system and the cache.
func (r *Run) clerk(ctx context.Context, local string, millis int) (a *clerkArm, err error) {
	a = &clerkArm{dir: "/cache-bench", millis: millis, figures: map[string][]float64{}}
	if a.s, err = r.boot(ctx); err != nil {
		return nil, err
	}
	if err = a.start(ctx, filepath.Join(r.Bin, "cache"), local); err != nil {
		a.s.down()
		return nil, err
	}
	return a, nil
}

func (a *clerkArm) start(ctx context.Context, program, local string) error {
	server, err := a.s.install(ctx, program, "cache")
	if err == nil {
		a.client, err = a.s.install(ctx, local, "cache-load")
	}
	if err == nil {
		err = a.s.MkdirAll(ctx, a.dir, 0o755)
	}
	if err == nil {
		_, err = a.s.Spawn(ctx, sigma.Descriptor{Program: server, Name: "cache", Memory: cacheProcMemory,
			Start: sigma.StartedByCall,
			Args:  []string{"--dir", a.dir, "--memory", fmt.Sprint(int(4*cacheLimit/sigma.MiB), "MiB")}})
	}
	if err == nil {
		within, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		err = awaitEntry(within, a.s.Client, a.dir)
	}
	return err
}

// awaitEntry waits until a directory has a file that is not hidden.
func awaitEntry(ctx context.Context, c *sdk.Client, dir string) error {
	for {
		entries, err := c.ReadDir(ctx, dir)
		if err == nil && slices.ContainsFunc(entries, func(e sigma.DirEntry) bool { return e.Name[0] != '.' }) {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("nobody is in %s: %w", dir, context.Cause(ctx))
		}
	}
}

// measure is one block.
func (a *clerkArm) measure(ctx context.Context, r *Run) error {
	for _, size := range []int{100, 4096} {
		metric, keys := "clerk_100B_ops_per_s", cacheKeys
		if size == 4096 {
			metric, keys = "clerk_4KiB_ops_per_s", cacheKeys/5
		}
		out, err := a.s.output(ctx, sigma.Descriptor{Program: a.client, Name: "cache-load", Memory: cacheProcMemory,
			Start: sigma.StartedByCall, Args: []string{"clerk", "-", a.dir, strconv.Itoa(cacheConnections),
				strconv.Itoa(size), strconv.Itoa(keys), strconv.Itoa(a.millis)}})
		var rep cacheReport
		if err == nil {
			err = json.Unmarshal(out, &rep)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", metric, err)
		}
		a.figures[metric] = append(a.figures[metric], r.sample("sigma_clerk", metric, rep.Ops/rep.Seconds))
	}
	return nil
}

// print puts out what the clerk's clients got done, beside what other servers did unpipelined.
func (a *clerkArm) print(r *Run, servers []*cacheServer) error {
	for _, metric := range []string{"100B_ops_per_s", "4KiB_ops_per_s"} {
		ours := a.figures["clerk_"+metric]
		l := Line{Metric: "clerk_" + metric, Unit: "1/s", Ours: median(ours), N: len(ours)}
		var peers []*kvArm
		for _, s := range servers {
			if s.peer != "" {
				peers = append(peers, &kvArm{queueArm{name: s.name, figures: s.figures}})
			}
		}
		if err := r.printBeside(l, peers, metric, ours, true); err != nil {
			return err
		}
	}
	return nil
}
