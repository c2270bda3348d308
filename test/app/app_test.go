//go:build system

// Package app tests a whole application on one machine while everything that it stands on is
// killed.
package app

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/database"
	"sigmaos.dev/sigma"
)

const (
	clients  = 4
	between  = 40               // orders that succeed between two kills
	askMax   = 5 * time.Second  // for one attempt of a client
	waitMost = 60 * time.Second // for an order, all attempts together
	testMax  = 3 * time.Minute
)

// trial is the application under test, and what its clients were told.
type trial struct {
	t      *testing.T
	s      *testenv.System
	c      *sdk.Client
	db     *sql.DB
	client *http.Client

	done    atomic.Int64 // orders that were answered
	retries atomic.Int64
	mu      sync.Mutex
	longest time.Duration // mu; that an order took
}

// Goal: an application of HTTP members, typed calls, SQL, a queue and a leader, all registered with
// initd, loses no order while its members, its leader and each daemon of its machine are killed.
// Each order is retried until it is answered, and no daemon's death but the launcher's ends a proc.
// At the end each is in SQL once, was shipped once, and none is queued.
func TestApplicationLosesNothing(t *testing.T) {
	x := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), testMax*testenv.Slow())
	defer cancel()
	var stop atomic.Bool
	var all sync.WaitGroup
	for n := range clients {
		all.Go(func() {
			for i := 0; !stop.Load() && ctx.Err() == nil; i++ {
				x.order(ctx, fmt.Sprintf("%d-%d", n, i))
			}
		})
	}
	x.progress(ctx)
	for _, victim := range []string{"web-0", "sigmad", "store-0", "named", "leader", "dbd", "lcsched", "besched",
		"sigmad", "s3d", "launcher"} {
		if t.Failed() {
			break
		}
		at, web := time.Now(), x.instance(ctx, "web-1")
		x.kill(ctx, victim)
		x.progress(ctx)
		t.Logf("%s killed: %d more orders after %v", victim, between, time.Since(at).Round(time.Millisecond))
		if victim != "launcher" && x.instance(ctx, "web-1") != web {
			t.Errorf("the death of %s ended a member", victim)
		}
	}
	stop.Store(true)
	all.Wait()
	t.Logf("%d orders, %d retries, the longest took %v", x.done.Load(), x.retries.Load(), x.longest)
	x.check(ctx)
}

// start registers the application's procs.
func start(t *testing.T) *trial {
	x := &trial{t: t, s: testenv.Boot(t, testenv.Options{})}
	ctx := t.Context()
	x.c = x.s.Connect(ctx, t, sigma.DefaultRealm)
	program := x.s.Install(ctx, t, x.c, testenv.BuildGo(t, t.TempDir(), "testdata/app"))
	for _, dir := range []string{"/app/queue", "/app/web", "/db/app"} {
		must(t, x.c.MkdirAll(ctx, dir, 0o755))
	}
	x.db = database.Open(x.c, "/db/app")
	t.Cleanup(func() { x.db.Close() })
	for _, statement := range []string{"create table orders (id text primary key)",
		"create table shipped (id text primary key)",
		"create table effects (name text primary key, number integer)",
		"insert into effects values ('orders', 0), ('shipped', 0)"} {
		_, err := x.db.ExecContext(ctx, statement)
		must(t, err)
	}
	for _, role := range []string{"web", "store", "ship"} {
		for n := range 2 {
			name := fmt.Sprint(role, "-", n)
			must(t, x.c.Register(ctx, sigma.Registration{Name: name, Descriptor: sigma.Descriptor{Name: name,
				Program: program, Args: []string{role}}}))
		}
	}
	x.client = &http.Client{Transport: &http.Transport{DialContext: x.c.Dialer("/app/web").DialContext,
		MaxConnsPerHost: clients}}
	return x
}

// order asks until it is answered.
func (x *trial) order(ctx context.Context, id string) {
	began := time.Now()
	for {
		err := x.ask(ctx, id)
		took := time.Since(began)
		if err == nil {
			x.mu.Lock()
			x.longest = max(x.longest, took)
			x.mu.Unlock()
			x.done.Add(1)
			return
		}
		if took > waitMost*testenv.Slow() || ctx.Err() != nil {
			x.t.Errorf("order %s is not answered after %v: %v", id, took, err)
			return
		}
		x.retries.Add(1)
		pause(ctx, 20*time.Millisecond)
	}
}

// ask orders once.
func (x *trial) ask(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, askMax)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://app/orders?id="+id, nil)
	if err != nil {
		return err
	}
	answer, err := x.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", answer.Status)
	}
	return nil
}

// progress waits until more orders were answered.
func (x *trial) progress(ctx context.Context) {
	x.t.Helper()
	for before := x.done.Load(); x.done.Load() < before+between && !x.t.Failed() && ctx.Err() == nil; {
		pause(ctx, 5*time.Millisecond)
	}
}

// kill ends a daemon, the leader, or the instance of a registered proc.
func (x *trial) kill(ctx context.Context, victim string) {
	x.t.Helper()
	switch victim {
	case "leader":
		id, _, err := x.c.Get(ctx, "/app/leader")
		must(x.t, err)
		must(x.t, x.c.Kill(ctx, sigma.ProcID(id)))
	case "web-0", "store-0":
		x.s.Must(x.t, "kill", x.instance(ctx, victim))
	default:
		x.s.Kill9(x.t, victim)
	}
}

// instance finds the proc of a registration.
func (x *trial) instance(ctx context.Context, name string) (id string) {
	x.t.Helper()
	testenv.Eventually(x.t, name+" runs", func() error {
		ps, err := x.c.List(ctx, false)
		for _, p := range ps {
			if p.Name == name {
				id = string(p.ID)
			}
		}
		if err == nil && id == "" {
			err = fmt.Errorf("%+v", ps)
		}
		return err
	})
	return id
}

// check counts each order's effects.
func (x *trial) check(ctx context.Context) {
	x.t.Helper()
	testenv.Eventually(x.t, "nothing is queued", func() error {
		left, err := x.c.ReadDir(ctx, "/app/queue")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d orders are", len(left))
		}
		return err
	})
	for _, what := range []string{"select count(*) from orders", "select number from effects where name = 'orders'",
		"select count(*) from shipped", "select number from effects where name = 'shipped'"} {
		var n int64
		must(x.t, x.db.QueryRowContext(ctx, what).Scan(&n))
		if n != x.done.Load() {
			x.t.Errorf("%s: %d, want %d", what, n, x.done.Load())
		}
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) { os.Exit(m.Run()) }
