// Package view is the tree of a kv store: a directory for each shard, and in it a file for each
// key. Files can be read, written and removed; what was written replaces the value when the file is
// closed or synced, and the error of that is the writer's. A writer that dies changes nothing.
//
// It promises: a file that is opened has the value that its key had then. It assumes a clerk of the
// store. It costs a request for each file that is opened or looked at, and a listing of the shard,
// without values, for each directory that is opened. Keys of more than 255 bytes as they are
// written in a path are not listed. Users: apps/kv/balancer.
//
// Locks: file.mu alone.
package view

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"sync"

	"sigmaos.dev/apps/kv"
	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/apps/kv/store"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// listMax bounds the keys of one listing.
const listMax = 65536

// nameMax bounds a name of a path.
const nameMax = 255

// Clerk is what the tree needs of a *kv.Clerk.
type Clerk interface {
	Config(ctx context.Context) (*layout.Config, error)
	Get(ctx context.Context, key string) (value []byte, version uint64, err error)
	Put(ctx context.Context, key string, value []byte, o kv.Options) (version uint64, err error)
	PutIf(ctx context.Context, key string, version uint64, value []byte, o kv.Options) (uint64, error)
	Delete(ctx context.Context, key string) error
	Keys(ctx context.Context, shard uint16, first string, limit int) ([]kv.Item, error)
}

// Tree is a store as a tree.
type Tree struct{ Clerk }

var (
	_ sigma.Tree      = Tree{}
	_ sigma.Publisher = (*file)(nil)
)

// Attach implements sigma.Tree.
func (t Tree) Attach(context.Context, sigma.Principal, string) (sigma.File, error) {
	return &dir{clerk: t.Clerk, shard: -1}, nil
}

// Name gives the name of a key's file: bytes that cannot be in a path are written as %XX.
func Name(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		if c < ' ' || c == '/' || c == '%' || c == 0x7f || c >= 0x80 || c == '.' && i == 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// Key gives the key of a file's name. ok is false for a name that Name does not give.
func Key(name string) (key string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		c := name[i]
		if c == '%' {
			if i+2 >= len(name) {
				return "", false
			}
			n, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c = byte(n)
			i += 2
		}
		b.WriteByte(c)
	}
	key = b.String()
	return key, key != "" && len(key) <= store.KeyMax && Name(key) == name
}

// pathOf numbers files: the same key always has the same number.
func pathOf(shard int, key string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s", shard, key)
	return h.Sum64()
}

// dir is the root, whose shard is -1, or a shard.
type dir struct {
	treeserver.Base
	clerk Clerk
	shard int
	list  []sigma.DirEntry // once it is opened
}

// FileID implements sigma.Identified.
func (d *dir) FileID() sigma.FileID {
	return sigma.FileID{Kind: sigma.KindDir, Path: pathOf(d.shard, ""), Version: 1}
}

// Walk implements sigma.File.
func (d *dir) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 0 {
		return &dir{clerk: d.clerk, shard: d.shard}, nil, nil
	}
	if d.shard >= 0 {
		return d.walkKey(ctx, names)
	}
	cfg, err := d.clerk.Config(ctx)
	if err != nil {
		return nil, nil, err
	}
	n, err := strconv.Atoi(names[0])
	if err != nil || n < 0 || n >= len(cfg.Owners) || strconv.Itoa(n) != names[0] {
		return nil, nil, sigma.PathError("view.Walk", sigma.KindNotFound, names[0])
	}
	in := &dir{clerk: d.clerk, shard: n}
	if len(names) == 1 {
		return in, []sigma.FileID{in.FileID()}, nil
	}
	f, ids, _ := in.walkKey(ctx, names[1:])
	return f, append([]sigma.FileID{in.FileID()}, ids...), nil
}

func (d *dir) walkKey(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	f, err := d.file(ctx, names[0])
	if err == nil {
		_, f.version, err = d.clerk.Get(ctx, f.key)
	}
	if err != nil {
		return nil, nil, err
	}
	ids := []sigma.FileID{f.FileID()}
	if len(names) > 1 {
		return nil, ids, nil
	}
	return f, ids, nil
}

// file gives the file of a name, which need not exist.
func (d *dir) file(ctx context.Context, name string) (*file, error) {
	key, ok := Key(name)
	cfg, err := d.clerk.Config(ctx)
	if err != nil {
		return nil, err
	}
	if !ok || int(kv.Shard(key, len(cfg.Owners))) != d.shard {
		return nil, &sigma.Error{Op: "view.Walk", Path: name, Kind: sigma.KindNotFound,
			Msg: "no key of this shard has that name", Hint: "a key is in the directory of its shard only"}
	}
	return &file{clerk: d.clerk, shard: d.shard, key: key}, nil
}

// Stat implements sigma.File.
func (d *dir) Stat(context.Context) (sigma.Stat, error) {
	name := ""
	if d.shard >= 0 {
		name = strconv.Itoa(d.shard)
	}
	return sigma.Stat{ID: d.FileID(), Name: name, Perm: 0o755}, nil
}

// Open implements sigma.File: it reads the listing.
func (d *dir) Open(ctx context.Context, f sigma.OpenFlags) error {
	if f.Writes() {
		return sigma.PathError("view.Open", sigma.KindIsDir, strconv.Itoa(d.shard))
	}
	cfg, err := d.clerk.Config(ctx)
	if err != nil {
		return err
	}
	d.list = []sigma.DirEntry{}
	if d.shard < 0 {
		for s := range cfg.Owners {
			d.list = append(d.list, sigma.DirEntry{Name: strconv.Itoa(s), ID: (&dir{shard: s}).FileID()})
		}
		return nil
	}
	items, err := d.clerk.Keys(ctx, uint16(d.shard), "", listMax)
	for _, i := range items {
		if name := Name(i.Key); len(name) <= nameMax {
			f := file{shard: d.shard, key: i.Key, version: i.Version}
			d.list = append(d.list, sigma.DirEntry{Name: name, ID: f.FileID()})
		}
	}
	return err
}

