package binfs

import (
	"context"
	"errors"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/digest"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// Hash is the digest of one chunk.
type Hash = digest.Sum

// Name is one version of one program of a realm: what a fetch is of.
type Name struct {
	Realm sigma.RealmID
	Path  string
	ID    sigma.FileID
	Size  int64
}

// Source is a place where programs can be had: the realm's tree now, machines that have them later.
type Source interface {
	// Object gives access to one version of a program. It does not wait: that the version is gone
	// is told by what is asked of the object.
	Object(n Name) (Object, error)
}

// Object is one version of a program at a source. All is safe for concurrent use and returns soon
// after ctx ends. KindStale means that the version is not to be had any more; kinds that are not
// final (see final) are tried again.
type Object interface {
	// ReadAt fills p.
	ReadAt(ctx context.Context, p []byte, offset int64) error
	// Hash gives the hash of the size bytes at offset, from another place than ReadAt's bytes came
	// from; KindUnsupported if the source knows no hashes.
	Hash(ctx context.Context, offset int64, size int) (Hash, error)
	// Check says whether the version is still what this object reads.
	Check(ctx context.Context) error
	Close()
}

// Tree is what is needed of a realm's tree; *resolve.Tree is one.
type Tree interface {
	Stat(ctx context.Context, path string) (sigma.Stat, error)
	GetAt(ctx context.Context, path string, offset uint64, count int) (sigma.GetResult, error)
	Handle(ctx context.Context, path string) (sigma.File, error)
}

// treeSource has programs from realms' trees.
type treeSource struct {
	tree func(sigma.RealmID) (Tree, error)
}

func (s treeSource) Object(n Name) (Object, error) {
	t, err := s.tree(n.Realm)
	if err != nil {
		return nil, err
	}
	return newTreeObject(t, n), nil
}

// newTreeObject begins to open the file. It may be made before the version and size are known,
// which name has to say before anything is asked.
func newTreeObject(t Tree, n Name) *treeObject {
	o := &treeObject{tree: t, path: n.Path, name: n}
	o.ctx, o.stop = context.WithCancel(context.Background())
	o.pin()
	return o
}

// treeObject reads by the handle that it walked to until it has the file open, which takes two
// round trips more: each answer says of which version it is. From then on a server of objects keeps
// the version for it, whatever happens to the name. Which version that is tells each hash, and
// Check.
type treeObject struct {
	tree Tree
	path string
	name Name
	ctx  context.Context
	stop context.CancelFunc

	mu     sync.Mutex
	pinned *pinned // mu
	closed bool    // mu
}

// pinned is an open file, or the attempt to get one.
type pinned struct {
	walked chan struct{} // closed when found or err is set
	found  sigma.File    // not opened; good for hashes
	ready  chan struct{} // closed when file or err is set
	file   sigma.File
	err    error

	use    sync.RWMutex // read by who uses found or file, so that neither is closed meanwhile
	closed bool         // use
}

// with runs f with a handle of the file, unless there is none, or it was closed.
func (p *pinned) with(file sigma.File, f func(sigma.File) error) error {
	if file == nil {
		return p.err // which was set before walked was closed
	}
	p.use.RLock()
	defer p.use.RUnlock()
	if p.closed {
		return errUnwanted()
	}
	return f(file)
}

func errUnwanted() error {
	return sigma.Errorf("binfs.pin", sigma.KindCanceled, "the program is not wanted any more")
}

// Close implements Object.
func (o *treeObject) Close() {
	o.stop()
	o.mu.Lock()
	p := o.pinned
	o.pinned, o.closed = nil, true
	o.mu.Unlock()
	if p != nil {
		p.close()
	}
}

func (p *pinned) close() {
	<-p.ready
	p.use.Lock()
	defer p.use.Unlock()
	p.closed = true
	for _, f := range []sigma.File{p.found, p.file} {
		if f != nil {
			f.Close()
		}
	}
}

// pin returns the open file, and begins to open it where none is.
func (o *treeObject) pin() *pinned {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pinned == nil {
		p := &pinned{walked: make(chan struct{}), ready: make(chan struct{})}
		if o.closed {
			p.err = errUnwanted()
			close(p.walked)
			close(p.ready)
			return p
		}
		o.pinned = p
		go func() {
			defer close(p.ready)
			ctx, cancel := context.WithTimeout(o.ctx, tryMax)
			defer cancel()
			p.open(ctx, o.tree, o.path)
		}()
	}
	return o.pinned
}

// open walks to the file and opens another handle of it.
func (p *pinned) open(ctx context.Context, t Tree, path string) {
	f, err := t.Handle(ctx, path)
	p.found, p.err = f, err
	close(p.walked)
	if err != nil {
		return
	}
	file, _, err := f.Walk(ctx, nil)
	if err == nil {
		if err = file.Open(ctx, sigma.OpenRead); err != nil {
			file.Close()
		}
	}
	if err != nil {
		p.err = err
		return
	}
	p.file = file
}

func (o *treeObject) replaced() error {
	return &sigma.Error{Op: "binfs.Source", Path: o.name.Path, Realm: o.name.Realm, Kind: sigma.KindStale,
		Msg:  "the program was replaced or removed before all of it was fetched",
		Hint: "start it again: the new version is taken"}
}

// gone turns the errors that mean that the version is not there into KindStale.
func (o *treeObject) gone(err error) error {
	if sigma.KindOf(err) == sigma.KindNotFound {
		return o.replaced()
	}
	return err
}

// unpin makes the next pin open the file again.
func (o *treeObject) unpin(p *pinned) {
	o.mu.Lock()
	mine := o.pinned == p
	if mine {
		o.pinned = nil
	}
	o.mu.Unlock()
	if mine {
		go p.close()
	}
}

// held runs f with the open file, or for hashes with any handle of it, waiting for that.
func (o *treeObject) held(ctx context.Context, hash bool, f func(sigma.File) error) error {
	p := o.pin()
	there := p.ready
	if hash {
		there = p.walked
	}
	select {
	case <-there:
	case <-ctx.Done():
		return sigma.Wrap("binfs.Source", o.name.Path, ctx.Err())
	}
	var err error
	select {
	case <-p.ready:
		if err = p.err; err == nil {
			err = p.with(p.file, f)
		}
	default:
		err = p.with(p.found, f)
	}
	if err != nil && ctx.Err() == nil && sigma.KindOf(err) != sigma.KindUnsupported {
		o.unpin(p) // its server may have been restarted
	}
	return o.gone(err)
}

// ReadAt implements Object: as many messages as it takes, all at once.
func (o *treeObject) ReadAt(ctx context.Context, p []byte, offset int64) error {
	var pieces sync.WaitGroup
	errs := make([]error, (len(p)+sigmap.DataMax-1)/sigmap.DataMax)
	for i := range errs {
		piece := p[i*sigmap.DataMax : min((i+1)*sigmap.DataMax, len(p))]
		at := offset + int64(i*sigmap.DataMax)
		pieces.Go(func() { errs[i] = o.readPiece(ctx, piece, at) })
	}
	pieces.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *treeObject) readPiece(ctx context.Context, p []byte, offset int64) error {
	pin := o.pin()
	select {
	case <-pin.walked:
	case <-ctx.Done():
		return sigma.Wrap("binfs.Source", o.name.Path, ctx.Err())
	}
	select {
	case <-pin.ready:
	default: // not yet open, which takes two round trips more
		var r sigma.GetResult
		err := pin.with(pin.found, func(f sigma.File) (err error) {
			r, _, err = treeserver.Get(ctx, f, nil, uint64(offset), len(p))
			return err
		})
		if err == nil && r.ID == o.name.ID {
			return o.whole(copy(p, r.Data), len(p))
		}
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		} // else the name means something else now; the file may be held all the same
	}
	return o.held(ctx, false, func(f sigma.File) error {
		n, err := f.ReadAt(ctx, p, uint64(offset))
		if err != nil {
			return err
		}
		return o.whole(n, len(p))
	})
}

