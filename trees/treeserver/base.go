// Package treeserver is the server kit: Serve answers sigmaP on one connection out of any
// sigma.Tree, so that a server has only to say what its files are (000 §4.2 protsrv). It looks
// after versions, tags, fids, flushes, limits and errors; it serves the plain 9P2000.L dialect to
// clients that ask for it.
//
// It promises that whatever bytes a client sends cost at most that client's session, that a client
// that stops reading delays nobody else, and that when Serve returns all handlers have ended and
// all handles are closed. It authorises by the Principal it is given, never by what a message
// claims.
//
// Users: named, s3, sigmad for file descriptor 3 of its procs and for the admin socket, and
// tenants' procs through sdk.
//
// Locks: server.sending orders answers and is held while one is sent; a fid's own mu orders Open
// against other uses; server.mu guards tags and fids, is taken under either and held for moments.
// No other is taken under another.
package treeserver

import (
	"context"

	"sigmaos.dev/sigma"
)

// Base answers KindUnsupported to everything. Servers embed it and add what their files can do.
type Base struct{}

var _ sigma.File = Base{}

// Unsupported is the error of an operation that a file does not have.
func Unsupported(op string) error {
	return sigma.Errorf("treeserver.Base."+op, sigma.KindUnsupported, "this file does not support %s", op)
}

func (Base) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return nil, nil, Unsupported("walk")
}
func (Base) Stat(context.Context) (sigma.Stat, error)             { return sigma.Stat{}, Unsupported("stat") }
func (Base) SetStat(context.Context, sigma.StatChange) error      { return Unsupported("setstat") }
func (Base) Open(context.Context, sigma.OpenFlags) error          { return Unsupported("open") }
func (Base) ReadAt(context.Context, []byte, uint64) (int, error)  { return 0, Unsupported("read") }
func (Base) WriteAt(context.Context, []byte, uint64) (int, error) { return 0, Unsupported("write") }
func (Base) Mkdir(context.Context, string, uint32) error          { return Unsupported("mkdir") }
func (Base) Symlink(context.Context, string, string) error        { return Unsupported("symlink") }
func (Base) ReadLink(context.Context) (string, error)             { return "", Unsupported("readlink") }
func (Base) Remove(context.Context, string) error                 { return Unsupported("remove") }
func (Base) Sync(context.Context) error                           { return nil }
func (Base) Close()                                               {}
func (Base) Rename(context.Context, string, sigma.File, string) error {
	return Unsupported("rename")
}
func (Base) Create(context.Context, string, sigma.OpenFlags, uint32) (sigma.File, error) {
	return nil, Unsupported("create")
}
func (Base) ReadDir(context.Context, uint64, int) ([]sigma.DirEntry, uint64, bool, error) {
	return nil, 0, false, Unsupported("readdir")
}

// Blob is a read-only file whose content is made when it is opened, as /proc has them. Several
// handles do not share content.
type Blob struct {
	Base
	ID      sigma.FileID
	Name    string
	Perm    uint32
	Size    uint64 // what Stat tells before Open; 0 if not known
	Content func(context.Context) ([]byte, error)
	data    []byte
}

// Walk clones only.
func (b *Blob) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("treeserver.Blob.Walk", sigma.KindNotDir, b.Name)
	}
	c := *b
	c.data = nil
	return &c, nil, nil
}

// Stat describes the file.
func (b *Blob) Stat(context.Context) (sigma.Stat, error) {
	size := b.Size
	if b.data != nil {
		size = uint64(len(b.data))
	}
	return sigma.Stat{ID: b.ID, Name: b.Name, Perm: b.Perm, Size: size}, nil
}

// Open makes the content.
func (b *Blob) Open(ctx context.Context, f sigma.OpenFlags) (err error) {
	if f.Writes() {
		return sigma.PathError("treeserver.Blob.Open", sigma.KindPermission, b.Name)
	}
	b.data, err = b.Content(ctx)
	return err
}

// ReadAt reads of the content as it was at Open.
func (b *Blob) ReadAt(_ context.Context, p []byte, offset uint64) (int, error) {
	if offset >= uint64(len(b.data)) {
		return 0, nil
	}
	return copy(p, b.data[offset:]), nil
}
