package machines

import (
	"context"
	"crypto/ed25519"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// CallCertify certifies the machine of the machined that is asked once more, in the life that it
// names, without asking anybody: incarnation, epoch, key -> certificate. Only that machine may ask.
// When all control machines were off for longer than certificates live, none of them could be
// registered before they can reach each other, and they could not reach each other without. It
// gives nothing away: who has the authority's key can be any machine, and whether the life goes on
// is the roster's to say.
const CallCertify = "certify"

// Certify asks for it.
func (c *Client) Certify(ctx context.Context, s identity.Subject, key []byte) (der []byte, err error) {
	return der, c.ask(ctx, CallCertify, func(p *sigmap.Coder) {
		codeCertify(p, &s, &key)
	}, func(p *sigmap.Coder) { p.Data(&der) })
}

func codeCertify(c *sigmap.Coder, s *identity.Subject, key *[]byte) {
	c.U64((*uint64)(&s.Incarnation))
	c.U64(&s.Epoch)
	c.Data(key)
}

func (d *Daemon) certify(p sigma.Principal, payload []byte) ([]byte, error) {
	if p.Machine != d.cfg.Self {
		return nil, sigma.Errorf("machines.Certify", sigma.KindPermission,
			"machine %s asks for a certificate of machine %s", p.Machine, d.cfg.Self)
	}
	s := identity.Subject{Machine: d.cfg.Self}
	var key []byte
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { codeCertify(c, &s, &key) }); err != nil {
		return nil, err
	}
	if len(key) != ed25519.PublicKeySize {
		return nil, sigma.Errorf("machines.Certify", sigma.KindInvalid, "the key has %d bytes", len(key))
	}
	a, err := d.cfg.Authority(false)
	if err != nil {
		return nil, err
	}
	der, err := a.Issue(time.Now(), s, key)
	if err != nil {
		return nil, err
	}
	return sigmap.Payload(func(c *sigmap.Coder) { c.Data(&der) })
}
