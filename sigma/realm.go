package sigma

import (
	"context"
	"time"
)

// RealmInfo describes a realm.
type RealmInfo struct {
	ID      RealmID
	Created time.Time
	Procs   int // that have not ended
}

// Realms is how the provider makes realms. Safe for concurrent use.
type Realms interface {
	// Create makes a realm with the well-known places in its tree. KindExists if there is one.
	Create(ctx context.Context, id RealmID) error
	// Remove kills the realm's procs and removes its names, objects and scratch files.
	Remove(ctx context.Context, id RealmID) error
	List(ctx context.Context) ([]RealmInfo, error)
}
