package named

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Credentials of realms. They stand in a record of the realm's own beside its tree, so that its
// other commits do not carry them; whoever writes it has read it, and the revision of what was read
// guards the write. The number of the realm is in it, so that a realm that is made anew under the
// same name has none of them. Whether one has expired is judged here, by one clock.

func credentialsPrefix(r sigma.RealmID) string { return "c/" + string(r) + "/" }

// expiredKept is how long a credential that has expired is listed, if its place is not wanted.
const expiredKept = 24 * time.Hour

// credential is what is kept of one.
type credential struct {
	sigma.Credential
	hash sigma.CredentialHash
}

func (c *credential) expired(now time.Time) bool {
	return !c.Expires.IsZero() && !now.Before(c.Expires)
}

// is says whether it is the one of that name with that secret, and none of its name before or
// after.
func (c *credential) is(name string, hash sigma.CredentialHash) bool {
	return c.Name == name && subtle.ConstantTimeCompare(c.hash[:], hash[:]) == 1
}

// credentials are those of one realm. They are never changed, but replaced.
type credentials struct {
	realm uint64 // number
	all   []credential
}

// with adds one.
func (cs credentials) with(now time.Time, id sigma.RealmID, n sigmap.NewCredential) (out credentials,
	created sigma.Credential, err error) {
	const op = "named.credentials"
	if err := sigma.CheckCredential(n.Name, n.Role); err != nil {
		return cs, created, err
	}
	if n.TTL < 0 || n.TTL > sigma.CredentialAgeMax || n.TTL > 0 && n.TTL < time.Second {
		return cs, created, &sigma.Error{Op: op, Kind: sigma.KindInvalid,
			Msg: fmt.Sprintf("a credential is good for a second to %d days, not %v",
				int(sigma.CredentialAgeMax.Hours()/24), n.TTL)}
	}
	created = sigma.Credential{Name: n.Name, Role: n.Role, Created: now, By: n.By}
	if n.TTL > 0 {
		created.Expires = now.Add(n.TTL)
	}
	if n.By != "" { // nothing outlives who made it
		i := slices.IndexFunc(cs.all, func(c credential) bool { return c.is(n.By, n.ByHash) && !c.expired(now) })
		if i < 0 {
			return cs, created, &sigma.Error{Op: op, Realm: id, Kind: sigma.KindPermission,
				Msg:  fmt.Sprintf("the credential %.40q, which makes another, is not good any more", n.By),
				Hint: "ask an owner of the realm for another: sigma realm credential create"}
		}
		if end := cs.all[i].Expires; !end.IsZero() && (created.Expires.IsZero() || end.Before(created.Expires)) {
			created.Expires = end
		}
	}
	out = credentials{realm: cs.realm}
	for _, c := range cs.all {
		switch {
		case c.Name == n.Name && !c.expired(now):
			return cs, created, &sigma.Error{Op: op, Realm: id, Kind: sigma.KindExists,
				Msg: fmt.Sprintf("realm %s has a credential %q already", id, n.Name),
				Hint: "choose another --name, or revoke it first: sigma realm credential revoke " + string(id) + " " +
					n.Name}
		case c.Name == n.Name, c.expired(now.Add(-expiredKept)):
		default:
			out.all = append(out.all, c)
		}
	}
	if len(out.all) >= sigma.CredentialsMax {
		out.all = slices.DeleteFunc(out.all, func(c credential) bool { return c.expired(now) })
	}
	if len(out.all) >= sigma.CredentialsMax {
		return cs, created, &sigma.Error{Op: op, Realm: id, Kind: sigma.KindNoSpace,
			Msg:  fmt.Sprintf("realm %s has %d credentials, which is the most", id, sigma.CredentialsMax),
			Hint: "revoke one that nobody needs: sigma realm credential ls " + string(id)}
	}
	out.all = append(out.all, credential{created, n.Hash})
	return out, created, nil
}

