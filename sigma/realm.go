package sigma

import (
	"context"
	"time"
)

// RealmInfo describes a realm.
type RealmInfo struct {
	ID      RealmID
	Created time.Time
	Procs   int    // that have not ended
	Shares  uint32 // of what best-effort procs are given while realms compete, at least 1; 0 is of a service that knows none
}

// SharesMax bounds a realm's shares.
const SharesMax = 10000

// Realms is how the provider makes realms. Safe for concurrent use.
type Realms interface {
	// Create makes a realm with the well-known places in its tree. KindExists if there is one.
	Create(ctx context.Context, id RealmID) error
	// Remove kills the realm's procs and removes its names, objects and scratch files.
	Remove(ctx context.Context, id RealmID) error
	List(ctx context.Context) ([]RealmInfo, error)
	// SetShares sets a realm's shares, 1 to SharesMax. A new realm has 1.
	SetShares(ctx context.Context, id RealmID, shares uint32) error
}
