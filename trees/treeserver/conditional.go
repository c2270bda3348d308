package treeserver

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// readIf answers a read of a version (sigma.Conditional).
func (s *server) readIf(ctx context.Context, f *fid, m *sigmap.Treadif) (sigmap.Message, error) {
	if err := f.check(false); err != nil {
		return nil, err
	}
	c, ok := f.file.(sigma.Conditional)
	if !ok || f.text != nil {
		return nil, Unsupported("reading a version")
	}
	buf := make([]byte, min(m.Count, s.dataMax, sigmap.DataMax))
	n, err := c.ReadAtIf(ctx, buf, m.Offset, m.Version)
	return &sigmap.Rreadif{Data: buf[:n]}, err
}

// writeIf answers a write on a condition.
func writeIf(ctx context.Context, f *fid, m *sigmap.Twriteif) (sigmap.Message, error) {
	if err := f.check(true); err != nil {
		return nil, err
	}
	c, ok := f.file.(sigma.Conditional)
	if !ok {
		return nil, Unsupported("writing on a condition")
	}
	if err := checkOffset(m.Offset, m.Data); err != nil {
		return nil, err
	}
	n, now, err := c.WriteAtIf(ctx, m.Data, m.Offset, m.Version)
	return &sigmap.Rwriteif{Count: uint32(n), Version: now}, err
}

func checkOffset(offset uint64, data []byte) error {
	if offset > 1<<62 || offset+uint64(len(data)) > 1<<62 {
		return sigma.Errorf("treeserver.Serve", sigma.KindTooBig, "write at offset %d", offset)
	}
	return nil
}
