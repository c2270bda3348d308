// Package binfs turns the realm path of a program into an open file that the launcher can execute: it fetches the program once into a local cache by content and remembers
// which version of which file that was. It checks what it fetched: a static Linux executable for this machine.
//
// It promises that a file handed out is a whole program of the version asked for, never a mixture, and that concurrent starts fetch once. Demand paging comes later behind
// the same call. Users: kernel.
//
// Lock: Cache.mu guards the tables; it is not held while fetching.
package binfs

import (
	"bytes"
	"container/list"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"sigmaos.dev/sigma"
)

// Limits.
const (
	ProgramMax = 1 * sigma.GiB // one program
	openMax    = 256           // programs that are kept open
)

// Cache is one machine's programs. Safe for concurrent use.
type Cache struct {
	dir string

	mu    sync.Mutex
	known map[key]*entry // mu
	order *list.List     // mu; of *entry, least recently used first
}

// key is one version of one file of a realm.
type key struct {
	realm sigma.RealmID
	path  string
	id    sigma.FileID
}

type entry struct {
	key   key
	ready chan struct{} // closed when file or err is set
	file  *os.File
	err   error
	users int           // Cache.mu; callers, and the fetch
	gone  bool          // Cache.mu; not in known any more
	at    *list.Element // Cache.mu
}

// New makes a cache in dir, which it owns; what a former one left there is removed.
func New(dir string) (*Cache, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, sigma.Wrap("binfs.New", dir, err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, sigma.Wrap("binfs.New", dir, err)
	}
	return &Cache{dir: dir, known: map[key]*entry{}, order: list.New()}, nil
}

// Open returns the program at path of a realm's tree, open for reading. release must be called once when it is no longer needed; the file must not be closed.
func (c *Cache) Open(ctx context.Context, realm sigma.RealmID, tree sigma.Namespace, path string) (f *os.File, release func(), err error) {
	st, err := tree.Stat(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case st.ID.Kind == sigma.KindDir:
		return nil, nil, &sigma.Error{Op: "binfs.Open", Path: path, Kind: sigma.KindNoExec, Msg: "is a directory, not a program"}
	case st.ID.Kind != sigma.KindFile:
		return nil, nil, &sigma.Error{Op: "binfs.Open", Path: path, Kind: sigma.KindNoExec, Msg: "is a " + st.ID.Kind.String() + ", not a program"}
	case st.Size > uint64(ProgramMax):
		return nil, nil, &sigma.Error{Op: "binfs.Open", Path: path, Kind: sigma.KindNoExec, Msg: fmt.Sprintf("program is larger than %v", ProgramMax)}
	}
	k := key{realm, path, st.ID}
	c.mu.Lock()
	e := c.known[k]
	if e == nil {
		e = &entry{key: k, ready: make(chan struct{})}
		c.known[k] = e
		e.at = c.order.PushBack(e)
		go func() { // not bound to the first caller's context: others may wait for it
			file, err := c.fetch(context.WithoutCancel(ctx), tree, path)
			c.mu.Lock()
			defer c.mu.Unlock()
			e.file, e.err = file, err
			close(e.ready)
			if err != nil {
				c.dropLocked(e)
			}
			e.users--
			c.closeLocked(e)
		}()
		e.users++ // the fetch, so that the entry is not evicted before its file is there
	}
	e.users++
	c.order.MoveToBack(e.at)
	c.mu.Unlock()
	c.evict()
	select {
	case <-e.ready:
	case <-ctx.Done():
		c.release(e)
		return nil, nil, sigma.Wrap("binfs.Open", path, ctx.Err())
	}
	if e.err != nil {
		c.release(e)
		return nil, nil, e.err
	}
	var once sync.Once
	return e.file, func() { once.Do(func() { c.release(e) }) }, nil
}

func (c *Cache) release(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	c.closeLocked(e)
}

func (c *Cache) dropLocked(e *entry) {
	e.gone = true
	delete(c.known, e.key)
	c.order.Remove(e.at)
}

func (c *Cache) closeLocked(e *entry) {
	if e.gone && e.users == 0 && e.file != nil {
		e.file.Close()
		e.file = nil
	}
}

// evict closes programs that were not used for longest; their bytes leave the disk with the last process that runs them.
func (c *Cache) evict() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := c.order.Front(); at != nil && c.order.Len() > openMax; {
		e := at.Value.(*entry)
		at = at.Next()
		if e.users == 0 {
			c.dropLocked(e)
			if e.file != nil {
				os.Remove(e.file.Name())
			}
			c.closeLocked(e)
		}
	}
}