// ReadDir implements sigma.File.
func (d *dir) ReadDir(_ context.Context, cookie uint64, most int) (entries []sigma.DirEntry, next uint64, more bool,
	err error) {
	if cookie >= uint64(len(d.list)) {
		return nil, cookie, false, nil
	}
	end := min(int(cookie)+max(most, 1), len(d.list))
	entries = append(entries, d.list[cookie:end]...)
	for i := range entries {
		entries[i].Next = cookie + uint64(i) + 1
	}
	return entries, uint64(end), end < len(d.list), nil
}

// Create implements sigma.File.
func (d *dir) Create(ctx context.Context, name string, flags sigma.OpenFlags, _ uint32) (sigma.File, error) {
	if d.shard < 0 {
		return nil, sigma.PathError("view.Create", sigma.KindPermission, name)
	}
	f, err := d.file(ctx, name)
	if err != nil {
		return nil, err
	}
	f.version, err = d.clerk.PutIf(ctx, f.key, 0, nil, kv.Options{})
	if err != nil && (sigma.KindOf(err) != sigma.KindVersion || flags&sigma.OpenExclusive != 0) {
		if sigma.KindOf(err) == sigma.KindVersion {
			err = sigma.PathError("view.Create", sigma.KindExists, name)
		}
		return nil, err
	}
	return f, f.Open(ctx, flags)
}

// Remove implements sigma.File.
func (d *dir) Remove(ctx context.Context, name string) error {
	if d.shard < 0 {
		return sigma.PathError("view.Remove", sigma.KindPermission, name)
	}
	f, err := d.file(ctx, name)
	if err != nil {
		return err
	}
	return d.clerk.Delete(ctx, f.key)
}

// file is a key.
type file struct {
	treeserver.Base
	clerk Clerk
	shard int
	key   string

	mu      sync.Mutex
	version uint64 // mu
	data    []byte // mu; as of Open, and what was written since
	open    bool   // mu
	writes  bool   // mu; it was opened for writing
	changed bool   // mu; data is not in the store yet
}

// FileID implements sigma.Identified.
func (f *file) FileID() sigma.FileID {
	return sigma.FileID{Kind: sigma.KindFile, Path: pathOf(f.shard, f.key), Version: sigma.Version(f.version)}
}

// Walk implements sigma.File.
func (f *file) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("view.Walk", sigma.KindNotDir, Name(f.key))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return &file{clerk: f.clerk, shard: f.shard, key: f.key, version: f.version}, nil, nil
}

// Stat implements sigma.File.
func (f *file) Stat(ctx context.Context) (sigma.Stat, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	size := len(f.data)
	if !f.open {
		value, version, err := f.clerk.Get(ctx, f.key)
		if err != nil {
			return sigma.Stat{}, err
		}
		size, f.version = len(value), version
	}
	return sigma.Stat{ID: f.FileID(), Name: Name(f.key), Perm: 0o644, Size: uint64(size)}, nil
}

// Open implements sigma.File.
func (f *file) Open(ctx context.Context, flags sigma.OpenFlags) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	value, version, err := f.clerk.Get(ctx, f.key)
	if err != nil {
		return err
	}
	f.data, f.version, f.open, f.writes = value, version, true, flags.Writes()
	if flags&sigma.OpenTruncate != 0 && len(value) > 0 {
		f.data, f.changed = nil, true
	}
	return nil
}

// SetStat implements sigma.File: only the size can change.
func (f *file) SetStat(ctx context.Context, c sigma.StatChange) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Size == nil {
		return nil // modes and times are not kept
	}
	if *c.Size > store.ValueMax {
		return store.TooBig(0, int(min(*c.Size, 1<<40)))
	}
	if !f.open {
		value, _, err := f.clerk.Get(ctx, f.key)
		if err != nil {
			return err
		}
		f.data = value
	}
	f.data, f.changed = sized(f.data, int(*c.Size)), true
	return f.storeLocked(ctx)
}

// sized gives data another length.
func sized(data []byte, n int) []byte {
	if n <= len(data) {
		return data[:n]
	}
	return append(data, make([]byte, n-len(data))...)
}

// ReadAt implements sigma.File.
func (f *file) ReadAt(_ context.Context, p []byte, offset uint64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset >= uint64(len(f.data)) {
		return 0, nil
	}
	return copy(p, f.data[offset:]), nil
}

// WriteAt implements sigma.File.
func (f *file) WriteAt(_ context.Context, p []byte, offset uint64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := offset + uint64(len(p))
	switch {
	case !f.writes:
		return 0, sigma.PathError("view.WriteAt", sigma.KindPermission, Name(f.key))
	case end > store.ValueMax || end < offset:
		return 0, store.TooBig(0, int(min(end, 1<<40)))
	}
	if int(end) > len(f.data) {
		f.data = sized(f.data, int(end))
	}
	f.changed = true
	return copy(f.data[offset:], p), nil
}

// Publish implements sigma.Publisher. The handle of who wrote half of something and died is not
// published, and the value stays.
func (f *file) Publish(ctx context.Context) error { return f.Sync(ctx) }

// Sync implements sigma.File: it puts what was written into the store.
func (f *file) Sync(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.storeLocked(ctx)
}

func (f *file) storeLocked(ctx context.Context) error {
	if !f.changed {
		return nil
	}
	version, err := f.clerk.Put(ctx, f.key, f.data, kv.Options{})
	if err == nil {
		f.version, f.changed = version, false
	}
	return err
}
