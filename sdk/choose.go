package sdk

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
)

// member is a name in a Dialer's directory. Snapshots share it.
type member struct {
	name     string
	endpoint sigma.Endpoint
	err      error         // why the file is no endpoint to dial
	version  sigma.Version // Dialer.mu; of its file

	open   atomic.Int32              // connections of the Dialer, with those that are being made
	failed atomic.Pointer[time.Time] // when it could not be reached; nil = it could
}

// shuns says that it could not be reached just now.
func (m *member) shuns() bool {
	at := m.failed.Load()
	return at != nil && time.Since(*at) < shunned
}

// snapshot is what a Dialer knows of its directory at one moment. It does not change.
type snapshot struct {
	policy  Policy
	members []*member        // in order of their names
	local   []*member        // those of this machine
	broken  []*member        // whose files are no endpoints to dial
	hashes  []uint64         // with ChoiceHash; of the names of members
	sums    []uint64         // with ChoiceWeights; of the weights of members up to each; the last is not 0
	left    []sigma.DirEntry // that were listed and gone before they could be read
	wanted  bool             // WantedName is there
	news    chan struct{}    // closed when another snapshot takes its place, or none
}

// prepare computes the tables of the policy's choices from the policy and the members.
func (s *snapshot) prepare() {
	switch s.policy.Choice {
	case ChoiceHash:
		for _, m := range s.members {
			s.hashes = append(s.hashes, hashOf(m.name))
		}
	case ChoiceWeights:
		s.weigh()
	}
}

func (s *snapshot) weigh() {
	sum := uint64(0)
	for _, m := range s.members {
		sum += uint64(s.policy.Weights[m.name])
		s.sums = append(s.sums, sum)
	}
	for i := range s.sums {
		if sum == 0 { // a policy with weights of nobody
			s.sums[i] = uint64(i + 1)
		}
	}
}

// choose gives the member to dial; nil if there is none. n counts the dials. It costs neither a
// message nor memory, unless the member that the policy names could not be reached just now.
func (s *snapshot) choose(n uint64, key string) *member {
	m := s.pick(n, key)
	if m != nil && m.shuns() {
		return s.order(n, key)[0]
	}
	return m
}

// pick is what the policy says.
func (s *snapshot) pick(n uint64, key string) *member {
	of := s.members
	if len(of) == 0 {
		return nil
	}
	switch s.policy.Choice {
	case ChoiceRandom:
		return of[rand.IntN(len(of))]
	case ChoiceTwoChoices:
		i, j := rand.IntN(len(of)), rand.IntN(max(len(of)-1, 1))
		if j >= i {
			j = (j + 1) % len(of)
		}
		if of[j].open.Load() < of[i].open.Load() {
			i = j
		}
		return of[i]
	case ChoiceLeast:
		return least(of)
	case ChoiceLocal:
		if len(s.local) > 0 {
			of = s.local
		}
	case ChoiceHash:
		if key != "" {
			return of[s.nearest(hashOf(key))]
		}
	case ChoiceWeights:
		return of[s.weighted(n)]
	}
	return of[n%uint64(len(of))]
}

// least gives one of those with the fewest connections, from a random place on.
func least(of []*member) (best *member) {
	at, fewest := rand.IntN(len(of)), int32(math.MaxInt32)
	for _, part := range [2][]*member{of[at:], of[:at]} {
		for _, m := range part {
			if open := m.open.Load(); open < fewest {
				best, fewest = m, open
			}
		}
	}
	return best
}

// weighted gives the place of a member. Multiples of the golden ratio, without their whole parts,
// are spread so evenly that of any run of dials each member gets its part to within a few, however
// many Dialers there are and wherever each begins.
func (s *snapshot) weighted(n uint64) int {
	if len(s.sums) == 0 {
		return 0
	}
	total := s.sums[len(s.sums)-1]
	at, _ := bits.Mul64(n*golden, total)
	i, _ := slices.BinarySearch(s.sums, at+1) // the first of those that are equal: the others have no weight
	return i
}

// golden is the fraction of the golden ratio, of 2^64.
const golden = 0x9e3779b97f4a7c15

// nearest gives the place of the member whose name goes best with a key: when members come or go,
// only keys whose member it is move.
func (s *snapshot) nearest(key uint64) (best int) {
	most := uint64(0)
	for i, h := range s.hashes {
		if score := mix(h ^ key); score > most {
			best, most = i, score
		}
	}
	return best
}

// hashOf is FNV-1a, which all clients share.
func hashOf(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// order gives those that may be dialled in the order in which to try them: as the policy says,
// those that could not be reached just now later, and last those that cannot be dialled.
func (s *snapshot) order(n uint64, key string) []*member {
	turn := func(of []*member) []*member {
		if len(of) == 0 {
			return nil
		}
		at := int(n % uint64(len(of)))
		return slices.Concat(of[at:], of[:at])
	}
	out := turn(s.members)
	switch s.policy.Choice {
	case ChoiceRandom, ChoiceTwoChoices, ChoiceLeast:
		rand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
		if s.policy.Choice != ChoiceRandom {
			sortBy(out, func(m *member) int { return int(m.open.Load()) })
		}
	case ChoiceLocal:
		far := slices.DeleteFunc(out, func(m *member) bool {
			return len(s.local) > 0 && m.endpoint.Machine == s.local[0].endpoint.Machine
		})
		out = append(turn(s.local), far...)
	case ChoiceHash:
		if key != "" {
			h := hashOf(key)
			slices.SortFunc(out, func(a, b *member) int {
				return cmp.Compare(mix(hashOf(b.name)^h), mix(hashOf(a.name)^h))
			})
		}
	case ChoiceWeights:
		out = out[:0:0]
		if at := s.weighted(n); len(s.sums) > 0 {
			for i := range s.members {
				if i = (at + i) % len(s.members); s.sums[i] > 0 && (i == 0 || s.sums[i] > s.sums[i-1]) {
					out = append(out, s.members[i])
				}
			}
		}
	}
	sortBy(out, func(m *member) int {
		if m.shuns() {
			return 1
		}
		return 0
	})
	return append(out, s.broken...)
}

// sortBy sorts by numbers that may change meanwhile.
func sortBy(of []*member, number func(*member) int) {
	numbers := make(map[*member]int, len(of))
	for _, m := range of {
		numbers[m] = number(m)
	}
	slices.SortStableFunc(of, func(a, b *member) int { return numbers[a] - numbers[b] })
}
