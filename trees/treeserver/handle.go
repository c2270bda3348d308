package treeserver

import (
	"context"
	"os"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// do carries out one request.
func (s *server) do(ctx context.Context, m sigmap.Message, files []*os.File) (sigmap.Message, []*os.File, error) {
	if sigma.OnceOf(ctx).Again {
		if err := s.remembers(m); err != nil {
			return nil, nil, err
		}
	}
	switch m := m.(type) {
	case *sigmap.Tattach:
		root, err := s.cfg.Tree.Attach(ctx, s.cfg.Principal, m.Aname)
		if err != nil {
			return nil, nil, err
		}
		st, err := root.Stat(ctx)
		if err != nil {
			root.Close()
			return nil, nil, err
		}
		return &sigmap.Rattach{ID: st.ID}, nil, s.add(m.Fid, root, s.attachedFor(m))
	case *sigmap.Tclunk:
		return &sigmap.Rclunk{}, nil, s.clunk(ctx, m.Fid, true)
	case *sigmap.Tremove:
		s.clunk(ctx, m.Fid, false)
		return nil, nil, Unsupported("Tremove; use Tunlinkat")
	case *sigmap.Trenameat:
		return s.rename(ctx, m)
	case *sigmap.Tcall:
		return s.call(ctx, m, files)
	}
	n, ok := fidOf(m)
	if !ok {
		return nil, nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "a client does not send %s", m.Type())
	}
	f, err := s.get(n)
	if err != nil {
		return nil, nil, err
	}
	defer s.put(f)
	switch m := m.(type) {
	case *sigmap.Tlopen:
		r, err := s.open(ctx, f, m)
		return r, nil, err
	case *sigmap.Tlcreate:
		r, err := s.create(ctx, f, m)
		return r, nil, err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch m.(type) {
	case *sigmap.Tpass:
		return pass(ctx, f)
	case *sigmap.Tbulk:
		return s.passBulk(ctx, f)
	}
	r, err := s.plainly(ctx, f, m)
	if err == errNotPlain && !s.plain {
		r, err = s.extended(ctx, f, m)
	}
	return r, nil, err
}

// do has the fid's file carry out a request.
func (f *fid) do(ctx context.Context, r sigma.Request) (sigma.Reply, error) {
	return Do(ctx, f.file, r)
}

// ask asks what concerns only the handle.
func (f *fid) ask(r sigma.Request) sigma.Reply {
	a, _ := f.do(context.Background(), r)
	return a
}

// call runs a method. The files are the tree's as soon as it is called.
func (s *server) call(ctx context.Context, m *sigmap.Tcall, files []*os.File) (sigmap.Message, []*os.File, error) {
	f, err := s.get(m.Fid)
	if err == nil {
		defer s.put(f)
		if !s.plain {
			a, err := f.do(ctx, sigma.Request{Op: sigma.OpCall, Name: m.Method, Data: m.Payload, Files: files})
			return &sigmap.Rcall{Payload: a.Data}, a.Files, err
		}
		err = Unsupported("call")
	}
	session.CloseFiles(files)
	return nil, nil, err
}

func fidOf(m sigmap.Message) (uint32, bool) {
	switch m := m.(type) {
	case *sigmap.Twalk:
		return m.Fid, true
	case *sigmap.Tlopen:
		return m.Fid, true
	case *sigmap.Tlcreate:
		return m.Fid, true
	case *sigmap.Tsymlink:
		return m.Fid, true
	case *sigmap.Treadlink:
		return m.Fid, true
	case *sigmap.Tgetattr:
		return m.Fid, true
	case *sigmap.Tsetattr:
		return m.Fid, true
	case *sigmap.Treaddir:
		return m.Fid, true
	case *sigmap.Tfsync:
		return m.Fid, true
	case *sigmap.Tmkdir:
		return m.Fid, true
	case *sigmap.Tunlinkat:
		return m.Dir, true
	case *sigmap.Tread:
		return m.Fid, true
	case *sigmap.Twrite:
		return m.Fid, true
	case *sigmap.Tstatfs:
		return m.Fid, true
	case *sigmap.Tget:
		return m.Fid, true
	case *sigmap.Tput:
		return m.Fid, true
	case *sigmap.Twatch:
		return m.Fid, true
	case *sigmap.Tlease:
		return m.Fid, true
	case *sigmap.Tpass:
		return m.Fid, true
	case *sigmap.Tbulk:
		return m.Fid, true
	case *sigmap.Tlist:
		return m.Fid, true
	case *sigmap.Treadif:
		return m.Fid, true
	case *sigmap.Twriteif:
		return m.Fid, true
	case *sigmap.Tdescribe:
		return m.Fid, true
	case *sigmap.Tfind:
		return m.Fid, true
	}
	return 0, false
}

// remembers refuses a mutation that may have been made before, of a file whose server does not
// remember.
func (s *server) remembers(m sigmap.Message) error {
	n, _ := fidOf(m)
	if r, ok := m.(*sigmap.Trenameat); ok {
		n = r.OldDir
	}
	f, err := s.get(n)
	if err != nil {
		return err
	}
	defer s.put(f)
	if !f.ask(sigma.Request{Op: sigma.OpRemembers}).Yes {
		return NotRemembered()
	}
	return nil
}

// NotRemembered is the answer to a mutation that may have been made before, of a server that
// remembers none.
func NotRemembered() error {
	return sigma.Errorf("treeserver.Serve", sigma.KindLost,
		"the request may have been carried out before its reply was lost, and this server does not remember")
}

// unnamed is the part of O_TMPFILE that is its own.
const unnamed = 0o20000000

// flagsOf translates open(2) flags; ones that are not known are ignored, as clients send
// O_LARGEFILE and the like.
func flagsOf(linux uint32) sigma.OpenFlags {
	f := sigma.OpenRead
	switch linux & syscall.O_ACCMODE {
	case syscall.O_WRONLY:
		f |= sigma.OpenWrite
	case syscall.O_RDWR:
		f |= sigma.OpenReadWrite
	}
	for _, p := range []struct {
		linux uint32
		ours  sigma.OpenFlags
	}{{syscall.O_TRUNC, sigma.OpenTruncate}, {syscall.O_APPEND, sigma.OpenAppend},
		{syscall.O_EXCL, sigma.OpenExclusive}, {unnamed, sigma.OpenHidden}} {
		if linux&p.linux != 0 {
			f |= p.ours
		}
	}
	return f
}

func (s *server) open(ctx context.Context, f *fid, m *sigmap.Tlopen) (sigmap.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		return nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "fid %d is open already", m.Fid)
	}
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpStat})
	if err != nil {
		return nil, err
	}
	st, flags := a.Stat, flagsOf(m.Flags)
	if st.ID.Kind == sigma.KindEndpoint &&
		!flags.Writes() { // a plain client takes it for a file and may see where it leads
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpReadLink})
		if err != nil {
			return nil, err
		}
		f.text = []byte(a.Text)
	} else if _, err := f.do(ctx, sigma.Request{Op: sigma.OpOpen, Flags: flags}); err != nil {
		return nil, err
	}
	f.open, f.mode, f.dir, f.fence = true, flags, st.ID.Kind == sigma.KindDir, sigma.FenceOf(ctx)
	return &sigmap.Rlopen{ID: st.ID, IOUnit: s.dataMax}, nil
}

