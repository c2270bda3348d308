package replica

import (
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"sigmaos.dev/sigma"
)

// A durable member whose disk is full goes on as far as it can without writing: it answers reads
// and heartbeats, and takes no more entries than its log has room for. A leader refuses commands
// beyond that; a follower loses messages with entries, which the leader sends again. spare is kept
// for votes and terms, without which a group would have no leader.

// spare is room of the log that entries do not take: some thousand votes.
const spare = 256 << 10

// room is how much the log of a durable member takes before it has to grow. r.mu guards it.
type room struct {
	bounded bool  // the member is durable
	full    bool  // the log cannot grow
	left    int64 // for entries, when the log was written last
	spent   int64 // by entries that raft has got since
}

// has reports whether entries of a size fit.
func (m *room) has(size int64) bool { return !m.bounded || m.left-m.spent >= size }

// take counts entries that came from the leader. Unless the disk is full it takes any, and the log
// grows when they are written.
func (m *room) take(entries []*pb.Entry) bool {
	size := int64(0)
	for _, e := range entries {
		size += entrySize(e)
	}
	if size > 0 && m.full && !m.has(size) {
		return false
	}
	m.spent += size
	return true
}

// writing notes that all that raft has got is being written.
func (m *room) writing() { m.left, m.spent = m.left-m.spent, 0 }

func (m *room) setLocked(d *disk) {
	m.bounded, m.full, m.left = true, d.full, d.log.Room()-spare
}

// makeRoom has the log of a durable member grow if it must. Run's goroutine calls it.
func (r *Replica) makeRoom() error {
	if r.disk == nil {
		return nil
	}
	was := r.disk.full
	if err := r.disk.grow(time.Now()); err != nil {
		return err
	}
	if r.disk.full != was {
		r.cfg.Logger.Warn("space for the log", "member", r.cfg.ID, "full", r.disk.full)
	}
	r.mu.Lock()
	r.store.room.setLocked(r.disk)
	r.mu.Unlock()
	return nil
}

func errNoRoom() error {
	return &sigma.Error{Op: "replica.Propose", Kind: sigma.KindNoSpace,
		Msg:  "the log of the group's leader cannot grow, since its disk or its realm's part of it is full",
		Hint: "remove files below /ux, or raise the realm's limit: sigma realm set --limit-scratch"}
}
