package machines

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// office is a Service with one founder, and clients of it.
type office struct {
	t       *testing.T
	service *Service
	store   *memory
	known   *identity.Authority
	asked   *Client // instead of the service's own
}

func (o *office) client(m sigma.MachineID) *Client {
	o.t.Helper()
	if o.asked != nil {
		return o.asked
	}
	root, err := o.service.Attach(o.t.Context(), sigma.Principal{Realm: sigma.SystemRealm, Machine: m, System: true},
		"")
	if err != nil {
		o.t.Fatal(err)
	}
	return NewClient(root.(sigma.Caller))
}

// join makes a token, and a machine of it.
func (o *office) join(name sigma.MachineID) (ed25519.PrivateKey, *identity.Identity) {
	o.t.Helper()
	ctx, c := o.t.Context(), o.client("m1")
	text, err := c.Token(ctx, 1, time.Minute)
	if err != nil {
		o.t.Fatal(err)
	}
	tok, err := identity.ParseToken(text)
	if err != nil {
		o.t.Fatal(err)
	}
	ch, err := c.Challenge(ctx)
	if err != nil {
		o.t.Fatal(err)
	}
	key := identity.NewKey()
	e := &identity.Enrolment{Challenge: ch, System: o.known.System(), Machine: name, Clock: time.Now(),
		Address: "10.0.0.2:7700", Memory: sigma.GiB}
	if err := e.Sign(key, &tok); err != nil {
		o.t.Fatal(err)
	}
	g, err := c.Enrol(ctx, e)
	if err != nil {
		o.t.Fatal(err)
	}
	id, err := identity.New(identity.Config{Key: key, Certificate: g.Certificate, Authorities: g.Authorities,
		Roster: g.Roster()})
	if err != nil {
		o.t.Fatal(err)
	}
	return key, id
}

// open runs an office in a bubble, with a judge that hears through reports.
func open(t *testing.T, do func(o *office)) {
	synctest.Test(t, func(t *testing.T) {
		a, err := identity.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		o := &office{t: t, store: newMemory(), known: a}
		if o.service, err = NewService(time.Now(), ServiceConfig{Core: Config{Self: "m1", Remote: true}, Authority: a,
			Store: o.store}); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { o.service.Run(ctx) })
		pub := identity.NewKey().Public().(ed25519.PublicKey)
		if _, err := o.service.Registry().Found(ctx, Request{ID: "m1", Key: identity.KeyFingerprint(pub),
			Address: "10.0.0.1:7700"}, pub); err != nil {
			t.Fatal(err)
		}
		do(o)
		stop()
		all.Wait()
	})
}

// cordoned has m2 cordoned, or not any more, and sees whether it acts by it.
func cordoned(o *office, on, want bool) error {
	acts, err := o.client("m1").Cordon(o.t.Context(), "m2", on)
	if acts != want {
		o.t.Errorf("cordon %v: the machine acts by it: %v", on, acts)
	}
	return err
}

// Goal: a cordon waits until the machine has asked for what comes after it, and says so if that
// does not happen in time, or the machine still fetches it; also when another operator undoes it
// meanwhile.
func TestCordonWaits(t *testing.T) {
	open(t, func(o *office) {
		o.join("m2")
		m2 := o.client("m2")
		epoch, _, err := m2.Roster(o.t.Context(), 0)
		if err == nil {
			err = cordoned(o, true, false) // it has what was before
		}
		if err == nil {
			epoch, _, err = m2.Roster(o.t.Context(), epoch)
		}
		if err == nil {
			err = cordoned(o, true, false) // it has fetched it, and not said that it acts by it
		}
		if err != nil {
			o.t.Fatal(err)
		}
		early, cancel := context.WithTimeout(o.t.Context(), time.Second)
		m2.Roster(early, epoch+1000)
		cancel()
		if err := cordoned(o, false, false); err != nil { // it has said that it acts by one that there is not yet
			o.t.Fatal(err)
		}
		ctx, stop := context.WithCancel(o.t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			for err := error(nil); err == nil; {
				epoch, _, err = m2.Roster(ctx, epoch)
			}
		})
		for _, on := range []bool{true, false, false, true} {
			if err := cordoned(o, on, true); err != nil {
				o.t.Error(err)
			}
		}
		var operators sync.WaitGroup
		for n := range 20 { // who disagree
			operators.Go(func() {
				if err := cordoned(o, n%2 == 0, true); err != nil {
					o.t.Error(err)
				}
			})
		}
		operators.Wait()
		stop()
		all.Wait()
		if _, err := o.client("m1").Cordon(o.t.Context(), "m9", true); sigma.KindOf(err) != sigma.KindNotFound {
			o.t.Errorf("a machine that there is not: %v", err)
		}
	})
}

