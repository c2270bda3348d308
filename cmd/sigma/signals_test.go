package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/realms"
	"sigmaos.dev/sigma"
)

// signalled runs a command line that gets a signal again and again until it has ended; the test has
// it, too, so that it ends no test.
func (f *fake) signalled(s syscall.Signal, args ...string) result {
	seen := make(chan os.Signal, 1)
	signal.Notify(seen, s)
	defer signal.Stop(seen)
	over, silent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(silent)
		for {
			select {
			case <-over:
				return
			case <-time.After(20 * time.Millisecond):
				interrupt(f.t, s)
				<-seen // none is under way when the test ends
			}
		}
	}()
	got := f.sigma(args...)
	close(over)
	<-silent
	return got
}

// Goal: what waits ends at the first signal with 128 and its number, and without words.
func TestSignals(t *testing.T) {
	f := newFake(t)
	f.behave(func(ctx context.Context, _ *fakeProc) sigma.Status {
		<-ctx.Done()
		return sigma.Status{Code: sigma.StatusOK}
	})
	id := strings.TrimSpace(f.ok("run", "-d", staticProgram(t, "p")))
	for _, c := range []struct {
		signal syscall.Signal
		code   int
		args   []string
	}{
		{syscall.SIGINT, 130, []string{"wait", id}},
		{syscall.SIGTERM, 143, []string{"wait", id}},
		{syscall.SIGINT, 130, []string{"watch", "/"}},
		{syscall.SIGTERM, 143, []string{"watch", "/"}},
		{syscall.SIGINT, 130, []string{"logs", "-f", id}},
		{syscall.SIGINT, 130, []string{"sim", "--procs", "5000", "--seeds", "100000", "--json"}},
	} {
		if got := f.signalled(c.signal, c.args...); got.code != c.code || got.err != "" {
			t.Errorf("%v at %q: code %d, stderr %q; want %d and nothing", c.signal, c.args, got.code, got.err, c.code)
		}
	}
}

// Goal: a signal that ends several things at once is one error, beside those that there were
// before.
func TestInterruptedErrors(t *testing.T) {
	var errs lockedBuffer
	a := &cli.App{Err: &errs, Signal: new(atomic.Int32)}
	a.Signal.Store(int32(syscall.SIGINT))
	ended := func() error { return sigma.Wrap("x", "/a", context.Canceled) }
	if got := a.Failed([]error{ended(), nil, ended()}); !errors.Is(got, context.Canceled) || errs.String() != "" {
		t.Errorf("%v, printed %q", got, errs.String())
	}
	if got := a.Failed([]error{ended(), sigma.Errorf("x", sigma.KindNotFound, "not there")}); !errors.Is(got,
		context.Canceled) || errs.String() != "sigma: not there\n" {
		t.Errorf("%v, printed %q", got, errs.String())
	}
}

// Goal: usage of a realm is told while the name service is away, and the system's, which no list of
// realms has.
func TestUsageWithoutNames(t *testing.T) {
	f := newFake(t)
	a := &cli.App{Addr: f.addr, Data: "/nonexistent", Getenv: func(string) string { return "" }}
	if err := realms.CheckRealmsExist(t.Context(), a, []string{"default", "system"}); err != nil {
		t.Error(err)
	}
	if err := realms.CheckRealmsExist(t.Context(), a, []string{"nosuch"}); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("%v", err)
	}
	for _, kind := range []sigma.Kind{sigma.KindUnavailable, sigma.KindTimeout} {
		f.mu.Lock()
		f.away = sigma.Errorf("fake", kind, "no quorum")
		f.mu.Unlock()
		if err := realms.CheckRealmsExist(t.Context(), a, []string{"nosuch"}); err != nil {
			t.Errorf("%v: %v", kind, err)
		}
	}
}
