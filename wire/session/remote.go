package session

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// remote is a handle of a file at the server.
type remote struct {
	c   *Client
	fid uint32
	// epoch is the session's when the handle was made.
	epoch uint32
	// closed keeps a program that uses a handle after Close from reaching the file that got the
	// same fid meanwhile.
	closed atomic.Bool
	// id is the file's as far as it was told: its kind and Path.
	id sigma.FileID
	// appends: it was opened with OpenAppend; writes: for writing, so there may be something to
	// publish.
	appends, writes atomic.Bool
}

var (
	_ sigma.File       = (*remote)(nil)
	_ sigma.Getter     = (*remote)(nil)
	_ sigma.Putter     = (*remote)(nil)
	_ sigma.Watcher    = (*remote)(nil)
	_ sigma.Leaser     = (*remote)(nil)
	_ sigma.Finder     = (*remote)(nil)
	_ sigma.Identified = (*remote)(nil)
	_ sigma.Rememberer = (*remote)(nil)
	_ sigma.Caller     = (*remote)(nil)
	_ sigma.FilePasser = (*remote)(nil)
	_ sigma.BulkPasser = (*remote)(nil)
	_ sigma.Publisher  = (*remote)(nil)

	_ sigma.Conditional = (*remote)(nil)
)

// roundTrip is call for requests whose replies carry no files.
func (r *remote) roundTrip(ctx context.Context, m sigmap.Message) (sigmap.Message, error) {
	got, files, err := r.call(ctx, m, nil)
	CloseFiles(files)
	return got, err
}

func (r *remote) call(ctx context.Context, m sigmap.Message, files []*os.File) (sigmap.Message, []*os.File, error) {
	if r.closed.Load() {
		return nil, nil, sigma.Errorf("session.File", sigma.KindInvalid, "the handle is closed")
	}
	return r.c.call(ctx, m, files, false, r.epoch)
}

// ask makes a round trip whose reply must be of type R.
func ask[R sigmap.Message](ctx context.Context, r *remote, m sigmap.Message) (R, error) {
	var zero R
	got, err := r.roundTrip(ctx, m)
	if err != nil {
		return zero, err
	}
	want, ok := got.(R)
	if !ok {
		return zero, unexpected(got)
	}
	return want, nil
}

func (r *remote) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > sigmap.WalkMax {
		return nil, nil, sigma.Errorf("session.Walk", sigma.KindTooBig, "more than %d names in one walk",
			sigmap.WalkMax)
	}
	fid, epoch := r.c.newFid(), r.c.Epoch()
	m, err := ask[*sigmap.Rwalk](ctx, r, &sigmap.Twalk{Fid: r.fid, NewFid: fid, Names: names})
	if err == nil && (len(m.IDs) > len(names) || len(m.IDs) == 0 && len(names) > 0) {
		return nil, nil, unexpected(m)
	}
	if err != nil {
		r.c.unmade(fid, err)
		return nil, nil, err
	}
	if len(m.IDs) < len(names) {
		r.c.unmade(fid, nil)
		return nil, m.IDs, nil
	}
	id := r.id
	if n := len(m.IDs); n > 0 {
		id = m.IDs[n-1]
	}
	return &remote{c: r.c, fid: fid, epoch: epoch, id: id}, m.IDs, nil
}

// FileID implements sigma.Identified.
func (r *remote) FileID() sigma.FileID { return r.id }

// Remembers implements sigma.Rememberer: the server is asked, or says that it does not.
func (r *remote) Remembers() bool { return true }

// FileKind is what the walk to the file said that it is.
func (r *remote) FileKind() sigma.FileKind { return r.id.Kind }

func (r *remote) Stat(ctx context.Context) (sigma.Stat, error) {
	m, err := ask[*sigmap.Rdescribe](ctx, r, &sigmap.Tdescribe{Fid: r.fid})
	if err != nil {
		return sigma.Stat{}, err
	}
	return m.Stat, nil
}

