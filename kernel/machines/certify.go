package machines

import (
	"context"
	"crypto/ed25519"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Certify asks for CallCertify.
func (c *Client) Certify(ctx context.Context, s identity.Subject, key []byte) (der []byte, err error) {
	return CallCertify.Ask(ctx, c.root, certificateAsk{s.Incarnation, s.Epoch, key})
}

func (d daemonAsker) certify(_ context.Context, ask certificateAsk) ([]byte, error) {
	if d.p.Machine != d.cfg.Self {
		return nil, sigma.Errorf("machines.Certify", sigma.KindPermission,
			"machine %s asks for a certificate of machine %s", d.p.Machine, d.cfg.Self)
	}
	if len(ask.key) != ed25519.PublicKeySize {
		return nil, sigma.Errorf("machines.Certify", sigma.KindInvalid, "the key has %d bytes", len(ask.key))
	}
	a, err := d.cfg.Authority(false)
	if err != nil {
		return nil, err
	}
	return a.Issue(time.Now(), identity.Subject{Machine: d.cfg.Self, Incarnation: ask.incarnation, Epoch: ask.epoch},
		ask.key)
}