// TestService: what operators ask of machines, by calls.
func TestService(t *testing.T) {
	open(t, func(o *office) {
		ctx, c := o.t.Context(), o.client("m1")
		key, id := o.join("m2")
		steps := []error{c.Label(ctx, "m2", []string{"zone=a", "rack=7"}), c.Label(ctx, "m2", []string{"rack="}),
			cordoned(o, true, false), c.Control(ctx, "m2", true)}
		for i, err := range steps {
			if err != nil {
				o.t.Errorf("step %d: %v", i, err)
			}
		}
		ms, err := c.List(ctx)
		if err != nil || len(ms) != 2 || ms[1].ID != "m2" || !reflect.DeepEqual(ms[1].Labels,
			map[string]string{"zone": "a"}) || !ms[1].Cordoned || !ms[1].Control || ms[1].Memory != sigma.GiB ||
			ms[1].State != sigma.MachineAlive {
			o.t.Errorf("got %+v, %v", ms, err)
		}
		if err := c.Remove(ctx, "m2", true); sigma.KindOf(err) != sigma.KindInvalid {
			o.t.Errorf("a control machine was removed: %v", err)
		}
		ts, err := c.Tokens(ctx)
		if err != nil || len(ts) != 1 || ts[0].Uses != 0 || ts[0].Key != (identity.TokenKey{}) {
			o.t.Errorf("got %+v, %v", ts, err)
		}
		if err := c.Revoke(ctx, ts[0].ID); err != nil {
			o.t.Error(err)
		}
		pub := key.Public().(ed25519.PublicKey)
		if der, err := o.client("m2").Renew(ctx, id.Self().Incarnation, pub); err != nil || id.Install(der) != nil {
			o.t.Errorf("renewal: %v", err)
		}
		if _, err := o.client("m3").Renew(ctx, id.Self().Incarnation, pub); sigma.KindOf(err) != sigma.KindStale {
			o.t.Errorf("another machine renews it: %v", err)
		}
		if _, err := c.Token(ctx, TokenUsesMax+7, 0); sigma.KindOf(err) != sigma.KindInvalid {
			o.t.Errorf("a token without end: %v", err)
		}
		if _, err := o.service.Attach(ctx, sigma.Principal{Realm: "tenant", Machine: "m1"},
			""); sigma.KindOf(err) != sigma.KindPermission {
			o.t.Errorf("a tenant attaches: %v", err)
		}
	})
}

// Goal: reports keep machines alive; a silent one is asked about, lost, and seen so in the roster
// by who waits for it; errands come again until they are taken.
func TestServiceLoss(t *testing.T) {
	open(t, func(o *office) {
		ctx, c := o.t.Context(), o.client("m1")
		_, id2 := o.join("m2")
		_, id3 := o.join("m3")
		report := func(for_ time.Duration, ids ...*identity.Identity) {
			for end := time.Now().Add(for_); time.Now().Before(end); <-time.After(250 * time.Millisecond) {
				var es []Evidence
				for _, id := range ids {
					es = append(es, Evidence{id.Self().Machine, id.Self().Incarnation, 0})
				}
				if err := c.Report(ctx, es); err != nil {
					o.t.Error(err)
				}
			}
		}
		report(5*time.Second, id2, id3)
		epoch, ms, err := c.Roster(ctx, 0)
		if err != nil || len(ms) != 3 || ms[2].Lost {
			o.t.Fatalf("%d: %+v, %v", epoch, ms, err)
		}
		var all sync.WaitGroup
		all.Go(func() {
			n, list, err := o.client("m2").Errands(ctx, 0)
			again, same, _ := o.client("m2").Errands(ctx, 0)
			if err != nil || len(list) != 1 || list[0].Try != "m3" || n != again || !reflect.DeepEqual(list, same) {
				o.t.Errorf("m2 is asked %+v (%d), then %+v (%d), %v", list, n, same, again, err)
			}
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			if _, more, err := o.client("m2").Errands(short, n); sigma.KindOf(err) != sigma.KindTimeout {
				o.t.Errorf("done errands come again: %+v, %v", more, err)
			}
		})
		var later []identity.Member
		all.Go(func() { _, later, err = c.Roster(ctx, epoch) })
		all.Go(func() {
			if _, _, err := o.client("m3").Errands(ctx, 0); sigma.KindOf(err) != sigma.KindStale {
				o.t.Errorf("the lost machine's errands end with %v", err)
			}
		})
		report(3*time.Second, id2)
		all.Wait()
		if err != nil || len(later) != 3 || !later[2].Lost || later[1].Lost {
			o.t.Errorf("the next roster is %+v, %v", later, err)
		}
		if err := c.Drain(ctx, "m2"); err != nil {
			o.t.Error(err)
		}
		if _, list, err := o.client("m2").Errands(ctx, 1); err != nil || len(list) == 0 || !list[len(list)-1].Drain {
			o.t.Errorf("got %+v, %v", list, err)
		}
		if err := c.Vouch(ctx, "m3", id3.Self().Incarnation); err != nil {
			o.t.Error(err)
		}
	})
}