func (r *remote) SetStat(ctx context.Context, ch sigma.StatChange) error {
	m := &sigmap.Tsetattr{Fid: r.fid}
	if ch.Perm != nil {
		m.Valid |= sigmap.AttrSetMode
		m.Mode = *ch.Perm
	}
	if ch.Size != nil {
		m.Valid |= sigmap.AttrSetSize
		m.Size = *ch.Size
	}
	if ch.Modified != nil {
		m.Valid |= sigmap.AttrSetMTime | sigmap.AttrSetMTimeTo
		m.MTime, m.MTimeNsec = uint64(ch.Modified.Unix()), uint64(ch.Modified.Nanosecond())
	}
	_, err := ask[*sigmap.Rsetattr](ctx, r, m)
	return err
}

// unnamed is the part of O_TMPFILE that is its own: the file gets its name later, if ever.
const unnamed = 0o20000000

// LinuxFlags translates open flags to those of open(2), which 9P2000.L carries.
func LinuxFlags(f sigma.OpenFlags) uint32 {
	l := uint32(syscall.O_RDONLY)
	switch {
	case f&sigma.OpenReadWrite != 0:
		l = syscall.O_RDWR
	case f.Writes():
		l = syscall.O_WRONLY
	}
	for _, p := range []struct {
		ours  sigma.OpenFlags
		linux uint32
	}{{sigma.OpenTruncate, syscall.O_TRUNC}, {sigma.OpenAppend, syscall.O_APPEND},
		{sigma.OpenExclusive, syscall.O_EXCL}, {sigma.OpenHidden, unnamed}} {
		if f&p.ours != 0 {
			l |= p.linux
		}
	}
	return l
}

func (r *remote) Open(ctx context.Context, f sigma.OpenFlags) error {
	_, err := ask[*sigmap.Rlopen](ctx, r, &sigmap.Tlopen{Fid: r.fid, Flags: LinuxFlags(f)})
	r.appends.Store(f&sigma.OpenAppend != 0)
	r.writes.Store(err == nil && f.Writes())
	return err
}

func (r *remote) Create(ctx context.Context, name string, f sigma.OpenFlags, perm uint32) (sigma.File, error) {
	dir, _, err := r.Walk(ctx, nil) // 9P turns the directory's fid into the file's, so a second one is needed
	if err != nil {
		return nil, err
	}
	d := dir.(*remote)
	d.appends.Store(f&sigma.OpenAppend != 0)
	created, err := ask[*sigmap.Rlcreate](ctx, d, &sigmap.Tlcreate{Fid: d.fid, Name: name, Flags: LinuxFlags(f),
		Mode: perm})
	if err != nil {
		d.Close()
		return nil, err
	}
	d.id = created.ID
	d.writes.Store(true)
	return d, nil
}

// readInto makes one round trip, whose data most likely lies in p already.
func (r *remote) readInto(ctx context.Context, p []byte, offset uint64) (*sigmap.Rread, error) {
	if r.closed.Load() {
		return nil, sigma.Errorf("session.File", sigma.KindInvalid, "the handle is closed")
	}
	got, files, err := r.c.callInto(ctx, &sigmap.Tread{Fid: r.fid, Offset: offset, Count: uint32(len(p))}, p, nil,
		false, r.epoch)
	CloseFiles(files)
	if err != nil {
		return nil, err
	}
	m, ok := got.(*sigmap.Rread)
	if !ok {
		return nil, unexpected(got)
	}
	return m, nil
}

