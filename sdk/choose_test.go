package sdk

import (
	"fmt"
	"math"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// crowd is a snapshot of n members, of which every fourth is of this machine.
func crowd(n int, p Policy) *snapshot {
	s := &snapshot{policy: p}
	for i := range n {
		m := &member{name: fmt.Sprintf("member-%03d", i)}
		m.endpoint.Machine = sigma.MachineID(fmt.Sprint("m", i%4))
		s.members = append(s.members, m)
		if i%4 == 0 {
			s.local = append(s.local, m)
		}
	}
	s.prepare()
	return s
}

// spread counts whom n dials choose.
func spread(s *snapshot, n int) map[string]int {
	out := map[string]int{}
	for i := range n {
		out[s.choose(uint64(i)+12345, "").name]++
	}
	return out
}

func TestChoose(t *testing.T) {
	for _, choice := range append(choices[:], "", "of another version") {
		if m := crowd(0, Policy{Choice: choice}).choose(7, "k"); m != nil {
			t.Errorf("%s: %s of nobody", choice, m.name)
		}
		for _, n := range []int{1, 2, 3, 10} {
			s := crowd(n, Policy{Choice: choice})
			want := n
			if choice == ChoiceLocal {
				want = len(s.local)
			}
			counts := spread(s, 1000*want)
			if len(counts) != want {
				t.Errorf("%s: %d of %d members are chosen", choice, len(counts), want)
			}
			for name, got := range counts {
				exact := choice == ChoiceTurn || choice == ChoiceLocal || choice == ChoiceHash || choice == "" ||
					choice == "of another version"
				if got < 850 || got > 1150 || exact && got != 1000 {
					t.Errorf("%s: %s is chosen %d times of %d", choice, name, got, 1000*want)
				}
			}
			for _, m := range s.members {
				now := time.Now()
				m.failed.Store(&now)
			}
			s.members[n-1].failed.Store(nil)
			if m := s.choose(3, "k"); choice != ChoiceLocal && m != s.members[n-1] {
				t.Errorf("%s: %s is chosen and could not be reached just now", choice, m.name)
			}
			all := map[*member]bool{}
			for _, m := range s.order(3, "k") {
				all[m] = true
			}
			if len(all) != n {
				t.Errorf("%s: %d of %d are tried", choice, len(all), n)
			}
		}
	}
	far := crowd(8, Policy{Choice: ChoiceLocal})
	far.local = nil
	if counts := spread(far, 80); len(counts) != 8 {
		t.Errorf("local, and nobody is on this machine: %v", counts)
	}
}

// Goal: connections are spread by how many are open. With random choices of two the fullest of 100
// members has only a few more than the mean, with random ones many more.
func TestChooseByConnections(t *testing.T) {
	fullest := func(choice string) int {
		s, most := crowd(100, Policy{Choice: choice}), int32(0)
		for i := range uint64(10000) {
			most = max(most, s.choose(i, "").open.Add(1))
		}
		return int(most)
	}
	r, two, least := fullest(ChoiceRandom), fullest(ChoiceTwoChoices), fullest(ChoiceLeast)
	if least != 100 || two > 106 || r < 115 {
		t.Errorf("the fullest has %d connections by random, %d by two-choices, %d by least", r, two, least)
	}
}

// Goal: of any run of dials each member gets its part to within a few, members without a weight
// nothing. A first dial of many Dialers is spread as well.
func TestWeights(t *testing.T) {
	for _, weights := range []map[string]uint32{{"member-000": 5, "member-002": 3, "member-003": 2},
		{"member-001": 1, "member-003": 99, "gone": 1000},
		{"member-000": math.MaxUint32, "member-003": math.MaxUint32}, {}, {"gone": 3}, {"member-000": 0}} {
		s, sum := crowd(4, Policy{Choice: ChoiceWeights, Weights: weights}), 0.0
		for _, m := range s.members {
			sum += float64(weights[m.name])
		}
		for _, n := range []int{10, 1000, 100000} {
			counts := spread(s, n)
			for _, m := range s.members {
				part := 0.25
				if sum > 0 {
					part = float64(weights[m.name]) / sum
				}
				want, got := part*float64(n), counts[m.name]
				if math.Abs(float64(got)-want) > 4 || part == 0 && got > 0 {
					t.Errorf("%v: %s gets %d of %d, want %.0f", weights, m.name, got, n, want)
				}
			}
		}
		for _, m := range s.order(1, "") {
			if sum > 0 && weights[m.name] == 0 {
				t.Errorf("%v: %s is tried", weights, m.name)
			}
		}
	}
}

// Goal: a key's member is the same for everybody, keys are spread, and a member that goes or comes
// moves no key but its own.
func TestHash(t *testing.T) {
	const keys = 10000
	all := crowd(10, Policy{Choice: ChoiceHash})
	less := crowd(10, Policy{Choice: ChoiceHash})
	less.members, less.hashes = append(less.members[:3:3], less.members[4:]...), nil
	less.prepare()
	counts, moved := map[string]int{}, 0
	for i := range keys {
		key := fmt.Sprint("key-", i)
		a, b := all.choose(uint64(i), key), less.choose(0, key)
		if a != all.choose(0, key) || all.order(5, key)[0] != a {
			t.Fatalf("%s has two members", key)
		}
		counts[a.name]++
		if a.name != b.name {
			if moved++; a.name != "member-003" {
				t.Errorf("%s moved from %s, which is there", key, a.name)
			}
		}
	}
	for name, n := range counts {
		if n < keys/10*85/100 || n > keys/10*115/100 {
			t.Errorf("%s has %d keys of %d", name, n, keys)
		}
	}
	if moved != counts["member-003"] {
		t.Errorf("%d keys moved, want %d", moved, counts["member-003"])
	}
	if m := all.choose(0, "example"); m.name != "member-006" { // what the reference page says
		t.Errorf("example has %s", m.name)
	}
}

// chooser returns a Dialer that follows a directory of n members, and makes a decision.
func chooser(choice string, n int) (choose func() *member) {
	d := (&Client{}).Dialer("/d")
	weights := map[string]uint32{}
	for i := range n {
		weights[fmt.Sprintf("member-%03d", i)] = uint32(i + 1)
	}
	d.now.Store(crowd(n, Policy{Choice: choice, Weights: weights}))
	return func() *member { return d.followed().choose(d.turn.Add(1), "a-key-of-20-bytes-xx") }
}

// Goal: a decision among ten members takes at most 200 ns. Method: the quickest of many short
// batches, so that what else the host does is not measured.
func TestChoiceIsQuick(t *testing.T) {
	const batches, decisions = 200, 500
	for _, choice := range choices {
		choose, least := chooser(choice, 10), time.Hour
		for range batches {
			began := time.Now()
			for range decisions {
				choose()
			}
			least = min(least, time.Since(began)/decisions)
		}
		if least > 200*time.Nanosecond {
			t.Errorf("%s: a decision takes %v", choice, least)
		}
	}
}

// BenchmarkChoose is a decision of a Dialer that follows its directory.
func BenchmarkChoose(b *testing.B) {
	for _, choice := range choices {
		for _, n := range []int{3, 10, 100} {
			b.Run(fmt.Sprintf("%s/%d", choice, n), func(b *testing.B) {
				choose := chooser(choice, n)
				b.ReportAllocs()
				for b.Loop() {
					if choose() == nil {
						b.Fatal("nobody")
					}
				}
			})
		}
	}
}
