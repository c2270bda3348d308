package remote

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/digest"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// file is a handle: of a key, whatever object that has when it is used. What Open and Close set is
// not guarded, since they are called alone.
type file struct {
	sp     *space
	key    string // of a directory it ends with a slash
	closed atomic.Bool

	open  bool
	flags sigma.OpenFlags
	b     *body   // while open for reading an object
	up    *upload // while open for writing one

	// of an object made by Create
	name    string
	unmade  atomic.Bool // it is not published yet
	dirKey  string
	excl    bool
	existed bool // it was there when it was opened for writing, so it is not made again

	list listing
}

var _ interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
	sigma.FilePasser
	sigma.Publisher
	sigma.Caller
	sigma.Conditional
} = (*file)(nil)

// Close implements sigma.File. An object that was not published is discarded.
func (f *file) Close() {
	if f.closed.Swap(true) {
		return
	}
	if f.b != nil {
		f.b.close()
	}
	if f.up != nil {
		f.up.close()
	}
}

// check is what every operation starts with.
func (f *file) check(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return sigma.Wrap(op, "", err)
	}
	if f.closed.Load() {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is closed")
	}
	return f.sp.alive(op)
}

// checkMade is check for operations that need a published file.
func (f *file) checkMade(ctx context.Context, op string) error {
	err := f.check(ctx, op)
	if err == nil && f.unmade.Load() {
		err = sigma.Errorf(op, sigma.KindNotFound, "the object is not published yet")
	}
	return err
}

func (f *file) isDir() bool { return f.key == f.sp.prefix || strings.HasSuffix(f.key, "/") }

// checkDir is checkMade for operations in a directory.
func (f *file) checkDir(ctx context.Context, op string) error {
	err := f.checkMade(ctx, op)
	if err == nil && !f.isDir() {
		err = sigma.PathError(op, sigma.KindNotDir, f.sp.pathOf(f.key))
	}
	if err == nil {
		err = f.sp.missed(ctx, op, f.key)
	}
	return err
}

func (a attr) fileID(key string) sigma.FileID {
	return sigma.FileID{Kind: a.kind, Path: hashOf(key), Version: a.version}
}

// walk returns the key at names, and the ids on the way. With an error that ended it at a name it
// tells the ids up to there; an error that is the store's has no ids.
func (sp *space) walk(ctx context.Context, op, key string, names []string) (string, []sigma.FileID, error) {
	ids := make([]sigma.FileID, 0, len(names))
	for _, name := range names {
		var a attr
		err := sp.missed(ctx, op, key)
		if err == nil && key != sp.prefix && !strings.HasSuffix(key, "/") {
			err = sigma.PathError(op, sigma.KindNotDir, sp.pathOf(key))
		}
		if err == nil {
			key, a, err = sp.look(ctx, key, name)
		}
		switch kind := sigma.KindOf(err); {
		case err == nil:
		case kind == sigma.KindNotFound || kind == sigma.KindNotDir:
			return "", ids, err
		default:
			return "", nil, err
		}
		ids = append(ids, a.fileID(key))
	}
	return key, ids, nil
}

// Walk implements sigma.File.
func (f *file) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	const op = "remote.Walk"
	if err := sigma.CheckNames(op, names); err != nil {
		return nil, nil, err
	}
	if err := f.checkMade(ctx, op); err != nil {
		return nil, nil, err
	}
	key, ids, err := f.sp.walk(ctx, op, f.key, names)
	if err != nil {
		if len(ids) > 0 {
			err = nil
		}
		return nil, ids, sigma.Wrap(op, "", err)
	}
	return &file{sp: f.sp, key: key}, ids, nil
}

// Stat implements sigma.File. What is open tells what it has open.
func (f *file) Stat(ctx context.Context) (sigma.Stat, error) {
	const op = "remote.Stat"
	if err := f.check(ctx, op); err != nil {
		return sigma.Stat{}, err
	}
	st := sigma.Stat{Perm: 0o600, Name: f.sp.nameOf(f.key)}
	var a attr
	switch {
	case f.b != nil:
		a = f.b.a
	case f.up != nil:
		f.up.mu.Lock()
		a = f.up.a
		a.size = f.up.size
		f.up.mu.Unlock()
		if got, err := f.sp.ask(ctx, f.key); err == nil && !got.absent {
			a.version, a.modified = got.a.version, got.a.modified
		}
	default:
		got, err := f.sp.ask(ctx, f.key)
		if err == nil && got.absent {
			err = sigma.PathError(op, sigma.KindNotFound, f.sp.pathOf(f.key))
		}
		if err != nil {
			return sigma.Stat{}, sigma.Wrap(op, "", err)
		}
		a = got.a
	}
	st.ID, st.Size, st.Modified = a.fileID(f.key), a.size, a.modified
	if st.ID.Kind == sigma.KindDir {
		st.Perm, st.Size, st.Modified = 0o700, 0, time.Unix(0, int64(st.ID.Version))
	}
	return st, nil
}

