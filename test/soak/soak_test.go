//go:build system

// Package soak does to one system, in random order, whatever ends things: procs that exit, crash,
// run out of memory or are evicted or killed, services, launchers and whole systems that die by
// kill -9. At the end every waiter was answered truly, nothing is left over, and the system is
// usable.
//
// SIGMA_SOAK_ROUNDS says how many rounds (50; 1000 is for a night), SIGMA_SOAK_SEED repeats the
// order of an earlier run, whose seed is in its log. The rounds are the same then; the timing, and
// so what they meet, is not.
package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	rounds     = 50
	roundMax   = time.Minute // on a busy machine, one that restarts the system included
	liveMost   = 100         // procs at once; beyond that half are killed
	answerMost = time.Minute // for the last waiter
	pauseMost  = 300 * time.Millisecond
)

var machine testenv.Shared

func TestMain(m *testing.M) { os.Exit(machine.Main(m)) }

// kind is a kind of proc: what it is told, and how it may end if nobody interferes.
type kind struct {
	args   []string
	memory sigma.Bytes
	ends   sigma.StatusCode // StatusNone: not by itself
	code   int
}

func kinds(capacity sigma.Bytes) []kind {
	return []kind{
		{args: []string{"exit", "0"}, ends: sigma.StatusOK},
		{args: []string{"exit", "7"}, ends: sigma.StatusError, code: 7},
		{args: []string{"crash"}, ends: sigma.StatusCrashed, code: 139},
		{args: []string{"abort"}, ends: sigma.StatusCrashed, code: 134},
		{args: []string{"eat"}, memory: 16 * sigma.MiB, ends: sigma.StatusOOM, code: 137},
		{args: []string{"doze", "100"}, ends: sigma.StatusOK},
		{args: []string{"forks"}, ends: sigma.StatusOK},
		{args: []string{"orphan"}, ends: sigma.StatusOK},
		{args: []string{"stay"}},
		{args: []string{"ignore"}},
		{args: []string{"leave"}},
		{args: []string{"stay"}, memory: capacity / 3 &^ 0xffff}, // so that some are queued
	}
}

// proc is one that was spawned.
type proc struct {
	id   sigma.ProcID
	kind kind

	// What happened in its life that excuses another end.
	ended    bool // it was evicted or killed
	adopted  bool // its sigmad died
	fault    bool // a service died
	launcher bool // the launcher died
}

// answer is what a waiter was told.
type answer struct {
	id     sigma.ProcID
	status sigma.Status
	err    error
	gone   bool // its connection had ended before, with the system
}

// soak is one run. Only the test's goroutine uses it; waiters report by answers.
type soak struct {
	t       *testing.T
	ctx     context.Context
	s       *testenv.System
	c       *sdk.Client
	random  *rand.Rand
	program string
	kinds   []kind

	live    map[sigma.ProcID]*proc // by what the test has heard
	ended   map[sigma.ProcID]sigma.Status
	waiting int
	killed  map[string]uint32 // services, and how often each had been restarted before
	dying   bool              // the whole system is being killed

	deaths []time.Time // when launchers and sigmads were killed
	ending bool        // a launcher was, and not all services have been seen to run since

	answers chan answer
	waiters sync.WaitGroup
	done    map[string]int // what was done, for the log
}

func TestSoak(t *testing.T) {
	n := setting(t, "SIGMA_SOAK_ROUNDS", rounds)
	seed := setting(t, "SIGMA_SOAK_SEED", rand.Uint64())
	t.Logf("%d rounds; to repeat: SIGMA_SOAK_ROUNDS=%d SIGMA_SOAK_SEED=%d", n, n, seed)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Duration(n)*roundMax*testenv.Slow())
	defer cancel()
	s := machine.Get(t)
	x := &soak{t: t, ctx: ctx, s: s, c: s.Connect(ctx, t, sigma.DefaultRealm), random: rand.New(rand.NewPCG(seed, 0)),
		live: map[sigma.ProcID]*proc{}, ended: map[sigma.ProcID]sigma.Status{}, killed: map[string]uint32{},
		answers: make(chan answer, 16), done: map[string]int{}}
	x.program = s.Install(ctx, t, x.c, machine.Program(t, "../machine/testdata/probe.c"))
	x.kinds = kinds(x.capacity())
	x.usable()
	before := settled(s.Census())
	for round := range n {
		x.round()
		x.take()
		if t.Failed() {
			t.Fatalf("in round %d, after %v", round, x.done)
		}
	}
	x.finish()
	x.usable()
	testenv.Eventually(t, "nothing is left over", func() error {
		if more := settled(s.Census()).Beyond(before); len(more) > 0 {
			return fmt.Errorf("%q", more)
		}
		return nil
	})
	t.Logf("did %v", x.done)
}

func setting[N int | uint64](t *testing.T, name string, or N) N {
	text := os.Getenv(name)
	if text == "" {
		return or
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return N(n)
}

// settled is a census in which a service that was started again is the same.
func settled(c testenv.Census) testenv.Census {
	out := testenv.Census{}
	for what, n := range c {
		out[startNumber.ReplaceAllString(what, "$1/N")] += n
	}
	return out
}

var startNumber = regexp.MustCompile(`(system/[a-z0-9]+)/[0-9]+`)

// capacity is how much memory the machine gives to procs.
func (x *soak) capacity() sigma.Bytes {
	text, _, err := x.c.Get(x.ctx, "/sys/metrics")
	found := regexp.MustCompile(`(?m)^sigma_schedd_memory_capacity_bytes ([0-9]+)$`).FindSubmatch(text)
	if err != nil || found == nil {
		x.t.Fatalf("no capacity in the metrics: %v\n%s", err, text)
	}
	n, _ := strconv.ParseUint(string(found[1]), 10, 64)
	return sigma.Bytes(n)
}

// round does one thing.
func (x *soak) round() {
	if len(x.live) > liveMost {
		for range liveMost / 2 {
			x.end("kill", x.any())
		}
	}
	switch at := x.random.IntN(100); {
	case at < 40:
		x.spawn(1 + x.random.IntN(12))
	case at < 56:
		x.end("evict", x.any())
	case at < 72:
		x.end("kill", x.any())
	case at < 80:
		x.pause()
	case at < 92:
		x.crash([]string{"besched", "lcsched", "s3d", "named"}[x.random.IntN(4)])
	case at < 95:
		x.crashLauncher()
	case at < 98:
		x.crashSigmad()
	default:
		x.die("keeper")
	}
}
