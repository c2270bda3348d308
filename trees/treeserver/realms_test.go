package treeserver

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// manyRealms lists realms and does nothing else.
type manyRealms struct {
	sigma.Realms
	all []sigma.RealmInfo
}

func (m manyRealms) List(context.Context) ([]sigma.RealmInfo, error) { return m.all, nil }

// As many realms as there may be are listed, though an answer has room for some hundreds only.
func TestManyRealms(t *testing.T) {
	for _, n := range []int{0, 1, sigmap.RealmsPage, sigmap.RealmsPage + 1, 10_000} {
		m := manyRealms{}
		for i := range n {
			m.all = append(m.all, sigma.RealmInfo{ID: sigma.RealmID(fmt.Sprintf("a-realm-of-a-long-name-%09d", i)),
				Shares: 1})
		}
		f := RealmsFile("realms", 1, m, true)
		got, err := sigmap.ListRealms(t.Context(), f)
		same := slices.EqualFunc(got, m.all, func(a, b sigma.RealmInfo) bool { return a.ID == b.ID })
		if err != nil || !same {
			t.Errorf("%d realms: listed %d, %v", n, len(got), err)
		}
	}
}
