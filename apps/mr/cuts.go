package mr

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// The sample by which an ordered job is divided among its reducers: what Map emits for pieces all
// over the input. With 4 MiB of it, parts differ by some percent.
const (
	samplePieces = 64
	sampleBytes  = 64 << 10 // of one piece
)

// sample gives pieces of a listing at even distances.
func (l *listing) sample() (pieces []split) {
	at, next := int64(0), int64(0)
	for _, f := range l.files {
		for next < at+f.size {
			from := next - at
			to := min(from+sampleBytes, f.size)
			pieces = append(pieces, split{f.path, f.size, from, to})
			next = max(next+l.bytes/samplePieces, at+to)
		}
		at += f.size
	}
	return pieces
}

// writeCuts chooses the first key of each part but the first.
func (c *coordinator) writeCuts(ctx context.Context, found *listing) error {
	type weighed struct {
		key   []byte
		count uint64
	}
	var keys []weighed
	total := uint64(0)
	collect := func(t *table) error {
		for e := range t.all() {
			keys = append(keys, weighed{bytes.Clone(e.key), e.count})
			total += e.count
		}
		t.reset()
		return nil
	}
	sampler := &attempt{Names: c.names, Mapper: *c.mapper}
	out := newEmitter(int(MemoryCoordinator/tableShare), collect)
	if err := sampler.mapSplits(ctx, found.sample(), out, &counters{}); err != nil {
		return err
	}
	collect(out.table)
	slices.SortFunc(keys, func(a, b weighed) int { return bytes.Compare(a.key, b.key) })
	var cuts []byte
	n, before := 1, uint64(0)
	for _, k := range keys {
		if n < c.plan.reduces && before >= total*uint64(n)/uint64(c.plan.reduces) {
			cuts = append(strconv.AppendQuote(cuts, string(k.key)), '\n')
			n++
		}
		before += k.count
	}
	_, err := c.names.Put(ctx, c.dir.file("cuts"), cuts, sigma.PutOptions{})
	return err
}

func readCuts(ctx context.Context, names sigma.Namespace, dir jobDir) ([][]byte, error) {
	data, _, err := names.Get(ctx, dir.file("cuts"))
	cuts := [][]byte{}
	for line := range strings.Lines(string(data)) {
		key, bad := strconv.Unquote(strings.TrimSuffix(line, "\n"))
		if bad != nil {
			return nil, sigma.Errorf("mr.readCuts", sigma.KindInvalid, "no key: %.80q", line)
		}
		cuts = append(cuts, []byte(key))
	}
	return cuts, err
}
