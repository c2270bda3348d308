// Package store is the state of one group of a kv store: its shards with their keys, sessions and
// changes, as a deterministic machine that commands change. It does no input or output.
//
// It promises: replicas that apply the same commands have the same keys, versions and sessions, and
// give the same results. A write with a session takes effect once, however often it is applied,
// also when its shard has moved to another group meanwhile: sessions are the shard's and move with
// it. Of each shard one group serves at a time: a group that froze a shard serves it never again,
// unless a later move brings the shard back. Readers of a snapshot do not delay writes.
//
// It assumes that commands have been stamped with the leader's clock, and that moves of one shard
// have growing epochs. No bytes make it panic.
//
// It costs one map of a B-tree for each shard, some 100 bytes for each key besides its bytes, and
// up to 1 MiB of recent changes for each shard.
//
// Locks: Store.mu alone. Users: apps/kv and its packages.
package store
