package kernel

import (
	"context"
	"os"
	"time"

	"sigmaos.dev/identity"
	"sigmaos.dev/kernel/reach"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigmap"
	"sigmaos.dev/state"
)

// Credentials of realms are named's to keep and to judge. sigmad makes the secrets, of which named
// gets a hash, and asks for a verdict when somebody comes with one, and again and again while a
// session goes on that it holds.

const (
	// verdictEvery is how often it is asked about credentials that hold sessions here: a revoked
	// one's end after that, if nobody tells before.
	verdictEvery = 500 * time.Millisecond
	// verdictStale is how long sessions go on without an answer. While no named has a quorum
	// nothing can be revoked; a machine that is cut off would not hear of it.
	verdictStale = 15 * time.Second
	// peerCredentials: nothing -> nothing. A credential was revoked: the machine asks named at
	// once.
	peerCredentials = "credentials"
)

// mayOwn says whether the session may make and revoke credentials of its realm: the provider's may,
// and those with the role owner, which roleFile sees to.
func (r *root) mayOwn() bool {
	return r.realm != sigma.SystemRealm && (r.tree.principal.System && r.tree.principal.Proc == "" && !r.tree.far ||
		r.tree.granted != nil && r.tree.granted.role >= sigma.RoleOwner)
}

// credentialsFile is /sys/credentials: the credentials of the session's realm, a line each, and
// calls to make and revoke them.
func (r *root) credentialsFile() sigma.File {
	owner := func(h handler) handler {
		return func(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
			if !r.mayOwn() {
				return nil, nil, sigma.Errorf("kernel.credentials", sigma.KindPermission,
					"credentials are the provider's and of owners of the realm")
			}
			return h(ctx, payload)
		}
	}
	return r.sysState(sigmap.FileCredentials, func(ctx context.Context) ([]byte, error) {
		if !r.mayOwn() {
			return nil, sigma.Errorf("kernel.credentials", sigma.KindPermission,
				"credentials are the provider's and of owners of the realm")
		}
		reply, err := r.tree.k.reach.Admin(ctx, services.Named, sigmap.CallCredentials, r.realm)
		if err != nil {
			return nil, err
		}
		var all []sigma.Credential
		if err := sigmap.Parse(reply, func(c *sigmap.Coder) { c.Credentials(&all) }); err != nil {
			return nil, err
		}
		out := make([]state.Credential, len(all))
		for i, c := range all {
			out[i] = state.OfCredential(r.realm, c)
		}
		return state.Lines(out)
	}).Answering(r.callable(sigmap.FileCredentials, map[string]handler{sigmap.CallCreate: owner(r.createCredential),
		sigmap.CallCredentialRevoke: owner(r.revokeCredential)}))
}

// createCredential is the call create.
func (r *root) createCredential(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var n sigmap.NewCredential
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.NewCredential(&n) }); err != nil {
		return nil, nil, err
	}
	if err := sigma.CheckCredential(n.Name, n.Role); err != nil {
		return nil, nil, err
	}
	secret := identity.NewSecret(r.realm, n.Name)
	n.Hash, n.By, n.ByHash = secret.Hash(), "", sigma.CredentialHash{}
	if g := r.tree.granted; g != nil {
		n.By, n.ByHash = g.presented.Name, g.presented.Hash
	}
	reply, err := r.tree.k.reach.AskRoot(ctx, services.Named, sigmap.CallCredentialAdd, func(c *sigmap.Coder) {
		c.RealmID(&r.realm)
		c.NewCredential(&n)
	})
	if err != nil {
		return nil, nil, err
	}
	var made sigma.Credential
	if err := sigmap.Parse(reply, func(c *sigmap.Coder) { c.Credential(&made) }); err != nil {
		return nil, nil, err
	}
	r.tree.k.cfg.Log.Info("credential made", "realm", r.realm, "name", n.Name, "role", n.Role.String(), "by",
		r.tree.holder())
	text := secret.Text()
	reply, err = sigmap.Payload(func(c *sigmap.Coder) { c.Credential(&made); c.Str(&text) })
	return reply, nil, err
}