// TestServicePages: lists that no message can carry come in pages.
func TestServicePages(t *testing.T) {
	open(t, func(o *office) {
		ctx, c := o.t.Context(), o.client("m1")
		const n = 3*membersPage + 7
		for i := range n {
			if i == 0 {
				continue
			}
			q := Request{ID: sigma.MachineID(fmt.Sprintf("x%04d", i)), Key: identity.Fingerprint{byte(i), byte(i >> 8),
				1}, Address: "a-rather-long-host-name-" + strings.Repeat("x", 100) + ":7700",
				Labels: map[string]string{strings.Repeat("l", 60): strings.Repeat("v", 60)}}
			err := o.service.registry.View(ctx, func(core *Core) {
				m := &member{Member: Member{ID: q.ID, Key: q.Key, Labels: q.Labels, Joined: time.Now()}}
				core.members[q.ID] = m
				core.register(time.Now(), m, q)
			})
			if err != nil {
				o.t.Fatal(err)
			}
		}
		if err := c.Control(ctx, "x0001", true); err != nil { // publishes
			o.t.Fatal(err)
		}
		_, ms, err := c.Roster(ctx, 0)
		infos, err2 := c.List(ctx)
		if err != nil || err2 != nil || len(ms) != n || len(infos) != n || infos[n-1].ID != ms[n-1].Machine {
			o.t.Errorf("%d members, %v; %d listed, %v", len(ms), err, len(infos), err2)
		}
	})
}

// FuzzService: no call of a machine does more than be refused.
func FuzzService(f *testing.F) {
	for _, m := range []string{"token", "label", "enrol", "renew", "report", "vouch", "roster", "errands", "list",
		"remove", "x"} {
		f.Add(m, []byte{2, 0, 'm', '1', 1, 0, 0, 0, 0, 0, 0, 0})
	}
	a, err := identity.NewAuthority(time.Now())
	if err != nil {
		f.Fatal(err)
	}
	s, err := NewService(time.Now(), ServiceConfig{Core: Config{Self: "m1"}, Authority: a, Store: newMemory()})
	if err != nil {
		f.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	f.Cleanup(stop)
	go s.Run(ctx)
	pub := identity.NewKey().Public().(ed25519.PublicKey)
	if _, err := s.Registry().Found(ctx, Request{ID: "m1", Key: identity.KeyFingerprint(pub), Address: "10.0.0.1:7700"},
		pub); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method string, payload []byte) {
		within, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		s.call(within, sigma.Principal{Machine: "m1", System: true}, method, payload)
		var infos listed
		var errands errandsPage
		var tokens []Token
		for _, code := range []func(*sigmap.Coder){func(c *sigmap.Coder) {
			codeListed(c, &infos)
		}, func(c *sigmap.Coder) { codeErrandsPage(c, &errands) }, func(c *sigmap.Coder) { codeTokens(c, &tokens) }} {
			sigmap.Parse(payload, code)
		}
		if _, _, _, err := s.page(within, 0, 0); err != nil && within.Err() == nil {
			t.Errorf("the service is broken: %v", err)
		}
	})
}

// enrolWith makes a token and a machine of it.
func enrolWith(t *testing.T, c *Client, a *identity.Authority, name sigma.MachineID) {
	t.Helper()
	o := &office{t: t, known: a, asked: c}
	o.join(name)
}
