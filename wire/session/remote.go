package session

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// remote is a handle of a file at the server. Its requests become messages.
type remote struct {
	sigma.Stub
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

// newRemote makes the handle of a fid.
func newRemote(c *Client, fid, epoch uint32, id sigma.FileID) *remote {
	r := &remote{c: c, fid: fid, epoch: epoch, id: id}
	r.Handler = r
	return r
}

// Handle implements sigma.Handler. Most requests are one message; the others are methods. Call and
// Watch may wait for long, and many at a time: as methods of their own they keep no Request and no
// Reply on their goroutines' stacks, which stay below 4 KiB.
func (r *remote) Handle(ctx context.Context, q sigma.Request) (a sigma.Reply, err error) {
	switch q.Op {
	case sigma.OpClose:
		r.close()
	case sigma.OpIdentify:
		a.ID = r.id
	case sigma.OpRemembers, sigma.OpStreams: // the server is asked, or says that it does not
		a.Yes = true
	case sigma.OpRecall:
	case sigma.OpWalk:
		a.File, a.IDs, err = r.walk(ctx, q.Names)
	case sigma.OpCreate:
		a.File, err = r.create(ctx, q)
	case sigma.OpReadAt:
		a.N, err = r.readAt(ctx, q.Data, q.Offset)
	case sigma.OpWriteAt:
		a.N, err = r.writeAt(ctx, q.Data, q.Offset)
	case sigma.OpOpen:
		_, err = ask[*sigmap.Rlopen](ctx, r, &sigmap.Tlopen{Fid: r.fid, Flags: LinuxFlags(q.Flags)})
		r.appends.Store(q.Flags&sigma.OpenAppend != 0)
		r.writes.Store(err == nil && q.Flags.Writes())
	case sigma.OpCall:
		a.Data, a.Files, err = r.Call(ctx, q.Name, q.Data, q.Files)
	case sigma.OpWatch:
		a.Version, err = r.Watch(ctx, q.Version)
	case sigma.OpRename:
		err = r.rename(ctx, q)
	case sigma.OpPublish:
		err = r.publish(ctx)
	case sigma.OpFind:
		a.File, err = r.find(ctx, q.Offset)
	default:
		var m, got sigmap.Message
		if m, err = r.message(ctx, q); err == nil {
			if got, a.Files, err = r.call(ctx, m, nil); err == nil {
				err = answer(q, got, &a)
			}
		}
		if q.Op != sigma.OpPassFile && q.Op != sigma.OpPassBulk || err != nil {
			CloseFiles(a.Files)
			a.Files = nil
		}
	}
	return a, err
}

// message is the one by which a request is made.
func (r *remote) message(ctx context.Context, q sigma.Request) (sigmap.Message, error) {
	switch q.Op {
	case sigma.OpStat:
		return &sigmap.Tdescribe{Fid: r.fid}, nil
	case sigma.OpSetStat:
		return setattr(r.fid, q.Change), nil
	case sigma.OpReadDir:
		if q.Count <= 0 {
			return nil, sigma.Errorf("session.ReadDir", sigma.KindInvalid, "a listing of %d entries was asked for",
				q.Count)
		}
		return &sigmap.Tlist{Fid: r.fid, Cookie: q.Offset, Max: uint32(min(q.Count, sigmap.DataMax))}, nil
	case sigma.OpMkdir:
		return &sigmap.Tmkdir{Fid: r.fid, Name: q.Name, Mode: q.Perm}, nil
	case sigma.OpSymlink:
		return &sigmap.Tsymlink{Fid: r.fid, Name: q.Name, Target: q.Text}, nil
	case sigma.OpReadLink:
		return &sigmap.Treadlink{Fid: r.fid}, nil
	case sigma.OpRemove:
		return &sigmap.Tunlinkat{Dir: r.fid, Name: q.Name}, nil
	case sigma.OpSpace:
		return &sigmap.Tstatfs{Fid: r.fid}, nil
	case sigma.OpSync:
		return &sigmap.Tfsync{Fid: r.fid}, nil
	case sigma.OpGet:
		if q.Count < 0 {
			return nil, sigma.Errorf("session.Get", sigma.KindInvalid, "%d bytes were asked for", q.Count)
		}
		return &sigmap.Tget{Fid: r.fid, Names: q.Names, Offset: q.Offset,
			Count: uint32(min(q.Count, sigmap.DataMax))}, nil
	case sigma.OpPut:
		return &sigmap.Tput{Fid: r.fid, Names: q.Names, Options: q.Put, Data: q.Data}, fits(q, sigmap.DataMax)
	case sigma.OpReadAtIf: // at most one message's worth, so that it is of one version
		return &sigmap.Treadif{Fid: r.fid, Offset: q.Offset, Count: uint32(min(len(q.Data), sigmap.DataMax)),
			Version: q.Version}, nil
	case sigma.OpWriteAtIf:
		return &sigmap.Twriteif{Fid: r.fid, Offset: q.Offset, Version: q.Version, Data: q.Data},
			fits(q, sigmap.WriteMax(ctx))
	case sigma.OpLease:
		return &sigmap.Tlease{Fid: r.fid, TTL: q.TTL}, nil
	case sigma.OpRenew:
		return &sigmap.Tlease{Fid: r.fid, ID: q.Lease, TTL: 1}, nil
	case sigma.OpRevoke:
		return &sigmap.Tlease{Fid: r.fid, ID: q.Lease}, nil
	case sigma.OpPassFile:
		return &sigmap.Tpass{Fid: r.fid}, nil
	case sigma.OpPassBulk:
		return &sigmap.Tbulk{Fid: r.fid}, nil
	}
	return nil, sigma.Errorf("session.File", sigma.KindUnsupported, "there is no message for %v", q.Op)
}

// fits says whether the data of a request, which is not cut, goes with one message.
func fits(q sigma.Request, most int) error {
	if len(q.Data) > most {
		return sigma.Errorf("session."+q.Op.String(), sigma.KindTooBig, "%d bytes do not fit one message", len(q.Data))
	}
	return nil
}

// answer takes what the server answered to a message.
func answer(q sigma.Request, got sigmap.Message, a *sigma.Reply) error {
	wrong := false
	switch m := got.(type) {
	case *sigmap.Rdescribe:
		a.Stat, wrong = m.Stat, q.Op != sigma.OpStat
	case *sigmap.Rlist:
		a.Entries, a.Next, a.More = m.Entries, m.Next, m.More
		wrong = q.Op != sigma.OpReadDir || len(m.Entries) > q.Count ||
			m.More && len(m.Entries) == 0 && m.Next == q.Offset
		for _, e := range m.Entries { // a name such as .. would mislead whoever makes paths of it
			wrong = wrong || sigma.CheckName(e.Name) != nil
		}
	case *sigmap.Rreadlink:
		a.Text, wrong = m.Target, q.Op != sigma.OpReadLink
	case *sigmap.Rstatfs:
		block := uint64(m.BlockSize)
		a.Space = sigma.Space{Total: sigma.Bytes(m.Blocks * block), Free: sigma.Bytes(m.BlocksAvail * block),
			Files: m.Files, Room: m.FilesFree}
		wrong = q.Op != sigma.OpSpace
	case *sigmap.Rget:
		a.Data, a.ID, a.Size = m.Data, m.ID, m.Size
		wrong = q.Op != sigma.OpGet || len(m.Data) > q.Count
	case *sigmap.Rput:
		a.ID, wrong = m.ID, q.Op != sigma.OpPut
	case *sigmap.Rstop:
		a.Stop = &sigma.Stopped{Walked: int(m.Walked), Kind: m.Kind, Target: m.Target}
		wrong = q.Op != sigma.OpGet && q.Op != sigma.OpPut || int(m.Walked) > len(q.Names) ||
			m.Kind != sigma.KindSymlink && m.Kind != sigma.KindEndpoint
	case *sigmap.Rreadif:
		if wrong = q.Op != sigma.OpReadAtIf || len(m.Data) > len(q.Data); !wrong {
			a.N = copy(q.Data, m.Data)
		}
	case *sigmap.Rwriteif:
		a.N, a.Version = int(m.Count), m.Version
		wrong = q.Op != sigma.OpWriteAtIf || a.N > len(q.Data)
	case *sigmap.Rlease:
		a.Lease, wrong = m.ID, q.Op != sigma.OpLease && q.Op != sigma.OpRenew && q.Op != sigma.OpRevoke
	case *sigmap.Rpass:
		wrong = q.Op != sigma.OpPassFile || len(a.Files) != 1
	case *sigmap.Rbulk:
		a.Data = m.Ticket
		wrong = q.Op != sigma.OpPassBulk || len(a.Files) != 1 && (len(a.Files) > 1 || len(m.Ticket) == 0)
	case *sigmap.Rmkdir:
		wrong = q.Op != sigma.OpMkdir
	case *sigmap.Rsymlink:
		wrong = q.Op != sigma.OpSymlink
	case *sigmap.Runlinkat:
		wrong = q.Op != sigma.OpRemove
	case *sigmap.Rfsync:
		wrong = q.Op != sigma.OpSync
	case *sigmap.Rsetattr:
		wrong = q.Op != sigma.OpSetStat
	default:
		wrong = true
	}
	if wrong {
		return unexpected(got)
	}
	return nil
}

// Call implements sigma.Caller.
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

// Watch implements sigma.Watcher.
func (r *remote) Watch(ctx context.Context, since sigma.Version) (sigma.Version, error) {
	m, err := ask[*sigmap.Rwatch](ctx, r, &sigmap.Twatch{Fid: r.fid, Since: since})
	if err != nil {
		return 0, err
	}
	return m.Version, nil
}

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

func (r *remote) walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
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
	return newRemote(r.c, fid, epoch, id), m.IDs, nil
}