func (r *remote) ReadDir(ctx context.Context, cookie uint64, n int) ([]sigma.DirEntry, uint64, bool, error) {
	if n <= 0 {
		return nil, cookie, false, sigma.Errorf("session.ReadDir", sigma.KindInvalid,
			"a listing of %d entries was asked for", n)
	}
	m, err := ask[*sigmap.Rlist](ctx, r, &sigmap.Tlist{Fid: r.fid, Cookie: cookie, Max: uint32(min(n, sigmap.DataMax))})
	if err != nil {
		return nil, cookie, false, err
	}
	if len(m.Entries) > n || m.More && len(m.Entries) == 0 && m.Next == cookie {
		return nil, cookie, false, unexpected(m)
	}
	for _, e := range m.Entries {
		if sigma.CheckName(e.Name) != nil { // a name such as .. would mislead whoever makes paths of it
			return nil, cookie, false, unexpected(m)
		}
	}
	return m.Entries, m.Next, m.More, nil
}

func (r *remote) Mkdir(ctx context.Context, name string, perm uint32) error {
	_, err := ask[*sigmap.Rmkdir](ctx, r, &sigmap.Tmkdir{Fid: r.fid, Name: name, Mode: perm})
	return err
}

func (r *remote) Symlink(ctx context.Context, name, target string) error {
	_, err := ask[*sigmap.Rsymlink](ctx, r, &sigmap.Tsymlink{Fid: r.fid, Name: name, Target: target})
	return err
}

func (r *remote) ReadLink(ctx context.Context) (string, error) {
	m, err := ask[*sigmap.Rreadlink](ctx, r, &sigmap.Treadlink{Fid: r.fid})
	if err != nil {
		return "", err
	}
	return m.Target, nil
}

func (r *remote) Remove(ctx context.Context, name string) error {
	_, err := ask[*sigmap.Runlinkat](ctx, r, &sigmap.Tunlinkat{Dir: r.fid, Name: name})
	return err
}

func (r *remote) Rename(ctx context.Context, name string, newDir sigma.File, newName string) error {
	if u, ok := newDir.(interface {
		RenameTarget(ctx context.Context, name string) (sigma.File, error)
	}); ok { // a handle of a server of ours that stands before this one, and has names of its own
		var err error
		if newDir, err = u.RenameTarget(ctx, newName); err != nil {
			return err
		}
	}
	d, ok := newDir.(*remote)
	if !ok || d.c != r.c {
		return sigma.Errorf("session.Rename", sigma.KindUnsupported,
			"a file cannot be renamed to another server; copy it")
	}
	_, err := ask[*sigmap.Rrenameat](ctx, r, &sigmap.Trenameat{OldDir: r.fid, OldName: name, NewDir: d.fid,
		NewName: newName})
	return err
}

// Space implements sigma.Spacious.
func (r *remote) Space(ctx context.Context) (sigma.Space, error) {
	m, err := ask[*sigmap.Rstatfs](ctx, r, &sigmap.Tstatfs{Fid: r.fid})
	if err != nil {
		return sigma.Space{}, err
	}
	block := uint64(m.BlockSize)
	return sigma.Space{Total: sigma.Bytes(m.Blocks * block), Free: sigma.Bytes(m.BlocksAvail * block), Files: m.Files,
		Room: m.FilesFree}, nil
}

func (r *remote) Sync(ctx context.Context) error {
	_, err := ask[*sigmap.Rfsync](ctx, r, &sigmap.Tfsync{Fid: r.fid})
	return err
}

// Close implements sigma.File. It tells the server without waiting for its answer; the fid is used
// again only when the answer has come. A Tclunk would publish what was written; a Tremove, which
// removes nothing here, gives up the handle without.
func (r *remote) Close() {
	if r.closed.Swap(true) {
		return
	}
	r.c.detached(r.fid)
	var m sigmap.Message = &sigmap.Tclunk{Fid: r.fid}
	if r.writes.Load() {
		m = &sigmap.Tremove{Fid: r.fid}
	}
	r.c.send(context.Background(), &waiter{clunks: r.fid, epoch: r.epoch}, m, nil, false)
}

