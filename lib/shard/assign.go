package shard

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"

	"sigmaos.dev/sigma"
)

// ShardsMax bounds shards: a member's are files of one lease.
const ShardsMax = 4000

// Assignment says which member has each shard.
type Assignment struct {
	Epoch  uint64   `json:"epoch"`  // grows with each change
	Owners []string `json:"owners"` // by shard; "" while there are no members
}

// Of lists the shards of a member.
func (a Assignment) Of(member string) (shards []int) {
	for i, o := range a.Owners {
		if o == member {
			shards = append(shards, i)
		}
	}
	return shards
}

// Of gives the shard that a key belongs to, the same for all programs.
func Of(key string, shards int) int {
	h := fnv.New64a()
	h.Write([]byte(key))
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9 // the finaliser of SplitMix64: FNV's high bits are poor
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(shards))
}

// Decode reads an assignment.
func Decode(b []byte) (a Assignment, err error) {
	err = json.Unmarshal(b, &a)
	if err == nil && (a.Epoch == 0 || len(a.Owners) == 0 || len(a.Owners) > ShardsMax) {
		err = fmt.Errorf("it has %d shards and epoch %d", len(a.Owners), a.Epoch)
	}
	if err != nil {
		return Assignment{}, &sigma.Error{Op: "shard.Decode", Kind: sigma.KindInvalid,
			Msg:  "this is no assignment of shards",
			Hint: "remove the file: Balance makes it anew", Err: err}
	}
	return a, nil
}

// Assign divides shards, of which it knows the owners so far, among members: each gets as many as
// another or one more, and as few as possible move.
func Assign(owners []string, members []string) []string {
	now := slices.Clone(owners)
	if len(members) == 0 {
		clear(now)
		return now
	}
	members = slices.Compact(slices.Sorted(slices.Values(members)))
	have := map[string]int{}
	for i, o := range now {
		if _, is := slices.BinarySearch(members, o); !is {
			now[i] = ""
			continue
		}
		have[o]++
	}
	// Who has most so far gets one more of those that do not divide evenly.
	least, more := len(now)/len(members), len(now)%len(members)
	slices.SortStableFunc(members, func(a, b string) int { return have[b] - have[a] })
	most := map[string]int{}
	for i, m := range members {
		if most[m] = least; i < more {
			most[m]++
		}
	}
	for i := len(now) - 1; i >= 0; i-- {
		if o := now[i]; o != "" && have[o] > most[o] {
			now[i] = ""
			have[o]--
		}
	}
	next := 0
	for i, o := range now {
		if o != "" {
			continue
		}
		for have[members[next]] >= most[members[next]] {
			next++
		}
		now[i] = members[next]
		have[now[i]]++
	}
	return now
}
