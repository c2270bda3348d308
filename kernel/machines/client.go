package machines

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Client asks a Service. Safe for concurrent use. It is a link.Enroller, so that any machine can
// take machines in for the judge.
type Client struct{ root sigma.Caller }

// NewClient uses the root of an attached Service.
func NewClient(root sigma.Caller) *Client { return &Client{root} }

// ask makes one call; put and take may be nil.
func (c *Client) ask(ctx context.Context, method string, put, take func(*sigmap.Coder)) error {
	var payload []byte
	if put != nil {
		var err error
		if payload, err = sigmap.Payload(put); err != nil {
			return err
		}
	}
	reply, _, err := c.root.Call(ctx, method, payload, nil)
	if err != nil || take == nil {
		return err
	}
	return sigmap.Parse(reply, take)
}

// Token makes a token and returns its text, which nobody can be told again. 0 uses or no ttl are
// the defaults: once, within an hour.
func (c *Client) Token(ctx context.Context, uses int, ttl time.Duration) (text string, err error) {
	n := uint32(max(0, min(uses, TokenUsesMax+1)))
	err = c.ask(ctx, CallToken, func(p *sigmap.Coder) {
		p.U32(&n)
		p.Duration(&ttl)
	}, func(p *sigmap.Coder) { p.Str(&text) })
	return text, err
}

// Tokens lists tokens, without secrets.
func (c *Client) Tokens(ctx context.Context) (list []Token, err error) {
	return list, c.ask(ctx, CallTokens, nil, func(p *sigmap.Coder) { codeTokens(p, &list) })
}

// Revoke ends a token.
func (c *Client) Revoke(ctx context.Context, id identity.TokenID) error {
	return c.ask(ctx, CallRevoke, func(p *sigmap.Coder) { p.Str((*string)(&id)) }, nil)
}

// List describes all machines, by name.
func (c *Client) List(ctx context.Context) (all []sigma.MachineInfo, err error) {
	for more := true; more; {
		skip := uint32(len(all))
		var page []sigma.MachineInfo
		if err := c.ask(ctx, CallList, func(p *sigmap.Coder) {
			p.U32(&skip)
		}, func(p *sigmap.Coder) { p.Bool(&more); codeInfos(p, &page) }); err != nil {
			return nil, err
		}
		all = append(all, page...)
		more = more && len(page) > 0 && len(all) <= identity.MembersMax
	}
	return all, nil
}

// Cordon keeps new procs away from a machine, or lets them come again, and waits until the machine
// acts by it. acts is false if it did not say so within 2 s: it does as soon as it hears of it.
func (c *Client) Cordon(ctx context.Context, id sigma.MachineID, on bool) (acts bool, err error) {
	err = c.ask(ctx, CallCordon, func(p *sigmap.Coder) {
		p.Str((*string)(&id))
		p.Bool(&on)
	}, func(p *sigmap.Coder) { p.Bool(&acts) })
	return acts, err
}

// Drain cordons a machine and asks its procs to go.
func (c *Client) Drain(ctx context.Context, id sigma.MachineID) error {
	return c.ask(ctx, CallDrain, func(p *sigmap.Coder) { p.Str((*string)(&id)) }, nil)
}

// Label sets labels, given as name=value; an empty value takes one away.
func (c *Client) Label(ctx context.Context, id sigma.MachineID, labels []string) error {
	return c.ask(ctx, CallLabel, func(p *sigmap.Coder) { p.Str((*string)(&id)); p.Strs(&labels) }, nil)
}

// Control makes a machine count as a control machine, or no longer.
func (c *Client) Control(ctx context.Context, id sigma.MachineID, on bool) error {
	return c.ask(ctx, CallControl, func(p *sigmap.Coder) { p.Str((*string)(&id)); p.Bool(&on) }, nil)
}

// Remove ends a machine's membership.
func (c *Client) Remove(ctx context.Context, id sigma.MachineID, force bool) error {
	return c.ask(ctx, CallRemove, func(p *sigmap.Coder) { p.Str((*string)(&id)); p.Bool(&force) }, nil)
}