// create turns the directory's fid into the new file's (9P2000.L lcreate).
func (s *server) create(ctx context.Context, f *fid, m *sigmap.Tlcreate) (sigmap.Message, error) {
	if err := sigma.CheckName(m.Name); err != nil {
		return nil, err
	}
	f.mu.RLock()
	open := f.open
	f.mu.RUnlock()
	if open {
		return nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "fid %d is open already", m.Fid)
	}
	flags := flagsOf(m.Flags)
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpCreate, Name: m.Name, Flags: flags, Perm: m.Mode & 0o777})
	if err != nil {
		return nil, err
	}
	created := &fid{file: a.File, uses: 1, open: true, mode: flags, fence: sigma.FenceOf(ctx)}
	// The file is made: nothing that fails from here on may be answered as if it were not. Our own
	// clients do not look at the id.
	id := created.ask(sigma.Request{Op: sigma.OpIdentify}).ID
	if s.plain {
		if a, err := created.do(ctx, sigma.Request{Op: sigma.OpStat}); err == nil {
			id = a.Stat.ID
		}
	}
	return &sigmap.Rlcreate{ID: id, IOUnit: s.dataMax}, s.replace(m.Fid, f, created)
}

func (s *server) rename(ctx context.Context, m *sigmap.Trenameat) (sigmap.Message, []*os.File, error) {
	for _, n := range []string{m.OldName, m.NewName} {
		if err := sigma.CheckName(n); err != nil {
			return nil, nil, err
		}
	}
	from, err := s.get(m.OldDir)
	if err != nil {
		return nil, nil, err
	}
	defer s.put(from)
	to, err := s.get(m.NewDir)
	if err != nil {
		return nil, nil, err
	}
	defer s.put(to)
	_, err = from.do(ctx, sigma.Request{Op: sigma.OpRename, Name: m.OldName, Dir: to.file, Text: m.NewName})
	return &sigmap.Rrenameat{}, nil, err
}

