package replica

import (
	"bytes"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

func message(m *pb.Message) []byte {
	m.To, m.From, m.Term = new(uint64(1)), new(uint64(2)), new(uint64(5))
	b, _ := proto.Marshal(m)
	return b
}

// nowhere is a Transport that drops all.
type nowhere struct{ Transport }

func (nowhere) Send(Peer, []byte) {}

// No message of a member makes another one panic, or take what is no message.
func FuzzStep(f *testing.F) {
	f.Add([]byte("x"))
	f.Add(message(&pb.Message{Type: pb.MsgHeartbeat.Enum(), Commit: new(uint64(1 << 60))}))
	f.Add(message(&pb.Message{Type: pb.MsgVote.Enum(), Index: new(uint64(9)), LogTerm: new(uint64(4))}))
	f.Add(message(&pb.Message{Type: pb.MsgApp.Enum(), Index: new(uint64(1)), LogTerm: new(uint64(1)),
		Commit:  new(uint64(2)),
		Entries: []*pb.Entry{{Index: new(uint64(2)), Term: new(uint64(5)), Data: []byte("bad")}}}))
	f.Add(message(&pb.Message{Type: pb.MsgTimeoutNow.Enum()}))
	f.Add(message(&pb.Message{Type: pb.MsgSnap.Enum(), Snapshot: &pb.Snapshot{Metadata: &pb.SnapshotMetadata{
		Index: new(uint64(7)), Term: new(uint64(5)), ConfState: &pb.ConfState{Voters: []uint64{1, 2}}}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Open(t.Context(), Config{ID: 1, Machine: newLedger(),
			Peers:     map[uint64]string{1: "a", 2: "b", 3: "c"},
			Transport: nowhere{}})
		if err != nil {
			t.Fatal(err)
		}
		r.Step(t.Context(), Peer{2, "b"}, b)
		var state bytes.Buffer
		m, err := r.core.snapshot()
		if err == nil {
			_, err = m.WriteTo(&state)
		}
		if err != nil {
			t.Fatal(err)
		}
		r.StepSnapshot(t.Context(), Peer{2, "b"}, b, &state)
		for range 10 {
			if again, err := r.turn(t.Context()); !again || err != nil {
				break
			}
		}
		r.Close()
	})
}

// What is decoded is encoded to the same bytes.
func FuzzEntry(f *testing.F) {
	e := entry{1, 2, []command{{Session{3, 4}, []byte("data")}, {}}}
	b, _ := encode(e.code, 0)
	f.Add(b)
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var x entry
		if decode(b, x.code) != nil {
			return
		}
		if got, err := encode(x.code, 0); err != nil || !bytes.Equal(got, b) {
			t.Errorf("got %x and %v", got, err)
		}
	})
}

func FuzzChange(f *testing.F) {
	x := change{5, map[uint64]string{1: "a", 2: "b"}}
	b, _ := encode(x.code, 0)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var x change
		if decode(b, x.code) == nil && checkMembers("", x.names) != nil && len(x.names) > 0 {
			t.Errorf("got %v", x.names)
		}
	})
}

// Bytes that are no snapshot are refused, or restored to some state.
func FuzzImage(f *testing.F) {
	c := core{machine: newLedger(), sessions: newSessions(), conf: pb.EnsureConfState(nil)}
	c.reconfigure(&pb.ConfState{Voters: []uint64{1}}, map[uint64]string{1: "a"})
	c.apply(Session{1, 1}, []byte("k=v"))
	m, err := c.snapshot()
	if err != nil {
		f.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := m.WriteTo(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add(b.Bytes()[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		s := bytes.NewReader(b)
		valid := check(s) == nil
		if len(b) < 12 {
			return
		}
		c := core{machine: newLedger(), sessions: newSessions()}
		if err := c.restore(m.Meta, s); err == nil && valid && c.commands != c.machine.(*ledger).Last {
			t.Skip("a machine's own state is its own matter")
		}
	})
}

func TestImage(t *testing.T) {
	c := core{machine: newLedger(), sessions: newSessions()}
	c.reconfigure(&pb.ConfState{Voters: []uint64{1, 2}}, map[uint64]string{1: "a", 2: "b"})
	for i := range uint64(5) {
		c.apply(Session{i + 1, 1}, []byte("k=v"))
	}
	m, err := c.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	n, err := m.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("got %d and %v, want %d", n, err, b.Len())
	}
	to := core{machine: newLedger(), sessions: newSessions()}
	if err := check(bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	if err := to.restore(m.Meta, bytes.NewReader(b.Bytes())); err != nil {
		t.Fatal(err)
	}
	if to.commands != 5 || to.names[2] != "b" || len(to.sessions.all()) != 5 || to.machine.(*ledger).get("k") != "v" {
		t.Errorf("got %+v", to)
	}
	for i := range b.Len() {
		bad := bytes.Clone(b.Bytes())
		bad[i] ^= 4
		if check(bytes.NewReader(bad)) == nil {
			t.Errorf("byte %d was changed, and not noticed", i)
		}
	}
}

// No bytes of a record of the log make its decoder panic; what it takes it writes again.
func FuzzLogRecord(f *testing.F) {
	x := logRecord{id: 7, entries: []*pb.Entry{{Index: new(uint64(3)), Term: new(uint64(2)), Data: []byte("x")}}}
	b, err := encode(x.code, 64)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var x logRecord
		if decode(b, x.code) != nil {
			return
		}
		if _, err := encode(x.code, len(b)); err != nil {
			t.Error(err)
		}
	})
}