// Authority asks for the authority with its key, for a machined that may have to take over.
func (c *Client) Authority(ctx context.Context) (*identity.Authority, error) {
	reply, _, err := c.root.Call(ctx, CallAuthority, nil, nil)
	if err != nil {
		return nil, err
	}
	return identity.ParseAuthority(reply)
}

// Challenge implements link.Enroller.
func (c *Client) Challenge(ctx context.Context) (ch identity.Challenge, err error) {
	reply, _, err := c.root.Call(ctx, CallChallenge, nil, nil)
	if err == nil && copy(ch[:], reply) != len(ch) {
		err = sigma.Errorf("machines.Challenge", sigma.KindInvalid, "a challenge of %d bytes came", len(reply))
	}
	return ch, err
}

// Enrol implements link.Enroller.
func (c *Client) Enrol(ctx context.Context, e *identity.Enrolment) (*identity.Grant, error) {
	payload, err := e.Encode()
	if err != nil {
		return nil, err
	}
	reply, _, err := c.root.Call(ctx, CallEnrol, payload, nil)
	if err != nil {
		return nil, err
	}
	return identity.ParseGrant(reply)
}

// Renew gets a fresh certificate for this machine's life.
func (c *Client) Renew(ctx context.Context, inc sigma.Incarnation, key []byte) ([]byte, error) {
	payload, err := sigmap.Payload(func(p *sigmap.Coder) { p.U64((*uint64)(&inc)); p.Data(&key) })
	if err != nil {
		return nil, err
	}
	reply, _, err := c.root.Call(ctx, CallRenew, payload, nil)
	return reply, err
}

// Report tells what this machine heard. Of more than ReportMax only the freshest are told: those
// that matter.
func (c *Client) Report(ctx context.Context, es []Evidence) error {
	es = es[:min(len(es), ReportMax)]
	return c.ask(ctx, CallReport, func(p *sigmap.Coder) { CodeEvidence(p, &es) }, nil)
}

// Vouch says that this machine has reached another.
func (c *Client) Vouch(ctx context.Context, id sigma.MachineID, inc sigma.Incarnation) error {
	return c.ask(ctx, CallVouch, func(p *sigmap.Coder) { p.Str((*string)(&id)); p.U64((*uint64)(&inc)) }, nil)
}

// Roster waits for a roster later than epoch.
func (c *Client) Roster(ctx context.Context, epoch uint64) (uint64, []identity.Member, error) {
	for {
		got, all, err := c.roster(ctx, epoch)
		if sigma.KindOf(err) != sigma.KindVersion { // it changed between two pages
			return got, all, err
		}
	}
}

func (c *Client) roster(ctx context.Context, epoch uint64) (uint64, []identity.Member, error) {
	var all []identity.Member
	for more := true; more; {
		skip, before := uint32(len(all)), epoch
		var page []identity.Member
		if err := c.ask(ctx, CallRoster, func(p *sigmap.Coder) { p.U64(&before); p.U32(&skip) },
			func(p *sigmap.Coder) { p.U64(&epoch); p.Bool(&more); identity.CodeMembers(p, &page) }); err != nil {
			return 0, nil, err
		}
		all = append(all, page...)
		more = more && len(page) > 0 && len(all) <= identity.MembersMax
	}
	return epoch, all, nil
}

// Errands waits for errands. seen is the number that came with the last ones (0 at first); giving
// it says that they are being done.
func (c *Client) Errands(ctx context.Context, seen uint64) (number uint64, list []Errand, err error) {
	err = c.ask(ctx, CallErrands, func(p *sigmap.Coder) {
		p.U64(&seen)
	}, func(p *sigmap.Coder) { p.U64(&number); codeErrands(p, &list) })
	return number, list, err
}

func codeErrands(c *sigmap.Coder, es *[]Errand) {
	sigmap.List(c, es, 3, func(e *Errand) {
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

func codeInfos(c *sigmap.Coder, ms *[]sigma.MachineInfo) {
	sigmap.List(c, ms, 2+2+1+8+8+2+3+4+8+2+8+8, func(m *sigma.MachineInfo) {
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
