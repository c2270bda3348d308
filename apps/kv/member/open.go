package member

import (
	"context"

	"sigmaos.dev/lib/replica"
	"sigmaos.dev/sdk/call"
)

// open makes the replica: of a group that begins with this member, or one that waits to be added.
func (m *Member) open(ctx context.Context, found call.Find) error {
	cfg, err := m.config(ctx)
	if err != nil {
		return err
	}
	begins, err := m.begins(ctx, cfg.Replicas)
	if err != nil {
		return err
	}
	rc := replica.Config{ID: m.id, Machine: m.store, CommandMax: commandMax, Lease: true, Logger: m.log}
	if begins {
		rc.Peers = map[uint64]string{m.id: m.self}
	}
	if cfg.Replicas > 1 {
		m.peers = &peers{find: found, life: ctx, queues: map[string]chan []byte{}}
		rc.Transport = m.peers
	}
	m.replica, err = replica.Open(rc)
	return err
}