func pass(ctx context.Context, f *fid) (sigmap.Message, []*os.File, error) {
	switch {
	case !f.ask(sigma.Request{Op: sigma.OpStreams}).Yes:
		return nil, nil, Unsupported("passing a file descriptor")
	case !f.open:
		return nil, nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "the file is not open")
	}
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpPassFile})
	return &sigmap.Rpass{}, a.Files, err
}

var errNotPlain = sigma.Errorf("treeserver.Serve", sigma.KindUnsupported, "not a message of 9P2000.L")

// plainly answers the messages of 9P2000.L.
func (s *server) plainly(ctx context.Context, f *fid, m sigmap.Message) (sigmap.Message, error) {
	switch m := m.(type) {
	case *sigmap.Twalk:
		return s.walk(ctx, f, m)
	case *sigmap.Tgetattr:
		return f.getattr(ctx)
	case *sigmap.Tsetattr:
		_, err := f.do(ctx, sigma.Request{Op: sigma.OpSetStat, Change: changeOf(m)})
		return &sigmap.Rsetattr{}, err
	case *sigmap.Treaddir:
		return s.readdir(ctx, f, m)
	case *sigmap.Tread:
		if err := f.check(false); err != nil {
			return nil, err
		}
		if f.text != nil {
			rest := f.text[min(m.Offset, uint64(len(f.text))):]
			return &sigmap.Rread{Data: rest[:min(m.Count, s.dataMax, uint32(len(rest)))]}, nil
		}
		return s.readAt(ctx, f, m.Offset, min(m.Count, s.dataMax, sigmap.DataMax))
	case *sigmap.Twrite:
		a, err := f.write(ctx, sigma.Request{Op: sigma.OpWriteAt, Data: m.Data, Offset: m.Offset})
		return &sigmap.Rwrite{Count: uint32(a.N)}, err
	case *sigmap.Tsymlink:
		if err := f.entry(ctx, sigma.Request{Op: sigma.OpSymlink, Name: m.Name, Text: m.Target}); err != nil {
			return nil, err
		}
		return &sigmap.Rsymlink{ID: s.idOf(ctx, f, m.Name, sigma.KindSymlink)}, nil
	case *sigmap.Treadlink:
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpReadLink})
		return &sigmap.Rreadlink{Target: a.Text}, err
	case *sigmap.Tmkdir:
		if err := f.entry(ctx, sigma.Request{Op: sigma.OpMkdir, Name: m.Name, Perm: m.Mode & 0o777}); err != nil {
			return nil, err
		}
		return &sigmap.Rmkdir{ID: s.idOf(ctx, f, m.Name, sigma.KindDir)}, nil
	case *sigmap.Tunlinkat:
		return &sigmap.Runlinkat{}, f.entry(ctx, sigma.Request{Op: sigma.OpRemove, Name: m.Name})
	case *sigmap.Tfsync:
		_, err := f.do(ctx, sigma.Request{Op: sigma.OpSync})
		return &sigmap.Rfsync{}, err
	case *sigmap.Tstatfs:
		return f.statfs(ctx)
	}
	return nil, errNotPlain
}

