package machines

import (
	"crypto/ed25519"
	"testing"
	"time"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/sigma"
)

// Goal: machined certifies its own machine without asking anybody, and no other machine.
func TestCertify(t *testing.T) {
	authority, err := identity.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d, err := NewDaemon(DaemonConfig{Self: "m1", Namespace: space(t), Path: "/machines",
		Authority: func(bool) (*identity.Authority, error) {
			return authority, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	pub := identity.NewKey().Public().(ed25519.PublicKey)
	for who, want := range map[sigma.MachineID]sigma.Kind{"m1": sigma.KindOther, "m2": sigma.KindPermission} {
		root, err := d.Attach(t.Context(), sigma.Principal{System: true, Machine: who}, "")
		if err != nil {
			t.Fatal(err)
		}
		der, err := NewClient(root.(sigma.Caller)).Certify(t.Context(), identity.Subject{Machine: "m1", Incarnation: 2,
			Epoch: 2}, pub)
		if (err == nil) != (want == sigma.KindOther) || err != nil && sigma.KindOf(err) != want || err == nil &&
			len(der) == 0 {
			t.Errorf("asked by %s: %d bytes, %v", who, len(der), err)
		}
	}
	root, err := d.Attach(t.Context(), sigma.Principal{System: true, Machine: "m1"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(root.(sigma.Caller)).Certify(t.Context(), identity.Subject{Incarnation: 2},
		pub[:7]); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("a key of 7 bytes: %v", err)
	}
}
