package member

import (
	"sync"
	"syscall"
	"time"

	"sigmaos.dev/lib/fleet"
)

// meter measures the load of a member. Requests are counted under one lock with one reading of the
// clock each time: a request costs two of both.
type meter struct {
	end  func(failed bool) // that of all requests, so that none makes its own
	base time.Time

	mu       sync.Mutex
	queueAge func() time.Duration // mu
	counts   bool                 // mu; the program counts requests
	active   int64                // mu; requests in service
	at       time.Duration        // mu; since base, until when busy and area are counted
	busy     time.Duration        // mu; since the last report, with at least one request in service
	area     time.Duration        // mu; since the last report, summed over the requests in service
	taken    time.Duration        // mu; when the last report was made
	cpu      time.Duration        // mu; the processor time used by then
	served   uint64               // mu
	failed   uint64               // mu
}

func (t *meter) start() {
	t.end, t.base, t.cpu = t.finish, time.Now(), processorTime()
}

// begin counts a request that begins.
func (t *meter) begin() func(failed bool) {
	t.mu.Lock()
	t.advanceLocked()
	t.counts = true
	t.active++
	t.mu.Unlock()
	return t.end
}

func (t *meter) finish(failed bool) {
	t.mu.Lock()
	t.advanceLocked()
	t.active--
	t.served++
	if failed {
		t.failed++
	}
	t.mu.Unlock()
}

// advanceLocked counts the time until now.
func (t *meter) advanceLocked() {
	now := time.Since(t.base)
	if t.active > 0 {
		t.busy += now - t.at
		t.area += (now - t.at) * time.Duration(t.active)
	}
	t.at = now
}

func (t *meter) setQueueAge(age func() time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queueAge = age
}

// take gives the load since it was taken last. The processor time tells how busy a program is that
// counts no requests.
func (t *meter) take() (l fleet.Load) {
	cpu := processorTime()
	t.mu.Lock()
	t.advanceLocked()
	elapsed := max(t.at-t.taken, time.Microsecond).Seconds()
	l = fleet.Load{Busy: t.busy.Seconds() / elapsed, InFlight: t.area.Seconds() / elapsed,
		CPU: (cpu - t.cpu).Seconds() / elapsed, Served: t.served, Failed: t.failed}
	if !t.counts {
		l.Busy = min(l.CPU, 1)
	}
	t.busy, t.area, t.taken, t.cpu = 0, 0, t.at, cpu
	age := t.queueAge
	t.mu.Unlock()
	if age != nil {
		l.QueueAge = max(age(), 0)
	}
	return l
}

// processorTime is what the program has used, in all its threads.
func processorTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
