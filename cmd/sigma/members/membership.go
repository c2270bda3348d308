package members

import (
	"context"
	"time"

	"sigmaos.dev/machines"
	"sigmaos.dev/sigmap"
)

// MembershipJSON is this machine's place in its system, as this machine knows it.
type MembershipJSON struct {
	System       string       `json:"system"`
	Incarnation  uint64       `json:"incarnation"`
	Address      string       `json:"address,omitempty"`
	Machines     uint32       `json:"machines"`
	Alive        uint32       `json:"alive"`
	Control      uint32       `json:"control"`
	ControlAlive uint32       `json:"control_alive"`
	Silent       uint32       `json:"silent"` // control machines that do not answer this one and are not declared lost
	Quorum       bool         `json:"quorum"`
	Expiries     []expiryJSON `json:"expiries"`
}

type expiryJSON struct {
	What string    `json:"what"` // certificate or authority
	At   time.Time `json:"at"`
	Warn bool      `json:"warn"` // it should have been renewed before now
}

// Membership asks this machine's sigmad.
func (m *Connection) Membership(ctx context.Context) (out machines.Membership, err error) {
	reply, _, err := m.caller.Call(ctx, machines.CallMembership, nil, nil)
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { machines.CodeMembership(c, &out) })
	}
	return out, err
}

func MembershipToJSON(m machines.Membership) *MembershipJSON {
	if m.System == "" {
		return nil
	}
	j := &MembershipJSON{string(m.System), uint64(m.Incarnation), m.Address, m.Machines, m.Alive, m.Controls, m.Voting,
		m.Silent, m.Quorum(), []expiryJSON{}}
	for _, e := range m.Expiries {
		j.Expiries = append(j.Expiries, expiryJSON{e.What, e.At, e.Warn})
	}
	return j
}