// statfs tells how much room there is; zeros if the server does not know.
func (f *fid) statfs(ctx context.Context) (sigmap.Message, error) {
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpSpace})
	room := a.Space
	return &sigmap.Rstatfs{FSType: sigmap.FSType, BlockSize: sigmap.FSBlock,
		Blocks: uint64(room.Total) / sigmap.FSBlock, BlocksFree: uint64(room.Free) / sigmap.FSBlock,
		BlocksAvail: uint64(room.Free) / sigmap.FSBlock,
		Files:       room.Files, FilesFree: room.Room, NameLen: sigma.NameMax}, err
}

// write has the fid's bytes changed.
func (f *fid) write(ctx context.Context, r sigma.Request) (a sigma.Reply, err error) {
	if err := f.check(true); err != nil {
		return a, err
	}
	if r.Offset > 1<<62 || r.Offset+uint64(len(r.Data)) > 1<<62 {
		return a, sigma.Errorf("treeserver.Serve", sigma.KindTooBig, "write at offset %d", r.Offset)
	}
	return f.do(ctx, r)
}

// entry changes the entry of a directory.
func (f *fid) entry(ctx context.Context, r sigma.Request) error {
	err := sigma.CheckName(r.Name)
	if err == nil {
		_, err = f.do(ctx, r)
	}
	return err
}

// idOf is the id of a name that was made just now. Our own clients do not look at it, so only plain
// ones cost a walk.
func (s *server) idOf(ctx context.Context, dir *fid, name string, kind sigma.FileKind) sigma.FileID {
	if s.plain {
		if file, ids, err := dir.file.Walk(ctx, []string{name}); err == nil && file != nil && len(ids) == 1 {
			file.Close()
			return ids[0]
		}
	}
	return sigma.FileID{Kind: kind}
}

// check says whether the fid is open for writing or reading bytes.
func (f *fid) check(write bool) error {
	switch {
	case !f.open:
		return sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "the file is not open")
	case f.dir:
		return sigma.Errorf("treeserver.Serve", sigma.KindIsDir, "a directory has no bytes")
	case write && !f.mode.Writes():
		return sigma.Errorf("treeserver.Serve", sigma.KindPermission, "the file is open for reading only")
	case !write && f.mode.Writes() && f.mode&sigma.OpenReadWrite == 0:
		return sigma.Errorf("treeserver.Serve", sigma.KindPermission, "the file is open for writing only")
	}
	return nil
}

func (s *server) walk(ctx context.Context, f *fid, m *sigmap.Twalk) (sigmap.Message, error) {
	if err := checkNames(m.Names); err != nil {
		return nil, err
	}
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpWalk, Names: m.Names})
	if err != nil {
		return nil, err
	}
	file, ids := a.File, a.IDs
	if file != nil && m.NewFid == m.Fid {
		err = s.replace(m.Fid, f, &fid{file: file, uses: 1, of: f.of})
	} else if file != nil {
		err = s.add(m.NewFid, file, f.of)
	} else if len(ids) == 0 {
		err = sigma.PathError("treeserver.Serve", sigma.KindNotFound, sigma.JoinPath(m.Names...))
	}
	return &sigmap.Rwalk{IDs: ids}, err
}

func (f *fid) getattr(ctx context.Context) (sigmap.Message, error) {
	a, err := f.do(ctx, sigma.Request{Op: sigma.OpStat})
	if err != nil {
		return nil, err
	}
	st := a.Stat
	r := &sigmap.Rgetattr{Valid: sigmap.GetattrBasic | sigmap.GetattrVersion, ID: st.ID, Mode: modeOf(st), NLink: 1,
		Size: st.Size, BlockSize: 4096, Blocks: st.Blocks(),
		DataVersion: uint64(st.ID.Version)}
	if t := st.Modified; !t.IsZero() {
		r.MTime, r.MTimeNsec = uint64(t.Unix()), uint64(t.Nanosecond())
		r.ATime, r.ATimeNsec, r.CTime, r.CTimeNsec = r.MTime, r.MTimeNsec, r.MTime, r.MTimeNsec
	}
	return r, nil
}

