package treekit

import (
	"context"
	"os"
	"syscall"
	"time"

	"sigmaos.dev/session"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
)

// do carries out one request.
func (s *server) do(ctx context.Context, m sigmap.Message, files []*os.File) (sigmap.Message, []*os.File, error) {
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
		return &sigmap.Rattach{ID: st.ID}, nil, s.add(m.Fid, root)
	case *sigmap.Tflush:
		s.flush(m.OldTag)
		return &sigmap.Rflush{}, nil, nil
	case *sigmap.Tclunk:
		return &sigmap.Rclunk{}, nil, s.clunk(m.Fid)
	case *sigmap.Tremove:
		s.clunk(m.Fid)
		return nil, nil, Unsupported("Tremove; use Tunlinkat")
	case *sigmap.Trenameat:
		return s.rename(ctx, m)
	}
	n, ok := fidOf(m)
	if !ok {
		return nil, nil, sigma.Errorf("treekit.Serve", sigma.KindInvalid, "a client does not send %s", m.Type())
	}
	f, err := s.get(n)
	if err != nil {
		return nil, nil, err
	}
	defer s.put(f)
	switch m := m.(type) {
	case *sigmap.Tlopen:
		r, err := f.doOpen(ctx, m)
		return r, nil, err
	case *sigmap.Tlcreate:
		r, err := s.create(ctx, f, m)
		return r, nil, err
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if m, ok := m.(*sigmap.Tcall); ok {
		c, ok := f.file.(sigma.Caller)
		if !ok {
			session.CloseFiles(files)
			return nil, nil, Unsupported("call")
		}
		reply, back, err := c.Call(ctx, m.Method, m.Payload, files)
		return &sigmap.Rcall{Payload: reply}, back, err
	}
	if _, ok := m.(*sigmap.Tpass); ok {
		return pass(ctx, f)
	}
	r, err := s.plainly(ctx, f, m)
	if err == errNotPlain {
		r, err = f.extended(ctx, m)
	}
	return r, nil, err
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
	case *sigmap.Tcall:
		return m.Fid, true
	case *sigmap.Tpass:
		return m.Fid, true
	}
	return 0, false
}

// flagsOf translates open(2) flags; ones that are not known are ignored, as clients send O_LARGEFILE and the like.
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
	}{{syscall.O_TRUNC, sigma.OpenTruncate}, {syscall.O_APPEND, sigma.OpenAppend}, {syscall.O_EXCL, sigma.OpenExclusive}} {
		if linux&p.linux != 0 {
			f |= p.ours
		}
	}
	return f
}

func (f *fid) doOpen(ctx context.Context, m *sigmap.Tlopen) (sigmap.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		return nil, sigma.Errorf("treekit.Serve", sigma.KindInvalid, "fid %d is open already", m.Fid)
	}
	flags := flagsOf(m.Flags)
	if err := f.file.Open(ctx, flags); err != nil {
		return nil, err
	}
	f.open, f.mode = true, flags
	st, err := f.file.Stat(ctx)
	return &sigmap.Rlopen{ID: st.ID, IOUnit: sigmap.DataMax}, err
}

// create turns the directory's fid into the new file's (9P2000.L lcreate).
func (s *server) create(ctx context.Context, f *fid, m *sigmap.Tlcreate) (sigmap.Message, error) {
	if err := sigma.CheckName(m.Name); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open {
		return nil, sigma.Errorf("treekit.Serve", sigma.KindInvalid, "fid %d is open already", m.Fid)
	}
	flags := flagsOf(m.Flags)
	file, err := f.file.Create(ctx, m.Name, flags, m.Mode&0o777)
	if err != nil {
		return nil, err
	}
	f.file.Close()
	f.file, f.open, f.mode = file, true, flags
	st, err := file.Stat(ctx)
	return &sigmap.Rlcreate{ID: st.ID, IOUnit: sigmap.DataMax}, err
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
	if !f.open || f.mode.Writes() {
		return nil, nil, sigma.Errorf("treekit.Serve", sigma.KindPermission, "a file descriptor is passed only of a file open for reading")
	}
	file, err := p.PassFile(ctx)
	if err != nil {
		return nil, nil, err
	}
	return &sigmap.Rpass{}, []*os.File{file}, nil
}

var errNotPlain = sigma.Errorf("treekit.Serve", sigma.KindUnsupported, "not a message of 9P2000.L")

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
		return f.readdir(ctx, m)
	case *sigmap.Tread:
		if err := f.check(false); err != nil {
			return nil, err
		}
		buf := make([]byte, min(m.Count, sigmap.DataMax))
		n, err := f.file.ReadAt(ctx, buf, m.Offset)
		return &sigmap.Rread{Data: buf[:n]}, err
	case *sigmap.Twrite:
		if err := f.check(true); err != nil {
			return nil, err
		}
		if m.Offset+uint64(len(m.Data)) > 1<<62 || m.Offset > 1<<62 {
			return nil, sigma.Errorf("treekit.Serve", sigma.KindTooBig, "write at offset %d", m.Offset)
		}
		n, err := f.file.WriteAt(ctx, m.Data, m.Offset)
		return &sigmap.Rwrite{Count: uint32(n)}, err
	case *sigmap.Tsymlink:
		if err := sigma.CheckName(m.Name); err != nil {
			return nil, err
		}
		return &sigmap.Rsymlink{ID: sigma.FileID{Kind: sigma.KindSymlink}}, f.file.Symlink(ctx, m.Name, m.Target)
	case *sigmap.Treadlink:
		t, err := f.file.ReadLink(ctx)
		return &sigmap.Rreadlink{Target: t}, err
	case *sigmap.Tmkdir:
		if err := sigma.CheckName(m.Name); err != nil {
			return nil, err
		}
		return &sigmap.Rmkdir{ID: sigma.FileID{Kind: sigma.KindDir}}, f.file.Mkdir(ctx, m.Name, m.Mode&0o777)
	case *sigmap.Tunlinkat:
		if err := sigma.CheckName(m.Name); err != nil {
			return nil, err
		}
		return &sigmap.Runlinkat{}, f.file.Remove(ctx, m.Name)
	case *sigmap.Tfsync:
		return &sigmap.Rfsync{}, f.file.Sync(ctx)
	case *sigmap.Tstatfs:
		return &sigmap.Rstatfs{FSType: 0x01021997, BlockSize: 4096, NameLen: sigma.NameMax}, nil
	}
	return nil, errNotPlain
}

