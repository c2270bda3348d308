package resolve

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/filestream"
	"sigmaos.dev/wire/sigmap"
)

// direct is the way of a handle's bytes that does not lead through the server: by a descriptor of
// the file, where the server passes one. It is asked for at the first read or write that is more
// than one message, so that small files cost what they did; a server that passes none is asked
// once. Where there is no descriptor there may be a stream (package bulk). What is read or written
// is the same either way.
type direct struct {
	hidden  bool // made with OpenHidden: writes may go directly
	appends bool // to the end, which the server knows

	mu   sync.RWMutex // held to read by those who use file
	file *os.File     // mu; nil = none
	over bool         // mu; none will be asked for (again)
	// spoilt is why something could not be written by file; nil = all was. mu
	spoilt error

	bulkMu   sync.Mutex
	bulk     *filestream.Client // bulkMu; nil = none
	bulkOver bool               // bulkMu; none will be asked for (again)
}

// stream gives the stream of the file, if there is one for what moves n bytes; nil if not.
func (h *handle) stream(n int) *filestream.Client {
	d := &h.direct
	d.bulkMu.Lock()
	defer d.bulkMu.Unlock()
	if d.bulk != nil || d.bulkOver || n <= sigmap.DataMax || h.stop != nil || h.appends {
		return d.bulk
	}
	d.bulkOver = true
	p, ok := h.file.(sigma.BulkPasser)
	if !ok || sigma.FenceOf(h.ctx).Name != "" {
		return nil
	}
	file, err := p.PassBulk(h.ctx)
	if err != nil {
		return nil
	}
	defer file.Close()
	if conn, err := net.FileConn(file); err == nil {
		d.bulk = filestream.New(conn)
	}
	return d.bulk
}

// unstream gives up a stream that is broken.
func (h *handle) unstream() {
	h.bulkMu.Lock()
	defer h.bulkMu.Unlock()
	h.direct.bulk, h.bulkOver = nil, true
}

// settle waits until what was written by the stream is written, before something is done by
// messages, and tells why something was not.
func (h *handle) settle() error {
	if !h.hidden {
		return nil
	}
	h.bulkMu.Lock()
	b := h.direct.bulk
	h.bulkMu.Unlock()
	if b == nil {
		return nil
	}
	err := b.Settle()
	if err != nil {
		h.mu.Lock()
		h.spoilt = err
		h.mu.Unlock()
	}
	return err
}

// readStream reads by the stream, if there is one. passed is false if all or some must be read by
// messages.
func (h *handle) readStream(p []byte, off int64) (n int, passed bool, err error) {
	b := h.stream(len(p))
	if b == nil {
		return 0, false, nil
	}
	n, err = b.ReadAt(p, off)
	if errors.Is(err, filestream.ErrBroken) {
		h.unstream()
		return 0, false, nil
	}
	return n, true, err
}

// writeStream writes by the stream, if there is one. What nobody sees yet may be under way when it
// returns.
func (h *handle) writeStream(p []byte, off int64) (n int, passed bool, err error) {
	b := h.stream(len(p))
	if b == nil {
		return 0, false, nil
	}
	n, err = b.WriteAt(p, off, h.hidden)
	if errors.Is(err, filestream.ErrBroken) {
		h.unstream()
		if err = b.Settle(); err == nil { // nothing that was written before is lost, and this can be written again
			return 0, false, nil
		}
	}
	if err != nil && h.hidden {
		h.mu.Lock()
		h.spoilt = err
		h.mu.Unlock()
	}
	return n, true, err
}

// pass asks the server for a descriptor.
func (h *handle) pass() (*os.File, error) {
	p, ok := h.file.(sigma.FilePasser)
	if !ok {
		return nil, sigma.PathError("resolve.File", sigma.KindUnsupported, h.path)
	}
	return p.PassFile(h.ctx)
}

// use runs do with the descriptor, if there is one for what moves n bytes. What leaders ask for
// goes through the server, which knows when they are deposed.
func (h *handle) use(n int, do func(*os.File)) bool {
	d := &h.direct
	d.mu.RLock()
	file, over := d.file, d.over
	if file == nil && !over && n > sigmap.DataMax {
		d.mu.RUnlock()
		d.mu.Lock()
		if d.file == nil && !d.over {
			d.over = true
			if sigma.FenceOf(h.ctx).Name == "" && !sigma.IsSync(h.ctx) {
				d.file, _ = h.pass() // else by messages, which tell what is wrong
			}
		}
		d.mu.Unlock()
		d.mu.RLock()
		file = d.file
	}
	defer d.mu.RUnlock()
	if file == nil {
		return false
	}
	do(file)
	return true
}

// giveBack closes the descriptor and the stream, and tells why something could not be written by
// them.
func (h *handle) giveBack() error {
	h.settle()
	h.bulkMu.Lock()
	if h.direct.bulk != nil {
		h.direct.bulk.Close()
	}
	h.direct.bulk, h.bulkOver = nil, true
	h.bulkMu.Unlock()
	h.closeFile()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.spoilt
}

// closeFile closes the descriptor.
func (h *handle) closeFile() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.direct.file != nil {
		h.direct.file.Close()
	}
	h.direct.file, h.over = nil, true
}

func (h *handle) readDirectly(p []byte, off int64) (n int, passed bool, err error) {
	if h.writes && !h.hidden {
		return 0, false, nil
	}
	if passed = h.use(len(p), func(f *os.File) { n, err = f.ReadAt(p, off) }); !passed {
		n, passed, err = h.readStream(p, off)
	}
	if err != nil && err != io.EOF {
		err = sigma.Wrap("resolve.ReadAt", h.path, err)
	}
	return n, passed, err
}

// writeDirectly leaves to messages what a descriptor may not be used for.
func (h *handle) writeDirectly(p []byte, off int64) (n int, passed bool, err error) {
	if !h.hidden {
		return h.writeStream(p, off)
	}
	if off > int64(sigma.WriteDescriptorMax)-int64(len(p)) {
		h.closeFile()
		return h.writeStream(p, off)
	}
	if passed = h.use(len(p), func(f *os.File) { n, err = f.WriteAt(p, off) }); !passed {
		return h.writeStream(p, off)
	}
	if err != nil {
		err = sigma.Wrap("resolve.WriteAt", h.path, err)
		h.mu.Lock()
		h.spoilt = err
		h.mu.Unlock()
	}
	return n, passed, err
}
