package main

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// copyBuffer is what moves at once between a file of the realm and one outside; the namespace splits it into messages.
const copyBuffer = 1 << 20

// buffers are reused because a tree has thousands of small files.
var buffers = sync.Pool{New: func() any { return new(make([]byte, copyBuffer)) }}

// upload puts what r gives at a realm path: in one message if it fits, else streamed into a file of another name that then takes its place, so that nobody sees a
// part, also if this program dies.
func upload(ctx context.Context, c sigma.Namespace, r io.Reader, to string, perm uint32, p progress) error {
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	first := (*b)[:sigmap.DataMax+1]
	n, err := io.ReadFull(r, first)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		if _, err = c.Put(ctx, to, first[:n], sigma.PutOptions{Perm: perm}); err == nil {
			p.Add(int64(n))
		}
		return err
	case err != nil:
		return err
	}
	temp := path.Join(path.Dir(to), "put-"+rand.Text()[:12]+"~")
	h, err := c.Create(ctx, temp, sigma.OpenWrite|sigma.OpenExclusive, perm)
	if err != nil {
		return sayPath(err, temp, to)
	}
	err = pour(ctx, h, io.MultiReader(&once{first}, r), p)
	if e := h.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = c.Rename(ctx, temp, to)
	}
	if err != nil {
		c.Remove(context.WithoutCancel(ctx), temp)
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

// pour copies r to w and counts, until the end, an error, or the end of ctx.
func pour(ctx context.Context, w io.Writer, r io.Reader, p progress) error {
	if in, ok := r.(*os.File); ok {
		if out, ok := w.(*os.File); ok {
			return pourFile(ctx, out, in, p)
		}
	}
	m := passing{ctx: ctx, count: p, Reader: r, Writer: w}
	if from, ok := r.(io.WriterTo); ok && isHandle(r) { // which reads ahead
		_, err := from.WriteTo(&m)
		return err
	}
	if to, ok := w.(io.ReaderFrom); ok && isHandle(w) { // which goes on reading while it writes
		_, err := to.ReadFrom(&m)
		return err
	}
	b := buffers.Get().(*[]byte)
	defer buffers.Put(b)
	buf := *b
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.ReadFull(r, buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			p.Add(int64(n))
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return nil
		default:
			return err
		}
	}
}

func isHandle(v any) bool {
	_, ok := v.(sigma.Handle)
	return ok
}

// passing counts what passes, and ends with ctx.
type passing struct {
	io.Reader
	io.Writer
	ctx   context.Context
	count progress
}

func (m *passing) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.Reader.Read(p)
	m.count.Add(int64(n))
	return n, err
}

func (m *passing) Write(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.Writer.Write(p)
	m.count.Add(int64(n))
	return n, err
}

// pourFile leaves the copying to the kernel.
func pourFile(ctx context.Context, w, r *os.File, p progress) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(w, r, 16*copyBuffer)
		p.Add(n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
