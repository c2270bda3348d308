package binfs

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"sigmaos.dev/sigma"
)

// otherMachines are other machines' caches, or what pretends to be.
type otherMachines struct {
	names []sigma.MachineID
	asked atomic.Int32
	part  func(ctx context.Context, m sigma.MachineID, n Name, offset int64, size int) ([]byte, error)
}

func (ms *otherMachines) Candidates(Name) []sigma.MachineID { return ms.names }

func (ms *otherMachines) Part(ctx context.Context, m sigma.MachineID, n Name, offset int64, size int) ([]byte, error) {
	ms.asked.Add(1)
	return ms.part(ctx, m, n, offset, size)
}

// TestPeers: a machine that lacks a program has it from one that has it, and the store gives hashes
// only.
func TestPeers(t *testing.T) {
	s, data := newStore(), large(t, 3<<20, 1)
	s.put("/bin/a", data, false)
	first := newCache(t, Config{Source: s})
	_, release := mustOpen(t, first, s, "/bin/a")
	defer release()
	before := s.fetched
	ms := &otherMachines{names: []sigma.MachineID{"m1"}, part: func(_ context.Context, _ sigma.MachineID, n Name,
		offset int64, size int) ([]byte, error) {
		return first.Part(n, offset, size)
	}}
	second := newCache(t, Config{Source: s, Peers: ms})
	f, release := mustOpen(t, second, s, "/bin/a")
	defer release()
	reads(t, f, data)
	got := second.Stats()
	if s.fetched != before || got.PeerBytes != uint64(len(data)) || got.PeerBytes != got.FetchedBytes ||
		first.Stats().GivenBytes != got.PeerBytes {
		t.Errorf("the store gave %d bytes; %+v", s.fetched-before, got)
	}
	for _, bad := range []struct {
		n            Name
		offset, size int
		kind         sigma.Kind
	}{{Name{"b", "/bin/a", first.program(t, s, "/bin/a").name.ID, int64(len(data))}, 0, 10, sigma.KindNotFound},
		// of another realm
		{Name{"a", "/bin/b", sigma.FileID{}, 100}, 0, 10, sigma.KindNotFound},
		{Name{"a", "/bin/a", first.program(t, s, "/bin/a").name.ID, 100}, 0, 10, sigma.KindNotFound},
		{first.program(t, s, "/bin/a").name, len(data) - 5, 10, sigma.KindInvalid},
		{first.program(t, s, "/bin/a").name, -1, 10, sigma.KindInvalid},
		{first.program(t, s, "/bin/a").name, 0, PartMax + 1, sigma.KindInvalid},
		{first.program(t, s, "/bin/a").name, 0, 0, sigma.KindInvalid},
		{Name{"a", "/bin/a", sigma.FileID{}, -1 << 63}, 1 << 62, PartMax, sigma.KindInvalid}} {
		if _, err := first.Part(bad.n, int64(bad.offset), bad.size); err == nil || sigma.KindOf(err) != bad.kind {
			t.Errorf("part %+v: got %v, want %v", bad, err, bad.kind)
		}
	}
}

// TestBadPeers: a machine that lies, has nothing, sends less or never answers costs a little time;
// what is started is what the store has.
func TestBadPeers(t *testing.T) {
	data := large(t, 3<<20, 2)
	for name, part := range map[string]func(ctx context.Context, m sigma.MachineID, n Name, offset int64,
		size int) ([]byte, error){
		"lies": func(_ context.Context, _ sigma.MachineID, _ Name, _ int64, size int) ([]byte, error) {
			return bytes.Repeat([]byte{7}, size), nil
		},
		"has nothing": func(context.Context, sigma.MachineID, Name, int64, int) ([]byte, error) {
			return nil, sigma.Errorf("test", sigma.KindNotFound, "nothing")
		},
		"sends less": func(_ context.Context, _ sigma.MachineID, _ Name, offset int64, size int) ([]byte, error) {
			return data[offset : int(offset)+size/2], nil
		},
		"sends more": func(_ context.Context, _ sigma.MachineID, _ Name, offset int64, size int) ([]byte, error) {
			return append(bytes.Clone(data[offset:int(offset)+size]), 0), nil
		},
		"never answers": func(ctx context.Context, _ sigma.MachineID, _ Name, _ int64, _ int) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStore()
				s.put("/bin/a", data, false)
				ms := &otherMachines{names: []sigma.MachineID{"m1", "m2", "m3"}, part: part}
				c := newCache(t, Config{Source: s, Peers: ms})
				f, release := mustOpen(t, c, s, "/bin/a")
				defer release()
				reads(t, f, data)
				got := c.Stats()
				if got.PeerChunks != 0 || got.PeerFailed+got.CorruptPeer == 0 {
					t.Errorf("%+v", got)
				}
				if n, most := int(ms.asked.Load()),
					2*aheadMax*(chunkSize/PartMax+1); n > most { // those that were under way at once, of two machines
					t.Errorf("asked %d times, want %d at most", n, most)
				}
			})
		})
	}
}
