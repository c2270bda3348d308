package session

import (
	"context"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// piecesMax bounds the messages of one large read or write that are under way at once: about 2 MiB,
// what a link of 10 Gbit/s carries in the 1.5 ms between two halls. The server takes four times as
// many.
const piecesMax = 32

// pieces cuts n bytes into messages of so many and calls do for each, many at a time, in order of
// their beginning. It begins no more once do says stop. got tells how many bytes each piece moved,
// 0 for those that were not begun; err is the error of the first that failed.
func pieces(n, size int, do func(from, to int) (got int, stop bool, err error)) (got []int, errs []error) {
	count := (n + size - 1) / size
	got, errs = make([]int, count), make([]error, count)
	var mu sync.Mutex
	next, over := 0, false
	var workers sync.WaitGroup
	for range min(count, piecesMax) {
		workers.Go(func() {
			for {
				mu.Lock()
				i := next
				if over || i == count {
					mu.Unlock()
					return
				}
				next++
				mu.Unlock()
				n, stop, err := do(i*size, min((i+1)*size, n))
				got[i], errs[i] = n, err
				if stop || err != nil {
					mu.Lock()
					over = true
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	return got, errs
}

// readAt reads as File.ReadAt does. What exceeds a message is asked for in many at once, so that it
// comes as fast as the connection carries it, whatever a round trip takes.
func (r *remote) readAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	if r.id.Kind == sigma.KindPipe {
		return r.readOnce(ctx, p[:min(len(p), sigma.PipeAtomic)], 0)
	}
	done := 0
	if len(p) > sigmap.DataMax &&
		r.id.Kind != sigma.KindDevice { // what a device says may depend on what it said before
		got, errs := pieces(len(p), sigmap.DataMax, func(from, to int) (int, bool, error) {
			n, err := r.readOnce(ctx, p[from:to], offset+uint64(from))
			return n, n < to-from, err
		})
		for i, n := range got {
			done += n
			if errs[i] != nil {
				return done, errs[i]
			}
			if n < min(sigmap.DataMax, len(p)-i*sigmap.DataMax) { // most likely the end, which the rest finds out
				break
			}
		}
	}
	for done < len(p) {
		n, err := r.readOnce(ctx, p[done:min(len(p), done+sigmap.DataMax)], offset+uint64(done))
		done += n
		if err != nil || n == 0 {
			return done, err
		}
	}
	return done, nil
}

// readOnce makes one round trip.
func (r *remote) readOnce(ctx context.Context, p []byte, offset uint64) (int, error) {
	m, err := r.readInto(ctx, p, offset)
	if err != nil {
		return 0, err
	}
	if len(m.Data) > len(p) {
		return 0, unexpected(m)
	}
	return copy(p, m.Data), nil
}

// writeAt writes as File.WriteAt does. Like readAt it has many messages under way, unless they have
// to come in order because each goes to the end. With an error, bytes behind the ones that are
// counted may have been written too.
func (r *remote) writeAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	size := r.writeMax(ctx)
	switch {
	case len(p) > size && sigma.OnceOf(ctx).Client != 0:
		return 0, sigma.Errorf("session.WriteAt", sigma.KindTooBig,
			"%d bytes do not fit one message, and each needs a number of its own", len(p))
	case len(p) <= size || r.appends.Load() || r.id.Kind == sigma.KindPipe:
		return r.writeInOrder(ctx, p, offset)
	}
	got, errs := pieces(len(p), size, func(from, to int) (int, bool, error) {
		n, err := r.writeInOrder(ctx, p[from:to], offset+uint64(from))
		return n, false, err
	})
	done := 0
	for i, n := range got {
		done += n
		if errs[i] != nil {
			return done, errs[i]
		}
	}
	return done, nil
}

// writeMax is how many bytes go with one message. A pipe's messages are small: those that carry
// much may not have to wait for long (treeserver), and here they wait for a reader.
func (r *remote) writeMax(ctx context.Context) int {
	if r.id.Kind == sigma.KindPipe {
		return sigma.PipeAtomic
	}
	return sigmap.WriteMax(ctx)
}

func (r *remote) writeInOrder(ctx context.Context, p []byte, offset uint64) (int, error) {
	size := r.writeMax(ctx)
	for done := 0; ; {
		piece := p[done:min(len(p), done+size)]
		m, err := ask[*sigmap.Rwrite](ctx, r, &sigmap.Twrite{Fid: r.fid, Offset: offset + uint64(done), Data: piece})
		if err != nil {
			return done, err
		}
		if int(m.Count) > len(piece) || m.Count == 0 && len(piece) > 0 {
			return done, sigma.Errorf("session.WriteAt", sigma.KindInvalid, "the server says it wrote %d of %d bytes",
				m.Count, len(piece))
		}
		if done += int(m.Count); done >= len(p) {
			return done, nil
		}
	}
}
