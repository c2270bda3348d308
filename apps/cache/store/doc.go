// Package store keeps items of a cache in memory: values by key, with flags, an expiry time and a
// version each.
//
// It promises: items and all that finds them take no more than Config.Limit bytes, whatever is
// stored. When the limit is reached the store evicts by S3-FIFO (Yang et al., SOSP 2023): a new
// item enters a small queue, and gets into the main queue only if it is asked for meanwhile, or
// again soon after it was evicted. An item of the main queue that was asked for goes round once
// more. An item that has expired, or is older than Config.Floor, is not there. Update is atomic.
//
// It assumes that the caller gives the time, in milliseconds since 1970, which need not be exact.
//
// It costs: some 24 bytes for a record's head and 15 for finding it, besides key and value. Memory
// is mapped apart from Go's heap, so that the garbage collector neither scans nor counts it. A hit
// copies the value once. What makes room moves some records per call, 512 at most.
//
// Locks: each shard has one; nothing is called while it is held but Config.Floor and the functions
// given to Update and Each.
package store
