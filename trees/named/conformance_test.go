package named

import (
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treetest"
)

// The service keeps the contract of trees that all servers keep.
func TestConformance(t *testing.T) {
	treetest.Run(t, treetest.Config{
		Principal:   sigma.Principal{Realm: testRealm},
		SizeMax:     FileMax,
		ListEntries: 20_000,
		Lacks:       []treetest.Capability{treetest.Hidden, treetest.PassFiles, treetest.Pipes},
		New: func(t *testing.T) sigma.Tree {
			s, _ := serve(t, Config{Store: newMemStore()})
			if err := s.Create(t.Context(), testRealm); err != nil {
				t.Fatal(err)
			}
			return s
		},
	})
}

// What it keeps it keeps over restarts, leases too.
func TestRestarts(t *testing.T) {
	treetest.RunRestarts(t, treetest.RestartConfig{
		Principal: sigma.Principal{Realm: testRealm},
		Dir:       "d",
		TTL:       10 * time.Second,
		New: func(t *testing.T) func() (sigma.Tree, func()) {
			store := newMemStore()
			return func() (sigma.Tree, func()) {
				s, stop := serve(t, Config{Store: store})
				if err := s.Create(t.Context(), testRealm); err != nil && sigma.KindOf(err) != sigma.KindExists {
					t.Fatal(err)
				}
				return s, stop
			}
		},
	})
}