func modeOf(st sigma.Stat) uint32 {
	switch st.ID.Kind {
	case sigma.KindDir:
		return st.Perm | syscall.S_IFDIR
	case sigma.KindSymlink:
		return st.Perm | syscall.S_IFLNK
	}
	return st.Perm | syscall.S_IFREG
}

func changeOf(m *sigmap.Tsetattr) (c sigma.StatChange) {
	if m.Valid&sigmap.AttrSetMode != 0 {
		p := m.Mode & 0o777
		c.Perm = &p
	}
	if m.Valid&sigmap.AttrSetSize != 0 {
		c.Size = &m.Size
	}
	if m.Valid&sigmap.AttrSetMTime != 0 {
		t := time.Now()
		if m.Valid&sigmap.AttrSetMTimeTo != 0 {
			t = time.Unix(int64(m.MTime), int64(m.MTimeNsec))
		}
		c.Modified = &t
	}
	return c
}

// recall answers a Tget at once if the file can: without the goroutine and the context that a
// request needs which may wait. nil if it cannot. It is called by the reader of requests.
func (s *server) recall(m sigmap.Message) (reply sigmap.Message) {
	get, ok := m.(*sigmap.Tget)
	if !ok || s.plain || checkNames(get.Names) != nil {
		return nil
	}
	f, err := s.get(get.Fid)
	if err != nil {
		return nil
	}
	defer s.put(f)
	if !f.mu.TryRLock() {
		return nil
	}
	defer f.mu.RUnlock()
	defer func() {
		if recover() != nil { // the request is made again by who reports that
			reply = nil
		}
	}()
	a, err := f.do(context.Background(), sigma.Request{Op: sigma.OpRecall, Names: get.Names, Offset: get.Offset,
		Count: int(min(get.Count, sigmap.DataMax))})
	switch {
	case !a.Yes:
		return nil
	case err != nil:
		return sigmap.Fail(err, false)
	}
	return rget(a)
}

// isPrompt says that m is a call that is answered without waiting: it is handled by the reader of
// requests, without a goroutine that another thread would be woken for.
func (s *server) isPrompt(m sigmap.Message) bool {
	call, ok := m.(*sigmap.Tcall)
	if !ok || s.plain {
		return false
	}
	f, err := s.get(call.Fid)
	if err != nil {
		return false
	}
	defer s.put(f)
	p, ok := f.file.(prompter)
	return ok && p.IsPrompt(call.Method, call.Payload)
}

// extended answers the messages that sigmaP adds.
func (s *server) extended(ctx context.Context, f *fid, m sigmap.Message) (sigmap.Message, error) {
	switch m := m.(type) {
	case *sigmap.Tlist:
		return f.list(ctx, m)
	case *sigmap.Tdescribe:
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpStat})
		return &sigmap.Rdescribe{Stat: a.Stat}, err
	case *sigmap.Tget:
		if err := checkNames(m.Names); err != nil {
			return nil, err
		}
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpGet, Names: m.Names, Offset: m.Offset,
			Count: int(min(m.Count, sigmap.DataMax))})
		if err != nil {
			return nil, err
		}
		return rget(a), nil
	case *sigmap.Tput:
		if err := checkNames(m.Names); err != nil {
			return nil, err
		}
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpPut, Names: m.Names, Data: m.Data, Put: m.Options})
		if err != nil || a.Stop != nil {
			return rstop(a.Stop), err
		}
		return &sigmap.Rput{ID: a.ID}, nil
	case *sigmap.Treadif:
		if err := f.check(false); err != nil {
			return nil, err
		}
		if f.text != nil {
			return nil, Unsupported("reading a version")
		}
		buf := make([]byte, min(m.Count, s.dataMax, sigmap.DataMax))
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpReadAtIf, Data: buf, Offset: m.Offset, Version: m.Version})
		return &sigmap.Rreadif{Data: buf[:a.N]}, err
	case *sigmap.Twriteif:
		a, err := f.write(ctx, sigma.Request{Op: sigma.OpWriteAtIf, Data: m.Data, Offset: m.Offset, Version: m.Version})
		return &sigmap.Rwriteif{Count: uint32(a.N), Version: a.Version}, err
	case *sigmap.Twatch:
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpWatch, Version: m.Since})
		return &sigmap.Rwatch{Version: a.Version}, err
	case *sigmap.Tfind:
		a, err := f.do(ctx, sigma.Request{Op: sigma.OpFind, Offset: m.Path})
		if err != nil {
			return nil, err
		}
		return &sigmap.Rfind{}, s.add(m.NewFid, a.File, f.of)
	case *sigmap.Tlease:
		return f.lease(ctx, m)
	}
	return nil, sigma.Errorf("treeserver.Serve", sigma.KindUnsupported, "%s is not served", m.Type())
}

