package named

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

func presented(s identity.Secret) sigmap.Presented {
	return sigmap.Presented{Realm: s.Realm, Name: s.Name, Hash: s.Hash()}
}

// Goal: a realm's credentials as a pure state: names, how many, expiry to the nanosecond,
// replacement of those that expired; what a wrong hash and another's secret get.
func TestCredentialsState(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	cs := credentials{realm: 7}
	add := func(at time.Time, name string, role sigma.Role, ttl time.Duration) (identity.Secret, error) {
		s := identity.NewSecret(testRealm, name)
		next, created, err := cs.with(at, testRealm, sigmap.NewCredential{Name: name, Role: role, TTL: ttl,
			Hash: s.Hash()})
		if err == nil && (created.Name != name || created.Role != role || !created.Created.Equal(at) ||
			(ttl == 0) != created.Expires.IsZero()) {
			t.Errorf("made %+v", created)
		}
		cs = next
		return s, err
	}
	ever, err := add(now, "ever", sigma.RoleOwner, 0)
	if err != nil {
		t.Fatal(err)
	}
	hour, err := add(now, "hour", sigma.RoleViewer, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	forged := presented(hour)
	forged.Name = "ever" // its own secret under the name of one that may more
	for _, c := range []struct {
		what string
		at   time.Time
		p    sigmap.Presented
		want sigmap.Verdict
	}{
		{"good", now, presented(ever), sigmap.Verdict{Role: sigma.RoleOwner}},
		{"good for years", now.Add(20 * sigma.CredentialAgeMax), presented(ever),
			sigmap.Verdict{Role: sigma.RoleOwner}},
		{"just before it expires", now.Add(time.Hour - 1), presented(hour), sigmap.Verdict{Role: sigma.RoleViewer}},
		{"as it expires", now.Add(time.Hour), presented(hour), sigmap.Verdict{Expired: true}},
		{"a clock an hour behind", now.Add(-time.Hour), presented(hour), sigmap.Verdict{Role: sigma.RoleViewer}},
		{"of another name", now, forged, sigmap.Verdict{}},
		{"a guess", now, presented(identity.NewSecret(testRealm, "ever")), sigmap.Verdict{}},
		{"no such name", now, presented(identity.NewSecret(testRealm, "never")), sigmap.Verdict{}},
	} {
		if got := cs.check(c.at, c.p); got != c.want {
			t.Errorf("%s: %+v", c.what, got)
		}
	}
	for what, n := range map[string]sigmap.NewCredential{
		"no name":     {Role: sigma.RoleViewer},
		"no role":     {Name: "x"},
		"a wild role": {Name: "x", Role: 200},
		"a bad name":  {Name: "a/b", Role: sigma.RoleViewer},
		"the past":    {Name: "x", Role: sigma.RoleViewer, TTL: -time.Hour},
		"no time":     {Name: "x", Role: sigma.RoleViewer, TTL: time.Millisecond},
		"for ever so": {Name: "x", Role: sigma.RoleViewer, TTL: sigma.CredentialAgeMax + 1},
	} {
		if _, _, err := cs.with(now, testRealm, n); sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := add(now, "hour", sigma.RoleOwner, 0); sigma.KindOf(err) != sigma.KindExists {
		t.Errorf("a name twice: %v", err)
	}
	if again, err := add(now.Add(time.Hour), "hour", sigma.RoleOwner, 0); err != nil ||
		cs.check(now, presented(hour)).Role != sigma.RoleNone ||
		cs.check(now, presented(again)).Role != sigma.RoleOwner {
		t.Errorf("the name of one that expired: %v", err)
	}
	for i := len(cs.all); i < sigma.CredentialsMax; i++ {
		if _, err := add(now, fmt.Sprintf("c%d", i), sigma.RoleViewer, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := add(now, "more", sigma.RoleViewer, 0); sigma.KindOf(err) != sigma.KindNoSpace {
		t.Errorf("one too many: %v", err)
	}
	if got, err := decodeCredentials(cs.encode()); err != nil || len(got.all) != sigma.CredentialsMax ||
		got.check(now, presented(ever)).Role != sigma.RoleOwner {
		t.Errorf("as many as there may be do not come back: %v", err)
	}
	if _, err := add(now.Add(time.Hour), "more", sigma.RoleViewer, 0); err != nil || len(cs.all) > 3 {
		t.Errorf("those that expired take the place of others: %v, %d left", err, len(cs.all))
	}
	if cs, _, err = cs.without(testRealm, "ever"); err != nil || cs.check(now, presented(ever)) != (sigmap.Verdict{}) {
		t.Errorf("revoked: %v", err)
	}
	if _, _, err = cs.without(testRealm, "ever"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("revoked twice: %v", err)
	}
}

// Goal: what a credential made ends when it does, or sooner, and is revoked with it, over any
// number of makers and through a record; what others made stays; one that is not good makes none.
func TestCredentialsMadeByOthers(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	cs := credentials{realm: 7}
	secrets := map[string]sigma.CredentialHash{}
	add := func(name, by string, ttl time.Duration) (sigma.Credential, error) {
		hash := identity.NewSecret(testRealm, name).Hash()
		next, created, err := cs.with(now, testRealm, sigmap.NewCredential{Name: name, Role: sigma.RoleOwner, TTL: ttl,
			Hash: hash, By: by, ByHash: secrets[by]})
		if err == nil {
			secrets[name] = hash
		}
		if cs = next; err == nil && created.By != by {
			t.Errorf("%s was made by %q", name, created.By)
		}
		return created, err
	}
	for _, c := range []struct {
		name, by  string
		ttl, want time.Duration // 0 = never
	}{
		{"ever", "", 0, 0},
		{"day", "", 24 * time.Hour, 24 * time.Hour},
		{"a", "day", 0, 24 * time.Hour},
		{"b", "day", 48 * time.Hour, 24 * time.Hour},
		{"c", "day", time.Hour, time.Hour},
		{"d", "c", 0, time.Hour},
		{"e", "ever", 0, 0},
		{"f", "ever", time.Hour, time.Hour},
	} {
		created, err := add(c.name, c.by, c.ttl)
		if err != nil || created.Expires.IsZero() != (c.want == 0) ||
			c.want > 0 && !created.Expires.Equal(now.Add(c.want)) {
			t.Errorf("%s: %+v, %v", c.name, created, err)
		}
	}
	now = now.Add(2 * time.Hour)
	for _, by := range []string{"c", "nobody"} {
		if _, err := add("x", by, 0); sigma.KindOf(err) != sigma.KindPermission || sigma.HintOf(err) == "" {
			t.Errorf("made by %s: %v", by, err)
		}
	}
	cs, err := decodeCredentials(cs.encode())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "nobody"} { // "" is who made those of the provider
		if left, _, err := cs.without(testRealm, name); sigma.KindOf(err) != sigma.KindNotFound ||
			len(left.all) != len(cs.all) {
			t.Errorf("without %q: %d of %d are left, %v", name, len(left.all), len(cs.all), err)
		}
	}
	var gone []string
	if cs, gone, err = cs.without(testRealm, "day"); err != nil ||
		!slices.Equal(gone, []string{"day", "a", "b", "c", "d"}) {
		t.Fatalf("gone are %q, %v", gone, err)
	}
	left := ""
	for _, c := range cs.all {
		left += " " + c.Name
	}
	if left != " ever e f" {
		t.Errorf("left are%s", left)
	}
	old := secrets["day"]
	if _, err := add("day", "", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := add("g", "day", 0); err != nil {
		t.Errorf("made by one that has a revoked one's name: %v", err)
	}
	secrets["day"] = old
	if _, err := add("h", "day", 0); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("made with a revoked secret, whose name another has now: %v", err)
	}
}

// Goal: credentials survive a restart of named and go with their realm, also if a record stays
// behind; a commit of unknown outcome is never answered from memory.
func TestCredentialsStored(t *testing.T) {
	store := newMemStore()
	s, stop := serve(t, Config{Store: store})
	attach(t, s)
	if err := s.Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	add := func(name string, role sigma.Role) (identity.Secret, error) {
		secret := identity.NewSecret(testRealm, name)
		_, err := s.AddCredential(t.Context(), testRealm, sigmap.NewCredential{Name: name, Role: role,
			Hash: secret.Hash()})
		return secret, err
	}
	role := func(secret identity.Secret, realm sigma.RealmID) sigma.Role {
		p := presented(secret)
		p.Realm = realm
		vs, err := s.CheckCredentials(t.Context(), []sigmap.Presented{{Realm: "nobody", Name: "x"}, p})
		if err != nil || len(vs) != 2 || vs[0] != (sigmap.Verdict{}) {
			t.Errorf("%v, %v", vs, err)
			return sigma.RoleNone
		}
		return vs[1].Role
	}
	secret, err := add("ci", sigma.RoleDeveloper)
	if err != nil || role(secret, testRealm) != sigma.RoleDeveloper || role(secret, "other") != sigma.RoleNone {
		t.Fatalf("%v, %v at its realm, %v at another", err, role(secret, testRealm), role(secret, "other"))
	}
	if _, err := s.AddCredential(t.Context(), sigma.SystemRealm, sigmap.NewCredential{Name: "root",
		Role: sigma.RoleOwner}); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("of the system: %v", err)
	}
	if _, err := s.AddCredential(t.Context(), "nobody", sigmap.NewCredential{Name: "x",
		Role: sigma.RoleOwner}); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("of no realm: %v", err)
	}
	if _, err := s.CheckCredentials(t.Context(),
		manyPresented(sigmap.CheckMax+1)); sigma.KindOf(err) != sigma.KindTooBig {
		t.Errorf("too many at once: %v", err)
	}
	stop()
	s, stop = serve(t, Config{Store: store})
	if role(secret, testRealm) != sigma.RoleDeveloper {
		t.Error("forgotten by a restart")
	}
	for _, outcome := range []failure{isLost, isStored} {
		store.mu.Lock()
		store.fail = func(Batch) failure { return outcome }
		store.mu.Unlock()
		_, err := s.RevokeCredential(t.Context(), testRealm, "ci")
		store.mu.Lock()
		store.fail = nil
		store.mu.Unlock()
		want := sigma.RoleDeveloper
		if outcome == isStored {
			want = sigma.RoleNone
		}
		if got := role(secret, testRealm); sigma.KindOf(err) != sigma.KindLost || got != want {
			t.Errorf("outcome %v: %v, then it is %v", outcome, err, got)
		}
	}
	if secret, err = add("ci", sigma.RoleOwner); err != nil {
		t.Fatal(err)
	}
	left, _, _, _ := store.Get(t.Context(), credentialsPrefix(testRealm))
	if err := s.Remove(t.Context(), testRealm); err != nil {
		t.Fatal(err)
	}
	if _, _, found, _ := store.Get(t.Context(), credentialsPrefix(testRealm)); found {
		t.Error("a removed realm leaves credentials")
	}
	attach(t, s)
	if _, err := store.Commit(t.Context(), Batch{Guard: credentialsPrefix(testRealm),
		Puts: []KV{{credentialsPrefix(testRealm), left}}}); err != nil {
		t.Fatal(err)
	}
	if got := role(secret, testRealm); got != sigma.RoleNone {
		t.Errorf("the credential of an earlier realm is %v of the next", got)
	}
	if _, err := add("ci", sigma.RoleViewer); err != nil {
		t.Errorf("what stayed behind is in the way: %v", err)
	}
	all, err := s.Credentials(t.Context(), testRealm)
	if err != nil || len(all) != 1 || all[0].Role != sigma.RoleViewer {
		t.Errorf("listed: %+v, %v", all, err)
	}
}

func manyPresented(n int) []sigmap.Presented { return make([]sigmap.Presented, n) }

// FuzzCredentialsRecord: whatever is read as a record of credentials is written so that it reads
// the same.
func FuzzCredentialsRecord(f *testing.F) {
	f.Add((credentials{realm: 1}).encode())
	f.Add((credentials{realm: 2, all: []credential{{Credential: sigma.Credential{Name: "ci", Role: sigma.RoleViewer,
		Created: time.Unix(5, 0), Expires: time.Unix(9, 0)}}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		cs, err := decodeCredentials(b)
		if err != nil {
			return
		}
		if again, err := decodeCredentials(cs.encode()); err != nil || !reflect.DeepEqual(again, cs) {
			t.Errorf("%+v became %+v, %v", cs, again, err)
		}
	})
}