// check says whether the fid is open for writing or reading.
func (f *fid) check(write bool) error {
	ok := f.open && (write && f.mode.Writes() || !write && (!f.mode.Writes() || f.mode&sigma.OpenReadWrite != 0))
	if ok {
		return nil
	}
	return sigma.Errorf("treekit.Serve", sigma.KindPermission, "the file is not open for that")
}

func (s *server) walk(ctx context.Context, f *fid, m *sigmap.Twalk) (sigmap.Message, error) {
	if len(m.Names) > sigmap.WalkMax {
		return nil, sigma.Errorf("treekit.Serve", sigma.KindTooBig, "more than %d names in one walk", sigmap.WalkMax)
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
	if file != nil {
		err = s.add(m.NewFid, file)
	} else if len(ids) == 0 {
		err = sigma.PathError("treekit.Serve", sigma.KindNotFound, sigma.JoinPath(m.Names...))
	}
	return &sigmap.Rwalk{IDs: ids}, err
}

func (f *fid) getattr(ctx context.Context) (sigmap.Message, error) {
	st, err := f.file.Stat(ctx)
	if err != nil {
		return nil, err
	}
	r := &sigmap.Rgetattr{Valid: sigmap.GetattrBasic | sigmap.GetattrVersion, ID: st.ID, Mode: modeOf(st), NLink: 1, Size: st.Size, BlockSize: 4096, Blocks: (st.Size + 511) / 512,
		DataVersion: uint64(st.ID.Version)}
	if st.Ephemeral {
		r.Valid |= sigmap.GetattrEphemeral
	}
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

// readdir packs entries until the reply is full. The tree's cookie after each entry is needed, so entries are asked for in small batches when they stop fitting.
func (f *fid) readdir(ctx context.Context, m *sigmap.Treaddir) (sigmap.Message, error) {
	if !f.open {
		return nil, sigma.Errorf("treekit.Serve", sigma.KindPermission, "the directory is not open")
	}
	room := int(min(m.Count, sigmap.DataMax))
	var data []byte
	for cookie, more := m.Offset, true; more; {
		left := room - len(data)
		batch := left / (24 + sigma.NameMax) // as many as fit whatever their names are
		if batch < 1 {
			if len(data) > 0 || left < 24+sigma.NameMax && room >= 24+sigma.NameMax {
				break
			}
			batch = 1
		}
		es, next, again, err := f.file.ReadDir(ctx, cookie, batch)
		if err != nil {
			return nil, err
		}
		for i, e := range es {
			at := next
			if i < len(es)-1 {
				at = cookie // not a place to go on from: a client that stops within a batch reads it again
			}
			var ok bool
			if data, ok = sigmap.AppendDirEntry(data, room, sigmap.DirEntry{ID: e.ID, Next: at, Name: e.Name}); !ok {
				return nil, sigma.Errorf("treekit.Serve", sigma.KindInvalid, "count %d is too small for an entry", m.Count)
			}
		}
		cookie, more = next, again && len(es) > 0
	}
	return &sigmap.Rreaddir{Data: data}, nil
}

// extended answers the messages that sigmaP adds.
func (f *fid) extended(ctx context.Context, m sigmap.Message) (sigmap.Message, error) {
	switch m := m.(type) {
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
	case *sigmap.Twatch:
		w, ok := f.file.(sigma.Watcher)
		if !ok {
			return nil, Unsupported("watch")
		}
		v, err := w.Watch(ctx, m.Since)
		return &sigmap.Rwatch{Version: v}, err
	case *sigmap.Tlease:
		l, ok := f.file.(sigma.Leaser)
		if !ok {
			return nil, Unsupported("lease")
		}
		var err error
		switch {
		case m.ID == 0:
			m.ID, err = l.Lease(ctx, m.TTL)
		case m.TTL == 0:
			err = l.Revoke(ctx, m.ID)
		default:
			err = l.Renew(ctx, m.ID)
		}
		return &sigmap.Rlease{ID: m.ID}, err
	}
	return nil, sigma.Errorf("treekit.Serve", sigma.KindUnsupported, "%s is not served", m.Type())
}

func rstop(s *sigma.Stopped) sigmap.Message {
	if s == nil {
		return nil
	}
	return &sigmap.Rstop{Walked: uint16(s.Walked), Kind: s.Kind, Target: s.Target}
}

func checkNames(names []string) error {
	if len(names) > sigmap.WalkMax {
		return sigma.Errorf("treekit.Serve", sigma.KindTooBig, "more than %d names in one walk", sigmap.WalkMax)
	}
	for _, n := range names {
		if err := sigma.CheckName(n); err != nil {
			return err
		}
	}
	return nil
}