// without takes one away, with those that it made, and those that these made. gone are their names,
// the oldest first.
func (cs credentials) without(id sigma.RealmID, name string) (out credentials, gone []string, err error) {
	out = credentials{realm: cs.realm}
	goes := map[string]bool{name: true}
	for _, c := range cs.all { // who makes one is there before
		if goes[c.Name] || c.By != "" && goes[c.By] { // "" is the provider, who is not revoked
			goes[c.Name] = true
			gone = append(gone, c.Name)
		} else {
			out.all = append(out.all, c)
		}
	}
	if len(gone) == 0 {
		return cs, nil, &sigma.Error{Op: "named.credentials", Realm: id, Kind: sigma.KindNotFound,
			Msg:  fmt.Sprintf("realm %s has no credential %.40q", id, name),
			Hint: "list them with: sigma realm credential ls " + string(id)}
	}
	return out, gone, nil
}

// check says what a credential that was presented is good for.
func (cs credentials) check(now time.Time, p sigmap.Presented) sigmap.Verdict {
	for i := range cs.all {
		if c := &cs.all[i]; c.is(p.Name, p.Hash) {
			if c.expired(now) {
				return sigmap.Verdict{Expired: true}
			}
			return sigmap.Verdict{Role: c.Role}
		}
	}
	return sigmap.Verdict{}
}

func (cs credentials) encode() []byte {
	b := binary.AppendUvarint([]byte{recordVersion}, cs.realm)
	b = binary.AppendUvarint(b, uint64(len(cs.all)))
	for _, c := range cs.all {
		b = append(binary.AppendUvarint(b, uint64(len(c.Name))), c.Name...)
		b = append(b, byte(c.Role))
		b = binary.AppendVarint(b, c.Created.UnixNano())
		expires := int64(0)
		if !c.Expires.IsZero() {
			expires = c.Expires.UnixNano()
		}
		b = append(binary.AppendVarint(b, expires), c.hash[:]...)
	}
	if slices.ContainsFunc(cs.all, func(c credential) bool {
		return c.By != ""
	}) { // or the record ends here, as all once did
		for _, c := range cs.all {
			b = append(binary.AppendUvarint(b, uint64(len(c.By))), c.By...)
		}
	}
	return b
}

func decodeCredentials(b []byte) (credentials, error) {
	d := decoder{b: b}
	d.version()
	cs := credentials{realm: d.bounded(realmNumberMax)}
	for n := d.bounded(sigma.CredentialsMax); n > 0 && d.err == nil; n-- {
		var c credential
		c.Name, c.Role = string(d.bytes(sigma.CredentialTextMax)), sigma.Role(d.byte())
		c.Created = time.Unix(0, d.varint())
		if at := d.varint(); at != 0 {
			c.Expires = time.Unix(0, at)
		}
		for i := range c.hash {
			c.hash[i] = d.byte()
		}
		if d.err == nil && sigma.CheckCredential(c.Name, c.Role) != nil {
			d.fail("impossible values")
		}
		cs.all = append(cs.all, c)
	}
	if d.err == nil && len(d.b) > 0 {
		for i := range cs.all {
			cs.all[i].By = string(d.bytes(sigma.CredentialTextMax))
		}
	}
	if err := d.end("credentials"); err != nil {
		return credentials{}, err
	}
	return cs, nil
}

// knownCredentials are what a slot remembers of the store.
type knownCredentials struct {
	mu      sync.Mutex
	known   *credentials // mu; nil = not known
	changes uint64       // mu; counts commits, before and after each
	doubt   bool         // mu; a commit's outcome is unknown, so nothing is remembered until another one succeeds
}

