// Package journal keeps records of one leader after another in a realm's names: a ring of files
// that are overwritten, and snapshots.
//
// It promises: a batch that Settle was told of is read by every later Open, in order, and none that
// came after a batch that is missing. It assumes that the directory is fenced at the epoch that it
// is given (sdk.Election.Fenced), so that an earlier leader writes nothing any more, and that
// nobody else writes there.
//
// It costs one put of names for all records of about a millisecond, up to 56 KiB; four are under
// way at a time. A snapshot is due after 8 MiB of records or as many bytes as the last one had.
package journal
