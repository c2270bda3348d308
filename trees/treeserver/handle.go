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

// call runs a method. The files are the tree's as soon as it is called.
func (s *server) call(ctx context.Context, m *sigmap.Tcall, files []*os.File) (sigmap.Message, []*os.File, error) {
	f, err := s.get(m.Fid)
	if err == nil {
		defer s.put(f)
		if c, ok := f.file.(sigma.Caller); ok && !s.plain {
			reply, back, err := c.Call(ctx, m.Method, m.Payload, files)
			return &sigmap.Rcall{Payload: reply}, back, err
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
	if r, ok := f.file.(sigma.Rememberer); !ok || !r.Remembers() {
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
	st, err := f.file.Stat(ctx)
	if err != nil {
		return nil, err
	}
	flags := flagsOf(m.Flags)
	if st.ID.Kind == sigma.KindEndpoint &&
		!flags.Writes() { // a plain client takes it for a file and may see where it leads
		text, err := f.file.ReadLink(ctx)
		if err != nil {
			return nil, err
		}
		f.text = []byte(text)
	} else if err := f.file.Open(ctx, flags); err != nil {
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
	file, err := f.file.Create(ctx, m.Name, flags, m.Mode&0o777)
	if err != nil {
		return nil, err
	}
	// The file is made: nothing that fails from here on may be answered as if it were not. Our own
	// clients do not look at the id.
	id := sigma.FileID{Kind: sigma.KindFile}
	if known, ok := file.(sigma.Identified); ok {
		id = known.FileID()
	}
	if s.plain {
		if st, err := file.Stat(ctx); err == nil {
			id = st.ID
		}
	}
	err = s.replace(m.Fid, f, &fid{file: file, uses: 1, open: true, mode: flags, fence: sigma.FenceOf(ctx)})
	return &sigmap.Rlcreate{ID: id, IOUnit: s.dataMax}, err
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
	return &sigmap.Rrenameat{}, nil, from.file.Rename(ctx, m.OldName, to.file, m.NewName)
}

func pass(ctx context.Context, f *fid) (sigmap.Message, []*os.File, error) {
	p, ok := f.file.(sigma.FilePasser)
	if !ok {
		return nil, nil, Unsupported("passing a file descriptor")
	}
	if !f.open {
		return nil, nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "the file is not open")
	}
	file, err := p.PassFile(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &sigmap.Rpass{}, []*os.File{file}, nil
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
		return &sigmap.Rsetattr{}, f.file.SetStat(ctx, changeOf(m))
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
		if err := f.check(true); err != nil {
			return nil, err
		}
		if err := checkOffset(m.Offset, m.Data); err != nil {
			return nil, err
		}
		n, err := f.file.WriteAt(ctx, m.Data, m.Offset)
		return &sigmap.Rwrite{Count: uint32(n)}, err
	case *sigmap.Tsymlink:
		if err := sigma.CheckName(m.Name); err != nil {
			return nil, err
		}
		if err := f.file.Symlink(ctx, m.Name, m.Target); err != nil {
			return nil, err
		}
		return &sigmap.Rsymlink{ID: s.idOf(ctx, f, m.Name, sigma.KindSymlink)}, nil
	case *sigmap.Treadlink:
		t, err := f.file.ReadLink(ctx)
		return &sigmap.Rreadlink{Target: t}, err
	case *sigmap.Tmkdir:
		if err := sigma.CheckName(m.Name); err != nil {
			return nil, err
		}
		if err := f.file.Mkdir(ctx, m.Name, m.Mode&0o777); err != nil {
			return nil, err
		}
		return &sigmap.Rmkdir{ID: s.idOf(ctx, f, m.Name, sigma.KindDir)}, nil
	case *sigmap.Tunlinkat:
		if err := sigma.CheckName(m.Name); err != nil {
			return nil, err
		}
		return &sigmap.Runlinkat{}, f.file.Remove(ctx, m.Name)
	case *sigmap.Tfsync:
		return &sigmap.Rfsync{}, f.file.Sync(ctx)
	case *sigmap.Tstatfs:
		return statfs(ctx, f.file)
	}
	return nil, errNotPlain
}

// statfs tells how much room there is; zeros if the server does not know.
func statfs(ctx context.Context, f sigma.File) (sigmap.Message, error) {
	var room sigma.Space
	if s, ok := f.(sigma.Spacious); ok {
		var err error
		if room, err = s.Space(ctx); err != nil {
			return nil, err
		}
	}
	return &sigmap.Rstatfs{FSType: sigmap.FSType, BlockSize: sigmap.FSBlock,
		Blocks: uint64(room.Total) / sigmap.FSBlock, BlocksFree: uint64(room.Free) / sigmap.FSBlock,
		BlocksAvail: uint64(room.Free) / sigmap.FSBlock,
		Files:       room.Files, FilesFree: room.Room, NameLen: sigma.NameMax}, nil
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
	if len(m.Names) > sigmap.WalkMax {
		return nil, sigma.Errorf("treeserver.Serve", sigma.KindTooBig, "more than %d names in one walk", sigmap.WalkMax)
	}
	for _, n := range m.Names {
		if err := sigma.CheckName(n); err != nil {
			return nil, err
		}
	}
	file, ids, err := f.file.Walk(ctx, m.Names)
	if err != nil {
		return nil, err
	}
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
	st, err := f.file.Stat(ctx)
	if err != nil {
		return nil, err
	}
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
	by, ok := f.file.(sigma.Recaller)
	if !ok || !f.mu.TryRLock() {
		return nil
	}
	defer f.mu.RUnlock()
	defer func() {
		if recover() != nil { // the request is made again by who reports that
			reply = nil
		}
	}()
	r, stop, known, err := by.Recall(get.Names, get.Offset, int(min(get.Count, sigmap.DataMax)))
	switch {
	case !known:
		return nil
	case err != nil:
		return sigmap.Fail(err, false)
	case stop != nil:
		return rstop(stop)
	}
	return &sigmap.Rget{ID: r.ID, Size: r.Size, Data: r.Data}
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
		st, err := f.file.Stat(ctx)
		return &sigmap.Rdescribe{Stat: st}, err
	case *sigmap.Tget:
		if err := checkNames(m.Names); err != nil {
			return nil, err
		}
		r, stop, err := Get(ctx, f.file, m.Names, m.Offset, int(min(m.Count, sigmap.DataMax)))
		if err != nil || stop != nil {
			return rstop(stop), err
		}
		return &sigmap.Rget{ID: r.ID, Size: r.Size, Data: r.Data}, nil
	case *sigmap.Tput:
		if err := checkNames(m.Names); err != nil {
			return nil, err
		}
		id, stop, err := Put(ctx, f.file, m.Names, m.Data, m.Options)
		if err != nil || stop != nil {
			return rstop(stop), err
		}
		return &sigmap.Rput{ID: id}, nil
	case *sigmap.Treadif:
		return s.readIf(ctx, f, m)
	case *sigmap.Twriteif:
		return writeIf(ctx, f, m)
	case *sigmap.Twatch:
		w, ok := f.file.(sigma.Watcher)
		if !ok {
			return nil, Unsupported("watch")
		}
		v, err := w.Watch(ctx, m.Since)
		return &sigmap.Rwatch{Version: v}, err
	case *sigmap.Tfind:
		d, ok := f.file.(sigma.Finder)
		if !ok {
			return nil, Unsupported("find")
		}
		file, err := d.Find(ctx, m.Path)
		if err != nil {
			return nil, err
		}
		return &sigmap.Rfind{}, s.add(m.NewFid, file, f.of)
	case *sigmap.Tlease:
		l, ok := f.file.(sigma.Leaser)
		if !ok {
			return nil, Unsupported("lease")
		}
		var err error
		switch {
		case m.TTL < 0 || m.ID == 0 && m.TTL == 0:
			return nil, sigma.Errorf("treeserver.Serve", sigma.KindInvalid, "a lease of %v", m.TTL)
		case m.ID == 0:
			m.ID, err = l.Lease(ctx, m.TTL)
		case m.TTL == 0:
			err = l.Revoke(ctx, m.ID)
		default:
			err = l.Renew(ctx, m.ID)
		}
		return &sigmap.Rlease{ID: m.ID}, err
	}
	return nil, sigma.Errorf("treeserver.Serve", sigma.KindUnsupported, "%s is not served", m.Type())
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