// credentialsOf reads a realm's credentials. at is their revision if they were read from the store,
// as they are if fresh is set.
func (s *Server) credentialsOf(ctx context.Context, at *slot, fresh bool) (cs credentials, rev Revision, err error) {
	const op = "named.credentials"
	k := &at.credentials
	k.mu.Lock()
	known, changes := k.known, k.changes
	k.mu.Unlock()
	if known != nil && !fresh {
		return *known, 0, nil
	}
	value, rev, found, err := s.store.Get(ctx, credentialsPrefix(at.id))
	if err != nil {
		return cs, 0, unavailable(op, at.id, err)
	}
	if found {
		if cs, err = decodeCredentials(value); err != nil {
			return cs, 0, err
		}
	}
	if cs.realm != at.number { // of an earlier realm of that name
		cs = credentials{realm: at.number}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changes == changes && !k.doubt {
		k.known = &cs
	}
	return cs, rev, nil
}

// changeCredentials replaces a realm's credentials by what f makes of them, once that is stored.
func (s *Server) changeCredentials(ctx context.Context, id sigma.RealmID, f func(credentials) (credentials,
	error)) error {
	const op = "named.credentials"
	release, err := s.administer(ctx) // so that the realm is not removed meanwhile
	if err != nil {
		return err
	}
	defer release()
	at, err := s.slotOf(op, id)
	if err != nil {
		return err
	}
	cs, rev, err := s.credentialsOf(ctx, at, true)
	if err != nil {
		return err
	}
	before := len(cs.all)
	if cs, err = f(cs); err != nil {
		return err
	}
	k := &at.credentials
	set := func(known *credentials, doubt bool) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.known, k.doubt = known, doubt
		k.changes++
	}
	set(nil, true)
	committing, cancel := context.WithTimeout(context.WithoutCancel(ctx),
		commitTimeout) // the caller's patience does not decide about what is under way
	defer cancel()
	key := credentialsPrefix(id)
	_, err = s.store.Commit(committing, Batch{Guard: key, GuardAt: rev, Puts: []KV{{key, cs.encode()}},
		Grows: len(cs.all) > before, Writes: len(cs.all) > before})
	switch {
	case err == nil:
		set(&cs, false)
	case errors.Is(err, ErrConflict), errors.Is(err, ErrFull):
		set(nil, false)
	}
	return commitError(op, id, err)
}

// AddCredential makes a credential of a realm. KindExists: there is one of that name; KindNoSpace:
// there are as many as there may be.
func (s *Server) AddCredential(ctx context.Context, id sigma.RealmID, n sigmap.NewCredential) (created sigma.Credential,
	err error) {
	if id == sigma.SystemRealm {
		return created, sigma.Errorf("named.AddCredential", sigma.KindPermission,
			"the realm system is the provider's and has no credentials")
	}
	err = s.changeCredentials(ctx, id, func(cs credentials) (out credentials, err error) {
		out, created, err = cs.with(time.Now(), id, n)
		return out, err
	})
	return created, err
}

// RevokeCredential ends one for good, with all that it made, and says which went, the oldest first.
// KindNotFound: there is none of that name.
func (s *Server) RevokeCredential(ctx context.Context, id sigma.RealmID, name string) (gone []string, err error) {
	err = s.changeCredentials(ctx, id, func(cs credentials) (out credentials, err error) {
		out, gone, err = cs.without(id, name)
		return out, err
	})
	return gone, err
}

// Credentials lists a realm's credentials, the oldest first, with those that expired lately.
func (s *Server) Credentials(ctx context.Context, id sigma.RealmID) ([]sigma.Credential, error) {
	at, err := s.slotOf("named.Credentials", id)
	if err != nil {
		return nil, err
	}
	cs, _, err := s.credentialsOf(ctx, at, false)
	if err != nil {
		return nil, err
	}
	out := make([]sigma.Credential, len(cs.all))
	for i, c := range cs.all {
		out[i] = c.Credential
	}
	return out, nil
}

// CheckCredentials says what credentials are good for, now. One of a realm that is not there is
// good for nothing.
func (s *Server) CheckCredentials(ctx context.Context, ps []sigmap.Presented) ([]sigmap.Verdict, error) {
	if len(ps) > sigmap.CheckMax {
		return nil, sigma.Errorf("named.CheckCredentials", sigma.KindTooBig,
			"%d credentials in one call; %d are allowed", len(ps), sigmap.CheckMax)
	}
	out := make([]sigmap.Verdict, len(ps))
	for i, p := range ps {
		at, err := s.slotOf("named.CheckCredentials", p.Realm)
		if err != nil {
			continue
		}
		cs, _, err := s.credentialsOf(ctx, at, false)
		if err != nil {
			return nil, err
		}
		out[i] = cs.check(time.Now(), p)
	}
	return out, nil
}
