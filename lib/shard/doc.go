// Package shard divides a number of shards among the members of a service, as members come and go.
//
// It promises: the assignment is one file with an epoch that grows with each change; a change moves
// as few shards as an even division lets it, and members' counts differ by one at most. A member
// gains a shard only when the one before has lost it: has returned from Lose, or its lease has
// ended. Each gain has a fence of the shard's own, with which writes of a former owner are refused.
// Clerks follow the assignment by a watch.
//
// It assumes that its directory is kept by named, that members have different names, and that one
// or more programs run Balance. A member that stood still may act on a shard that is another's by
// then: what it writes with the shard's fence is refused.
//
// It costs: of a change of members one put, and of each shard that moves three: the shard's lock,
// its epoch, its release. A clerk reads one file for each change.
package shard
