package sigma

import "cmp"

// realmLimit is one field of RealmLimits, for what is done with all of them alike.
type realmLimit struct {
	what  string // in a sentence about how many
	most  uint64 // that it can be set to
	scale uint64 // how many of the field are one of what
	get   func(*RealmLimits) uint64
	set   func(*RealmLimits, uint64)
	of    limitOf
}

type limitOf int

const (
	ofTree limitOf = iota
	ofComputing
)

// realmLimits is the table of the fields of RealmLimits: each of them is a row.
var realmLimits = [...]realmLimit{
	field("names", LimitNamesMax, ofTree, func(l *RealmLimits) *uint64 { return &l.Names }),
	field("bytes", LimitBytesMax, ofTree, func(l *RealmLimits) *Bytes { return &l.Bytes }),
	field("watches", LimitWatchesMax, ofTree, func(l *RealmLimits) *uint64 { return &l.Watches }),
	field("leases", LimitLeasesMax, ofTree, func(l *RealmLimits) *uint64 { return &l.Leases }),
	field("sessions", LimitSessionsMax, ofTree, func(l *RealmLimits) *uint64 { return &l.Sessions }),
	field("handles", LimitHandlesMax, ofTree, func(l *RealmLimits) *uint64 { return &l.Handles }),
	field("bytes of scratch files", LimitScratchMax, ofTree, func(l *RealmLimits) *Bytes { return &l.Scratch }),
	field("cores", LimitCPUMax, ofComputing, func(l *RealmLimits) *MilliCPU { return &l.MaxCPU }),
	field("bytes of memory", LimitMemoryMax, ofComputing, func(l *RealmLimits) *Bytes { return &l.MaxMemory }),
	field("cores", LimitCPUMax, ofComputing, func(l *RealmLimits) *MilliCPU { return &l.MinCPU }),
	field("bytes of memory", LimitMemoryMax, ofComputing, func(l *RealmLimits) *Bytes { return &l.MinMemory }),
	field("cores", LimitCPUMax, ofComputing, func(l *RealmLimits) *MilliCPU { return &l.ReserveCPU }),
	field("bytes of memory", LimitMemoryMax, ofComputing, func(l *RealmLimits) *Bytes { return &l.ReserveMemory }),
}

// field makes a row. A number that is set is cut to the width of the field, so that LimitDefault is
// LimitCPUDefault where the field is a MilliCPU.
func field[T uint64 | Bytes | MilliCPU](what string, most T, of limitOf, at func(*RealmLimits) *T) realmLimit {
	r := realmLimit{what: what, most: uint64(most), scale: 1, of: of,
		get: func(l *RealmLimits) uint64 { return uint64(*at(l)) },
		set: func(l *RealmLimits, n uint64) { *at(l) = T(n) }}
	if _, ok := any(most).(MilliCPU); ok {
		r.scale = 1000
	}
	return r
}

// isDefault says whether n, of a set, gives the limit back its default.
func (r realmLimit) isDefault(n uint64) bool {
	var l RealmLimits
	r.set(&l, LimitDefault)
	return n == r.get(&l)
}

// Or gives the limits d for those that l leaves open.
func (l RealmLimits) Or(d RealmLimits) RealmLimits {
	for _, r := range realmLimits {
		r.set(&l, cmp.Or(r.get(&l), r.get(&d)))
	}
	return l
}

// With gives what holds once set was set over l, where 0 is a default.
func (l RealmLimits) With(set RealmLimits) RealmLimits {
	for _, r := range realmLimits {
		switch n := r.get(&set); {
		case n == 0:
		case r.isDefault(n):
			r.set(&l, 0)
		default:
			r.set(&l, n)
		}
	}
	return l
}

// Computes says whether there is any limit of processors or memory.
func (l RealmLimits) Computes() bool {
	for _, r := range realmLimits {
		if r.of == ofComputing && r.get(&l) != 0 {
			return true
		}
	}
	return false
}

// Check says which limit cannot be set, or nil.
func (l RealmLimits) Check() error {
	for _, r := range realmLimits {
		if n := r.get(&l); n > r.most && !r.isDefault(n) {
			return Errorf("sigma.RealmLimits", KindInvalid, "a realm may be limited to %d %s at most, not %d",
				r.most/r.scale, r.what, n/r.scale)
		}
	}
	switch {
	case l.MaxCPU > 0 && l.MaxCPU < MaxCPULeast:
		return Errorf("sigma.RealmLimits", KindInvalid, "a realm's maximum is %g cores at least, not %g",
			float64(MaxCPULeast)/1000, float64(l.MaxCPU)/1000)
	case l.MaxMemory > 0 && l.MaxMemory < MaxMemoryLeast:
		return Errorf("sigma.RealmLimits", KindInvalid, "a realm's maximum of memory is %v at least, not %v",
			MaxMemoryLeast, l.MaxMemory)
	}
	return nil
}
