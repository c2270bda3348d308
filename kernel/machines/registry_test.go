package machines

import (
	"context"
	"crypto/ed25519"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// memory is a Store.
type memory struct {
	mu sync.Mutex
	kept
	fail error
	slow time.Duration
}

func (m *memory) set(slow time.Duration, fail error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow, m.fail = slow, fail
}

func (m *memory) member(id sigma.MachineID) Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members[id]
}

func (m *memory) Save(_ context.Context, effects []Effect) error {
	m.mu.Lock()
	slow := m.slow
	m.mu.Unlock()
	<-time.After(slow)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for _, f := range effects {
		m.save(f)
	}
	return nil
}

func newMemory() *memory {
	return &memory{kept: kept{0, map[sigma.MachineID]Member{}, map[identity.TokenID]Token{}}}
}

// live runs a registry with one machine in a bubble.
func live(t *testing.T, act func(Effect), do func(t *testing.T, r *Registry, store *memory, a *identity.Authority)) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		store := newMemory()
		r, err := NewRegistry(time.Now(), RegistryConfig{Core: Config{Self: "m1"}, Authority: a, Store: store,
			Act: act})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { r.Run(ctx) })
		key := identity.NewKey()
		if g, err := r.Found(ctx, Request{ID: "m1", Key: identity.KeyFingerprint(key.Public().(ed25519.PublicKey)),
			Address: "10.0.0.1:7700"}, key.Public().(ed25519.PublicKey)); err != nil || len(g.Control) != 1 {
			t.Fatalf("%+v, %v", g, err)
		}
		do(t, r, store, a)
		stop()
		all.Wait()
	})
}

func join(t *testing.T, r *Registry, a *identity.Authority, key ed25519.PrivateKey, name sigma.MachineID,
	tok *identity.Token) (*identity.Grant, error) {
	t.Helper()
	ch, err := r.Challenge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := &identity.Enrolment{Challenge: ch, System: a.System(), Machine: name, Clock: time.Now(),
		Address: "10.0.0.2:7700", Labels: []string{"zone=a"}}
	if err := e.Sign(key, tok); err != nil {
		t.Fatal(err)
	}
	g, err := r.Enrol(t.Context(), e)
	if err == nil {
		if _, err := r.Enrol(t.Context(), e); sigma.KindOf(err) != sigma.KindStale {
			t.Errorf("the same request again: %v", err)
		}
	}
	return g, err
}

// Goal: a machine joins, beats, falls silent, is lost in time though the store is slow, cannot
// renew, and registers again.
func TestRegistry(t *testing.T) {
	var mu sync.Mutex
	var lost []Lost
	act := func(f Effect) {
		if l, ok := f.(Lost); ok {
			mu.Lock()
			lost = append(lost, l)
			mu.Unlock()
		}
	}
	live(t, act, func(t *testing.T, r *Registry, store *memory, a *identity.Authority) {
		tok, key := identity.NewToken(a.Fingerprint()), identity.NewKey()
		if _, err := join(t, r, a, key, "m2", &tok); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("with a token nobody made: %v", err)
		}
		if err := r.Do(t.Context(), MakeToken{ID: tok.ID(), Key: tok.Key()}); err != nil {
			t.Fatal(err)
		}
		g, err := join(t, r, a, key, "m2", &tok)
		if err != nil {
			t.Fatal(err)
		}
		id, err := identity.New(identity.Config{Key: key, Certificate: g.Certificate, Authorities: g.Authorities,
			Roster: g.Roster()})
		if err != nil || id.Self().Machine != "m2" || store.member("m2").Labels["zone"] != "a" {
			t.Fatalf("%+v, %v, %+v", id.Self(), err, store.member("m2"))
		}
		store.set(time.Second, nil)
		life := id.Self().Incarnation
		for range 100 {
			go r.Do(t.Context(), Heard{"m2", life})
			<-time.After(250 * time.Millisecond)
			if time.Now().UnixMilli()%2000 < 250 {
				go r.Do(t.Context(), Label{"m2", map[string]string{"n": "v"}})
			}
		}
		synctest.Wait()
		if mu.Lock(); len(lost) != 0 {
			t.Fatalf("with a slow store: %+v", lost)
		}
		mu.Unlock()
		pub := key.Public().(ed25519.PublicKey)
		if _, err := r.Renew(t.Context(), id.Self(), pub); err != nil {
			t.Error(err)
		}
		if _, err := r.Renew(t.Context(), id.Self(),
			identity.NewKey().Public().(ed25519.PublicKey)); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("renewed for another key: %v", err)
		}
		store.set(0, nil)
		<-time.After(4 * time.Second)
		synctest.Wait()
		mu.Lock()
		if len(lost) != 1 || lost[0].Incarnation != life {
			t.Fatalf("lost are %+v", lost)
		}
		mu.Unlock()
		if _, err := r.Renew(t.Context(), id.Self(), pub); sigma.KindOf(err) != sigma.KindStale {
			t.Errorf("a lost life was renewed: %v", err)
		}
		if g, err = join(t, r, a, key, "m2", nil); err != nil {
			t.Fatal(err)
		}
		if err := id.Install(g.Certificate); err != nil || id.Self().Incarnation <= life {
			t.Errorf("%v, %+v", err, id.Self())
		}
	})
}

// Goal: a registry that cannot save ends, answers nobody with yes, and waits for nobody.
func TestRegistryCannotSave(t *testing.T) {
	live(t, nil, func(t *testing.T, r *Registry, store *memory, _ *identity.Authority) {
		store.set(0, sigma.Errorf("test", sigma.KindStale, "another is the judge"))
		if err := r.Do(t.Context(), Cordon{"m1", true}); sigma.KindOf(err) != sigma.KindStale &&
			sigma.KindOf(err) != sigma.KindLost {
			t.Errorf("got %v", err)
		}
		<-r.over
		if err := r.Do(t.Context(), Cordon{"m1", false}); sigma.KindOf(err) != sigma.KindUnavailable {
			t.Errorf("afterwards: %v", err)
		}
		if store.member("m1").Cordoned {
			t.Error("it was saved")
		}
	})
}
