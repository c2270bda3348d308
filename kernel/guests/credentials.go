package guests

import (
	"context"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Credentials of realms are named's to keep and to judge. sigmad makes the secrets, of which named
// gets a hash, and asks for a verdict when somebody comes with one, and again and again while a
// session goes on that it holds.

const (
	// VerdictEvery is how often it is asked about credentials that hold sessions here: a revoked
	// one's end after that, if nobody tells before.
	VerdictEvery = 500 * time.Millisecond
	// verdictStale is how long sessions go on without an answer. While no named has a quorum
	// nothing can be revoked; a machine that is cut off would not hear of it.
	verdictStale = 15 * time.Second
)

// peerCredentials says that a credential was revoked: the machine asks named at once.
var peerCredentials = sigmap.Method[sigmap.None, sigmap.None]{Name: "credentials"}

// All are the credentials of a realm.
func (g *Guests) All(ctx context.Context, realm sigma.RealmID) ([]sigma.Credential, error) {
	return sigmap.CallCredentials.Ask(ctx, g.cfg.Reach.Root(services.Named), realm)
}

// Create is the call create of a realm, by a guest or, nil, the provider.
func (g *Guests) Create(ctx context.Context, realm sigma.RealmID, by *Granted,
	n sigmap.NewCredential) (created sigmap.MadeCredential, err error) {
	if err := sigma.CheckCredential(n.Name, n.Role); err != nil {
		return created, err
	}
	secret := identity.NewSecret(realm, n.Name)
	n.Hash, n.By, n.ByHash = secret.Hash(), "", sigma.CredentialHash{}
	if by != nil {
		n.By, n.ByHash = by.Presented.Name, by.Presented.Hash
	}
	created.Credential, err = sigmap.CallCredentialAdd.Ask(ctx, g.cfg.Reach.Root(services.Named),
		sigmap.AddCredential{Realm: realm, New: n})
	if err != nil {
		return created, err
	}
	g.cfg.Log.Info("credential made", "realm", realm, "name", n.Name, "role", n.Role.String(), "by",
		by.Holder())
	created.Text = secret.Text()
	return created, nil
}

// Revoke is the call credential-revoke. When it returns, this machine has been told;
// others are being told.
func (g *Guests) Revoke(ctx context.Context, realm sigma.RealmID, by *Granted, name string) ([]string, error) {
	gone, err := sigmap.CallCredentialRevoke.Ask(ctx, g.cfg.Reach.Root(services.Named),
		sigmap.OfCredential{Realm: realm, Name: name})
	if err != nil {
		return nil, err
	}
	for _, name := range gone {
		g.cfg.Log.Info("credential revoked", "realm", realm, "name", name, "by", by.Holder())
	}
	g.Tell()
	for _, m := range g.cfg.Cluster.Others() {
		g.cfg.Go(func() { // one that does not hear it asks within VerdictEvery
			ctx, cancel := context.WithTimeout(g.ctx, reach.AnswerMax)
			defer cancel()
			peerCredentials.Tell(ctx, g.cfg.Reach.At(m), sigmap.None{})
		})
	}
	return gone, nil
}

// verdicts asks named what credentials are good for.
func (g *Guests) verdicts(ctx context.Context, ps []sigmap.Presented) (vs []sigmap.Verdict, err error) {
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	vs, err = sigmap.CallCredentialCheck.Ask(ctx, g.cfg.Reach.Root(services.Named), ps)
	if err == nil && len(vs) != len(ps) {
		err = sigma.Errorf("kernel.credentials", sigma.KindOther, "%d answers about %d credentials", len(vs), len(ps))
	}
	return vs, err
}

// admit says what a credential's text is good for.
func (g *Guests) admit(ctx context.Context, text string) (*Granted, error) {
	secret, err := identity.ParseSecret(text)
	if err != nil {
		return nil, err
	}
	p := sigmap.Presented{Realm: secret.Realm, Name: secret.Name, Hash: secret.Hash()}
	vs, err := g.verdicts(ctx, []sigmap.Presented{p})
	switch {
	case err != nil:
		return nil, &sigma.Error{Op: "kernel.admit", Kind: sigma.KindUnavailable,
			Msg: "credentials cannot be checked now", Hint: "try again in a moment", Err: err}
	case vs[0].Expired:
		return nil, &sigma.Error{Op: "kernel.admit", Kind: sigma.KindPermission,
			Msg:  "the credential " + p.Name + " of realm " + string(p.Realm) + " has expired",
			Hint: "ask an owner of the realm for another: sigma realm credential create"}
	case vs[0].Role.Check() != nil:
		return nil, &sigma.Error{Op: "kernel.admit", Kind: sigma.KindPermission,
			Msg:  "the credential is not good: it was revoked, or its realm removed, or it never was",
			Hint: "ask an owner of the realm for another: sigma realm credential create"}
	}
	v, err := roles.View(vs[0].Role)
	return &Granted{Role: vs[0].Role, Presented: p, View: v}, err
}

// Run ends sessions whose credentials are no longer good, until ctx ends.
func (g *Guests) Run(ctx context.Context) {
	heard := time.Now()
	for {
		wait, left := VerdictEvery, g.Stale-time.Since(heard)
		if left > 0 {
			wait = min(wait, left)
		}
		select {
		case <-time.After(wait):
		case <-g.poke:
		case <-ctx.Done():
			return
		}
		all := g.list()
		if len(all) == 0 {
			heard = time.Now()
			continue
		}
		asked := time.Now()
		asking, cancel := context.WithDeadline(ctx,
			heard.Add(g.Stale)) // a slow answer does not give them more time
		good, err := g.stillGood(asking, all)
		cancel()
		switch {
		case err == nil:
			heard = asked
		case time.Since(heard) < g.Stale:
			continue
		default:
			g.cfg.Log.Warn("credentials could not be checked for too long; sessions that they hold end", "for",
				time.Since(heard).Round(time.Second).String(), "err", err)
		}
		for _, t := range all {
			if !good[t.Presented] {
				g.cfg.Log.Info("a session ends with its credential", "realm", t.Presented.Realm, "name",
					t.Presented.Name)
				t.end()
			}
		}
	}
}

// stillGood asks about the credentials of sessions.
func (g *Guests) stillGood(ctx context.Context, all []*Granted) (map[sigmap.Presented]bool, error) {
	good := map[sigmap.Presented]bool{}
	var ps []sigmap.Presented
	for _, t := range all {
		if p := t.Presented; !good[p] {
			good[p] = true
			ps = append(ps, p)
		}
	}
	clear(good)
	for len(ps) > 0 {
		part := ps[:min(len(ps), sigmap.CheckMax)]
		ps = ps[len(part):]
		vs, err := g.verdicts(ctx, part)
		if err != nil {
			return nil, err
		}
		for i, v := range vs {
			good[part[i]] = v.Role.Check() == nil
		}
	}
	return good, nil
}