func setattr(fid uint32, ch sigma.StatChange) *sigmap.Tsetattr {
	m := &sigmap.Tsetattr{Fid: fid}
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
	return m
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

func (r *remote) create(ctx context.Context, q sigma.Request) (sigma.File, error) {
	dir, _, err := r.walk(ctx, nil) // 9P turns the directory's fid into the file's, so a second one is needed
	if err != nil {
		return nil, err
	}
	d := dir.(*remote)
	d.appends.Store(q.Flags&sigma.OpenAppend != 0)
	created, err := ask[*sigmap.Rlcreate](ctx, d, &sigmap.Tlcreate{Fid: d.fid, Name: q.Name,
		Flags: LinuxFlags(q.Flags), Mode: q.Perm})
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

func (r *remote) rename(ctx context.Context, q sigma.Request) error {
	newDir := q.Dir
	if u, ok := newDir.(interface {
		RenameTarget(ctx context.Context, name string) (sigma.File, error)
	}); ok { // a handle of a server of ours that stands before this one, and has names of its own
		var err error
		if newDir, err = u.RenameTarget(ctx, q.Text); err != nil {
			return err
		}
	}
	d, ok := newDir.(*remote)
	if !ok || d.c != r.c {
		return sigma.Errorf("session.Rename", sigma.KindUnsupported,
			"a file cannot be renamed to another server; copy it")
	}
	_, err := ask[*sigmap.Rrenameat](ctx, r, &sigmap.Trenameat{OldDir: r.fid, OldName: q.Name, NewDir: d.fid,
		NewName: q.Text})
	return err
}

// close tells the server without waiting for its answer; the fid is used
// again only when the answer has come. A Tclunk would publish what was written; a Tremove, which
// removes nothing here, gives up the handle without.
func (r *remote) close() {
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

// publish gives up the handle, too: that is how the protocol
// publishes without waiting for the disk.
func (r *remote) publish(ctx context.Context) error {
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

func (r *remote) find(ctx context.Context, path uint64) (sigma.File, error) {
	fid, epoch := r.c.newFid(), r.c.Epoch()
	if _, err := ask[*sigmap.Rfind](ctx, r, &sigmap.Tfind{Fid: r.fid, NewFid: fid, Path: path}); err != nil {
		r.c.unmade(fid, err)
		return nil, err
	}
	return newRemote(r.c, fid, epoch, sigma.FileID{Path: path}), nil
}