// Publish implements sigma.Publisher. It gives up the handle, too: that is how the protocol
// publishes without waiting for the disk.
func (r *remote) Publish(ctx context.Context) error {
	if !r.writes.Load() || r.closed.Swap(true) {
		return nil
	}
	r.c.detached(r.fid)
	w := r.c.newWaiter()
	w.clunks, w.epoch = r.fid, r.epoch
	_, files, err := r.c.exchange(ctx, w, &sigmap.Tclunk{Fid: r.fid}, nil, false)
	CloseFiles(files)
	return err
}

func (r *remote) Get(ctx context.Context, names []string, offset uint64, count int) (sigma.GetResult, *sigma.Stopped,
	error) {
	if count < 0 {
		return sigma.GetResult{}, nil, sigma.Errorf("session.Get", sigma.KindInvalid, "%d bytes were asked for", count)
	}
	count = min(count, sigmap.DataMax)
	got, err := r.roundTrip(ctx, &sigmap.Tget{Fid: r.fid, Names: names, Offset: offset, Count: uint32(count)})
	if err != nil {
		return sigma.GetResult{}, nil, err
	}
	switch m := got.(type) {
	case *sigmap.Rget:
		if len(m.Data) > count {
			return sigma.GetResult{}, nil, unexpected(m)
		}
		return sigma.GetResult{Data: m.Data, ID: m.ID, Size: m.Size}, nil, nil
	case *sigmap.Rstop:
		s, err := stopped(m, len(names))
		return sigma.GetResult{}, s, err
	}
	return sigma.GetResult{}, nil, unexpected(got)
}

func (r *remote) Put(ctx context.Context, names []string, data []byte, o sigma.PutOptions) (sigma.FileID,
	*sigma.Stopped, error) {
	if len(data) > sigmap.DataMax {
		return sigma.FileID{}, nil, sigma.Errorf("session.Put", sigma.KindTooBig, "%d bytes do not fit one message",
			len(data))
	}
	got, err := r.roundTrip(ctx, &sigmap.Tput{Fid: r.fid, Names: names, Options: o, Data: data})
	if err != nil {
		return sigma.FileID{}, nil, err
	}
	switch m := got.(type) {
	case *sigmap.Rput:
		return m.ID, nil, nil
	case *sigmap.Rstop:
		s, err := stopped(m, len(names))
		return sigma.FileID{}, s, err
	}
	return sigma.FileID{}, nil, unexpected(got)
}

// ReadAtIf implements sigma.Conditional. At most one message's worth is read, so that it is of one
// version.
func (r *remote) ReadAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, error) {
	p = p[:min(len(p), sigmap.DataMax)]
	m, err := ask[*sigmap.Rreadif](ctx, r, &sigmap.Treadif{Fid: r.fid, Offset: offset, Count: uint32(len(p)),
		Version: v})
	if err != nil {
		return 0, err
	}
	if len(m.Data) > len(p) {
		return 0, unexpected(m)
	}
	return copy(p, m.Data), nil
}

// WriteAtIf implements sigma.Conditional. What does not fit one message is not written at all.
func (r *remote) WriteAtIf(ctx context.Context, p []byte, offset uint64, v sigma.Version) (int, sigma.Version, error) {
	if len(p) > sigmap.WriteMax(ctx) {
		return 0, 0, sigma.Errorf("session.WriteAtIf", sigma.KindTooBig, "%d bytes do not fit one message", len(p))
	}
	m, err := ask[*sigmap.Rwriteif](ctx, r, &sigmap.Twriteif{Fid: r.fid, Offset: offset, Version: v, Data: p})
	if err != nil {
		return 0, 0, err
	}
	if int(m.Count) > len(p) {
		return 0, 0, unexpected(m)
	}
	return int(m.Count), m.Version, nil
}

func stopped(m *sigmap.Rstop, n int) (*sigma.Stopped, error) {
	if int(m.Walked) > n || m.Kind != sigma.KindSymlink && m.Kind != sigma.KindEndpoint {
		return nil, unexpected(m)
	}
	return &sigma.Stopped{Walked: int(m.Walked), Kind: m.Kind, Target: m.Target}, nil
}

