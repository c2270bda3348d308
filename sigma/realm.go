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
	// of what best-effort procs are given while realms compete, at least 1; 0 is of a service that
	// knows none
	Shares uint32
	Limits RealmLimits
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
	// SetLimits changes limits of a realm's names. What it holds already stays, also beyond them.
	SetLimits(ctx context.Context, id RealmID, limits RealmLimits) error
}

// RealmLimits bound what one realm's tree of names may hold, so that no tenant can take the name
// service from the others, and what its procs may hold of a machine's sigmad. Read: what is in
// force. Set: 0 leaves a limit as it is, LimitDefault gives it back its default. Each field is a
// row of realmLimits.
type RealmLimits struct {
	Names   uint64 // files, directories and links; each takes about 400 bytes of named
	Bytes   Bytes  // of all files' data, which is in memory too
	Watches uint64 // that wait at one time
	Leases  uint64

	Sessions uint64 // of procs, at each machine
	Handles  uint64 // of files, in all these sessions together, at each machine
	Scratch  Bytes  // of files in ux, at each machine

	// Processors and memory. Without them the realm may use what others leave (Default of all: 0).
	MaxCPU        MilliCPU // of all its procs at each machine, hard
	MaxMemory     Bytes    // of the limits of all its procs that run at a machine
	MinCPU        MilliCPU // that its latency-critical procs can reserve at all machines together, whatever others want
	MinMemory     Bytes
	ReserveCPU    MilliCPU // that they may have reserved, at all machines together
	ReserveMemory Bytes
}

// LimitDefault gives a limit back its default; of one that is of processors LimitCPUDefault does.
const (
	LimitDefault             = 1<<64 - 1
	LimitCPUDefault MilliCPU = 1<<32 - 1
)

// The most that a realm's limits can be set to.
const (
	LimitNamesMax   = 20_000_000
	LimitBytesMax   = 8 * GiB
	LimitWatchesMax = 1_000_000
	LimitLeasesMax  = 1_000_000

	LimitSessionsMax = 1_000_000
	LimitHandlesMax  = 20_000_000
	LimitScratchMax  = 1 << 20 * GiB

	LimitCPUMax    MilliCPU = 1_000_000_000
	LimitMemoryMax          = 1 << 30 * GiB
)

// The least that a realm's maximum can be set to: less would stop its procs for longer than
// anything waits.
const (
	MaxCPULeast    MilliCPU = 50
	MaxMemoryLeast          = 4 * MiB
)

// Defaults of limits of each machine, which sees to them. A session costs some 30 KiB there, a
// handle some 300 bytes; four sessions may be full of handles. The default of scratch files is less
// on a small disk: half of it.
const (
	LimitSessionsDefault = 20_000
	LimitHandlesDefault  = 262_144
	LimitScratchDefault  = 64 * GiB
)

// Work is what a server did for a realm in some time.
type Work struct {
	Realm    RealmID
	Requests uint64
	In, Out  Bytes // of messages that came, and that were sent
	// what the requests cost, as the server estimates it; good for comparing realms, not for adding
	// up
	CPU time.Duration
}
