//go:build system

package toolkit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/lib/queue"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

const (
	dir       = "/jobs"
	each      = 40 // tasks of one round
	roundMost = 40 * time.Second
)

// rounds is how many are made: SIGMA_TOOLKIT_ROUNDS, or a few.
func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("SIGMA_TOOLKIT_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return few
}

// seed is that of SIGMA_TOOLKIT_SEED, or one by the clock.
func seed(t *testing.T) *rand.Rand {
	n, err := strconv.ParseUint(os.Getenv("SIGMA_TOOLKIT_SEED"), 10, 64)
	if err != nil {
		n = uint64(time.Now().UnixNano())
	}
	t.Logf("SIGMA_TOOLKIT_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 0))
}

// trial is a queue with its servers and workers, and what became of tasks.
type trial struct {
	t        *testing.T
	c        *sdk.Client
	q        *queue.Queue
	after    uint64
	outcomes map[string]string // by key
	ids      map[uint64]bool
	tasks    int
}

// start registers two servers and three workers.
func start(t *testing.T, c *sdk.Client, program string) *trial {
	t.Helper()
	for _, d := range []string{dir, "/effects"} {
		must(t, c.MkdirAll(t.Context(), d, 0o755))
	}
	for _, name := range []string{"serve-0", "serve-1", "work-0", "work-1", "work-2"} {
		must(t, c.Register(t.Context(), sigma.Registration{Name: name, Descriptor: sigma.Descriptor{Name: name,
			Program: program, Args: []string{name[:len(name)-2], dir}}}))
	}
	x := &trial{t: t, c: c, q: queue.Open(c, dir), outcomes: map[string]string{}, ids: map[uint64]bool{}}
	t.Cleanup(func() { x.q.Close() })
	return x
}

// round submits tasks, has something killed while they are done, and reads their outcomes.
func (x *trial) round(n int, kill func()) {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), roundMost*testenv.Slow())
	defer cancel()
	submitted := make(chan []uint64, 1)
	go func() {
		var all []uint64
		for i := range 4 {
			var ts []queue.Task
			for k := range each / 4 {
				ts = append(ts, queue.Task{Key: fmt.Sprintf("%d-%d-%d", n, i, k), Data: []byte("task")})
			}
			ts = append(ts, queue.Task{Key: fmt.Sprintf("once-%d-%d", n, i), Data: []byte("once")})
			ids, err := x.q.Submit(ctx, ts...)
			if err != nil {
				x.t.Errorf("round %d: %v", n, err)
				break
			}
			all = append(all, ids...)
		}
		submitted <- all
	}()
	kill()
	ids := <-submitted
	x.tasks += len(ids)
	for _, id := range ids {
		if x.ids[id] {
			x.t.Errorf("round %d: the id %d was given twice", n, id)
		}
		x.ids[id] = true
	}
	for len(x.outcomes) < x.tasks && !x.t.Failed() {
		found, err := x.q.Results(ctx, x.after, 1000)
		if err != nil {
			st, serr := x.q.Status(x.t.Context())
			x.t.Fatalf("round %d: %v; %d outcomes of %d; %+v, %v", n, err, len(x.outcomes), x.tasks, st, serr)
		}
		for _, o := range found {
			if x.outcomes[o.Key] != "" || o.Failed != "" || !x.ids[o.ID] {
				x.t.Errorf("round %d: %+v, before it %q", n, o, x.outcomes[o.Key])
			}
			x.outcomes[o.Key], x.after = string(o.Data), o.Seq
		}
	}
}

// check looks at what is left at the end.
func (x *trial) check() {
	x.t.Helper()
	testenv.Eventually(x.t, "the queue is empty", func() error {
		st, err := x.q.Status(x.t.Context())
		if err == nil && (st.Waiting+st.Held+st.Dead != 0 || st.Done != x.tasks || int(st.Submitted) != x.tasks) {
			err = fmt.Errorf("%+v of %d", st, x.tasks)
		}
		return err
	})
	for key, data := range x.outcomes {
		if key[0] != 'o' {
			continue
		}
		result, _, err := x.c.Get(x.t.Context(), "/effects/"+key+"/result")
		if err != nil || string(result) != data {
			x.t.Errorf("%s has the outcome %q, and its effect %q, %v", key, data, result, err)
		}
	}
	x.t.Logf("%d tasks", x.tasks)
}

// killProc kills the instance of a registered proc, which is started again without the pause that
// is longer after each death.
func (x *trial) killProc(name string) {
	x.t.Helper()
	testenv.Eventually(x.t, name+" is killed", func() error {
		ps, err := x.c.List(x.t.Context(), false)
		for _, p := range ps {
			if p.Name == name {
				return errors.Join(x.c.Kill(x.t.Context(), p.ID), x.c.Restart(x.t.Context(), name))
			}
		}
		if err == nil {
			err = fmt.Errorf("it does not run")
		}
		return err
	})
}

// Goal: no task is lost and none has two outcomes while servers, workers and daemons of a machine
// are killed, one in each round; an effect that is made under once is that of the outcome.
func TestQueueLosesNothing(t *testing.T) {
	s := testenv.Boot(t, testenv.Options{})
	c := s.Connect(t.Context(), t, sigma.DefaultRealm)
	x := start(t, c, s.Install(t.Context(), t, c, testenv.BuildGo(t, t.TempDir(), "testdata/kit")))
	rnd := seed(t)
	for n := range rounds(8) {
		victim := []string{"serve-0", "serve-1", "work-0", "work-1", "serve-0", "serve-1", "sigmad", "named"}[n%8]
		pause := time.Duration(rnd.IntN(100)) * time.Millisecond
		began := time.Now()
		x.round(n, func() {
			<-time.After(pause)
			if victim == "sigmad" || victim == "named" {
				s.Kill9(t, victim)
			} else {
				x.killProc(victim)
			}
		})
		if t.Logf("round %d: %s killed after %v, done after %v", n, victim, pause, time.Since(began)); t.Failed() {
			return
		}
	}
	x.check()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Goal: the same while machines are killed and come back, of which three keep the names.
func TestQueueOutlivesMachines(t *testing.T) {
	l := testenv.NewCluster(t, testenv.ClusterOptions{Machines: 3, Control: 3})
	first := l.Machine(0)
	c, err := first.Client(t.Context(), sigma.DefaultRealm)
	must(t, err)
	t.Cleanup(c.Close)
	x := start(t, c, first.Install(t.Context(), t, c, testenv.BuildGo(t, t.TempDir(), "testdata/kit")))
	rnd := seed(t)
	for n := range (rounds(8) + 7) / 8 {
		m := l.Machine(1 + rnd.IntN(2))
		began := time.Now()
		x.round(n, func() { must(t, m.Kill()) })
		t.Logf("round %d: %s killed, done after %v", n, m.Name, time.Since(began))
		must(t, m.Restart())
		if t.Failed() {
			return
		}
	}
	x.check()
}
