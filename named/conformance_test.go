package named

import (
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/treetest"
)

// The service keeps the contract of trees that all servers keep.
func TestConformance(t *testing.T) {
	treetest.Run(t, treetest.Config{
		Principal:   sigma.Principal{Realm: testRealm},
		SizeMax:     FileMax,
		ListEntries: 20_000,
		Lacks:       []treetest.Capability{treetest.PassFiles},
		New: func(t *testing.T) sigma.Tree {
			s, _ := serve(t, Config{Store: newMemStore()})
			if err := s.Create(t.Context(), testRealm); err != nil {
				t.Fatal(err)
			}
			return s
		},
	})
}