func (f *fid) lease(ctx context.Context, m *sigmap.Tlease) (sigmap.Message, error) {
	r := sigma.Request{Op: sigma.OpRenew, Lease: m.ID, TTL: m.TTL}
	switch {
	case m.TTL < 0 || m.ID == 0 && m.TTL == 0:
		return nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "a lease of %v", m.TTL)
	case m.ID == 0:
		r.Op = sigma.OpLease
	case m.TTL == 0:
		r.Op = sigma.OpRevoke
	}
	a, err := f.do(ctx, r)
	if m.ID != 0 {
		a.Lease = m.ID
	}
	return &sigmap.Rlease{ID: a.Lease}, err
}

// rget answers a Tget that did not fail.
func rget(a sigma.Reply) sigmap.Message {
	if a.Stop != nil {
		return rstop(a.Stop)
	}
	return &sigmap.Rget{ID: a.ID, Size: a.Size, Data: a.Data}
}

func rstop(s *sigma.Stopped) sigmap.Message {
	if s == nil {
		return nil
	}
	return &sigmap.Rstop{Walked: uint16(s.Walked), Kind: s.Kind, Target: s.Target}
}

func checkNames(names []string) error {
	if len(names) > sigmap.WalkMax {
		return sigma.Errorf("treeserver.Serve", sigma.KindTooBig, "more than %d names in one walk", sigmap.WalkMax)
	}
	for _, n := range names {
		if err := sigma.CheckName(n); err != nil {
			return err
		}
	}
	return nil
}

// Do has f carry out a request: by its Handle, or by the method that the request stands for. It is
// the one place where requests become methods. Get and Put that f does not have are made of plain
// calls; a question about the handle that f has no answer to is answered with zeros, as is
// OpSpace; OpPublish does nothing then, and other requests are KindUnsupported.
func Do(ctx context.Context, f sigma.File, r sigma.Request) (a sigma.Reply, err error) {
	if h, ok := f.(sigma.Handler); ok {
		return h.Handle(ctx, r)
	}
	switch r.Op {
	case sigma.OpClose:
		f.Close()
	case sigma.OpWalk:
		a.File, a.IDs, err = f.Walk(ctx, r.Names)
	case sigma.OpStat:
		a.Stat, err = f.Stat(ctx)
	case sigma.OpSetStat:
		err = f.SetStat(ctx, r.Change)
	case sigma.OpOpen:
		err = f.Open(ctx, r.Flags)
	case sigma.OpCreate:
		a.File, err = f.Create(ctx, r.Name, r.Flags, r.Perm)
	case sigma.OpReadAt:
		a.N, err = f.ReadAt(ctx, r.Data, r.Offset)
	case sigma.OpWriteAt:
		a.N, err = f.WriteAt(ctx, r.Data, r.Offset)
	case sigma.OpReadDir:
		a.Entries, a.Next, a.More, err = f.ReadDir(ctx, r.Offset, r.Count)
	case sigma.OpMkdir:
		err = f.Mkdir(ctx, r.Name, r.Perm)
	case sigma.OpSymlink:
		err = f.Symlink(ctx, r.Name, r.Text)
	case sigma.OpReadLink:
		a.Text, err = f.ReadLink(ctx)
	case sigma.OpRemove:
		err = f.Remove(ctx, r.Name)
	case sigma.OpRename:
		err = f.Rename(ctx, r.Name, r.Dir, r.Text)
	case sigma.OpSync:
		err = f.Sync(ctx)
	case sigma.OpGet:
		var g sigma.GetResult
		g, a.Stop, err = Get(ctx, f, r.Names, r.Offset, r.Count)
		a.Data, a.ID, a.Size = g.Data, g.ID, g.Size
	case sigma.OpPut:
		a.ID, a.Stop, err = Put(ctx, f, r.Names, r.Data, r.Put)
	default:
		return companion(ctx, f, r)
	}
	return a, err
}

