package replica

import (
	"errors"
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// storage is the log as raft reads it: what has not been compacted, in memory.
type storage struct {
	*raft.MemoryStorage
	snapshot func() (*pb.Snapshot, error) // the state as it is now
	bytes    int64                        // of entries, about
	room     room
}

// entryCost is what an entry takes in memory beside its data.
const entryCost = 100

func entrySize(e *pb.Entry) int64 { return int64(len(e.GetData())) + entryCost }

// Snapshot implements raft.Storage. Raft asks for one when a member needs what is compacted.
func (s *storage) Snapshot() (*pb.Snapshot, error) { return s.snapshot() }

// newStorage begins after a snapshot.
func newStorage(meta *pb.SnapshotMetadata, hard *pb.HardState) (*storage, error) {
	s := &storage{MemoryStorage: raft.NewMemoryStorage()}
	if meta.GetIndex() > 0 {
		if err := s.ApplySnapshot(&pb.Snapshot{Metadata: meta}); err != nil {
			return nil, err
		}
	}
	return s, s.SetHardState(hard)
}

func (s *storage) add(entries []*pb.Entry) error {
	for _, e := range entries {
		s.bytes += entrySize(e)
	}
	return s.Append(entries)
}

// compact drops entries up to applied, until half of keep is left of them. Entries beyond held
// stay, for members that are getting a snapshot.
func (s *storage) compact(applied, held uint64, keep int64) error {
	if s.bytes <= keep {
		return nil
	}
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	if first > last {
		s.bytes = 0
		return nil
	}
	all, err := s.Entries(first, last+1, 1<<62)
	if err != nil {
		return err
	}
	s.bytes = 0
	for _, e := range all { // counted anew, since entries that were overwritten count twice
		s.bytes += entrySize(e)
	}
	last = first - 1
	for _, e := range all {
		if e.GetIndex() > min(applied, held) || s.bytes <= keep/2 {
			break
		}
		s.bytes -= entrySize(e)
		last = e.GetIndex()
	}
	if err := s.Compact(last); err != nil && !errors.Is(err, raft.ErrCompacted) {
		return err
	}
	return nil
}

// logger gives raft's messages to slog. What raft calls information is for debugging.
type logger struct{ to *slog.Logger }

func (l logger) Debug(v ...any)            { l.to.Debug("raft", "msg", lazy{"", v}) }
func (l logger) Debugf(f string, v ...any) { l.to.Debug("raft", "msg", lazy{f, v}) }
func (l logger) Info(v ...any)             { l.to.Debug("raft", "msg", lazy{"", v}) }
func (l logger) Infof(f string, v ...any)  { l.to.Debug("raft", "msg", lazy{f, v}) }
func (l logger) Warning(v ...any)          { l.to.Warn("raft", "msg", lazy{"", v}) }
func (l logger) Warningf(f string, v ...any) {
	l.to.Warn("raft", "msg", lazy{f, v})
}
func (l logger) Error(v ...any)            { l.to.Warn("raft", "msg", lazy{"", v}) }
func (l logger) Errorf(f string, v ...any) { l.to.Warn("raft", "msg", lazy{f, v}) }
func (l logger) Fatal(v ...any)            { l.Panic(v...) }
func (l logger) Fatalf(f string, v ...any) { l.Panicf(f, v...) }

// Panic and Panicf end what raft does; Replica.guard makes an error of it.
func (l logger) Panic(v ...any)            { panic(refusal(fmt.Sprint(v...))) }
func (l logger) Panicf(f string, v ...any) { panic(refusal(fmt.Sprintf(f, v...))) }

// refusal is what raft panics with.
type refusal string

// lazy is text that is made when it is printed.
type lazy struct {
	format string
	args   []any
}

func (l lazy) LogValue() slog.Value {
	if l.format == "" {
		return slog.StringValue(fmt.Sprint(l.args...))
	}
	return slog.StringValue(fmt.Sprintf(l.format, l.args...))
}
