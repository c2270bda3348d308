package files

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

const (
	// seenMax bounds what a command remembers of all that is in a directory: the bytes of the
	// paths, and seenEntry for each. It is enough for two million files, and costs some times as
	// much memory.
	seenMax   = 256 << 20
	seenEntry = 64
	// copyBuffer is what moves at once between a file of the realm and one outside; the namespace
	// splits it into messages.
	copyBuffer = 1 << 20
)

// Realm is a realm's tree, as one command sees it. It is a Tree.
type Realm struct {
	sigma.Namespace
	seen    int       // bytes that listings cost
	buffers sync.Pool // of copyBuffer bytes: a tree has thousands of small files
}

var _ Tree = (*Realm)(nil)

// OfRealm begins the work of one command in a realm.
func OfRealm(c sigma.Namespace) *Realm {
	return &Realm{Namespace: c, buffers: sync.Pool{New: func() any { return new(make([]byte, copyBuffer)) }}}
}

// List lists a directory that was named, or is below one, while what was listed so far is not too
// much.
func (r *Realm) List(ctx context.Context, dir string) ([]sigma.DirEntry, error) {
	if strings.Count(dir, "/") > sigma.DepthMax {
		return nil, &sigma.Error{Op: "files.List", Path: dir[:min(len(dir), 100)] + "...", Kind: sigma.KindTooBig,
			Msg:  fmt.Sprintf("has more than %d directories one in another, and perhaps no end", sigma.DepthMax),
			Hint: "name a directory further down, or leave out what its server makes up"}
	}
	entries, err := r.ReadDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if err := sigma.CheckName(e.Name); err != nil {
			return nil, sigma.Wrap("files.List", dir, err)
		}
		r.seen += len(dir) + len(e.Name) + seenEntry
	}
	if r.seen > seenMax {
		return nil, &sigma.Error{Op: "files.List", Path: dir, Kind: sigma.KindTooBig,
			Msg:  "is in a directory that has more in it than one command takes, and perhaps no end",
			Hint: "name directories further down, one at a time"}
	}
	return entries, nil
}

// Source opens a file of the realm: what its server passes is read without going through the
// server.
func (r *Realm) Source(ctx context.Context, p string) (*Source, error) {
	h, err := r.Open(ctx, p, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	st, err := h.Stat()
	if err != nil {
		h.Close()
		return nil, err
	}
	s := &Source{Reader: h, Perm: st.Perm, close: []io.Closer{h}}
	if f, err := h.File(); err == nil {
		s.Reader, s.close = f, append(s.close, f)
	}
	return s, nil
}

// Content copies a file of the realm to w.
func (r *Realm) Content(ctx context.Context, p string, w io.Writer) error {
	st, err := r.Stat(ctx, p)
	switch {
	case err != nil:
		return err
	case st.ID.Kind == sigma.KindDir:
		return &sigma.Error{Op: "files.Content", Path: p, Kind: sigma.KindIsDir,
			Hint: "list it with: sigma ls " + p + "; fetch it with: sigma get -r " + p}
	case st.ID.Kind == sigma.KindCallable:
		return NoContent(p)
	}
	s, err := r.Source(ctx, p)
	if err != nil {
		return err
	}
	defer s.Close()
	return pour(ctx, w, s.Reader, nobody{})
}

// nobody is a Counter that is not asked.
type nobody struct{}

func (nobody) Add(int64) {}

// NoContent is the error of a file that answers calls and cannot be read.
func NoContent(p string) error {
	return &sigma.Error{Op: "files.Content", Path: p, Kind: sigma.KindUnsupported,
		Msg: "answers calls and has no content"}
}

// MakeDir makes a directory, and those on the way to it if they are missing.
func (r *Realm) MakeDir(ctx context.Context, p string, perm uint32) error {
	err := r.Mkdir(ctx, p, perm)
	switch sigma.KindOf(err) {
	case sigma.KindNotFound:
		err = r.MkdirAll(ctx, p, perm)
	case sigma.KindExists:
		return nil
	}
	return err
}

// PutLink makes a symbolic link in the place of what is there.
func (r *Realm) PutLink(ctx context.Context, target, at string) error {
	_, err := r.Put(ctx, at, []byte(target), sigma.PutOptions{Kind: sigma.KindSymlink, Perm: 0o777})
	return err
}

// Finish does nothing: directories of a realm have their modes from the beginning.
func (r *Realm) Finish() error { return nil }

// Store puts what s gives at a realm path, and says what to do where it cannot be.
func (r *Realm) Store(ctx context.Context, to string, s *Source, count Counter) error {
	err := r.store(ctx, to, s, count)
	var e *sigma.Error
	if errors.As(err, &e) && e.Hint == "" {
		explained := *e
		switch e.Kind {
		case sigma.KindNotFound:
			explained.Hint = "make the directory with: sigma mkdir -p " + path.Dir(to)
		case sigma.KindIsDir:
			explained.Hint = "to store below it, write " + to + "/"
		}
		return &explained
	}
	return err
}

// store uses one message if all fits, else a file of another name that then takes its place, so
// that nobody sees a part, also if this program dies.
func (r *Realm) store(ctx context.Context, to string, s *Source, count Counter) error {
	b := r.buffers.Get().(*[]byte)
	defer r.buffers.Put(b)
	first := (*b)[:sigmap.DataMax+1]
	n, err := io.ReadFull(s.Reader, first)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		if _, err = r.Put(ctx, to, first[:n], sigma.PutOptions{Perm: s.Perm}); err == nil {
			count.Add(int64(n))
		}
		return err
	case err != nil:
		return err
	}
	temp := path.Join(path.Dir(to), "put-"+rand.Text()[:12]+"~")
	h, err := r.Create(ctx, temp, sigma.OpenWrite|sigma.OpenExclusive, s.Perm)
	if err != nil {
		return sayPath(err, temp, to)
	}
	err = pour(ctx, h, io.MultiReader(&once{first}, s.Reader), count)
	if e := h.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = r.Rename(ctx, temp, to)
	}
	if err != nil {
		r.Remove(context.WithoutCancel(ctx), temp)
		return sayPath(err, temp, to)
	}
	return nil
}

// sayPath makes a sigma error about a temporary file speak of the path that the user knows.
func sayPath(err error, temp, p string) error {
	if e, ok := err.(*sigma.Error); ok && (e.Path == temp || e.Path == "") {
		c := *e
		c.Path = p
		return &c
	}
	return err
}

// once is a reader of a slice that lets go of it.
type once struct{ b []byte }

func (o *once) Read(p []byte) (int, error) {
	n := copy(p, o.b)
	if o.b = o.b[n:]; n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Source is a file that is being copied.
type Source struct {
	io.Reader // an *os.File or a sigma.Handle, if it can be
	Perm      uint32
	close     []io.Closer
}

// Close closes what was opened for it.
func (s *Source) Close() {
	for _, c := range s.close {
		c.Close()
	}
}
