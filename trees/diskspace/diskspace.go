// Package diskspace says what is kept free on the disk of a data directory, and when that is used
// up.
//
// The names are in a store that cannot go on when the disk takes nothing more. So before it is full
// named takes nothing new: what is left is for what makes room (removals), for leases, and for the
// system's own records and elections.
package diskspace

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// The reserve: an eighth of a small disk, and 128 MiB of any from 1 GiB on: etcd sets 64 MB aside
// each time that its log goes on in another file, and the database grows until old values are
// compacted.
const (
	reserveMost = 128 * sigma.MiB
	reservePart = 8 // of the disk
	fullPart    = 8 // of the reserve
	// Files of tenants leave so many reserves free, and this part of the inodes: they stop growing
	// while the names still have all of theirs.
	leavesReserves = 2
	leavesInodes   = 16
)

// Of tells how big the file system of dir is, and what ordinary users may still write to it. It is
// safe for concurrent use.
func Of(dir string) (sigma.Space, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return sigma.Space{}, sigma.Wrap("diskspace.Of", dir, err)
		}
		block := uint64(st.Frsize)
		return sigma.Space{Total: sigma.Bytes(st.Blocks * block), Free: sigma.Bytes(st.Bavail * block), Files: st.Files,
			Room: st.Ffree}, nil
	}
}

// Reserve is how many bytes of a disk are kept.
func Reserve(s sigma.Space) sigma.Bytes { return min(reserveMost, s.Total/reservePart) }

// Low says that less than the reserve is left: nothing new is taken. A disk whose size is not known
// is not low.
func Low(s sigma.Space) bool { return s.Free < Reserve(s) }

// Full says that the reserve is nearly used up too: a store that is opened now would fail.
func Full(s sigma.Space) bool { return s.Free < Reserve(s)/fullPart }

// Left is how many bytes the files of tenants (scratch files, objects, databases) may still take of
// a disk. So nothing that they keep there takes what the names need. A disk whose size is not known
// has room.
func Left(s sigma.Space) sigma.Bytes {
	kept := leavesReserves * Reserve(s)
	switch {
	case s.Total == 0:
		return math.MaxInt64
	case s.Free <= kept || s.Files > 0 && s.Room < s.Files/leavesInodes:
		return 0
	}
	return s.Free - kept
}

// Share is how many bytes a tenant may have in all who has held bytes on a disk of which left are
// left: four times what it leaves to others. So one tenant has four fifths of the disk at most, and
// with whatever others have there is room for one who has nothing yet.
func Share(held, left sigma.Bytes) sigma.Bytes {
	if left > math.MaxInt64/shareOfLeft {
		return math.MaxInt64
	}
	return held + (shareOfLeft*left-min(held, shareOfLeft*left))/(shareOfLeft+1)
}

// shareOfLeft is how much a tenant may have for each byte that is left: the larger, the more of a
// disk one tenant can use, and the less is left to others.
const shareOfLeft = 4

// Error is what who wants to write is told of a disk of machine m that is low (KindNoSpace). Where
// the data directory is there, sigma doctor tells its operator.
func Error(op string, m sigma.MachineID, s sigma.Space) *sigma.Error {
	return &sigma.Error{Op: op, Kind: sigma.KindNoSpace,
		Msg: fmt.Sprintf("the disk of the names is full: %v are free, and %v are kept for what makes room", s.Free,
			Reserve(s)),
		Hint: fmt.Sprintf(
			"free some of the disk of machine %s's data directory, which sigma doctor shows there; what runs goes on",
			m)}
}
