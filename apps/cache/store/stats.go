package store

import "math/bits"

// sizeClasses are those of Stats.Sizes: a value of n bytes is of class bits.Len(n).
const sizeClasses = 25

// Stats counts what a store has and did.
type Stats struct {
	Items   int64 `json:"items"`  // some of which may have expired
	Bytes   int64 `json:"bytes"`  // of keys and values
	Memory  int64 `json:"memory"` // that is taken, of Limit
	Limit   int64 `json:"limit"`
	Gets    int64 `json:"gets"`
	Hits    int64 `json:"hits"`
	Sets    int64 `json:"sets"`
	Deletes int64 `json:"deletes"`
	Evicted int64 `json:"evicted"` // to make room
	Expired int64 `json:"expired"` // that were found so
	// Sizes counts items by the length of their value: Sizes[0] has those of 0 bytes, Sizes[n]
	// those of at least 1<<(n-1) and less than 1<<n.
	Sizes [sizeClasses]int64 `json:"sizes"`
}

func sizeClass(n int) int { return min(bits.Len(uint(n)), sizeClasses-1) }

// Stats sums up.
func (s *Store) Stats() (all Stats) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		st := &sh.stats
		all.Items += int64(sh.count)
		all.Memory += int64(sh.usedLocked() + len(sh.spare)*sh.segBytes)
		all.Bytes += st.Bytes
		all.Gets += st.Gets
		all.Hits += st.Hits
		all.Sets += st.Sets
		all.Deletes += st.Deletes
		all.Evicted += st.Evicted
		all.Expired += st.Expired
		for j, n := range st.Sizes {
			all.Sizes[j] += n
		}
		sh.mu.Unlock()
	}
	all.Limit = s.cfg.Limit
	return all
}