// SetStat implements sigma.File. Only the size of what is being written can change.
func (f *file) SetStat(ctx context.Context, c sigma.StatChange) error {
	const op = "remote.SetStat"
	if err := f.check(ctx, op); err != nil {
		return err
	}
	switch {
	case c.Perm != nil || c.Modified != nil:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported,
			Msg: "permissions and times of objects cannot be set", Hint: "keep them in an object beside it"}
	case c.Size == nil:
		return nil
	case f.up == nil:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "a published object cannot be changed",
			Hint: "write it as a whole (truncate)"}
	}
	return f.up.resize(*c.Size)
}

// Open implements sigma.File.
func (f *file) Open(ctx context.Context, flags sigma.OpenFlags) error {
	const op = "remote.Open"
	if err := f.checkMade(ctx, op); err != nil {
		return err
	}
	if f.open {
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is open already")
	}
	var err error
	switch {
	case f.isDir() && flags.Writes():
		err = sigma.PathError(op, sigma.KindIsDir, f.sp.pathOf(f.key))
	case f.isDir():
		_, err = f.sp.have(ctx, op, f.key, sigma.KindDir)
	case !flags.Writes():
		f.b, err = f.sp.openBody(ctx, op, f.key)
	case flags&sigma.OpenTruncate == 0:
		return &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object cannot be changed in place",
			Hint: "write it as a whole (truncate)"}
	default:
		if _, err = f.sp.have(ctx, op, f.key, sigma.KindFile); err == nil {
			f.up, err = f.sp.newUpload()
		}
		if err == nil {
			f.up.key, f.existed = f.key, true
		}
	}
	if err != nil {
		return sigma.Wrap(op, "", err)
	}
	f.open, f.flags = true, flags
	return nil
}

// wantBytes checks that the handle is open for reading or writing bytes.
func (f *file) wantBytes(ctx context.Context, op string, write bool) error {
	err := f.check(ctx, op)
	switch {
	case err != nil:
		return err
	case f.isDir():
		return sigma.PathError(op, sigma.KindIsDir, f.sp.pathOf(f.key))
	case f.b == nil && f.up == nil:
		return sigma.Errorf(op, sigma.KindInvalid, "the handle is not open")
	case write && f.up == nil:
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for reading only")
	case !write && f.flags&(sigma.OpenWrite|sigma.OpenReadWrite) == sigma.OpenWrite:
		return sigma.Errorf(op, sigma.KindPermission, "the handle is open for writing only")
	}
	return nil
}

// ReadAt implements sigma.File.
func (f *file) ReadAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "remote.ReadAt"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return 0, err
	}
	if f.up != nil {
		return f.up.readAt(p, offset)
	}
	n, err := f.b.readAt(ctx, p, offset)
	return n, sigma.Wrap(op, "", err)
}

// WriteAt implements sigma.File.
func (f *file) WriteAt(ctx context.Context, p []byte, offset uint64) (int, error) {
	const op = "remote.WriteAt"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, err
	}
	if f.flags&sigma.OpenAppend != 0 {
		f.up.mu.Lock()
		offset = f.up.size
		f.up.mu.Unlock()
	}
	n, err := f.up.writeAt(ctx, p, offset)
	return n, sigma.Wrap(op, f.name, err)
}

// ReadAtIf implements sigma.Conditional.
func (f *file) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	const op = "remote.ReadAtIf"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return 0, err
	}
	got, err := f.sp.ask(ctx, f.key)
	if err != nil {
		return 0, sigma.Wrap(op, "", err)
	}
	same := !got.absent && got.a.version == v && f.b != nil && f.b.a.etag == got.a.etag
	if v != 0 && !same {
		return 0, sigma.Errorf(op, sigma.KindVersion, "the object has changed")
	}
	return f.ReadAt(ctx, p, offset)
}

