package treeserver

import (
	"context"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// What is read in large pieces passes through two buffers, which are used again: new memory for
// each message would take longer than reading. Answers that are small get memory of their size, so
// that those which a client does not read hold no more than they are counted for.
var (
	readBuffers = sync.Pool{New: func() any { return new([sigmap.DataMax]byte) }}
	sendBuffers = sync.Pool{New: func() any { return new([sigmap.MessageMax]byte) }}
	// encoded is room for an answer that is copied into the line of those to be sent.
	encoded = sync.Pool{New: func() any { b := make([]byte, 0, 256); return &b }}
)

// largeRead is where that begins.
const largeRead = sigmap.DataMax / 2

// readReply is an Rread whose data lies in one of readBuffers.
type readReply struct {
	*sigmap.Rread
	room *[sigmap.DataMax]byte
}

func (s *server) readAt(ctx context.Context, f *fid, offset uint64, count uint32) (sigmap.Message, error) {
	if count < largeRead {
		buf := make([]byte, count)
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpReadAt, Data: buf, Offset: offset})
		return &sigmap.Rread{Data: buf[:a.N]}, err
	}
	room := readBuffers.Get().(*[sigmap.DataMax]byte)
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpReadAt, Data: room[:count], Offset: offset})
	n := a.N
	if n >= largeRead {
		return &readReply{&sigmap.Rread{Data: room[:n]}, room}, err
	}
	defer readBuffers.Put(room)
	return &sigmap.Rread{Data: append(make([]byte, 0, n), room[:n]...)}, err
}
