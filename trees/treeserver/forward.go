package treeserver

import (
	"context"
	"os"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/fence"
	"sigmaos.dev/wire/session"
)

// Op is what is asked of a file: the method of sigma.File or of one of its companions.
type Op string

// The requests that a Gate hears of.
const (
	OpWalk     Op = "Walk"
	OpStat     Op = "Stat"
	OpSetStat  Op = "SetStat"
	OpOpen     Op = "Open"
	OpCreate   Op = "Create"
	OpReadAt   Op = "ReadAt"
	OpWriteAt  Op = "WriteAt"
	OpReadDir  Op = "ReadDir"
	OpMkdir    Op = "Mkdir"
	OpSymlink  Op = "Symlink"
	OpReadLink Op = "ReadLink"
	OpRemove   Op = "Remove"
	OpRename   Op = "Rename"
	OpSync     Op = "Sync"
	OpGet      Op = "Get"
	OpPut      Op = "Put"
	OpWatch    Op = "Watch"
	OpCall     Op = "Call"
	OpPassFile Op = "PassFile"
	OpPassBulk Op = "PassBulk"
	OpPublish  Op = "Publish"
	OpSpace    Op = "Space"
)

// Gate decides about the requests that come to a Forward. Safe for concurrent use.
type Gate interface {
	// Enter is called before each request; name is that of the directory's entry that the request
	// makes, moves or removes, else "". The request gets the context that Enter returns. leave gets
	// the request's error and returns the one to answer.
	Enter(ctx context.Context, op Op, name string) (_ context.Context, leave func(error) error, err error)
	// Beyond returns the handle that users have of a file to which a request led.
	Beyond(f sigma.File) sigma.File
}

// Forward is a file that passes what is asked of it on to another one, if its Gate lets it. What
// stands before files embeds it, and has methods of its own only for what it does otherwise.
//
// It has the companions of a file, and answers as the server kit would where File has not.
// FilePasser and BulkPasser mean something to the server kit by being there (PassingForward), and
// Recaller passes no gate. Leaser and Finder are of a tree's root, which is not forwarded.
type Forward struct {
	File sigma.File
	Gate Gate
}

// Admit is the leave of a Gate that changes no errors.
func Admit(err error) error { return err }

// forwarded gives what stands behind, for a rename into it.
func (f *Forward) forwarded() sigma.File { return f.File }

// under passes a request on. do does not outlive it, so that what do sets stays on the stack.
func (f *Forward) under(ctx context.Context, op Op, name string, do func(ctx context.Context) error) error {
	ctx, leave, err := f.Gate.Enter(ctx, op, name)
	if err != nil {
		return err
	}
	return leave(do(ctx))
}

// Walk implements sigma.File.
func (f *Forward) Walk(ctx context.Context, names []string) (file sigma.File, ids []sigma.FileID, err error) {
	err = f.under(ctx, OpWalk, "", func(ctx context.Context) (err error) {
		file, ids, err = f.File.Walk(ctx, names)
		return err
	})
	if file == nil || err != nil {
		return nil, ids, err
	}
	return f.Gate.Beyond(file), ids, nil
}