// revokeCredential is the call credential-revoke. When it returns, this machine has been told;
// others are being told.
func (r *root) revokeCredential(ctx context.Context, payload []byte) ([]byte, []*os.File, error) {
	var name string
	if err := sigmap.Parse(payload, func(c *sigmap.Coder) { c.Str(&name) }); err != nil {
		return nil, nil, err
	}
	k := r.tree.k
	reply, err := k.reach.AskRoot(ctx, services.Named, sigmap.CallCredentialRevoke, func(c *sigmap.Coder) {
		c.RealmID(&r.realm)
		c.Str(&name)
	})
	if err != nil {
		return nil, nil, err
	}
	var gone []string // with those that it made
	if err := sigmap.Parse(reply, func(c *sigmap.Coder) { c.Strs(&gone) }); err != nil {
		return nil, nil, err
	}
	for _, g := range gone {
		k.cfg.Log.Info("credential revoked", "realm", r.realm, "name", g, "by", r.tree.holder())
	}
	k.guests.tell()
	for _, m := range k.cluster.Others() {
		k.sessions.Go(func() { // one that does not hear it asks within verdictEvery
			ctx, cancel := context.WithTimeout(k.ctx, reach.AnswerMax)
			defer cancel()
			k.reach.Ask(ctx, m, peerCredentials, nil, nil)
		})
	}
	return reply, nil, nil
}

func (k *Kernel) peerCredentials(context.Context, identity.Subject, []byte) ([]byte, error) {
	k.guests.tell()
	return nil, nil
}

// holder says for the log who acts.
func (t *tree) holder() string {
	if t.granted == nil {
		return "provider"
	}
	return "credential " + t.granted.presented.Name
}

// verdicts asks named what credentials are good for.
func (k *Kernel) verdicts(ctx context.Context, ps []sigmap.Presented) (vs []sigmap.Verdict, err error) {
	ctx, cancel := context.WithTimeout(ctx, reach.AnswerMax)
	defer cancel()
	reply, err := k.reach.AskRoot(ctx, services.Named, sigmap.CallCredentialCheck, func(c *sigmap.Coder) {
		c.Presented(&ps)
	})
	if err == nil {
		err = sigmap.Parse(reply, func(c *sigmap.Coder) { c.Verdicts(&vs) })
	}
	if err == nil && len(vs) != len(ps) {
		err = sigma.Errorf("kernel.credentials", sigma.KindOther, "%d answers about %d credentials", len(vs), len(ps))
	}
	return vs, err
}

// admit says what a credential's text is good for.
func (k *Kernel) admit(ctx context.Context, text string) (*granted, error) {
	secret, err := identity.ParseSecret(text)
	if err != nil {
		return nil, err
	}
	p := sigmap.Presented{Realm: secret.Realm, Name: secret.Name, Hash: secret.Hash()}
	vs, err := k.verdicts(ctx, []sigmap.Presented{p})
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
	return &granted{role: vs[0].Role, presented: p}, nil
}

// watchGuests ends sessions whose credentials are no longer good, until ctx ends.
func (k *Kernel) watchGuests(ctx context.Context) {
	heard := time.Now()
	for {
		wait, left := verdictEvery, k.guests.stale-time.Since(heard)
		if left > 0 {
			wait = min(wait, left)
		}
		select {
		case <-time.After(wait):
		case <-k.guests.poke:
		case <-ctx.Done():
			return
		}
		all := k.guests.list()
		if len(all) == 0 {
			heard = time.Now()
			continue
		}
		asked := time.Now()
		asking, cancel := context.WithDeadline(ctx,
			heard.Add(k.guests.stale)) // a slow answer does not give them more time
		good, err := k.stillGood(asking, all)
		cancel()
		switch {
		case err == nil:
			heard = asked
		case time.Since(heard) < k.guests.stale:
			continue
		default:
			k.cfg.Log.Warn("credentials could not be checked for too long; sessions that they hold end", "for",
				time.Since(heard).Round(time.Second).String(), "err", err)
		}
		for _, t := range all {
			if !good[t.granted.presented] {
				k.cfg.Log.Info("a session ends with its credential", "realm", t.principal.Realm, "name",
					t.granted.presented.Name)
				t.granted.end()
			}
		}
	}
}

// stillGood asks about the credentials of sessions.
func (k *Kernel) stillGood(ctx context.Context, all []*tree) (map[sigmap.Presented]bool, error) {
	good := map[sigmap.Presented]bool{}
	var ps []sigmap.Presented
	for _, t := range all {
		if p := t.granted.presented; !good[p] {
			good[p] = true
			ps = append(ps, p)
		}
	}
	clear(good)
	for len(ps) > 0 {
		part := ps[:min(len(ps), sigmap.CheckMax)]
		ps = ps[len(part):]
		vs, err := k.verdicts(ctx, part)
		if err != nil {
			return nil, err
		}
		for i, v := range vs {
			good[part[i]] = v.Role.Check() == nil
		}
	}
	return good, nil
}
