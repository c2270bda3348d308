// Package kv is what programs use of a kv store: a clerk, which puts, gets, deletes, compares and
// swaps, lists and watches keys, whichever groups the store has and wherever its shards are.
//
// It promises: operations on one key are linearizable. A write that returned without an error took
// effect once. One that failed by its context, or with KindLost, may have taken effect or take it
// later, once at most. A shard that moves delays its keys by some milliseconds, and no operation
// fails by it. A watch gets all changes of its keys in order of each key, or an error that says
// that it missed some. What a store keeps when procs end is its groups' matter (package member).
//
// It assumes that the store's directory is kept by named. Clerks are of the same version as the
// store or older.
//
// It costs: an operation is one call, on a connection for each group. A clerk reads the
// configuration once and follows it by a watch, in one goroutine. Users: procs of realms, and
// cmd/sigma.
//
// Locks: Clerk.mu alone.
package kv
