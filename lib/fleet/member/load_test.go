package member

import (
	"math"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func within(t *testing.T, what string, got, want, most float64) {
	t.Helper()
	if math.Abs(got-want) > most {
		t.Errorf("%s: got %.3f, want %.3f", what, got, want)
	}
}

// Goal: an injected load is reported as it is; what was reported is not again.
func TestLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m meter
		m.start()
		for _, share := range []float64{0.2, 0.5, 0.9, 0} {
			for range 100 {
				if share > 0 {
					first, second := m.begin(), m.begin()
					<-time.After(time.Duration(share * 5e6))
					first(false)
					<-time.After(time.Duration(share * 5e6))
					second(true)
				}
				<-time.After(time.Duration((1 - share) * 1e7))
			}
			l := m.take()
			within(t, "busy", l.Busy, share, 1e-6)
			within(t, "in flight", l.InFlight, 1.5*share, 1e-6)
		}
		m.begin()
		<-time.After(time.Second)
		if l := m.take(); l.Busy != 1 || l.InFlight != 1 || l.Served != 600 || l.Failed != 300 {
			t.Errorf("in the middle of a request: %+v", l)
		}
		m.setQueueAge(func() time.Duration { return 3 * time.Second })
		if l := m.take(); l.QueueAge != 3*time.Second {
			t.Errorf("the queue's age: %v", l.QueueAge)
		}
	})
}

// Goal: an injected load is reported within 5 points also while all processors are busy.
func TestLoadBesideBusyLoops(t *testing.T) {
	for range runtime.NumCPU() {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			loop.Process.Kill()
			loop.Wait()
		}()
	}
	const period = 20 * time.Millisecond
	for _, share := range []float64{0.2, 0.5, 0.9} {
		var m meter
		m.start()
		var served time.Duration
		began := time.Now()
		for next := began; time.Since(began) < 600*time.Millisecond; next = next.Add(period) {
			<-time.After(time.Until(next))
			at := time.Now()
			end := m.begin()
			<-time.After(time.Until(at.Add(time.Duration(share * float64(period)))))
			end(false)
			served += time.Since(at)
		}
		injected := served.Seconds() / time.Since(began).Seconds()
		l := m.take()
		within(t, "busy", l.Busy, injected, 0.05)
		t.Logf("%.0f %% were meant, %.1f %% injected, %.1f %% reported", 100*share, 100*injected, 100*l.Busy)
	}
}

// Goal: of a program that counts nothing the processor time tells.
func TestLoadUncounted(t *testing.T) {
	var m meter
	m.start()
	for before := processorTime(); processorTime()-before < 100*time.Millisecond; {
		m.mu.Lock()
		m.mu.Unlock()
	}
	base := m.base
	l := m.take()
	elapsed := time.Since(base) // no less than what take measured, whose end is a little earlier
	if used := l.CPU * elapsed.Seconds(); used < 0.1 || used > 1 {
		t.Errorf("%.3f s of a processor are reported, more than 0.1 were used", used)
	}
	if l.Busy != min(l.CPU, 1) || l.InFlight != 0 {
		t.Errorf("got %+v", l)
	}
}

func BenchmarkBegin(b *testing.B) {
	var m meter
	m.start()
	b.ReportAllocs()
	for b.Loop() {
		m.begin()(false)
	}
}
