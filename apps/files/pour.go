package files

import (
	"context"
	"io"
	"os"

	"sigmaos.dev/sigma"
)

// pour copies to w and counts, until the end, an error, or the end of ctx.
func pour(ctx context.Context, w io.Writer, from io.Reader, count Counter) error {
	in, fromFile := from.(*os.File)
	if out, ok := w.(*os.File); ok && fromFile {
		return pourFile(ctx, out, in, count)
	}
	m := &passing{ctx: ctx, count: count, Reader: from, Writer: w}
	if in, ok := from.(sigma.Handle); ok {
		if in, ok := in.(io.WriterTo); ok { // which reads ahead
			_, err := in.WriteTo(m)
			return err
		}
	}
	if out, ok := w.(sigma.Handle); ok {
		if out, ok := out.(io.ReaderFrom); ok { // which goes on reading while it writes
			_, err := out.ReadFrom(m)
			return err
		}
	}
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{m}, make([]byte, copyBuffer))
	return err
}

// passing counts what passes, and ends with ctx.
type passing struct {
	io.Reader
	io.Writer
	ctx   context.Context
	count Counter
}

func (m *passing) Read(p []byte) (n int, err error) { return m.pass(m.Reader.Read, p) }

func (m *passing) Write(p []byte) (n int, err error) { return m.pass(m.Writer.Write, p) }

func (m *passing) pass(do func([]byte) (int, error), p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := do(p)
	m.count.Add(int64(n))
	return n, err
}

// pourFile leaves the copying to the kernel.
func pourFile(ctx context.Context, w, r *os.File, count Counter) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(w, r, 16*copyBuffer)
		count.Add(n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
