package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"sigmaos.dev/sigma"
)

// MessageMax bounds the messages of a Transport in bytes.
const MessageMax = commandMax + batchBytes + appendMax

// messages are the kinds that members send each other by Transport.Send.
var messages = map[pb.MessageType]bool{pb.MsgApp: true, pb.MsgAppResp: true, pb.MsgVote: true,
	pb.MsgVoteResp: true, pb.MsgPreVote: true, pb.MsgPreVoteResp: true, pb.MsgHeartbeat: true,
	pb.MsgHeartbeatResp: true, pb.MsgTimeoutNow: true}

// parseMessage reads a message from one member to another.
func parseMessage(b []byte, from, to uint64) (*pb.Message, error) {
	const op = "replica.Step"
	if len(b) > MessageMax {
		return nil, sigma.Errorf(op, sigma.KindTooBig, "a message has %d bytes; the most are %d", len(b), MessageMax)
	}
	m := &pb.Message{}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, sigma.Errorf(op, sigma.KindInvalid, "what came is no message of a member")
	}
	if m.GetTo() != to || m.GetFrom() != from || from == to || from == 0 || from >= 1<<63 {
		return nil, &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: "the message is for, or from, another member",
			Hint: "each id of a group belongs to one member"}
	}
	at := m.GetIndex()
	for _, e := range m.GetEntries() {
		if at++; e == nil || e.GetIndex() != at || e.GetTerm() > m.GetTerm() {
			return nil, sigma.Errorf(op, sigma.KindInvalid, "the entries of a message are not in order")
		}
	}
	return m, nil
}

// Step takes a message of Transport.Send from another member. The caller has checked that it comes
// from member from. It keeps message. KindInvalid: it is no message for this member.
func (r *Replica) Step(_ context.Context, from Peer, message []byte) error {
	m, err := parseMessage(message, from.ID, r.cfg.ID)
	if err == nil && !messages[m.GetType()] {
		err = sigma.Errorf("replica.Step", sigma.KindInvalid, "members do not send messages of kind %d", m.GetType())
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stepLocked(from, m)
}

// hear remembers the name of a member that this one does not know, to answer it. r.mu is held.
func (r *Replica) hear(from Peer) {
	if r.core.names[from.ID] != "" || len(from.Name) > nameMax {
		return
	}
	if len(r.heard) >= membersMax {
		clear(r.heard)
	}
	r.heard[from.ID] = from.Name
}

func (r *Replica) stepLocked(from Peer, m *pb.Message) error {
	r.hear(from)
	if r.err != nil {
		return r.notLeaderLocked()
	}
	if r.node == nil { // of a member that was removed
		return nil
	}
	if t := m.GetType(); r.votes.mute > 0 && (t == pb.MsgVote || t == pb.MsgPreVote) {
		return nil // the leader that this member heard before it was opened anew may hold a lease
	}
	if !r.store.room.take(m.GetEntries()) {
		return nil // as if it were lost: the leader sends it again
	}
	err := r.guard(func() error {
		defer func() { // whatever a message makes raft do
			if p := recover(); p != nil {
				panic(refusal(fmt.Sprint(p)))
			}
		}()
		return r.node.Step(m)
	})
	if err == nil || errors.Is(err, raft.ErrStepPeerNotFound) || errors.Is(err, raft.ErrProposalDropped) {
		r.signal()
		return nil
	}
	return sigma.Wrap("replica.Step", "", err)
}

// images are the snapshots that are on their way.
type images struct {
	captured *image         // that raft was told of, for the next messages
	incoming *incoming      // that came whole, and raft has not taken
	early    bool           // a change of members is half applied: raft asks again for a snapshot
	arriving bool           // one comes in
	sending  sync.WaitGroup // goroutines that send or write one
	done     chan written   // of the one that is being written; nil = none
}

func (x *images) written() <-chan written { return x.done }

// written is a snapshot of this member's own that was written, or was not.
type written struct {
	number uint64
	meta   *pb.SnapshotMetadata
	size   int64
	err    error
}

// incoming is a snapshot that the leader sent.
type incoming struct {
	state  stored
	number uint64 // of the file; 0 = in memory
	whole  bool   // the file is there for all to see
	meta   *pb.SnapshotMetadata
}

func (in *incoming) close() {
	f, is := in.state.(file)
	switch {
	case is && in.whole:
		f.Close()
	case is:
		f.Discard()
	}
}

// capture is storage.snapshot: the state as it is now, for a member that needs it. r.mu is held.
func (r *Replica) capture() (*pb.Snapshot, error) {
	if r.images.early {
		return nil, raft.ErrSnapshotTemporarilyUnavailable
	}
	if c := r.images.captured; c == nil || c.Meta.GetIndex() != r.core.index {
		m, err := r.core.snapshot()
		if err != nil {
			r.cfg.Logger.Error("snapshot", "err", err)
			return nil, raft.ErrSnapshotTemporarilyUnavailable
		}
		r.images.captured = m
	}
	return &pb.Snapshot{Metadata: r.core.meta()}, nil
}

// sendImage sends a snapshot beside the other work, and tells raft what became of it.
func (r *Replica) sendImage(ctx context.Context, to Peer, m *pb.Message, capture *image) {
	report := func(how raft.SnapshotStatus) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.node != nil && r.err == nil {
			r.guard(func() error { r.node.ReportSnapshot(to.ID, how); return nil })
			r.signal()
		}
	}
	b, err := proto.Marshal(m)
	index := m.GetSnapshot().GetMetadata().GetIndex()
	if err != nil || to.Name == "" || capture == nil || capture.Meta.GetIndex() != index {
		report(raft.SnapshotFailure)
		return
	}
	image := *capture
	r.cfg.Logger.Info("snapshot for a member", "to", to.ID, "index", index)
	r.images.sending.Go(func() {
		err := r.cfg.Transport.SendSnapshot(ctx, to, b, func(w io.Writer) error {
			_, err := image.WriteTo(w)
			return err
		})
		if err != nil {
			r.cfg.Logger.Warn("snapshot to a member", "to", to.ID, "err", err)
			report(raft.SnapshotFailure)
			return
		}
		report(raft.SnapshotFinish)
	})
}

