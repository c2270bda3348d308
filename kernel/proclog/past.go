package proclog

import (
	"os"
	"slices"

	"sigmaos.dev/wire/sigmap"
)

// Code is what another process needs of two logs that have ended, to show them on: what is in
// memory, and that there are files. Decoding fills two empty logs.
func (m *Merged) Code(c *sigmap.Coder) {
	for _, l := range m.logs {
		l.code(c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.turns)
	c.Count(&n, 17)
	if c.Decoding() {
		m.turns, m.size, m.over = make([]turn, n), 0, true
		m.logs[0].budget.memory.Add(turnBytes * int64(n))
	}
	for i := range m.turns {
		t := &m.turns[i]
		log := uint8(t.log)
		c.U64(&t.at)
		c.U64(&t.from)
		c.U8(&log)
		t.log = int(log & 1)
	}
	c.U64(&m.size)
}

// code is one log's part.
func (l *Log) code(c *sigmap.Coder) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size, dropped, written := l.size, l.dropped, l.written.Load()
	created, memory, modified := l.created, l.memory, l.modified
	stamps, gap := l.stamps, l.gap
	c.U64(&size)
	c.U64(&dropped)
	c.U64(&written)
	c.Bool(&created)
	c.Data(&memory)
	c.Time(&modified)
	codeStamps(c, &stamps)
	c.Duration(&gap)
	if !c.Decoding() {
		return
	}
	l.ended, l.modified, l.stamps, l.gap = true, modified, stamps, gap
	l.written.Store(written)
	if created {
		l.size, l.created = l.found()
	} else {
		l.size, l.memory = uint64(len(memory)), slices.Clone(memory)
		l.budget.memory.Add(int64(len(memory)))
	}
	l.dropped = dropped + size - min(size, l.size)
	l.budget.used.Add(int64(kept(l.size)))
	l.budget.memory.Add(stampBytes * int64(len(stamps)))
}

// found gives how many bytes were written to the log's stream, as its file says. created is false
// if there is no file.
func (l *Log) found() (size uint64, created bool) {
	f, err := os.Open(l.path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, false
	}
	return sizeOf(f, st.Size()), true
}

func codeStamps(c *sigmap.Coder, ss *[]Stamp) {
	sigmap.List(c, ss, 8, func(e *Stamp) {
		c.U64(&e.At)
		c.Time(&e.Time)
	})
}