// companion has f carry out a request that a plain file does not know.
func companion(ctx context.Context, f sigma.File, r sigma.Request) (a sigma.Reply, err error) {
	switch r.Op {
	case sigma.OpReadAtIf:
		if x, ok := f.(sigma.Conditional); ok {
			a.N, err = x.ReadAtIf(ctx, r.Data, r.Offset, r.Version)
			return a, err
		}
	case sigma.OpWriteAtIf:
		if x, ok := f.(sigma.Conditional); ok {
			a.N, a.Version, err = x.WriteAtIf(ctx, r.Data, r.Offset, r.Version)
			return a, err
		}
	case sigma.OpWatch:
		if x, ok := f.(sigma.Watcher); ok {
			a.Version, err = x.Watch(ctx, r.Version)
			return a, err
		}
	case sigma.OpCall:
		if x, ok := f.(sigma.Caller); ok {
			a.Data, a.Files, err = x.Call(ctx, r.Name, r.Data, r.Files)
			return a, err
		}
		session.CloseFiles(r.Files)
	case sigma.OpPassFile:
		if x, ok := f.(sigma.FilePasser); ok {
			return descriptor(x.PassFile(ctx))
		}
	case sigma.OpPassBulk:
		if x, ok := f.(sigma.BulkPasser); ok {
			return descriptor(x.PassBulk(ctx))
		}
	case sigma.OpPublish:
		if x, ok := f.(sigma.Publisher); ok {
			err = x.Publish(ctx)
		}
		return a, err
	case sigma.OpSpace:
		if x, ok := f.(sigma.Spacious); ok {
			a.Space, err = x.Space(ctx)
		}
		return a, err
	case sigma.OpFind:
		if x, ok := f.(sigma.Finder); ok {
			a.File, err = x.Find(ctx, r.Offset)
			return a, err
		}
	case sigma.OpLease, sigma.OpRenew, sigma.OpRevoke:
		if x, ok := f.(sigma.Leaser); ok {
			return lease(ctx, x, r)
		}
	default:
		return ofHandle(f, r)
	}
	return a, Unsupported(r.Op.String())
}

// ofHandle answers a question about the handle f.
func ofHandle(f sigma.File, r sigma.Request) (a sigma.Reply, err error) {
	switch r.Op {
	case sigma.OpIdentify:
		if x, ok := f.(sigma.Identified); ok {
			a.ID = x.FileID()
		}
	case sigma.OpRemembers:
		x, ok := f.(sigma.Rememberer)
		a.Yes = ok && x.Remembers()
	case sigma.OpRecall:
		if x, ok := f.(sigma.Recaller); ok {
			var g sigma.GetResult
			g, a.Stop, a.Yes, err = x.Recall(r.Names, r.Offset, r.Count)
			a.Data, a.ID, a.Size = g.Data, g.ID, g.Size
		}
	case sigma.OpStreams:
		_, a.Yes = f.(sigma.FilePasser)
	}
	return a, err
}

func descriptor(file *os.File, err error) (a sigma.Reply, _ error) {
	if err == nil {
		a.Files = []*os.File{file}
	}
	return a, err
}

func lease(ctx context.Context, x sigma.Leaser, r sigma.Request) (a sigma.Reply, err error) {
	switch r.Op {
	case sigma.OpLease:
		a.Lease, err = x.Lease(ctx, r.TTL)
	case sigma.OpRenew:
		err = x.Renew(ctx, r.Lease)
	default:
		err = x.Revoke(ctx, r.Lease)
	}
	return a, err
}
