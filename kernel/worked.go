package kernel

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// What services, and sigmad, do for realms is counted by them (treekit.Turns). They know what their requests cost compared to each other; what a service used is known from its cgroup, and is divided by that (docs/reference/paths/sys-usage.md).

// worked is what was done for realms since this sigmad began. Safe for concurrent use.
type worked struct {
	mu   sync.Mutex
	used map[string]spent                         // mu; by service: what was divided
	of   map[string]map[sigma.RealmID]*sigma.Work // mu; by service
	told map[string]report                        // mu; by service: that was counted last
	at   map[string]time.Time                     // mu; by service: when that was
}

// report is one that a service has made in one of its lives.
type report struct{ launch, number uint64 }

// spent is what one incarnation of a service has used.
type spent struct {
	launch uint64
	cpu    time.Duration
}

func newWorked() *worked {
	return &worked{used: map[string]spent{}, of: map[string]map[sigma.RealmID]*sigma.Work{}, told: map[string]report{}, at: map[string]time.Time{}}
}

// news reports whether a service's report was not counted yet. A service makes the next one only when it knows that the last was.
func (w *worked) news(service string, r report) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.told[service]; last.launch == r.launch && r.number <= last.number {
		return false
	}
	w.told[service] = r
	return true
}

// fresh is what a service has used since it was asked last, when all that it has used since it was launched is now.
func (w *worked) fresh(service string, now spent) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.used[service]
	if before.launch != now.launch {
		before.cpu = 0
	}
	w.used[service] = spent{now.launch, max(now.cpu, before.cpu)}
	return max(0, now.cpu-before.cpu)
}

// divideMost bounds a realm's part of what a service used by so many times what its requests are estimated to cost: else a single request would be charged for all that an idle service does for itself.
const divideMost = 10

// divide gives each realm its part of what was used: by what their requests cost. The system's part is nobody's.
func divide(used time.Duration, works []sigma.Work) (out []sigma.Work) {
	var all float64
	for _, w := range works {
		all += float64(max(0, w.CPU))
	}
	for _, w := range works {
		if w.Realm == sigma.SystemRealm {
			continue
		}
		if part := max(0, w.CPU); all > 0 {
			w.CPU = time.Duration(min(float64(used)/all, divideMost) * float64(part))
		} else {
			w.CPU = 0
		}
		out = append(out, w)
	}
	return out
}

// add counts what was done.
func (w *worked) add(service string, done sigma.Work) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.of[service]
	if of == nil {
		of = map[sigma.RealmID]*sigma.Work{}
		w.of[service] = of
	}
	s := of[done.Realm]
	if s == nil {
		s = &sigma.Work{Realm: done.Realm}
		of[done.Realm] = s
	}
	s.Requests, s.In, s.Out, s.CPU = s.Requests+done.Requests, s.In+done.In, s.Out+done.Out, s.CPU+done.CPU
}

// since is when a service's work was counted before now; zero = never.
func (w *worked) since(service string, now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.at[service]
	w.at[service] = now
	return at
}

// drop forgets a realm that was removed.
func (w *worked) drop(realm sigma.RealmID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range w.of {
		delete(of, realm)
	}
	own := databaseService(realm)
	delete(w.used, own)
	delete(w.told, own)
	delete(w.at, own)
}

// text prints it for /sys/metrics.
func (w *worked) text(b *strings.Builder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range []struct {
		name  string
		value func(*sigma.Work) string
	}{
		{"requests", func(s *sigma.Work) string { return fmt.Sprint(s.Requests) }},
		{"cpu_seconds", func(s *sigma.Work) string { return fmt.Sprintf("%g", s.CPU.Seconds()) }},
		{"in_bytes", func(s *sigma.Work) string { return fmt.Sprint(uint64(s.In)) }},
		{"out_bytes", func(s *sigma.Work) string { return fmt.Sprint(uint64(s.Out)) }},
	} {
		if len(w.of) > 0 {
			fmt.Fprintf(b, "# TYPE sigma_service_%s_total counter\n", m.name)
		}
		for _, service := range slices.Sorted(maps.Keys(w.of)) {
			for _, realm := range slices.Sorted(maps.Keys(w.of[service])) {
				fmt.Fprintf(b, "sigma_service_%s_total{service=%q,realm=%q} %s\n", m.name, service, realm, m.value(w.of[service][realm]))
			}
		}
	}
}

// workSpan is the longest time over which what a service other than sigmad tells is taken to have been done: it tells every 5 s (sdk) if there is something to tell, and may be late once.
const workSpan = 10 * time.Second

// countWork counts what a service did, of what it has used since that was counted last: in the realms' usage, and in their turns at besched.
func (k *Kernel) countWork(now time.Time, service string, used time.Duration, works []sigma.Work) {
	before := k.worked.since(service, now)
	if service != serviceSigmad {
		before = spanned(now, before)
	}
	k.countDone(now, before, service, divide(used, works))
}

// spanned is the time from which on a service's work counts as done, if it was told before at a time; zero = it never was.
func spanned(now, before time.Time) time.Time {
	if early := now.Add(-workSpan); !before.IsZero() && before.Before(early) {
		return early // the service had nothing to tell since then
	}
	return before
}

// countDone counts work in the realms' usage, and in their turns at besched. It was done between the two times.
func (k *Kernel) countDone(now, before time.Time, service string, works []sigma.Work) {
	for _, done := range works {
		k.worked.add(service, done)
		k.ledger.served(now, service, done)
		k.sched.charges.served(before, now, done)
	}
}

// countServed counts what sigmad has done for realms since it was counted last.
func (k *Kernel) countServed(now time.Time) {
	own := ownUsage()
	k.countWork(now, serviceSigmad, k.worked.fresh(serviceSigmad, spent{cpu: own.UserTime + own.SystemTime}), k.turns.Work())
}

// workedCall is the call worked: what a service did for realms since it told that last -> the realms' shares. What is told of realms that there are not is dropped.
func (r *root) workedCall(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	const op = "kernel.worked"
	k := r.tree.k
	s := k.service(r.tree.principal)
	if s == nil {
		return nil, nil, sigma.Errorf(op, sigma.KindPermission, "only services may tell this")
	}
	var number uint64
	var works []sigma.Work
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.U64(&number); c.Works(&works) }); err != nil {
		return nil, nil, err
	}
	if len(works) > sigmap.WorksMax {
		return nil, nil, sigma.Errorf(op, sigma.KindTooBig, "work for %d realms in one call; %d are allowed", len(works), sigmap.WorksMax)
	}
	known, _ := k.shares.known()
	works = slices.DeleteFunc(works, func(w sigma.Work) bool {
		_, is := known[w.Realm]
		return !is && w.Realm != sigma.SystemRealm
	})
	s.mu.Lock()
	id := s.launch
	s.mu.Unlock()
	if k.worked.news(s.name, report{id, number}) {
		var total time.Duration
		if l := k.living(); l != nil {
			if m, err := k.meter(ctx, l, id); err == nil { // else its time is counted the next time
				total = m.User + m.Sys
			}
		}
		if s.realm != "" {
			k.databases.charge(time.Now(), s, id, total, works)
		} else {
			k.countWork(time.Now(), s.name, k.worked.fresh(s.name, spent{id, total}), works)
		}
	}
	shares := make([]sigmap.RealmShares, 0, len(works))
	for _, w := range works {
		shares = append(shares, sigmap.RealmShares{Realm: w.Realm, Shares: known[w.Realm].Shares})
	}
	reply, err := sigmap.Payload(func(c *sigmap.Coder) { c.RealmsShares(&shares) })
	return reply, nil, err
}
