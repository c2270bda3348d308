package namespace

import (
	"io"
	"os"
	"sync"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// direct is the way of a handle's bytes that does not lead through the server: by a descriptor of the file, where the server passes one. It is asked for at the first read or write that is more than one message, so that
// small files cost what they did; a server that passes none is asked once. What is read or written is the same either way.
type direct struct {
	hidden bool // made with OpenHidden: writes may go directly

	mu   sync.RWMutex // held to read by those who use file
	file *os.File     // mu; nil = none
	over bool         // mu; none will be asked for (again)
	// spoilt is why something could not be written by file; nil = all was. mu
	spoilt error
}

// pass asks the server for a descriptor.
func (h *handle) pass() (*os.File, error) {
	p, ok := h.file.(sigma.FilePasser)
	if !ok {
		return nil, sigma.PathError("namespace.File", sigma.KindUnsupported, h.path)
	}
	return p.PassFile(h.ctx)
}

// use runs do with the descriptor, if there is one for what moves n bytes. What leaders ask for goes through the server, which knows when they are deposed.
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

// giveBack closes the descriptor, and tells why something could not be written by it.
func (h *handle) giveBack() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.direct.file != nil {
		h.direct.file.Close()
	}
	h.direct.file, h.over = nil, true
	return h.spoilt
}

func (h *handle) readDirectly(p []byte, off int64) (n int, passed bool, err error) {
	if h.writes && !h.hidden {
		return 0, false, nil
	}
	passed = h.use(len(p), func(f *os.File) { n, err = f.ReadAt(p, off) })
	if err != nil && err != io.EOF {
		err = sigma.Wrap("namespace.ReadAt", h.path, err)
	}
	return n, passed, err
}

// writeDirectly leaves to messages what a descriptor may not be used for.
func (h *handle) writeDirectly(p []byte, off int64) (n int, passed bool, err error) {
	if !h.hidden {
		return 0, false, nil
	}
	if off > int64(sigma.WriteDescriptorMax)-int64(len(p)) {
		h.giveBack()
		return 0, false, nil
	}
	passed = h.use(len(p), func(f *os.File) { n, err = f.WriteAt(p, off) })
	if err != nil {
		err = sigma.Wrap("namespace.WriteAt", h.path, err)
		h.mu.Lock()
		h.spoilt = err
		h.mu.Unlock()
	}
	return n, passed, err
}
