package call

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/wire/sigmap"
)

// StatsMethod is one that every server has: it tells what became of the calls of the others, to who
// may dial it. ParseStats reads the answer.
var StatsMethod = &Method{Name: "sigma.call/Stats", Idempotent: true}

const (
	// toldMax bounds the methods that StatsMethod tells of: their answer fits into a message of one
	// piece.
	toldMax = 100
)

// tell is the handler of StatsMethod.
func (s *Server) tell(_ context.Context, _, reply []byte) ([]byte, error) {
	all := s.Stats()
	all = all[:min(len(all), toldMax)]
	enc := sigmap.NewEncoder(reply)
	codeStats(enc, &all)
	return enc.Bytes(), nil
}

// ParseStats reads what StatsMethod answers.
func ParseStats(b []byte) (all []MethodStats, err error) {
	err = sigmap.Parse(b, func(d *sigmap.Coder) { codeStats(d, &all) })
	return all, err
}

func codeStats(c *sigmap.Coder, all *[]MethodStats) {
	n := len(*all)
	c.Count(&n, 2+6*8+8*bucketsMax+4)
	if c.Decoding() {
		if n > toldMax {
			c.Fail("too many methods")
			return
		}
		*all = make([]MethodStats, n)
	}
	for i := range *all {
		m := &(*all)[i]
		c.Str(&m.Method)
		c.U64(&m.Calls)
		c.U64(&m.In)
		c.U64(&m.Out)
		c.U64(&m.Redirected)
		c.U64(&m.Forwarded)
		c.Duration(&m.Duration)
		for j := range m.Buckets {
			c.U64(&m.Buckets[j])
		}
		codeFailed(c, m)
	}
}

func codeFailed(c *sigmap.Coder, m *MethodStats) {
	kinds := slices.Sorted(maps.Keys(m.Failed))
	n := len(kinds)
	c.Count(&n, 10)
	if c.Decoding() {
		kinds, m.Failed = make([]string, n), map[string]uint64{}
	}
	for i := range kinds {
		count := m.Failed[kinds[i]]
		c.Str(&kinds[i])
		c.U64(&count)
		m.Failed[kinds[i]] = count
	}
}

// FailedCalls is how many of a method's calls failed, of whatever kind.
func (s *MethodStats) FailedCalls() (n uint64) {
	for _, f := range s.Failed {
		n += f
	}
	return n
}

// Mean is how long a call took in the mean; 0 if there were none.
func (s *MethodStats) Mean() time.Duration {
	if s.Calls == 0 {
		return 0
	}
	return s.Duration / time.Duration(s.Calls)
}
