package machines

import (
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Methods of the service's root file. The machine that calls is the Principal's, stamped from its
// link.
var (
	// CallToken answers with the text of a new token.
	CallToken  = sigmap.Method[tokenAsk, string]{Name: "token", Request: codeTokenAsk, Reply: (*sigmap.Coder).Str}
	CallTokens = sigmap.Method[sigmap.None, []Token]{Name: "tokens", Reply: codeTokens}
	CallRevoke = sigmap.Method[identity.TokenID, sigmap.None]{Name: "revoke", Request: codeTokenID}
	// CallList answers with a page of the machines, after so many.
	CallList   = sigmap.Method[uint32, listed]{Name: "list", Request: (*sigmap.Coder).U32, Reply: codeListed}
	CallCordon = sigmap.Method[Cordon, bool]{Name: "cordon", Request: codeCordon, Reply: (*sigmap.Coder).Bool}
	CallDrain  = sigmap.Method[sigma.MachineID, sigmap.None]{Name: "drain", Request: (*sigmap.Coder).MachineID}
	// CallLabel has labels as name=value.
	CallLabel   = sigmap.Method[labelling, sigmap.None]{Name: "label", Request: codeLabelling}
	CallControl = sigmap.Method[Control, sigmap.None]{Name: "control", Request: codeControl}
	CallRemove  = sigmap.Method[Remove, sigmap.None]{Name: "remove", Request: codeRemove}

	CallChallenge = sigmap.Method[sigmap.None, identity.Challenge]{Name: "challenge", Reply: codeChallenge}
	// CallEnrol takes an identity.Enrolment, and answers with an identity.Grant.
	CallEnrol = sigmap.Method[[]byte, []byte]{Name: "enrol", Request: sigmap.Rest, Reply: sigmap.Rest}
	// CallRenew answers with a certificate.
	CallRenew  = sigmap.Method[renewal, []byte]{Name: "renew", Request: codeRenewal, Reply: sigmap.Rest}
	CallReport = sigmap.Method[[]Evidence, sigmap.None]{Name: "report", Request: codeEvidence}
	CallVouch  = sigmap.Method[Vouch, sigmap.None]{Name: "vouch", Request: codeVouch}
	// CallRoster waits until there is a later one than the epoch, or answers with another page of
	// the same one.
	CallRoster = sigmap.Method[rosterAsk, rosterPage]{Name: "roster", Request: codeRosterAsk, Reply: codeRosterPage}
	// CallErrands waits until there are some for the caller. Its request is the number of the last
	// ones.
	CallErrands = sigmap.Method[uint64, errandsPage]{Name: "errands", Request: (*sigmap.Coder).U64,
		Reply: codeErrandsPage}
	// CallAuthority answers with PEM that has the key. It is for machined of another control
	// machine; its sigmad lets nobody else ask.
	CallAuthority = sigmap.Method[sigmap.None, []byte]{Name: "authority", Reply: sigmap.Rest}

	// CallFound makes the first machine, of an Enrolment without proofs. Only the judge's own
	// machine may ask.
	CallFound = sigmap.Method[[]byte, []byte]{Name: "found", Request: sigmap.Rest, Reply: sigmap.Rest}
	// CallCertify certifies the machine of the machined that is asked once more, in the life that
	// it names, without asking anybody. Only that machine may ask. When all control machines were
	// off for longer than certificates live, none of them could be registered before they can reach
	// each other, and they could not reach each other without. It gives nothing away: who has the
	// authority's key can be any machine, and whether the life goes on is the roster's to say.
	CallCertify = sigmap.Method[certificateAsk, []byte]{Name: "certify", Request: codeCertificateAsk,
		Reply: (*sigmap.Coder).Data}
	// CallMembership is answered by sigmad itself, not by machined, so that it is known also while
	// nobody decides.
	CallMembership = sigmap.Method[sigmap.None, Membership]{Name: "membership", Reply: codeMembership}
)

type tokenAsk struct {
	uses uint32
	ttl  time.Duration
}

type labelling struct {
	id     sigma.MachineID
	labels []string
}

type listed struct {
	more bool
	page []sigma.MachineInfo
}

type renewal struct {
	incarnation sigma.Incarnation
	key         []byte
}

type rosterAsk struct {
	epoch uint64
	skip  uint32
}

type rosterPage struct {
	epoch   uint64
	more    bool
	members []identity.Member
}

type errandsPage struct {
	number uint64
	list   []Errand
}

type certificateAsk struct {
	incarnation sigma.Incarnation
	epoch       uint64
	key         []byte
}

func codeTokenAsk(c *sigmap.Coder, a *tokenAsk) {
	c.U32(&a.uses)
	c.Duration(&a.ttl)
}

func codeTokenID(c *sigmap.Coder, id *identity.TokenID) { c.Str((*string)(id)) }

func codeCordon(c *sigmap.Coder, e *Cordon) {
	c.MachineID(&e.ID)
	c.Bool(&e.On)
}

func codeLabelling(c *sigmap.Coder, l *labelling) {
	c.MachineID(&l.id)
	c.Strs(&l.labels)
}

func codeControl(c *sigmap.Coder, e *Control) {
	c.MachineID(&e.ID)
	c.Bool(&e.On)
}

func codeRemove(c *sigmap.Coder, e *Remove) {
	c.MachineID(&e.ID)
	c.Bool(&e.Force)
}

func codeChallenge(c *sigmap.Coder, ch *identity.Challenge) {
	b := ch[:]
	if sigmap.Rest(c, &b); c.Decoding() && copy(ch[:], b) != len(ch) {
		c.Fail("a challenge has another length")
	}
}

func codeRenewal(c *sigmap.Coder, r *renewal) {
	c.U64((*uint64)(&r.incarnation))
	c.Data(&r.key)
}

func codeVouch(c *sigmap.Coder, v *Vouch) {
	c.MachineID(&v.ID)
	c.U64((*uint64)(&v.Incarnation))
}

func codeRosterAsk(c *sigmap.Coder, a *rosterAsk) {
	c.U64(&a.epoch)
	c.U32(&a.skip)
}

func codeRosterPage(c *sigmap.Coder, p *rosterPage) {
	c.U64(&p.epoch)
	c.Bool(&p.more)
	identity.CodeMembers(c, &p.members)
}

func codeCertificateAsk(c *sigmap.Coder, a *certificateAsk) {
	c.U64((*uint64)(&a.incarnation))
	c.U64(&a.epoch)
	c.Data(&a.key)
}

// codeEvidence is a count, then of each name, incarnation, age.
func codeEvidence(c *sigmap.Coder, es *[]Evidence) {
	sigmap.List(c, es, 2+8+8, func(e *Evidence) {
		c.Str((*string)(&e.ID))
		c.U64((*uint64)(&e.Incarnation))
		c.Duration(&e.Age)
		if c.Decoding() && (e.ID.Check() != nil || e.Age < 0) {
			c.Fail("evidence is of no machine or from the future")
			return
		}
	})
}

func codeErrandsPage(c *sigmap.Coder, p *errandsPage) {
	c.U64(&p.number)
	sigmap.List(c, &p.list, 3, func(e *Errand) {
		c.Str((*string)(&e.Try))
		c.Bool(&e.Drain)
	})
}

func codeTokens(c *sigmap.Coder, ts *[]Token) {
	sigmap.List(c, ts, 2+8+8+8+1+8, func(t *Token) {
		uses := uint64(t.Uses)
		c.Str((*string)(&t.ID))
		c.U64(&uses)
		c.Time(&t.Made)
		c.Time(&t.Expires)
		c.Bool(&t.Revoked)
		c.Time(&t.Over)
		if c.Decoding() {
			t.Uses = int(min(uses, TokenUsesMax))
		}
	})
}

func codeListed(c *sigmap.Coder, l *listed) {
	c.Bool(&l.more)
	sigmap.List(c, &l.page, 2+2+1+8+8+2+3+4+8+2+8+8, func(m *sigma.MachineInfo) {
		c.Str((*string)(&m.ID))
		c.Str(&m.Address)
		c.U8((*uint8)(&m.State))
		c.U64((*uint64)(&m.Incarnation))
		c.U64((*uint64)(&m.Fence))
		codeLabels(c, &m.Labels)
		c.Bool(&m.Control)
		c.Bool(&m.Cordoned)
		c.Bool(&m.Draining)
		c.U32((*uint32)(&m.CPU))
		c.U64((*uint64)(&m.Memory))
		c.Str(&m.Version)
		c.Time(&m.Joined)
		c.Time(&m.Heard)
	})
}

// codeLabels is a list of names and values in turn, by name.
func codeLabels(c *sigmap.Coder, labels *map[string]string) {
	var flat []string
	for _, name := range slices.Sorted(maps.Keys(*labels)) {
		flat = append(flat, name, (*labels)[name])
	}
	c.Strs(&flat)
	if !c.Decoding() {
		return
	}
	if len(flat)%2 != 0 {
		c.Fail("a label has no value")
		return
	}
	*labels = nil
	for i := 0; i < len(flat); i += 2 {
		if *labels == nil {
			*labels = map[string]string{}
		}
		(*labels)[flat[i]] = flat[i+1]
	}
}

// expiriesMax bounds the list in a Membership: a certificate and a few authorities.
const expiriesMax = 16

func codeMembership(c *sigmap.Coder, m *Membership) {
	c.Str((*string)(&m.System))
	c.U64((*uint64)(&m.Incarnation))
	c.Str(&m.Address)
	c.U64(&m.Epoch)
	c.U32(&m.Machines)
	c.U32(&m.Alive)
	c.U32(&m.Controls)
	c.U32(&m.Voting)
	c.U32(&m.Silent)
	n := min(len(m.Expiries), expiriesMax)
	c.Count(&n, 2+8+1)
	if c.Decoding() {
		if n > expiriesMax {
			c.Fail("too many expiries")
			return
		}
		m.Expiries = make([]identity.Expiry, n)
	}
	for i := range n {
		c.Str(&m.Expiries[i].What)
		c.Time(&m.Expiries[i].At)
		c.Bool(&m.Expiries[i].Warn)
	}
}