// WriteAtIf implements sigma.Conditional. Objects are replaced as a whole, for which Put has a
// condition.
func (f *file) WriteAtIf(ctx context.Context, _ []byte, _ uint64, _ sigma.Version) (int, sigma.Version, error) {
	const op = "remote.WriteAtIf"
	if err := f.wantBytes(ctx, op, true); err != nil {
		return 0, 0, err
	}
	return 0, 0, &sigma.Error{Op: op, Kind: sigma.KindUnsupported, Msg: "an object is written as a whole",
		Hint: "use Put with IfVersion"}
}

// PassFile implements sigma.FilePasser. A large object that is not in the cache yet is
// KindUnsupported, and must be read through ReadAt.
func (f *file) PassFile(ctx context.Context) (*os.File, error) {
	const op = "remote.PassFile"
	if err := f.wantBytes(ctx, op, false); err != nil {
		return nil, err
	}
	if f.b == nil {
		return nil, sigma.Errorf(op, sigma.KindUnsupported, "the object is not published yet")
	}
	file, err := f.b.pass(ctx)
	return file, sigma.Wrap(op, "", err)
}

// Get implements sigma.Getter.
func (f *file) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	const op = "remote.Get"
	none := sigma.GetResult{}
	if err := sigma.CheckNames(op, names); err != nil {
		return none, nil, err
	}
	if count < 0 {
		return none, nil, sigma.Errorf(op, sigma.KindInvalid, "%d bytes were asked for", count)
	}
	if err := f.checkMade(ctx, op); err != nil {
		return none, nil, err
	}
	key, _, err := f.sp.walk(ctx, op, f.key, names)
	if err != nil {
		return none, nil, sigma.Wrap(op, "", err)
	}
	b, err := f.sp.openBody(ctx, op, key)
	if err != nil {
		return none, nil, sigma.Wrap(op, "", err)
	}
	defer b.close()
	r := sigma.GetResult{ID: b.a.fileID(key), Size: b.a.size}
	r.Data = make([]byte, min(uint64(count), uint64(sigma.GetMax), b.a.size-min(b.a.size, offset)))
	got, err := b.readAt(ctx, r.Data, offset)
	r.Data = r.Data[:got]
	return r, nil, sigma.Wrap(op, "", err)
}

// Call implements sigma.Caller: the hash of a range, as objects of the local store have it.
func (f *file) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File, error) {
	const op = "remote.Call"
	session.CloseFiles(files)
	if method != sigmap.CallHash.Name {
		return nil, nil, sigma.Errorf(op, sigma.KindUnsupported, "the file has no method %.50q", method)
	}
	err := f.checkMade(ctx, op)
	if err != nil {
		return nil, nil, err
	}
	b := f.b
	if b == nil {
		if b, err = f.sp.openBody(ctx, op, f.key); err != nil {
			return nil, nil, sigma.Wrap(op, "", err)
		}
		defer b.close()
	}
	reply, err := digest.Answer(payload, b.a.fileID(f.key), b.a.size, func(p []byte, at uint64) (int, error) {
		return b.readAt(ctx, p, at)
	})
	return reply, nil, sigma.Wrap(op, "", err)
}

// watchEvery is how often a watched object is looked at, for changes behind our back.
const watchEvery = 5 * time.Second

// Watch implements sigma.Watcher. Changes of a directory by others are not noticed.
func (f *file) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	const op = "remote.Watch"
	if err := f.checkMade(ctx, op); err != nil {
		return 0, err
	}
	w, done := f.sp.watch(f.key)
	defer done()
	again := time.NewTicker(watchEvery)
	defer again.Stop()
	for {
		wake := f.sp.woken(w)
		got, err := f.sp.ask(ctx, f.key)
		if dead := f.sp.alive(op); dead != nil {
			return 0, dead
		}
		switch { // a store that is away says nothing about the object
		case err == nil && got.absent:
			return 0, sigma.PathError(op, sigma.KindNotFound, f.sp.pathOf(f.key))
		case err == nil && got.a.version > since:
			return got.a.version, nil
		}
		select {
		case <-wake:
		case <-again.C:
		case <-ctx.Done():
			return 0, sigma.Wrap(op, "", ctx.Err())
		}
	}
}
