package store

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"slices"

	"github.com/tidwall/btree"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// A snapshot is a sequence of frames, each with its length before it. The first frame has the clock
// and how many shards there are. Then each shard has a frame, frames with its items up to an empty
// one, and one with its sessions. The changes that are kept for watches are not part of it: who
// watches a replica that was restored reads the keys again.

// frameMax bounds a frame: a page, or one item of the largest value.
const frameMax = 4 << 20

// picture is a shard at one moment.
type picture struct {
	shard
	items    *btree.Map[string, item]
	sessions []Session
}

// Snapshot gives a function that writes the state as it is now.
func (s *Store) Snapshot() (write func(io.Writer) error, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clock, found := s.clock, s.found
	var all []picture
	for _, id := range slices.Sorted(maps.Keys(s.shards)) {
		h := s.shards[id]
		all = append(all, picture{shard{id: h.id, state: h.state, move: h.move, pages: h.pages, rev: h.rev},
			h.keys.Copy(), h.sessions.all()})
	}
	return func(w io.Writer) error {
		out := frames{w: bufio.NewWriter(w)}
		n := uint32(len(all))
		out.write(func(c *sigmap.Coder) { codeHead(c, &clock, &found, &n) })
		for i := range all {
			out.shard(&all[i])
		}
		if out.err == nil {
			out.err = out.w.Flush()
		}
		return out.err
	}, nil
}

func codeHead(c *sigmap.Coder, clock *uint64, found *bool, n *uint32) {
	c.U64(clock)
	c.Bool(found)
	c.U32(n)
}

func (h *shard) codeHead(c *sigmap.Coder) {
	c.U16(&h.id)
	c.U8((*uint8)(&h.state))
	c.U64(&h.move.Epoch)
	c.U64(&h.move.Attempt)
	c.U32(&h.move.Other)
	c.U64(&h.pages)
	c.U64(&h.rev)
	if h.id >= ShardsMax || h.state >= stateEnd {
		c.Fail("this is no shard")
	}
}

// frames writes frames until one fails.
type frames struct {
	w   *bufio.Writer
	buf []byte
	err error
}

func (f *frames) write(code func(*sigmap.Coder)) {
	c := sigmap.NewEncoder(f.buf[:0])
	code(c)
	f.buf = c.Bytes()
	if f.err == nil {
		f.err = c.Finish()
	}
	if f.err == nil {
		_, f.err = f.w.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(f.buf))))
	}
	if f.err == nil {
		_, f.err = f.w.Write(f.buf)
	}
}

func (f *frames) shard(p *picture) {
	f.write(p.codeHead)
	var page []Item
	size := 0
	flush := func() {
		f.write(func(c *sigmap.Coder) { codeItems(c, &page) })
		page, size = page[:0], 0
	}
	p.items.Scan(func(key string, i item) bool {
		page = append(page, Item{key, i.value, i.version, i.expires})
		if size += len(key) + len(i.value); size > PageMax || len(page) == BatchMax {
			flush()
		}
		return f.err == nil
	})
	if len(page) > 0 {
		flush()
	}
	flush()
	f.write(func(c *sigmap.Coder) { sigmap.List(c, &p.sessions, 25, func(s *Session) { s.code(c) }) })
}

func codeItems(c *sigmap.Coder, all *[]Item) {
	sigmap.List(c, all, itemLeast, func(i *Item) { i.code(c) })
}

// Restore takes the place of all state by a snapshot. KindInvalid: it is none; the state is as
// before then.
func (s *Store) Restore(r io.Reader) error {
	in := source{r: bufio.NewReader(r)}
	now := New()
	var n uint32
	in.read(func(c *sigmap.Coder) { codeHead(c, &now.clock, &now.found, &n) })
	for ; n > 0 && in.err == nil; n-- {
		if h := in.shard(); in.err == nil {
			now.shards[h.id] = h
		}
	}
	if _, err := in.r.ReadByte(); err != io.EOF && in.err == nil {
		in.err = errSnapshot
	}
	if in.err != nil {
		return in.err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, old := range s.shards {
		old.wakeAll()
		if h := now.shards[id]; h != nil {
			h.waiters = old.waiters
		}
	}
	s.shards, s.clock, s.found = now.shards, now.clock, now.found
	return nil
}

var errSnapshot = &sigma.Error{Op: "store.Restore", Kind: sigma.KindInvalid, Msg: "this is no snapshot of a group",
	Hint: "take another one"}

// source reads frames until one fails.
type source struct {
	r   *bufio.Reader
	buf []byte
	err error
}

func (f *source) read(code func(*sigmap.Coder)) {
	var length [4]byte
	if f.err == nil {
		_, f.err = io.ReadFull(f.r, length[:])
	}
	n := binary.LittleEndian.Uint32(length[:])
	if f.err == nil && n > frameMax {
		f.err = errSnapshot
	}
	if f.err != nil {
		return
	}
	if f.buf, f.err = readAll(f.r, f.buf[:0], int(n)); f.err == nil {
		c := sigmap.NewDecoder(f.buf)
		code(c)
		f.err = c.Finish()
	}
}

// readAll reads n bytes, for which it makes room as they come.
func readAll(r io.Reader, b []byte, n int) ([]byte, error) {
	for len(b) < n {
		part := min(n-len(b), 64<<10)
		b = slices.Grow(b, part)[:len(b)+part]
		if _, err := io.ReadFull(r, b[len(b)-part:]); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (f *source) shard() *shard {
	h := newShard(0, Serving)
	f.read(h.codeHead)
	for more := true; more && f.err == nil; {
		var page []Item
		f.read(func(c *sigmap.Coder) { codeItems(c, &page) })
		for _, i := range page {
			h.set(i.Key, item{i.Value, i.Version, i.Expires})
		}
		more = len(page) > 0
	}
	var all []Session
	f.read(func(c *sigmap.Coder) { sigmap.List(c, &all, 25, func(s *Session) { s.code(c) }) })
	for _, one := range all {
		h.sessions.put(one)
	}
	return h
}
