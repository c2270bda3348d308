package store

import (
	"cmp"
	"slices"
)

// hot estimates which keys are used most, by the Space-Saving algorithm (Metwally et al., 2005)
// over a sample of the uses. Counts are halved now and then, so that they tell of lately.
type hot struct {
	tags   [hotKeys]uint32
	counts [hotKeys]uint32
	keys   [hotKeys]string
	total  uint32
}

const (
	hotKeys   = 32      // of a shard
	hotSample = 16      // one use of so many is looked at
	hotHalve  = 1 << 16 // looks after which counts are halved
	hotKeyMax = 128     // bytes of a key that are kept
)

func (h *hot) see(key []byte, tag uint32) {
	if h.total++; h.total >= hotHalve {
		h.total /= 2
		for i := range h.counts {
			h.counts[i] /= 2
		}
	}
	least := 0
	for i, t := range h.tags {
		if t == tag {
			h.counts[i]++
			return
		}
		if h.counts[i] < h.counts[least] {
			least = i
		}
	}
	h.tags[least], h.keys[least] = tag, string(key[:min(len(key), hotKeyMax)])
	h.counts[least]++
}

// HotKey is a key that is used much.
type HotKey struct {
	Key string `json:"key"` // its first 128 bytes
	// Share is about which part of all uses of the store lately, 0 to 1.
	Share float64 `json:"share"`
}

// Hot gives up to n keys that are used most, the hottest first.
func (s *Store) Hot(n int) (keys []HotKey) {
	total := 0.0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		total += float64(sh.hot.total)
		for j, c := range sh.hot.counts {
			if c > 0 {
				keys = append(keys, HotKey{sh.hot.keys[j], float64(c)})
			}
		}
		sh.mu.Unlock()
	}
	slices.SortFunc(keys, func(a, b HotKey) int { return cmp.Compare(b.Share, a.Share) })
	keys = keys[:min(n, len(keys))]
	for i := range keys {
		keys[i].Share /= max(total, 1)
	}
	return keys
}
