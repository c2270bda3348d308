package machines

import (
	"context"
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

// Token makes a token and returns its text, which nobody can be told again. 0 uses or no ttl are
// the defaults: once, within an hour.
func (c *Client) Token(ctx context.Context, uses int, ttl time.Duration) (text string, err error) {
	n := uint32(max(0, min(uses, TokenUsesMax+1)))
	return CallToken.Ask(ctx, c.root, tokenAsk{n, ttl})
}

// Tokens lists tokens, without secrets.
func (c *Client) Tokens(ctx context.Context) (list []Token, err error) {
	return CallTokens.Ask(ctx, c.root, sigmap.None{})
}

// Revoke ends a token.
func (c *Client) Revoke(ctx context.Context, id identity.TokenID) error {
	return CallRevoke.Tell(ctx, c.root, id)
}

// List describes all machines, by name.
func (c *Client) List(ctx context.Context) (all []sigma.MachineInfo, err error) {
	for more := true; more; {
		l, err := CallList.Ask(ctx, c.root, uint32(len(all)))
		if err != nil {
			return nil, err
		}
		all = append(all, l.page...)
		more = l.more && len(l.page) > 0 && len(all) <= identity.MembersMax
	}
	return all, nil
}

// Cordon keeps new procs away from a machine, or lets them come again, and waits until the machine
// acts by it. acts is false if it did not say so within 2 s: it does as soon as it hears of it.
func (c *Client) Cordon(ctx context.Context, id sigma.MachineID, on bool) (acts bool, err error) {
	return CallCordon.Ask(ctx, c.root, Cordon{id, on})
}

// Drain cordons a machine and asks its procs to go.
func (c *Client) Drain(ctx context.Context, id sigma.MachineID) error {
	return CallDrain.Tell(ctx, c.root, id)
}

// Label sets labels, given as name=value; an empty value takes one away.
func (c *Client) Label(ctx context.Context, id sigma.MachineID, labels []string) error {
	return CallLabel.Tell(ctx, c.root, labelling{id, labels})
}

// Control makes a machine count as a control machine, or no longer.
func (c *Client) Control(ctx context.Context, id sigma.MachineID, on bool) error {
	return CallControl.Tell(ctx, c.root, Control{id, on})
}

// Remove ends a machine's membership.
func (c *Client) Remove(ctx context.Context, id sigma.MachineID, force bool) error {
	return CallRemove.Tell(ctx, c.root, Remove{id, force})
}

// Authority asks for the authority with its key, for a machined that may have to take over.
func (c *Client) Authority(ctx context.Context) (*identity.Authority, error) {
	reply, err := CallAuthority.Ask(ctx, c.root, sigmap.None{})
	if err != nil {
		return nil, err
	}
	return identity.ParseAuthority(reply)
}

// Challenge implements link.Enroller.
func (c *Client) Challenge(ctx context.Context) (ch identity.Challenge, err error) {
	return CallChallenge.Ask(ctx, c.root, sigmap.None{})
}

// Enrol implements link.Enroller.
func (c *Client) Enrol(ctx context.Context, e *identity.Enrolment) (*identity.Grant, error) {
	payload, err := e.Encode()
	if err != nil {
		return nil, err
	}
	reply, err := CallEnrol.Ask(ctx, c.root, payload)
	if err != nil {
		return nil, err
	}
	return identity.ParseGrant(reply)
}

// Renew gets a fresh certificate for this machine's life.
func (c *Client) Renew(ctx context.Context, inc sigma.Incarnation, key []byte) ([]byte, error) {
	return CallRenew.Ask(ctx, c.root, renewal{inc, key})
}

// Report tells what this machine heard. Of more than ReportMax only the freshest are told: those
// that matter.
func (c *Client) Report(ctx context.Context, es []Evidence) error {
	return CallReport.Tell(ctx, c.root, es[:min(len(es), ReportMax)])
}

// Vouch says that this machine has reached another.
func (c *Client) Vouch(ctx context.Context, id sigma.MachineID, inc sigma.Incarnation) error {
	return CallVouch.Tell(ctx, c.root, Vouch{ID: id, Incarnation: inc})
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
		p, err := CallRoster.Ask(ctx, c.root, rosterAsk{epoch, uint32(len(all))})
		if err != nil {
			return 0, nil, err
		}
		epoch, all = p.epoch, append(all, p.members...)
		more = p.more && len(p.members) > 0 && len(all) <= identity.MembersMax
	}
	return epoch, all, nil
}

// Errands waits for errands. seen is the number that came with the last ones (0 at first); giving
// it says that they are being done.
func (c *Client) Errands(ctx context.Context, seen uint64) (number uint64, list []Errand, err error) {
	p, err := CallErrands.Ask(ctx, c.root, seen)
	return p.number, p.list, err
}
