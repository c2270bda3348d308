package meter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"sigmaos.dev/sigma"
)

// What services, and sigmad, do for realms is counted by them (treeserver.Turns). They know what
// their requests cost compared to each other; what a service used is known from its cgroup, and is
// divided by that (docs/reference/paths/sys-usage.md).

// Works is what was done for realms since this sigmad began. Safe for concurrent use.
type Works struct {
	mu   sync.Mutex
	used map[string]Spent                         // mu; by service: what was divided
	of   map[string]map[sigma.RealmID]*sigma.Work // mu; by service
	told map[string]Report                        // mu; by service: that was counted last
	at   map[string]time.Time                     // mu; by service: when that was
}

// Report is one that a service has made in one of its lives.
type Report struct{ Launch, Number uint64 }

// Spent is what one incarnation of a service has used.
type Spent struct {
	Launch uint64
	CPU    time.Duration
}

func NewWorks() *Works {
	return &Works{used: map[string]Spent{}, of: map[string]map[sigma.RealmID]*sigma.Work{}, told: map[string]Report{},
		at: map[string]time.Time{}}
}

// News reports whether a service's report was not counted yet. A service makes the next one only
// when it knows that the last was.
func (w *Works) News(service string, r Report) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := w.told[service]; last.Launch == r.Launch && r.Number <= last.Number {
		return false
	}
	w.told[service] = r
	return true
}

// Fresh is what a service has used since it was asked last, when all that it has used since it was
// launched is now.
func (w *Works) Fresh(service string, now Spent) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.used[service]
	if before.Launch != now.Launch {
		before.CPU = 0
	}
	w.used[service] = Spent{now.Launch, max(now.CPU, before.CPU)}
	return max(0, now.CPU-before.CPU)
}

// divideMost bounds a realm's part of what a service used by so many times what its requests are
// estimated to cost: else a single request would be charged for all that an idle service does for
// itself.
const divideMost = 10

// Divide gives each realm its part of what was used: by what their requests cost. The system's part
// is nobody's.
func Divide(used time.Duration, works []sigma.Work) (out []sigma.Work) {
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

// Add counts what was done.
func (w *Works) Add(service string, done sigma.Work) {
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

// Since is when a service's work was counted before now; zero = never.
func (w *Works) Since(service string, now time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.at[service]
	w.at[service] = now
	return at
}

// Drop forgets a realm that was removed.
func (w *Works) Drop(realm sigma.RealmID, own string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, of := range w.of {
		delete(of, realm)
	}
	delete(w.used, own)
	delete(w.told, own)
	delete(w.at, own)
}

// Text prints it for /sys/metrics.
func (w *Works) Text(b *strings.Builder) {
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
				fmt.Fprintf(b, "sigma_service_%s_total{service=%q,realm=%q} %s\n", m.name, service, realm,
					m.value(w.of[service][realm]))
			}
		}
	}
}

// workSpan is the longest time over which what a service other than sigmad tells is taken to have
// been done: it tells every 5 s (sdk) if there is something to tell, and may be late once.
const workSpan = 10 * time.Second

// Spanned is the time from which on a service's work counts as done, if it was told before at a
// time; zero = it never was.
func Spanned(now, before time.Time) time.Time {
	if early := now.Add(-workSpan); !before.IsZero() && before.Before(early) {
		return early // the service had nothing to tell since then
	}
	return before
}

// Count counts what a service did, of the processor time that it has used since that was counted
// last. each is called with each realm's part, and with the time since when that was done.
func (w *Works) Count(now time.Time, service string, used time.Duration, works []sigma.Work,
	each func(from time.Time, done sigma.Work)) {
	from := w.Since(service, now)
	if service != Sigmad {
		from = Spanned(now, from)
	}
	for _, done := range Divide(used, works) {
		w.Add(service, done)
		each(from, done)
	}
}
