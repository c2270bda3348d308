package remote

import (
	"context"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
)

// A listing is read from the store page by page, and a cookie is the number of an entry. What is
// kept is the page that was read last, and of each page before where it began; so a list of a
// million keys needs a thousand short strings, and any cookie is good.

// pagesMax bounds a listing, at a hundred million keys.
const pagesMax = 100_000

// listing is where a handle's ReadDir is.
type listing struct {
	mu      sync.Mutex // one ReadDir at a time
	starts  []start    // of the pages that were read, and of the next
	at      int        // the page that entries are of
	entries []sigma.DirEntry
}

// start is how a page is asked for.
type start struct {
	cookie uint64   // of its first entry
	token  string   // the store's; "" = by the key
	after  string   // the last key before it
	above  []string // names of objects that a directory of the same name could still follow
}

// ReadDir implements sigma.File.
func (f *file) ReadDir(ctx context.Context, cookie uint64, limit int) ([]sigma.DirEntry, uint64, bool, error) {
	const op = "remote.ReadDir"
	err := f.checkDir(ctx, op)
	key := f.key
	switch {
	case err != nil:
		return nil, 0, false, err
	case !f.open:
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
	case limit <= 0:
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "a listing of %d entries was asked for", limit)
	}
	l := &f.list
	l.mu.Lock()
	defer l.mu.Unlock()
	if cookie == 0 {
		l.starts, l.entries, l.at = []start{{}}, nil, -1
	}
	if len(l.starts) == 0 {
		return nil, 0, false, sigma.Errorf(op, sigma.KindInvalid, "a listing begins at 0")
	}
	for {
		if l.at >= 0 {
			first := l.starts[l.at].cookie
			last := first + uint64(len(l.entries))
			if cookie >= first && cookie < last {
				part := l.entries[cookie-first : min(last, cookie+uint64(limit))-first]
				next := cookie + uint64(len(part))
				return append([]sigma.DirEntry(nil), part...), next, next < last || l.at+1 < len(l.starts), nil
			}
			if cookie >= last && l.at+1 == len(l.starts) {
				return nil, cookie, false, nil
			}
		}
		if err := f.sp.readPage(ctx, key, l, l.pageOf(cookie)); err != nil {
			return nil, 0, false, sigma.Wrap(op, f.sp.pathOf(key), err)
		}
	}
}

// pageOf is the page that has the entry of a cookie, or the last whose beginning is known.
func (l *listing) pageOf(cookie uint64) int {
	i := len(l.starts) - 1
	for i > 0 && l.starts[i].cookie > cookie {
		i--
	}
	if i == l.at && i+1 < len(l.starts) { // it has become shorter since it was read first
		i++
	}
	return i
}

// readPage reads one page, and notes where the next begins.
func (sp *space) readPage(ctx context.Context, dirKey string, l *listing, i int) error {
	s := l.starts[i]
	p, err := sp.c.list(ctx, sp.pathOf(dirKey), dirKey, "/", s.after, s.token, listPage)
	if err != nil {
		return err
	}
	above := append([]string(nil), s.above...)
	l.entries, l.at = nil, i
	cookie, last := s.cookie, s.after
	for _, o := range p.objects {
		if o.Key <= last { // again, as a directory in which the last key was
			continue
		}
		last = o.Key
		part, isDir := strings.CutSuffix(strings.TrimPrefix(o.Key, dirKey), "/")
		for len(above) > 0 && !strings.HasPrefix(part, above[len(above)-1]) {
			above = above[:len(above)-1]
		}
		name, ok := decodeName(part)
		hidden := isDir && len(above) > 0 && above[len(above)-1] == part
		if !ok || hidden || dirKey == sp.prefix && (!isDir || sp.admit(dirKey, name, sigma.KindDir) != nil) {
			continue
		}
		if !isDir {
			above = append(above, part)
		}
		a := attr{}
		if isDir {
			a = sp.dirAttr(o.Key)
		} else {
			a = attrOf(o.Key, o)
		}
		if f, _, _ := sp.recall(o.Key); !f.absent && f.key != "" && (isDir || f.a.etag == a.etag) {
			a = f.a
		}
		cookie++
		l.entries = append(l.entries, sigma.DirEntry{Name: name, ID: a.fileID(o.Key), Size: a.size, Next: cookie})
	}
	l.starts = l.starts[:i+1]
	if p.more {
		if len(l.starts) == pagesMax {
			return sigma.Errorf("remote.ReadDir", sigma.KindTooBig, "the directory has more entries than can be listed")
		}
		l.starts = append(l.starts, start{cookie: cookie, token: p.token, after: last, above: above})
	}
	return nil
}