func (o *treeObject) whole(n, want int) error {
	if n == want {
		return nil
	}
	return &sigma.Error{Op: "binfs.Source", Path: o.name.Path, Kind: sigma.KindOther,
		Msg: "the store sent fewer bytes than the program has", Err: errCorrupt}
}

// Hash implements Object by the method hash of the store's objects.
func (o *treeObject) Hash(ctx context.Context, offset int64, size int) (h Hash, err error) {
	err = o.held(ctx, true, func(f sigma.File) error {
		c, ok := f.(sigma.Caller)
		if !ok {
			return sigma.PathError("binfs.Hash", sigma.KindUnsupported, o.name.Path)
		}
		d, err := sigmap.CallHash.Ask(ctx, c, sigmap.HashAsk{Offset: uint64(offset), Count: uint32(size)})
		if err != nil {
			return err
		}
		if d.ID != o.name.ID || d.Size != uint64(o.name.Size) || len(d.Sum) != len(h) {
			return o.replaced()
		}
		copy(h[:], d.Sum)
		return nil
	})
	return h, err
}

// stat says which version the open file is.
func (o *treeObject) stat(ctx context.Context) (st sigma.Stat, err error) {
	p := o.pin()
	select {
	case <-p.ready:
	case <-ctx.Done():
		return st, sigma.Wrap("binfs.Source", o.path, ctx.Err())
	}
	switch {
	case p.err == nil:
		return p.file.Stat(ctx)
	case p.found != nil: // it was there, and was not any more when it was opened
		return st, o.gone(p.err)
	}
	return st, p.err
}

// Check implements Object.
func (o *treeObject) Check(ctx context.Context) error {
	return o.held(ctx, false, func(f sigma.File) error {
		st, err := f.Stat(ctx)
		if err == nil && (st.ID != o.name.ID || st.Size != uint64(o.name.Size)) {
			err = o.replaced()
		}
		return err
	})
}

// errCorrupt marks bytes that are not what they should be.
var errCorrupt = errors.New("corrupt")

// final says whether trying again cannot help.
func final(err error) bool {
	switch sigma.KindOf(err) {
	case sigma.KindStale, sigma.KindPermission, sigma.KindNoExec, sigma.KindIsDir, sigma.KindNotDir:
		return true
	}
	return false
}
