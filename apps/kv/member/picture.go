package member

import (
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"sigmaos.dev/apps/kv/calls"
	"sigmaos.dev/apps/kv/store"
)

// Bounds of pictures. One costs memory for what is written while it is kept.
const (
	picturesMax   = 4
	pictureUnused = 10 * time.Second // after which it is given up
)

// pictures are the shards that somebody saves.
type pictures struct {
	mu  sync.Mutex
	all map[uint64]*picture // mu; by a random number
}

type picture struct {
	*store.Picture
	used time.Time
}

// page answers calls.Saved. Trimmed: the picture is no more.
func (p *pictures) page(s *store.Store, a calls.ExportArg) store.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(p.all, func(_ uint64, x *picture) bool { return now.Sub(x.used) > pictureUnused })
	x, number := p.all[a.Version], a.Version
	if number == 0 && len(p.all) < picturesMax {
		y, code := s.Picture(a.Shard)
		if code != store.Done {
			return store.Result{Code: code}
		}
		if p.all == nil {
			p.all = map[uint64]*picture{}
		}
		x, number = &picture{Picture: y}, rand.Uint64()|1
		p.all[number] = x
	}
	if x == nil {
		return store.Result{Code: store.Trimmed}
	}
	x.used = now
	items := x.Page(a.After)
	if len(items) == 0 {
		delete(p.all, number)
	}
	return store.Result{Code: store.Done, Version: number, Value: store.EncodeItems(items)}
}
