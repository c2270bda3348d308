package diskspace

import (
	"strings"
	"testing"

	"sigmaos.dev/sigma"
)

// How much is kept of small and big disks, and what is refused when.
func TestReserve(t *testing.T) {
	const mib, gib = sigma.MiB, sigma.GiB
	for _, c := range []struct {
		total, free sigma.Bytes
		reserve     sigma.Bytes
		low, full   bool
	}{
		{1000 * gib, 900 * gib, 128 * mib, false, false},
		{1000 * gib, 128 * mib, 128 * mib, false, false},
		{1000 * gib, 128*mib - 1, 128 * mib, true, false},
		{1 * gib, 16 * mib, 128 * mib, true, false},
		{1 * gib, 16*mib - 1, 128 * mib, true, true},
		{200 * mib, 25 * mib, 25 * mib, false, false},
		{200 * mib, 24 * mib, 25 * mib, true, false},
		{200 * mib, 0, 25 * mib, true, true},
		{0, 0, 0, false, false}, // not known
	} {
		s := sigma.Space{Total: c.total, Free: c.free}
		if Reserve(s) != c.reserve || Low(s) != c.low || Full(s) != c.full {
			t.Errorf("%v free of %v: reserve %v, low %v, full %v; want %+v", c.free, c.total, Reserve(s), Low(s),
				Full(s), c)
		}
	}
}

// The error has the kind, and its hint says whose disk it is.
func TestError(t *testing.T) {
	s, err := Of(t.TempDir())
	if err != nil || s.Total == 0 {
		t.Fatalf("the disk of a directory: %+v, %v", s, err)
	}
	if e := Error("op", "m7", s); e.Kind != sigma.KindNoSpace ||
		!strings.Contains(e.Hint, "machine m7's data directory") {
		t.Errorf("%v; %s", e, e.Hint)
	}
	if _, err := Of("/nowhere/at/all"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// What tenants may take ends before the reserve, and a share leaves a part of it to others.
func TestShare(t *testing.T) {
	const mib, gib = sigma.MiB, sigma.GiB
	for _, c := range []struct{ space, held, left, share sigma.Bytes }{
		{1000 * gib, 0, 1000*gib - 256*mib, 0},
		{257 * mib, 0, mib, 0},
		{256 * mib, 0, 0, 0},
	} {
		if left := Left(sigma.Space{Total: 1000 * gib, Free: c.space}); left != c.left {
			t.Errorf("of %v free are left %v, want %v", c.space, left, c.left)
		}
	}
	if left := Left(sigma.Space{Total: 1000 * gib, Free: 900 * gib, Files: 1600, Room: 99}); left != 0 {
		t.Errorf("with few inodes are left %v", left)
	}
	if left := Left(sigma.Space{}); left < 1000*gib {
		t.Errorf("of a disk whose size is not known are left %v", left)
	}
	left := 100 * gib // realms fill the disk one after the other
	for i, want := range []sigma.Bytes{80 * gib, 16 * gib, 16 * gib / 5} {
		got := Share(0, left)
		if got != want || Share(got, left-got) != got {
			t.Errorf("realm %d may have %v of %v, and then %v; want %v", i, got, left, Share(got, left-got), want)
		}
		left -= got
	}
}
