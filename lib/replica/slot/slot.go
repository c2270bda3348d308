// Package slot gives the members of a durable group to procs: a slot is a file of names for each
// member, which says which ID it has, on which machine its log is, and which proc had it last.
//
// It promises: of several procs one at a time has a slot, and with it the member's ID and log. If
// the log is gone, with its machine or because it was removed, the slot gets a new ID; the old one
// is never given again, so that a member which has forgotten what it acknowledged gives no vote.
//
// It assumes that the list of procs is that of the realm, and that a machine which is away answers
// otherwise than one that was removed. Users: apps/kv.
package slot

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"sigmaos.dev/sigma"
)

// Realm is what a slot needs of an sdk.Client.
type Realm interface {
	sigma.Namespace
	List(ctx context.Context, all bool) ([]sigma.ProcInfo, error)
}

// Config says which slot, and for whom.
type Config struct {
	Realm Realm
	File  string          // its path; the directory exists
	Self  sigma.Principal // the proc that takes it
	// Logs gives the directory of a machine that has the logs of the group.
	Logs func(sigma.MachineID) string
	// Alone is whether the group has no other members, so that a log that is gone is an error.
	Alone bool
}

// Slot is a slot that this proc has.
type Slot struct {
	state
	cfg     Config
	version sigma.Version
}

// state is what the file has.
type state struct {
	ID      uint64          `json:"id"`
	Machine sigma.MachineID `json:"machine"` // of the log
	Proc    sigma.ProcID    `json:"proc"`
	// Opened is whether there was a log: before that, none is missing.
	Opened bool `json:"opened,omitempty"`
}

// Claim takes a slot. KindBusy: the proc that has it runs. KindLost: the log of the only member is
// gone. Other errors are those of the machine that has the log, which may be back later.
func Claim(ctx context.Context, cfg Config) (*Slot, error) {
	const op = "slot.Claim"
	s := &Slot{state: state{ID: 1 + rand.Uint64N(1<<63-1), Machine: cfg.Self.Machine, Proc: cfg.Self.Proc}, cfg: cfg}
	text, id, err := cfg.Realm.Get(sigma.WithSync(ctx), cfg.File)
	if sigma.KindOf(err) == sigma.KindNotFound {
		return s, s.save(ctx)
	}
	was := &Slot{cfg: cfg}
	if err == nil {
		err = json.Unmarshal(text, &was.state)
	}
	if err != nil {
		return nil, sigma.Wrap(op, cfg.File, err)
	}
	procs, err := cfg.Realm.List(ctx, false)
	if err != nil {
		return nil, err
	}
	if was.Proc != s.Proc && slices.ContainsFunc(procs, func(p sigma.ProcInfo) bool { return p.ID == was.Proc }) {
		return nil, sigma.Errorf(op, sigma.KindBusy, "the log is that of proc %s, which runs", was.Proc)
	}
	s.version = id.Version
	gone, err := was.gone(ctx)
	switch {
	case err != nil:
		return nil, sigma.Wrap(op, was.Dir(), err)
	case gone && cfg.Alone:
		return nil, &sigma.Error{Op: op, Path: was.Dir(), Kind: sigma.KindLost,
			Msg: "the log of the group's only member is gone", Hint: "put it back, or begin again from a snapshot"}
	case !gone:
		s.ID, s.Machine, s.Opened = was.ID, was.Machine, was.Opened
	}
	return s, s.save(ctx)
}

// Dir is the directory of the member's log: replica.Config.Dir.
func (s *Slot) Dir() string { return fmt.Sprintf("%s/%016x", s.cfg.Logs(s.Machine), s.ID) }

// gone reports whether a log that there was is no more.
func (s *Slot) gone(ctx context.Context) (bool, error) {
	if !s.Opened {
		return false, nil
	}
	entries, err := s.cfg.Realm.ReadDir(ctx, s.Dir())
	if sigma.KindOf(err) == sigma.KindNotFound {
		return true, nil
	}
	return err == nil && len(entries) == 0, err
}

// save writes the file from the version that was read.
func (s *Slot) save(ctx context.Context) error {
	text, err := json.Marshal(s.state)
	if err != nil {
		return err
	}
	id, err := s.cfg.Realm.Put(ctx, s.cfg.File, text, sigma.PutOptions{IfVersion: s.version, MustMake: s.version == 0})
	s.version = id.Version
	return err
}

// NoteOpened notes that there is a log, before the member gives a vote.
func (s *Slot) NoteOpened(ctx context.Context) error {
	if s.Opened {
		return nil
	}
	s.Opened = true
	return s.save(ctx)
}
