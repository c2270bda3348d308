package binfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/atomicfile"
	"sigmaos.dev/trees/digest"
)

// What is on disk:
//
//	parts/NODE         bytes of a program that is not complete, at their places
//	parts/NODE.log     a line that says which program it is, then a record for each chunk that was written
//	contents/HASH      a complete program under the hash of its size and chunk hashes
//	contents/HASH.txt  the hash of the rest; then size, chunk hashes, names and nodes of the program
//
// Nothing is flushed: what a crash of the machine leaves behind is found by the hashes, before it
// is used.

func partsDir(dir string) string    { return filepath.Join(dir, "parts") }
func contentsDir(dir string) string { return filepath.Join(dir, "contents") }

// recordName is a Name on disk.
type recordName struct {
	Realm   sigma.RealmID
	Path    string
	File    uint64
	Version sigma.Version
}

func (r recordName) key() key {
	return key{r.Realm, r.Path, sigma.FileID{Kind: sigma.KindFile, Path: r.File, Version: r.Version}}
}

func (k key) record() recordName { return recordName{k.realm, k.path, k.id.Path, k.id.Version} }

// partRecord is the first line of a part's log.
type partRecord struct {
	Name recordName
	Size int64
	Node uint64
}

// contentRecord describes a complete program.
type contentRecord struct {
	Size   int64
	Hashes []byte
	Names  []recordName
	Nodes  []uint64
}

const logRecordSize = 4 + 4 + digest.Size // chunk, checksum of the record, hash

func logRecord(i int, h Hash) []byte {
	b := make([]byte, logRecordSize)
	binary.LittleEndian.PutUint32(b, uint32(i))
	copy(b[8:], h[:])
	binary.LittleEndian.PutUint32(b[4:], crc32.ChecksumIEEE(append(b[:4:4], h[:]...)))
	return b
}

// readLog takes a part's log apart. What follows a damaged record is not believed either.
func readLog(b []byte) (r partRecord, hashes map[int]Hash, err error) {
	line, rest, ok := bytes.Cut(b, []byte("\n"))
	if !ok || json.Unmarshal(line, &r) != nil || r.Size <= 0 || r.Size > int64(ProgramMax) || r.Node <= rootNode ||
		r.Name.key().realm.Check() != nil {
		return r, nil, sigma.Errorf("binfs.readLog", sigma.KindInvalid, "not a log of a part")
	}
	hashes = map[int]Hash{}
	for ; len(rest) >= logRecordSize; rest = rest[logRecordSize:] {
		i := int(binary.LittleEndian.Uint32(rest))
		h := Hash(rest[8:logRecordSize])
		if i >= chunks(r.Size) || !bytes.Equal(logRecord(i, h), rest[:logRecordSize]) {
			break
		}
		hashes[i] = h
	}
	return r, hashes, nil
}

// readContent takes the description of a complete program apart; it is that of the content of this
// hash.
func readContent(b []byte, content Hash) (r contentRecord, hashes []Hash, err error) {
	bad := sigma.Errorf("binfs.readContent", sigma.KindInvalid, "not a description of a program")
	sum, rest, ok := bytes.Cut(b, []byte("\n"))
	want := sha256.Sum256(rest)
	if !ok || string(sum) != hex.EncodeToString(want[:]) || json.Unmarshal(rest, &r) != nil || r.Size <= 0 ||
		r.Size > int64(ProgramMax) || len(r.Hashes) != chunks(r.Size)*digest.Size {
		return r, nil, bad
	}
	for at := 0; at < len(r.Hashes); at += digest.Size {
		hashes = append(hashes, Hash(r.Hashes[at:at+digest.Size]))
	}
	if contentHash(r.Size, hashes) != content {
		return r, nil, bad
	}
	return r, hashes, nil
}

// contentHash is the address of a content.
func contentHash(size int64, hashes []Hash) Hash {
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64([]byte("sigma program 2\n"), uint64(size)))
	for _, x := range hashes {
		h.Write(x[:])
	}
	return Hash(h.Sum(nil))
}

// newProgramLocked makes a program of which nothing is here.
func (c *Cache) newProgramLocked(n Name) (*program, error) {
	p, err := c.makePartLocked(n)
	if sigma.KindOf(err) == sigma.KindNoSpace && c.evictUnusedLocked() {
		p, err = c.makePartLocked(n)
	}
	return p, err
}

func (c *Cache) makePartLocked(n Name) (*program, error) {
	c.lastNode++
	node := c.lastNode
	line, err := json.Marshal(partRecord{Name: key{n.Realm, n.Path, n.ID}.record(), Size: n.Size, Node: node})
	if err != nil {
		return nil, sigma.Wrap("binfs.Open", n.Path, err)
	}
	path := filepath.Join(partsDir(c.cfg.Dir), strconv.FormatUint(node, 10))
	p, err := c.openProgramLocked(path, n, node, os.O_CREATE|os.O_EXCL)
	if err == nil {
		_, err = p.log.Write(append(line, '\n'))
	}
	if err != nil {
		if p != nil {
			p.closeFiles()
		}
		os.Remove(path)
		os.Remove(path + ".log")
		return nil, sigma.Wrap("binfs.Open", n.Path, err)
	}
	return p, nil
}

// openProgramLocked opens a part. Procs of any uid may execute it; nobody but this cache reaches
// its directory.
func (c *Cache) openProgramLocked(path string, n Name, node uint64, flags int) (p *program, err error) {
	p = c.blankLocked(path, n, node)
	if p.w, err = os.OpenFile(path, os.O_RDWR|flags, 0o755); err == nil {
		err = p.w.Chmod(0o755) // whatever the umask
	}
	if err == nil {
		p.r, err = os.Open(path)
	}
	if err == nil {
		p.log, err = os.OpenFile(path+".log", os.O_WRONLY|os.O_APPEND|flags, 0o600)
	}
	if err != nil {
		for _, f := range []*os.File{p.w, p.r} {
			if f != nil {
				f.Close()
			}
		}
		return nil, err
	}
	return p, nil
}

