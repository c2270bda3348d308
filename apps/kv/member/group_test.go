package member

import (
	"maps"
	"testing"
	"time"

	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sigma"
)

// Goal: a member is taken out of a group only after its name was missing for goneAfter; one that
// joined meanwhile stays.
func TestRemaining(t *testing.T) {
	live, missing := map[string]bool{"a": true, "b": true, "d": true}, map[uint64]time.Time{}
	now := time.Now()
	for _, c := range []struct {
		after time.Duration
		is    map[uint64]string
		want  map[uint64]string
	}{
		{0, map[uint64]string{1: "a", 2: "b", 3: "c"}, map[uint64]string{1: "a", 2: "b", 3: "c"}},
		{goneAfter, map[uint64]string{1: "a", 2: "b", 3: "c"}, map[uint64]string{1: "a", 2: "b", 3: "c"}},
		{goneAfter + 1, map[uint64]string{1: "a", 2: "b", 3: "c", 4: "d"}, map[uint64]string{1: "a", 2: "b", 4: "d"}},
		{goneAfter + 2, map[uint64]string{1: "a", 2: "b", 4: "d"}, map[uint64]string{1: "a", 2: "b", 4: "d"}},
	} {
		if got := remaining(c.is, 1, live, missing, now.Add(c.after)); !maps.Equal(got, c.want) {
			t.Errorf("after %v %v are left, want %v", c.after, got, c.want)
		}
	}
	if len(missing) != 0 {
		t.Errorf("a member that has left is remembered: %v", missing)
	}
}

// Goal: while a member joins, the leader does not wait to remove others: keys expire meanwhile.
func TestRemoveDeadDuringJoin(t *testing.T) {
	m := &Member{} // it asks nobody
	m.joined.Lock()
	if err := m.removeDead(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Goal: a member that was removed ends, one that catches up goes on.
func TestExcluded(t *testing.T) {
	is := map[uint64]string{1: "a"}
	for _, st := range []replica.Status{{ID: 1, Members: is}, {ID: 1, Learners: is}} {
		if err := excluded(st); err != nil {
			t.Error(err)
		}
	}
	if err := excluded(replica.Status{ID: 2, Leader: 1, Members: is}); sigma.KindOf(err) != sigma.KindStale {
		t.Error(err)
	}
}

// Goal: no proc passes for a member of another name.
func TestOwns(t *testing.T) {
	m := newAlone(t)
	for p, want := range map[replica.Peer]bool{{ID: 1, Name: "a"}: true, {ID: 1, Name: "b"}: false,
		{ID: 2, Name: "b"}: true} {
		if m.owns(p) != want {
			t.Errorf("%+v: got %v", p, !want)
		}
	}
}