// StepSnapshot takes what Transport.SendSnapshot of member from sent: the message, and what was
// written after it.
// KindBusy: another snapshot is coming in.
func (r *Replica) StepSnapshot(ctx context.Context, from Peer, message []byte, state io.Reader) (err error) {
	const op = "replica.StepSnapshot"
	m, err := parseMessage(message, from.ID, r.cfg.ID)
	if err == nil && (m.GetType() != pb.MsgSnap || raft.IsEmptySnap(m.GetSnapshot())) {
		err = sigma.Errorf(op, sigma.KindInvalid, "the message is not that of a snapshot")
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	busy := r.images.arriving || r.images.incoming != nil
	if r.err != nil {
		err = r.notLeaderLocked()
	} else if busy {
		err = sigma.Errorf(op, sigma.KindBusy, "another snapshot is coming in")
	} else {
		r.images.arriving = true
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	in, err := r.read(ctx, state)
	if err == nil {
		err = check(in.state)
	}
	in.meta = m.Snapshot.Metadata
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.images.arriving = false; err != nil {
		in.close()
		return sigma.Wrap(op, "", err)
	}
	r.images.incoming = in
	return r.stepLocked(from, m)
}

// read reads a snapshot into a file, or memory.
func (r *Replica) read(ctx context.Context, state io.Reader) (in *incoming, err error) {
	in = &incoming{state: &chunks{}}
	limited := io.LimitReader(state, r.cfg.SnapshotMax+1)
	var n int64
	if r.cfg.Dir == "" {
		b := &chunks{}
		n, err = b.ReadFrom(limited)
		in.state = b
	} else {
		r.mu.Lock()
		in.number = r.disk.number()
		r.mu.Unlock()
		f, failed := r.disk.spool(ctx, in.number, func(w io.Writer) (int64, error) { return io.Copy(w, limited) })
		if err = failed; err == nil {
			in.state, n = f, f.size
		}
	}
	if err == nil && n > r.cfg.SnapshotMax {
		err = &sigma.Error{Op: "replica.StepSnapshot", Kind: sigma.KindTooBig, Msg: "the snapshot is too long",
			Hint: "raise Config.SnapshotMax"}
	}
	return in, err
}

// arrived gives the snapshot that raft took, which came by StepSnapshot.
func (r *Replica) arrived(meta *pb.SnapshotMetadata) (*incoming, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := r.images.incoming
	if in == nil || in.meta.GetIndex() != meta.GetIndex() || in.meta.GetTerm() != meta.GetTerm() {
		return nil, sigma.Errorf("replica.Run", sigma.KindOther, "a snapshot that was taken is not there")
	}
	r.images.incoming = nil
	return in, nil
}

// writeImage begins a snapshot of a durable member when its log has grown enough.
func (r *Replica) writeImage(ctx context.Context) error {
	if r.disk == nil || r.images.done != nil || r.disk.bytes < max(r.cfg.SnapshotEvery, r.disk.size) ||
		time.Now().Before(r.disk.image) {
		return nil
	}
	r.mu.Lock()
	if r.images.arriving || r.images.incoming != nil {
		r.mu.Unlock()
		return nil // the leader's may be newer
	}
	number := r.disk.number()
	m, err := r.core.snapshot()
	var entries []*pb.Entry
	if last, _ := r.store.LastIndex(); err == nil && last > r.core.index {
		entries, err = r.store.Entries(r.core.index+1, last+1, math.MaxUint64)
	}
	r.mu.Unlock()
	if err != nil || len(entries) > recordCount { // a segment begins with all of them, in one record
		return err
	}
	if err := r.disk.cut(ctx, number, m.Meta, entries); err != nil {
		return r.imageFailed(err)
	}
	r.disk.bytes = 0
	for _, e := range entries {
		r.disk.bytes += entrySize(e)
	}
	done := make(chan written, 1)
	r.images.done = done
	r.images.sending.Go(func() {
		f, err := r.disk.spool(ctx, number, m.WriteTo)
		if err == nil {
			err = f.Close()
		}
		done <- written{number, m.Meta, f.size, err}
	})
	return r.makeRoom()
}

// imageFailed has a snapshot that lacks space be tried again later: the log has all until then.
func (r *Replica) imageFailed(err error) error {
	if sigma.KindOf(err) != sigma.KindNoSpace {
		return &sigma.Error{Op: "replica.Run", Kind: sigma.KindOf(err), Err: err,
			Msg: "a snapshot cannot be written", Hint: "the member ends; open it again when its files can be written"}
	}
	r.cfg.Logger.Warn("there is no space for a snapshot, so the log grows on", "err", err)
	r.disk.bytes += max(r.cfg.SnapshotEvery, r.disk.size)
	r.disk.image = time.Now().Add(imagePause)
	return nil
}

// wroteImage makes a snapshot that was written the one to go on from, unless the leader's came
// first.
func (r *Replica) wroteImage(ctx context.Context, w written) error {
	r.images.done = nil
	switch {
	case w.err != nil:
		return r.imageFailed(w.err)
	case w.number < r.disk.from:
		r.disk.files.Remove(ctx, r.disk.state(w.number)) // or the next time
	default:
		r.disk.based(ctx, w.number, w.meta, w.size)
	}
	return nil
}
