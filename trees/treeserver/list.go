package treeserver

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// entries gives add the entries after cookie, each with the cookie to go on after it, because a
// client may stop anywhere. It asks the tree for want() entries at a time, until that is 0, add
// wants no more, or the end.
func (f *fid) entries(ctx context.Context, cookie uint64, want func() int, add func(sigma.DirEntry) bool) (next uint64,
	more bool, err error) {
	if !f.open {
		return 0, false, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "the directory is not open")
	}
	one := false // the tree knows only the cookie after all it returns, so it is asked for one entry at a time
	for some := false; ; {
		batch := want()
		if batch == 0 {
			return cookie, true, nil
		}
		if one {
			batch = 1
		}
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpReadDir, Offset: cookie, Count: batch})
		es, after := a.Entries, a.Next
		one = err == nil && len(es) > 0 && es[0].Next == 0
		switch {
		case err != nil && some: // told when the client comes again
			return cookie, true, nil
		case err != nil:
			return 0, false, err
		case one && len(es) > 1 && batch > 1:
			continue
		case len(es) == 0 && after == cookie:
			return cookie, false, nil
		}
		start := cookie
		for i, e := range es {
			if e.Next == 0 && i == len(es)-1 {
				e.Next = after
			} else if e.Next == 0 {
				e.Next = start // more were returned than asked for: going on here repeats some rather than skip any
			}
			if !add(e) {
				return cookie, true, nil
			}
			cookie, some = e.Next, true
		}
		if cookie = after; !a.More {
			return cookie, false, nil
		}
	}
}

// readdir packs entries until the reply is full.
func (s *server) readdir(ctx context.Context, f *fid, m *sigmap.Treaddir) (sigmap.Message, error) {
	room := int(min(m.Count, s.dataMax))
	r, fits := &sigmap.Rreaddir{}, true
	_, _, err := f.entries(ctx, m.Offset,
		func() int { return max(1, (room-len(r.Data))/(2*sigmap.DirEntrySize)) }, // guesses that names have 24 bytes
		func(e sigma.DirEntry) bool {
			r.Data, fits = sigmap.AppendDirEntry(r.Data, room, sigmap.DirEntry{ID: e.ID, Next: e.Next, Name: e.Name})
			return fits
		})
	if err == nil && !fits && len(r.Data) == 0 {
		err = sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "count %d is too small for an entry", m.Count)
	}
	return r, err
}

// list is readdir for our own clients.
func (f *fid) list(ctx context.Context, m *sigmap.Tlist) (r *sigmap.Rlist, err error) {
	if m.Max == 0 {
		return nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "a listing of no entries was asked for")
	}
	r = &sigmap.Rlist{}
	room := sigmap.DataMax
	r.Next, r.More, err = f.entries(ctx, m.Cookie,
		func() int { return min(int(m.Max)-len(r.Entries), max(1, room/(2*sigmap.ListEntrySize))) },
		func(e sigma.DirEntry) bool {
			size := sigmap.ListEntrySize + len(e.Name)
			if size > room || len(r.Entries) == int(m.Max) {
				return false
			}
			room -= size
			r.Entries = append(r.Entries, e)
			return true
		})
	return r, err
}