// Create implements sigma.File.
func (f *Forward) Create(ctx context.Context, name string, flags sigma.OpenFlags, perm uint32) (file sigma.File,
	err error) {
	err = f.under(ctx, OpCreate, name, func(ctx context.Context) (err error) {
		file, err = f.File.Create(ctx, name, flags, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f.Gate.Beyond(file), nil
}

// Stat implements sigma.File.
func (f *Forward) Stat(ctx context.Context) (st sigma.Stat, err error) {
	err = f.under(ctx, OpStat, "", func(ctx context.Context) (err error) { st, err = f.File.Stat(ctx); return err })
	return st, err
}

// SetStat implements sigma.File.
func (f *Forward) SetStat(ctx context.Context, c sigma.StatChange) error {
	return f.under(ctx, OpSetStat, "", func(ctx context.Context) error { return f.File.SetStat(ctx, c) })
}

// Open implements sigma.File.
func (f *Forward) Open(ctx context.Context, flags sigma.OpenFlags) error {
	return f.under(ctx, OpOpen, "", func(ctx context.Context) error { return f.File.Open(ctx, flags) })
}

// ReadAt implements sigma.File.
func (f *Forward) ReadAt(ctx context.Context, p []byte, offset uint64) (n int, err error) {
	err = f.under(ctx, OpReadAt, "", func(ctx context.Context) (err error) {
		n, err = f.File.ReadAt(ctx, p, offset)
		return err
	})
	return n, err
}

// WriteAt implements sigma.File.
func (f *Forward) WriteAt(ctx context.Context, p []byte, offset uint64) (n int, err error) {
	err = f.under(ctx, OpWriteAt, "", func(ctx context.Context) (err error) {
		n, err = f.File.WriteAt(ctx, p, offset)
		return err
	})
	return n, err
}

// ReadDir implements sigma.File.
func (f *Forward) ReadDir(ctx context.Context, cookie uint64, most int) (entries []sigma.DirEntry, next uint64,
	more bool, err error) {
	err = f.under(ctx, OpReadDir, "", func(ctx context.Context) (err error) {
		entries, next, more, err = f.File.ReadDir(ctx, cookie, most)
		return err
	})
	return entries, next, more, err
}

// Mkdir implements sigma.File.
func (f *Forward) Mkdir(ctx context.Context, name string, perm uint32) error {
	return f.under(ctx, OpMkdir, name, func(ctx context.Context) error { return f.File.Mkdir(ctx, name, perm) })
}

// Symlink implements sigma.File.
func (f *Forward) Symlink(ctx context.Context, name, target string) error {
	return f.under(ctx, OpSymlink, name, func(ctx context.Context) error { return f.File.Symlink(ctx, name, target) })
}

// ReadLink implements sigma.File.
func (f *Forward) ReadLink(ctx context.Context) (target string, err error) {
	err = f.under(ctx, OpReadLink, "", func(ctx context.Context) (err error) {
		target, err = f.File.ReadLink(ctx)
		return err
	})
	return target, err
}

// Remove implements sigma.File.
func (f *Forward) Remove(ctx context.Context, name string) error {
	return f.under(ctx, OpRemove, name, func(ctx context.Context) error { return f.File.Remove(ctx, name) })
}

// Rename implements sigma.File. A directory behind a Forward is meant by what stands behind.
func (f *Forward) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	if to, ok := newDir.(interface{ forwarded() sigma.File }); ok {
		newDir = to.forwarded()
	}
	return f.under(ctx, OpRename, name, func(ctx context.Context) error {
		return f.File.Rename(ctx, name, newDir, newName)
	})
}

// Sync implements sigma.File.
func (f *Forward) Sync(ctx context.Context) error {
	return f.under(ctx, OpSync, "", f.File.Sync)
}

// Close implements sigma.File. No gate keeps a handle from being released.
func (f *Forward) Close() { f.File.Close() }

// Get implements sigma.Getter as the file does, or by plain calls.
func (f *Forward) Get(ctx context.Context, names []string, offset uint64, count int) (r sigma.GetResult,
	stop *sigma.Stopped, err error) {
	err = f.under(ctx, OpGet, "", func(ctx context.Context) (err error) {
		r, stop, err = Get(ctx, f.File, names, offset, count)
		return err
	})
	return r, stop, err
}

// Put implements sigma.Putter as the file does, or by plain calls.
func (f *Forward) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (id sigma.FileID,
	stop *sigma.Stopped, err error) {
	err = f.under(ctx, OpPut, "", func(ctx context.Context) (err error) {
		id, stop, err = Put(ctx, f.File, names, data, o)
		return err
	})
	return id, stop, err
}

// ReadAtIf implements sigma.Conditional.
func (f *Forward) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, err error) {
	err = f.under(ctx, OpReadAt, "", func(ctx context.Context) (err error) {
		c, ok := f.File.(sigma.Conditional)
		if !ok {
			return Unsupported("reading a version")
		}
		n, err = c.ReadAtIf(ctx, p, offset, v)
		return err
	})
	return n, err
}

// WriteAtIf implements sigma.Conditional.
func (f *Forward) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (n int, now sigma.Version,
	err error) {
	err = f.under(ctx, OpWriteAt, "", func(ctx context.Context) (err error) {
		c, ok := f.File.(sigma.Conditional)
		if !ok {
			return Unsupported("writing on a condition")
		}
		n, now, err = c.WriteAtIf(ctx, p, offset, v)
		return err
	})
	return n, now, err
}

// Watch implements sigma.Watcher.
func (f *Forward) Watch(ctx context.Context, since sigma.Version) (now sigma.Version, err error) {
	err = f.under(ctx, OpWatch, "", func(ctx context.Context) (err error) {
		w, ok := f.File.(sigma.Watcher)
		if !ok {
			return Unsupported("watch")
		}
		now, err = w.Watch(ctx, since)
		return err
	})
	return now, err
}

// Call implements sigma.Caller.
func (f *Forward) Call(ctx context.Context, method string, payload []byte, files []*os.File) (reply []byte,
	back []*os.File, err error) {
	passed := false
	err = f.under(ctx, OpCall, "", func(ctx context.Context) (err error) {
		c, ok := f.File.(sigma.Caller)
		if !ok {
			return Unsupported("call")
		}
		passed = true
		reply, back, err = c.Call(ctx, method, payload, files)
		return err
	})
	if !passed {
		session.CloseFiles(files)
	}
	return reply, back, err
}

// passFile is the PassFile of those that implement sigma.FilePasser.
func (f *Forward) passFile(ctx context.Context) (file *os.File, err error) {
	err = f.under(ctx, OpPassFile, "", func(ctx context.Context) (err error) {
		p, ok := f.File.(sigma.FilePasser)
		if !ok {
			return Unsupported("passing a file descriptor")
		}
		file, err = p.PassFile(ctx)
		return err
	})
	return file, err
}

// Publish implements sigma.Publisher. There is nothing to publish where the file does not.
func (f *Forward) Publish(ctx context.Context) error {
	p, ok := f.File.(sigma.Publisher)
	if !ok {
		return nil
	}
	return f.under(ctx, OpPublish, "", p.Publish)
}

// Space implements sigma.Spacious; zeros where the file does not.
func (f *Forward) Space(ctx context.Context) (room sigma.Space, err error) {
	err = f.under(ctx, OpSpace, "", func(ctx context.Context) (err error) {
		if s, ok := f.File.(sigma.Spacious); ok {
			room, err = s.Space(ctx)
		}
		return err
	})
	return room, err
}

// Remembers implements sigma.Rememberer.
func (f *Forward) Remembers() bool {
	r, ok := f.File.(sigma.Rememberer)
	return ok && r.Remembers()
}

// FileID implements sigma.Identified.
func (f *Forward) FileID() (id sigma.FileID) {
	if i, ok := f.File.(sigma.Identified); ok {
		id = i.FileID()
	}
	return id
}

// FileKind is the kind of the file as far as its handle knows it.
func (f *Forward) FileKind() sigma.FileKind {
	if k, ok := f.File.(interface{ FileKind() sigma.FileKind }); ok {
		return k.FileKind()
	}
	return sigma.KindFile
}

// PassingForward is a Forward that passes descriptors and streams, where the file does.
type PassingForward struct{ Forward }

// Passing stands before f.
func Passing(f sigma.File, g Gate) PassingForward { return PassingForward{Forward{File: f, Gate: g}} }

// PassFile implements sigma.FilePasser. What is done through the descriptor passes no gate.
func (f *PassingForward) PassFile(ctx context.Context) (*os.File, error) { return f.passFile(ctx) }

// PassBulk implements sigma.BulkPasser.
func (f *PassingForward) PassBulk(ctx context.Context) (file *os.File, err error) {
	err = f.under(ctx, OpPassBulk, "", func(ctx context.Context) (err error) {
		p, ok := f.File.(sigma.BulkPasser)
		if !ok {
			return Unsupported("a stream")
		}
		file, err = p.PassBulk(ctx)
		return err
	})
	return file, err
}

// Fenced puts f, and all handles that are had by it, behind the fences of t, which refuse what
// deposed leaders ask for.
func Fenced(t *fence.Table, f sigma.File) sigma.File { return behindFences{t}.Beyond(f) }

// behindFences is the Gate of Fenced.
type behindFences struct{ table *fence.Table }

// Enter implements Gate.
func (g behindFences) Enter(ctx context.Context, _ Op, _ string) (context.Context, func(error) error, error) {
	return g.table.Enter(ctx, sigma.FenceOf(ctx))
}

// Beyond implements Gate.
func (g behindFences) Beyond(f sigma.File) sigma.File {
	return &fenced{Forward{File: f, Gate: g}}
}

// fenced is a file behind fences, of a tree that has no streams of its own.
type fenced struct{ Forward }

// PassFile implements sigma.FilePasser. What is done through the descriptor passes no gate.
func (f *fenced) PassFile(ctx context.Context) (*os.File, error) { return f.passFile(ctx) }

// Recall implements sigma.Recaller, where the file does. It is asked for without a fence.
func (f *fenced) Recall(names []string, offset uint64, count int) (r sigma.GetResult, stop *sigma.Stopped, known bool,
	err error) {
	if by, ok := f.File.(sigma.Recaller); ok {
		return by.Recall(names, offset, count)
	}
	return r, nil, false, nil
}
