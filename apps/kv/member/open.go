package member

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/lib/replica"
	"sigmaos.dev/lib/replica/peer"
	"sigmaos.dev/lib/replica/slot"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// open makes the replica: of a group that begins with this member, or one that waits to be added.
func (m *Member) open(ctx context.Context, found call.Find) error {
	cfg, err := m.config(ctx)
	if err != nil {
		return err
	}
	m.replicas = cfg.Replicas
	var s *slot.Slot
	if m.durable = cfg.Durable; m.durable {
		if s, err = m.claim(ctx, cfg.Replicas); err != nil {
			return err
		}
	}
	begins, err := m.begins(ctx)
	if err != nil {
		return err
	}
	rc := replica.Config{ID: m.id, Machine: m.store, CommandMax: commandMax, Lease: true, Logger: m.log,
		Tick: tick, ElectionTicks: electionTicks, Changed: m.leader.changed}
	// The limit is two fifths of the proc's memory. A snapshot is in memory while the store is
	// built of it, and shrinks meanwhile.
	m.store.SetLimit(m.limit)
	rc.SnapshotMax, rc.PendingMax = int64(m.limit)/2*3, min(int64(m.limit)/8, 64<<20)
	if begins {
		rc.Peers = map[uint64]string{m.id: m.self}
	}
	m.transport, err = peer.New(peer.Config{Group: fmt.Sprintf("kv/%s/%d", m.name, m.group),
		Self: replica.Peer{ID: m.id, Name: m.self}, Realm: m.c.Info().Principal.Realm,
		Dial: func(ctx context.Context, name string) (net.Conn, error) {
			_, dial, err := found(ctx, name, "")
			if err != nil {
				return nil, err
			}
			return dial(ctx)
		},
		Is: func(p sigma.Principal, member replica.Peer) bool { return m.owns(member) && m.is(ctx, p, member.Name) }})
	if err != nil {
		return err
	}
	rc.Transport = m.transport
	if s != nil {
		rc.Dir, rc.Files = s.Dir(), m.c
	}
	if m.replica, err = replica.Open(ctx, rc); err == nil && s != nil {
		err = s.NoteOpened(ctx)
	}
	return err
}

// claim takes the slot of a durable member. The member is found by the slot's name, which stays.
func (m *Member) claim(ctx context.Context, replicas int) (*slot.Slot, error) {
	m.self = fmt.Sprint("m", m.index)
	if err := m.c.MkdirAll(ctx, layout.Dir(m.name)+"/slots", 0o755); err != nil {
		return nil, err
	}
	s, err := slot.Claim(ctx, slot.Config{Realm: m.c, File: layout.Slot(m.name, m.group, m.index),
		Self: m.c.Info().Principal, Alone: replicas == 1,
		Logs: func(on sigma.MachineID) string { return fmt.Sprintf("%s/%d", layout.Logs(on, m.name), m.group) }})
	if err == nil {
		m.id = s.ID
	}
	return s, err
}

// owns reports whether an ID is not that of a member of another name, as far as is known here.
func (m *Member) owns(p replica.Peer) bool {
	st := m.replica.Status()
	name := cmp.Or(st.Members[p.ID], st.Learners[p.ID])
	return name == "" || name == p.Name
}

// is reports whether a proc is the member of a name.
func (m *Member) is(ctx context.Context, p sigma.Principal, name string) bool {
	if !m.durable {
		return string(p.Proc) == name
	}
	ctx, cancel := context.WithTimeout(ctx, lonelyMost)
	defer cancel()
	text, err := m.c.ReadLink(sigma.WithSync(ctx), layout.Members(m.name, m.group)+"/"+name)
	if err != nil {
		return false
	}
	e, err := sigma.ParseEndpoint(text)
	return err == nil && e.Proc == p.Proc
}
