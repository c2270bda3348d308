package member

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"sigmaos.dev/apps/kv/layout"
	"sigmaos.dev/sigma"
)

// A durable group has a slot for each of its members, and a file for each slot. The file says which
// ID the member has, on which machine its log is, and which proc had it last. A proc that is
// started takes the slot with its ID and log, unless the log is gone with its machine or was
// removed: then it is a new member with a new ID, which takes the place of the old one. Members are
// found by the names of their slots, which stay.

// slot is what the file has.
type slot struct {
	ID      uint64          `json:"id"`
	Machine sigma.MachineID `json:"machine"`
	Proc    sigma.ProcID    `json:"proc"`
	// Opened is whether there was a log: before that, none is missing.
	Opened bool `json:"opened,omitempty"`

	version sigma.Version
}

func (m *Member) dir(s *slot) string {
	return fmt.Sprintf("%s/%d-%016x", layout.Logs(s.Machine, m.name), m.group, s.ID)
}

// claim takes the member's slot for this proc.
func (m *Member) claim(ctx context.Context, replicas int) (*slot, error) {
	const op = "kv.member"
	self := m.c.Info().Principal
	m.self = fmt.Sprint("m", m.index)
	path := layout.Slot(m.name, m.group, m.index)
	s := &slot{ID: m.id, Machine: self.Machine, Proc: self.Proc}
	if err := m.c.MkdirAll(ctx, layout.Dir(m.name)+"/slots", 0o755); err != nil {
		return nil, err
	}
	text, id, err := m.c.Get(sigma.WithSync(ctx), path)
	if sigma.KindOf(err) == sigma.KindNotFound {
		return s, m.save(ctx, s)
	}
	was := slot{}
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		return nil, sigma.Wrap(op, path, err)
	}
	procs, err := m.c.List(ctx, false)
	if err != nil {
		return nil, err
	}
	if was.Proc != self.Proc && slices.ContainsFunc(procs, func(p sigma.ProcInfo) bool { return p.ID == was.Proc }) {
		return nil, sigma.Errorf(op, sigma.KindBusy, "the log is that of proc %s, which runs", was.Proc)
	}
	s.version = id.Version
	gone, err := m.gone(ctx, &was)
	switch {
	case err != nil:
		return nil, sigma.Wrap(op, m.dir(&was), err)
	case gone && replicas == 1:
		return nil, &sigma.Error{Op: op, Path: m.dir(&was), Kind: sigma.KindLost,
			Msg:  "the log of the group's only member is gone",
			Hint: "put it back, or make the store again: sigma kv rm, create and restore"}
	case gone:
		m.log.Warn("the log is gone: a new member takes the place of the old one", "log", m.dir(&was))
	default:
		s.ID, s.Machine, s.Opened = was.ID, was.Machine, was.Opened
	}
	m.id = s.ID
	return s, m.save(ctx, s)
}

// gone reports whether a log that there was is no more. The error is that of a machine that does
// not answer now.
func (m *Member) gone(ctx context.Context, s *slot) (bool, error) {
	if !s.Opened {
		return false, nil
	}
	entries, err := m.c.ReadDir(ctx, m.dir(s))
	if sigma.KindOf(err) == sigma.KindNotFound {
		return true, nil
	}
	return err == nil && len(entries) == 0, err
}

// save writes the file from the version that was read.
func (m *Member) save(ctx context.Context, s *slot) error {
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	id, err := m.c.Put(ctx, layout.Slot(m.name, m.group, m.index), text,
		sigma.PutOptions{IfVersion: s.version, MustMake: s.version == 0})
	s.version = id.Version
	return err
}

// opened notes that there is a log.
func (m *Member) opened(ctx context.Context, s *slot) error {
	if s.Opened {
		return nil
	}
	s.Opened = true
	return m.save(ctx, s)
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
