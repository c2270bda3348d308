package diskfs

import (
	"context"
	"slices"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// ReadDir implements sigma.File. The cookie is a position in the sorted list of names that is taken
// at cookie 0 and kept until the handle is closed. File systems differ in what their own cookies
// promise while entries are replaced; a list of our own promises that each name is told once.
func (f *file) ReadDir(ctx context.Context, cookie uint64, limit int) ([]sigma.DirEntry, uint64, bool, error) {
	const op = "diskfs.ReadDir"
	n, err := f.checkNode(ctx, op)
	sp := f.sp
	switch {
	case err != nil:
		return nil, 0, false, err
	case n.fd < 0:
		return nil, 0, false, sigma.Errorf(op, sigma.KindNotDir, "not a directory")
	case !f.open:
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
	case limit <= 0:
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "a listing of %d entries was asked for", limit)
	}
	sp.names.RLock()
	defer sp.names.RUnlock()
	if cookie == 0 {
		if err := f.takeList(op, n); err != nil {
			return nil, 0, false, wrap(op, "", err)
		}
	}
	sp.mu.Lock()
	list := f.list
	sp.mu.Unlock()
	var entries []sigma.DirEntry
	total := uint64(len(list))
	for ; cookie < total && len(entries) < limit; cookie++ {
		in, err := look(n.fd, list[cookie])
		if err == unix.ENOENT {
			continue // removed since, or none of ours
		} else if err != nil {
			return nil, 0, false, wrap(op, list[cookie], err)
		}
		id := sigma.FileID{Kind: in.kind, Path: in.id, Version: in.version}
		sp.mu.Lock()
		if known := sp.known(in); known != nil {
			id = known.fileIDLocked()
		}
		sp.mu.Unlock()
		entries = append(entries, sigma.DirEntry{Name: list[cookie], ID: id, Size: in.size, Next: cookie + 1})
	}
	return entries, cookie, cookie < total, nil
}

// takeList reads all names of the directory, within what the realm may have under way.
func (f *file) takeList(op string, n *node) error {
	sp := f.sp
	sp.mu.Lock()
	sp.listing -= f.listSize
	f.list, f.listSize = nil, 0
	sp.mu.Unlock()
	names, size, err := readNames(n.fd, int(ListingMax))
	if err != nil {
		return err
	}
	slices.Sort(names)
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if sp.listing+size > int(ListingMax) {
		return sigma.Errorf(op, sigma.KindBusy, "the realm has too many listings under way")
	}
	sp.listing += size
	f.list, f.listSize = names, size
	return nil
}