// fetch copies the program into the cache under its content's name.
func (c *Cache) fetch(ctx context.Context, tree sigma.Namespace, path string) (*os.File, error) {
	h, err := tree.Open(ctx, path, sigma.OpenRead)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var from io.Reader = h
	if local, err := h.File(); err == nil {
		defer local.Close()
		from = local
	}
	temp, err := os.CreateTemp(c.dir, "fetch-*")
	if err != nil {
		return nil, sigma.Wrap("binfs.fetch", path, err)
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	hash := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(temp, hash), struct{ io.Reader }{io.LimitReader(from, int64(ProgramMax))}, make([]byte, 256<<10))
	if err != nil {
		return nil, sigma.Wrap("binfs.fetch", path, err)
	}
	if err := Check(temp, n); err != nil {
		return nil, sigma.Wrap("binfs.fetch", path, err)
	}
	name := filepath.Join(c.dir, hex.EncodeToString(hash.Sum(nil)))
	if err = temp.Chmod(0o555); err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		return nil, sigma.Wrap("binfs.fetch", path, err)
	}
	f, err := os.Open(name) // a second, read-only one: a file open for writing cannot be executed
	return f, sigma.Wrap("binfs.fetch", path, err)
}

// The machines that programs can be for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

const (
	headerSize = 56                    // of a program header (elf(5), Elf64_Phdr)
	headersMax = 64 << 10 / headerSize // what Linux executes (execve(2))
)

// Check says whether the size bytes of r are a program that can run here; the error is of KindNoExec and says what is wrong.
func Check(r io.ReaderAt, size int64) error {
	no := func(msg, hint string) error {
		return &sigma.Error{Op: "binfs.Check", Kind: sigma.KindNoExec, Msg: msg, Hint: hint}
	}
	var magic [4]byte
	if n, err := r.ReadAt(magic[:], 0); n < 4 {
		if err != nil && !errors.Is(err, io.EOF) {
			return sigma.Wrap("binfs.Check", "", err)
		}
		return no("not a program: it has only "+fmt.Sprint(size)+" bytes", "")
	}
	if bytes.HasPrefix(magic[:], []byte("#!")) {
		return no("is a script", "sigmaOS runs static Linux executables; pass the script to an interpreter that is one")
	}
	if string(magic[:]) != elf.ELFMAG {
		return no("not a Linux executable (no ELF header)", "")
	}
	damaged := no("damaged or truncated executable", "")
	var head [64]byte
	if n, _ := r.ReadAt(head[:], 0); n < len(head) {
		return damaged
	}
	le := binary.LittleEndian
	machine := elf.Machine(le.Uint16(head[18:]))
	if want := machines[runtime.GOARCH]; machine != want || elf.Class(head[4]) != elf.ELFCLASS64 || elf.Data(head[5]) != elf.ELFDATA2LSB {
		return no(fmt.Sprintf("built for %v, this machine needs %v", machine, want), "build it for this architecture")
	}
	if typ := elf.Type(le.Uint16(head[16:])); typ != elf.ET_EXEC && typ != elf.ET_DYN {
		return no("not an executable but "+typ.String(), "")
	}
	// Not elf.NewFile, which is not made for hostile files and allocates for as many sections as the file claims to have.
	offset, each, n := le.Uint64(head[32:]), le.Uint16(head[54:]), int(le.Uint16(head[56:]))
	if each != headerSize || n == 0 || n > headersMax || offset > uint64(size) || uint64(n*headerSize) > uint64(size)-offset {
		return damaged
	}
	headers := make([]byte, n*headerSize)
	if got, _ := r.ReadAt(headers, int64(offset)); got < len(headers) {
		return damaged
	}
	for ; len(headers) > 0; headers = headers[headerSize:] {
		switch elf.ProgType(le.Uint32(headers)) {
		case elf.PT_INTERP:
			return no("dynamically linked", "link it statically: gcc -static, CGO_ENABLED=0 go build, or Rust with -C target-feature=+crt-static")
		case elf.PT_LOAD: // beyond the end there would be no pages, and the program would die of that at any time
			if from, bytes := le.Uint64(headers[8:]), le.Uint64(headers[32:]); from > uint64(size) || bytes > uint64(size)-from {
				return damaged
			}
		}
	}
	return nil
}
