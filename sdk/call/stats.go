package call

import (
	"fmt"
	"io"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// bucketsMax is how many buckets a histogram has: the i-th counts what took less than 2^i us and is
// in none before; the last one has the rest, which is 2 minutes and longer.
const bucketsMax = 28

// MethodStats tells what became of a method's calls. A stream counts as one call when it has ended,
// with no bytes.
type MethodStats struct {
	Method string            `json:"method"`
	Calls  uint64            `json:"calls"`  // that ended
	Failed map[string]uint64 `json:"failed"` // of them, by kind of error
	// Redirected counts the redirections: of a server those that it answered, which are no
	// failures, of a Router those that it followed. Forwarded counts the calls of which another
	// member gave the answer.
	Redirected uint64        `json:"redirected,omitempty"`
	Forwarded  uint64        `json:"forwarded,omitempty"`
	In         uint64        `json:"in_bytes"`
	Out        uint64        `json:"out_bytes"`
	Duration   time.Duration `json:"duration_ns"` // sum
	// the i-th: calls that took less than 2^i us, and not less than the one before
	Buckets [bucketsMax]uint64 `json:"buckets"`
}

// Quantile gives a duration that a share of the calls, 0 to 1, did not exceed: the upper bound of
// its bucket. 0 if there were none.
func (s *MethodStats) Quantile(share float64) time.Duration {
	var total, sum uint64
	for _, n := range s.Buckets {
		total += n
	}
	for i, n := range s.Buckets {
		if sum += n; n > 0 && float64(sum) >= share*float64(total) {
			return time.Microsecond << i
		}
	}
	return 0
}

// stats counts calls. The zero value is ready; safe for concurrent use.
type stats struct {
	methods sync.Map // name: *methodStats
}

// methodStats counts without a lock: what is read meanwhile may lack some of what is being added.
type methodStats struct {
	calls, in, out, sum atomic.Uint64
	redirected          atomic.Uint64
	forwarded           atomic.Uint64
	buckets             [bucketsMax]atomic.Uint64
	mu                  sync.Mutex
	failed              map[sigma.Kind]uint64 // mu
}

func (s *stats) of(name string) *methodStats {
	if m, ok := s.methods.Load(name); ok {
		return m.(*methodStats)
	}
	m, _ := s.methods.LoadOrStore(name, &methodStats{})
	return m.(*methodStats)
}

func (m *methodStats) count(took time.Duration, in, out int, err error) {
	m.calls.Add(1)
	m.sum.Add(uint64(took))
	m.buckets[min(bits.Len64(uint64(took/time.Microsecond)), bucketsMax-1)].Add(1)
	if in > 0 {
		m.in.Add(uint64(in))
	}
	if out > 0 {
		m.out.Add(uint64(out))
	}
	if err == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failed == nil {
		m.failed = map[sigma.Kind]uint64{}
	}
	m.failed[sigma.KindOf(err)]++
}

// answered counts a call that a server has answered, by another member if it was forwarded.
func (m *methodStats) answered(took time.Duration, in, out int, forwarded bool, err error) {
	if forwarded {
		m.forwarded.Add(1)
	}
	if err != nil {
		if _, ok := redirection(err); ok {
			m.redirected.Add(1)
			err = nil
		}
	}
	m.count(took, in, out, err)
}

// snapshot gives all methods by name.
func (s *stats) snapshot() (out []MethodStats) {
	s.methods.Range(func(name, value any) bool {
		m := value.(*methodStats)
		x := MethodStats{Method: name.(string), Calls: m.calls.Load(), In: m.in.Load(), Out: m.out.Load(),
			Duration: time.Duration(m.sum.Load()), Failed: map[string]uint64{},
			Redirected: m.redirected.Load(), Forwarded: m.forwarded.Load()}
		for i := range m.buckets {
			x.Buckets[i] = m.buckets[i].Load()
		}
		m.mu.Lock()
		for k, n := range m.failed {
			x.Failed[k.String()] = n
		}
		m.mu.Unlock()
		out = append(out, x)
		return true
	})
	slices.SortFunc(out, func(a, b MethodStats) int { return strings.Compare(a.Method, b.Method) })
	return out
}

// WriteMetrics prints stats in Prometheus' text format. side is "server" or "client", and becomes a
// label.
func WriteMetrics(w io.Writer, side string, all []MethodStats) error {
	var b strings.Builder
	b.WriteString("# TYPE sigma_call_duration_seconds histogram\n")
	for _, m := range all {
		label := fmt.Sprintf("side=%q,method=%q", side, m.Method)
		var sum uint64
		for i, n := range m.Buckets {
			sum += n
			if i < bucketsMax-1 && n > 0 {
				fmt.Fprintf(&b, "sigma_call_duration_seconds_bucket{%s,le=\"%g\"} %d\n", label,
					(time.Microsecond << i).Seconds(), sum)
			}
		}
		fmt.Fprintf(&b, "sigma_call_duration_seconds_bucket{%s,le=\"+Inf\"} %d\n", label, sum)
		fmt.Fprintf(&b, "sigma_call_duration_seconds_sum{%s} %g\nsigma_call_duration_seconds_count{%s} %d\n", label,
			m.Duration.Seconds(), label, sum)
	}
	b.WriteString("# TYPE sigma_call_failed_total counter\n")
	for _, m := range all {
		for _, kind := range slices.Sorted(maps.Keys(m.Failed)) {
			fmt.Fprintf(&b, "sigma_call_failed_total{side=%q,method=%q,kind=%q} %d\n", side, m.Method, kind,
				m.Failed[kind])
		}
	}
	for _, x := range []struct {
		name string
		of   func(*MethodStats) uint64
	}{{"in_bytes", func(m *MethodStats) uint64 { return m.In }},
		{"out_bytes", func(m *MethodStats) uint64 { return m.Out }},
		{"redirected", func(m *MethodStats) uint64 { return m.Redirected }},
		{"forwarded", func(m *MethodStats) uint64 { return m.Forwarded }}} {
		fmt.Fprintf(&b, "# TYPE sigma_call_%s_total counter\n", x.name)
		for i := range all {
			fmt.Fprintf(&b, "sigma_call_%s_total{side=%q,method=%q} %d\n", x.name, side, all[i].Method,
				x.of(&all[i]))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