func (r *remote) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	m, err := ask[*sigmap.Rwatch](ctx, r, &sigmap.Twatch{Fid: r.fid, Since: since})
	if err != nil {
		return 0, err
	}
	return m.Version, nil
}

func (r *remote) Lease(ctx context.Context, ttl time.Duration) (sigma.LeaseID, error) {
	m, err := ask[*sigmap.Rlease](ctx, r, &sigmap.Tlease{Fid: r.fid, TTL: ttl})
	if err != nil {
		return 0, err
	}
	return m.ID, nil
}

func (r *remote) Renew(ctx context.Context, id sigma.LeaseID) error {
	_, err := ask[*sigmap.Rlease](ctx, r, &sigmap.Tlease{Fid: r.fid, ID: id, TTL: 1})
	return err
}

func (r *remote) Revoke(ctx context.Context, id sigma.LeaseID) error {
	_, err := ask[*sigmap.Rlease](ctx, r, &sigmap.Tlease{Fid: r.fid, ID: id})
	return err
}

func (r *remote) Find(ctx context.Context, path uint64) (sigma.File, error) {
	fid, epoch := r.c.newFid(), r.c.Epoch()
	if _, err := ask[*sigmap.Rfind](ctx, r, &sigmap.Tfind{Fid: r.fid, NewFid: fid, Path: path}); err != nil {
		r.c.unmade(fid, err)
		return nil, err
	}
	return &remote{c: r.c, fid: fid, epoch: epoch, id: sigma.FileID{Path: path}}, nil
}

func (r *remote) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	got, back, err := r.call(ctx, &sigmap.Tcall{Fid: r.fid, Method: method, Payload: payload}, files)
	if err != nil {
		return nil, nil, err
	}
	m, ok := got.(*sigmap.Rcall)
	if !ok {
		CloseFiles(back)
		return nil, nil, unexpected(got)
	}
	return m.Payload, back, nil
}

func (r *remote) PassFile(ctx context.Context) (*os.File, error) {
	got, files, err := r.call(ctx, &sigmap.Tpass{Fid: r.fid}, nil)
	if err != nil {
		return nil, err
	}
	if _, ok := got.(*sigmap.Rpass); !ok || len(files) != 1 {
		CloseFiles(files)
		return nil, unexpected(got)
	}
	return files[0], nil
}

// PassBulk implements sigma.BulkPasser.
func (r *remote) PassBulk(ctx context.Context) (*os.File, error) {
	m, files, err := r.bulk(ctx)
	if err == nil && len(files) == 0 && len(m.Ticket) > 0 {
		err = sigma.Errorf("session.PassBulk", sigma.KindUnsupported, "the server passes no sockets")
	} else if err == nil && len(files) != 1 {
		err = unexpected(m)
	}
	if err != nil {
		CloseFiles(files)
		return nil, err
	}
	return files[0], nil
}

// BulkTicket asks for a stream of the open file where no sockets are passed: the ticket is what to
// say on a direct connection to the server's machine.
func (r *remote) BulkTicket(ctx context.Context) ([]byte, error) {
	m, files, err := r.bulk(ctx)
	CloseFiles(files)
	if err == nil && len(m.Ticket) == 0 {
		err = unexpected(m)
	}
	if err != nil {
		return nil, err
	}
	return m.Ticket, nil
}

func (r *remote) bulk(ctx context.Context) (*sigmap.Rbulk, []*os.File, error) {
	got, files, err := r.call(ctx, &sigmap.Tbulk{Fid: r.fid}, nil)
	if err != nil {
		return nil, nil, err
	}
	m, ok := got.(*sigmap.Rbulk)
	if !ok {
		CloseFiles(files)
		return nil, nil, unexpected(got)
	}
	return m, files, nil
}
