package identity

import (
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Grant is the answer to an Enrolment that was accepted.
type Grant struct {
	Certificate []byte   // DER, for the key of the request
	Authorities [][]byte // DER; what to trust from now on
	Control     []Member // whom to ask for the whole roster
}

const controlMax = 16 // members of a Grant: the control machines, of which there are at most 5, and some room

// partialEpoch is the epoch of a roster that knows only control machines: earlier than that of any
// certificate, so that a member that is not on it counts as not yet known, not as removed.
const partialEpoch = 1

// Roster makes the list to begin with: nobody but the control machines is known.
func (g *Grant) Roster() *Roster {
	r := NewRoster()
	r.Set(partialEpoch, g.Control)
	return r
}

func (g *Grant) code(c *sigmap.Coder) {
	c.Data(&g.Certificate)
	n := len(g.Authorities)
	c.Count(&n, 4)
	if n > authoritiesMax {
		c.Fail("too many authorities")
		return
	}
	if c.Decoding() {
		g.Authorities = make([][]byte, n)
	}
	for i := range g.Authorities {
		c.Data(&g.Authorities[i])
	}
	CodeMembers(c, &g.Control)
}

// Encode gives the grant as ParseGrant reads it.
func (g *Grant) Encode() ([]byte, error) {
	if len(g.Control) > controlMax {
		return nil, sigma.Errorf("identity.Encode", sigma.KindTooBig, "%d control machines", len(g.Control))
	}
	return sigmap.Payload(g.code)
}

// ParseGrant decodes a grant. What is in it is checked where it is used.
func ParseGrant(payload []byte) (*Grant, error) {
	g := &Grant{}
	if err := sigmap.Parse(payload, g.code); err != nil {
		return nil, sigma.Wrap("identity.ParseGrant", "", err)
	}
	if len(g.Control) > controlMax {
		return nil, sigma.Errorf("identity.ParseGrant", sigma.KindTooBig, "%d control machines", len(g.Control))
	}
	return g, nil
}

// CodeMembers is the layout of members in payloads: a count, then of each name, key, address,
// incarnation, lost, control, cordoned, draining.
func CodeMembers(c *sigmap.Coder, ms *[]Member) {
	sigmap.List(c, ms, 2+4+len(Fingerprint{})+2+8+4, func(m *Member) {
		key := m.Key[:]
		c.Str((*string)(&m.Machine))
		c.Data(&key)
		c.Str(&m.Address)
		c.U64((*uint64)(&m.Incarnation))
		c.Bool(&m.Lost)
		c.Bool(&m.Control)
		c.Bool(&m.Cordoned)
		c.Bool(&m.Draining)
		if !c.Decoding() {
			return // what is encoded may be shared, and is not written
		}
		if len(key) != len(m.Key) || m.Machine.Check() != nil || m.Address != "" &&
			CheckAddress(m.Address) != nil { // one that is alone needs no address
			c.Fail("a member has no proper name, key or address")
			return
		}
		copy(m.Key[:], key)
	})
}
