package named

import (
	"context"
	"errors"
	"fmt"
)

// KV is one key and its value.
type KV struct {
	Key   string
	Value []byte
}

// Revision numbers the commits of a Store; it grows with each.
type Revision int64

// Batch is one transaction: all of it takes effect or nothing. No key is in it twice.
type Batch struct {
	// The transaction takes effect only if Guard was last written at revision GuardAt (0: does not
	// exist). The Guard of every batch of a realm is the realm's record, which each writes: so a
	// writer that was replaced by another, or a batch that was given up on, can do no harm later.
	Guard   string
	GuardAt Revision
	Puts    []KV
	Deletes []string
	// it makes the realm bigger, and is refused while the store keeps its last room for what makes
	// it smaller
	Grows  bool
	Writes bool // it writes what a realm wants to keep, and is refused while the disk keeps its last room for all else
}

// Store keeps keys. named knows no more of etcd than this. Safe for concurrent use.
type Store interface {
	// Get reads one key. found is false if there is none. at is when it was last written.
	Get(ctx context.Context, key string) (value []byte, at Revision, found bool, err error)
	// Scan calls f for each key with the prefix, in order of keys, as they were at one moment. It
	// ends with the first error of f. The value belongs to f.
	Scan(ctx context.Context, prefix string, f func(key string, value []byte) error) error
	// Commit returns once the batch is durable. ErrConflict and ErrFull say that it has no
	// effect; after any other error it may take effect until its guard is written by somebody else.
	Commit(ctx context.Context, b Batch) (Revision, error)
	// DeletePrefix removes up to most keys with the prefix and says whether there are more.
	DeletePrefix(ctx context.Context, prefix string, most int) (more bool, err error)
	// Lost is closed when the store has stopped by itself and must be opened again.
	Lost() <-chan struct{}
	Close()
}

// settler is a Store that may refuse to write for want of room and yet be read.
type settler interface {
	// Settled says that no commit before can still take effect.
	Settled() bool
}

// Limits of what a Store takes in one transaction: the end of a lease with LeaseFilesMax files of
// the longest names (a delete and a directory record for each, 2.8 MiB) and a full batch with one
// more file (2 MiB).
const (
	CommitBytesMax = 8 << 20
	CommitOpsMax   = 4*LeaseFilesMax + 4*batchNodes
)

// Errors of a Store.
var (
	// ErrConflict says that somebody else wrote the guard of a batch.
	ErrConflict = errors.New("somebody else wrote the realm")
	// ErrFull says that there is no room.
	ErrFull = errors.New("the store's quota is full")
	// ErrOthersFull is ErrFull of a store that others filled, or that has no room for removals
	// either.
	ErrOthersFull = fmt.Errorf("an operator's etcd: %w", ErrFull)
	// ErrOthersNearlyFull is ErrFull of one that takes removals yet.
	ErrOthersNearlyFull = fmt.Errorf("an operator's etcd, but for the last: %w", ErrFull)
)