func (c *Cache) blankLocked(path string, n Name, node uint64) *program {
	count := chunks(n.Size)
	p := &program{c: c, name: n, node: node, stored: path, state: make([]chunkState, count),
		hashes: make([]Hash, count), left: count, getting: map[int]*getting{}, done: make(chan struct{})}
	p.ctx, p.stop = context.WithCancel(c.ctx)
	return p
}

// load takes over what a former cache left in the directory. What is damaged is removed.
func (c *Cache) load() error {
	parts, err := os.ReadDir(partsDir(c.cfg.Dir))
	if err != nil {
		return sigma.Wrap("binfs.New", c.cfg.Dir, err)
	}
	contents, err := os.ReadDir(contentsDir(c.cfg.Dir))
	if err != nil {
		return sigma.Wrap("binfs.New", c.cfg.Dir, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	type found struct {
		used time.Time
		load func() error
		path string
	}
	var all []found
	for dir, entries := range map[string][]fs.DirEntry{partsDir(c.cfg.Dir): parts, contentsDir(c.cfg.Dir): contents} {
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			stem := strings.TrimSuffix(strings.TrimSuffix(path, ".log"), ".txt")
			if _, err := os.Stat(stem); err != nil || strings.HasSuffix(path, "~") {
				os.Remove(path) // a description without bytes
				continue
			}
			info, err := e.Info()
			switch {
			case err != nil:
			case strings.HasSuffix(path, ".log"):
				all = append(all, found{info.ModTime(), func() error { return c.loadPartLocked(stem) }, stem})
			case strings.HasSuffix(path, ".txt"):
				all = append(all, found{info.ModTime(), func() error { return c.loadContentLocked(stem) }, stem})
			case !exists(path+".log") && !exists(path+".txt"):
				os.Remove(path)
			}
		}
	}
	slices.SortFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	for _, f := range all {
		if err := f.load(); err != nil {
			c.cfg.Log.Warn("a program of the cache is not used", "path", f.path, "err", err)
			removeStored(f.path)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

func removeStored(path string) {
	for _, end := range []string{"", ".log", ".txt"} {
		os.Remove(path + end)
	}
}

func (c *Cache) loadPartLocked(path string) error {
	b, err := os.ReadFile(path + ".log")
	if err != nil {
		return err
	}
	r, hashes, err := readLog(b)
	if err != nil {
		return err
	}
	k := r.Name.key()
	if strconv.FormatUint(r.Node, 10) != filepath.Base(path) || c.known[k] != nil {
		return sigma.Errorf("binfs.load", sigma.KindInvalid, "it does not belong here")
	}
	p, err := c.openProgramLocked(path, Name{Realm: k.realm, Path: k.path, ID: k.id, Size: r.Size}, r.Node, 0)
	if err != nil {
		return err
	}
	for i, h := range hashes {
		p.state[i], p.hashes[i] = chunkDoubted, h
		_, size := p.span(i)
		p.bytes += int64(size)
	}
	c.bytes += p.bytes
	p.ok, p.adopted = true, true
	c.addKeyLocked(p, k)
	c.adoptNodeLocked(p, r.Node)
	return nil
}

func (c *Cache) loadContentLocked(path string) error {
	b, err := os.ReadFile(path + ".txt")
	if err != nil {
		return err
	}
	var content Hash
	if n, err := hex.Decode(content[:], []byte(filepath.Base(path))); err != nil || n != len(content) {
		return sigma.Errorf("binfs.load", sigma.KindInvalid, "not a content's name")
	}
	r, hashes, err := readContent(b, content)
	if err != nil {
		return err
	}
	if len(r.Names) == 0 {
		return sigma.Errorf("binfs.load", sigma.KindInvalid, "it has no name")
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	k := r.Names[0].key()
	c.lastNode++
	p := c.blankLocked(path, Name{Realm: k.realm, Path: k.path, ID: k.id, Size: r.Size}, c.lastNode)
	p.r, p.hashes, p.bytes, p.ok, p.adopted, p.content, p.nodes = file, hashes, r.Size, true, true, &content, r.Nodes
	for i := range p.state {
		p.state[i] = chunkDoubted
	}
	c.bytes += p.bytes
	c.contents[content] = p
	for _, n := range r.Names {
		if c.known[n.key()] == nil {
			c.addKeyLocked(p, n.key())
		}
	}
	for _, n := range r.Nodes {
		c.adoptNodeLocked(p, n)
	}
	return nil
}

// saveLocked writes the description of a complete program.
func (c *Cache) saveLocked(p *program, hashes []Hash) {
	r := contentRecord{Size: p.name.Size, Nodes: p.nodes}
	for _, h := range hashes {
		r.Hashes = append(r.Hashes, h[:]...)
	}
	for _, k := range p.keys {
		r.Names = append(r.Names, k.record())
	}
	rest, err := json.Marshal(r)
	if err == nil {
		sum := sha256.Sum256(rest)
		text := append([]byte(hex.EncodeToString(sum[:])+"\n"), rest...)
		err = atomicfile.Write(contentPath(c.cfg.Dir, *p.content)+".txt", text)
	}
	if err != nil { // it will be fetched again after a restart
		c.cfg.Log.Warn("a program cannot be remembered", "path", p.name.Path, "err", err)
	}
}

func contentPath(dir string, content Hash) string {
	return filepath.Join(contentsDir(dir), hex.EncodeToString(content[:]))
}
