package sdk

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/memfs"
)

// memberOf makes v a member of /svc/web, which is made by that.
func memberOf(t *testing.T, v *voter) (*membership, func(context.Context) error) {
	t.Helper()
	m := newMembership(v.tree, v.root.(sigma.Leaser), nil, "/svc/web/", string(endpoint(1).Proc), endpoint(1))
	leave, err := m.join(t.Context(), atOnce)
	if err != nil {
		t.Fatal(err)
	}
	return m, leave
}

// TestJoinAgain: a member that cannot renew its lease for longer than the lease loses its name, and
// has it again within a second after, also if its directory was removed meanwhile. A member that
// leaves is gone and does not come back, also if its lease had ended by then.
func TestJoinAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		v := newVoter(t, tree)
		is := func(when string, want bool) {
			t.Helper()
			text, err := v.tree.ReadLink(ctx, "/svc/web/"+string(endpoint(1).Proc))
			if kind := sigma.KindOf(err); want && (err != nil || text != endpoint(1).String()) || !want &&
				kind != sigma.KindNotFound {
				t.Fatalf("%s: the member's name is %q, %v", when, text, err)
			}
		}
		_, leave := memberOf(t, v)
		is("at first", true)
		<-time.After(time.Hour)
		is("after an hour", true)
		for _, removed := range []bool{false, true} {
			v.setCut(true)
			<-time.After(2 * leaseOfMember)
			is("cut off", false)
			if removed {
				if err := v.tree.RemoveAll(ctx, "/svc"); err != nil {
					t.Fatal(err)
				}
			}
			v.setCut(false)
			<-time.After(time.Second)
			is("afterwards", true)
		}
		if err := leave(ctx); err != nil {
			t.Error(err)
		}
		<-time.After(time.Hour)
		is("after it left", false)

		_, leave = memberOf(t, v)
		v.setCut(true)
		<-time.After(2 * leaseOfMember)
		if err := leave(ctx); err != nil {
			t.Errorf("a member whose lease has ended leaves: %v", err)
		}
		is("after it left without a lease", false)

		v.setCut(false)
		m, leave := memberOf(t, v)
		m.leases = strange{m.leases} // as a sigmad that was started again and does not know the proc's lease
		if err := leave(ctx); err != nil {
			t.Errorf("a member whose lease is not known leaves: %v", err)
		}
		is("after it left without being known", false)
	})
}

// Goal: a proc that leaves a name does not remove it when another proc has it meanwhile, also if
// its own lease is not known any more.
func TestLeaveWithoutTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, tree := t.Context(), memfs.New(memfs.Config{})
		defer tree.Close()
		v := newVoter(t, tree)
		var members []*membership
		var leaves []func(context.Context) error
		for i := range 3 {
			m := newMembership(v.tree, v.root.(sigma.Leaser), nil, "/svc/web", "first", endpoint(i+1))
			leave, err := m.join(ctx, atOnce)
			if err != nil {
				t.Fatal(err)
			}
			members, leaves = append(members, m), append(leaves, leave)
		}
		members[0].leases = strange{members[0].leases}
		for i, leave := range leaves {
			if err := leave(ctx); err != nil {
				t.Error(err)
			}
			text, err := v.tree.ReadLink(ctx, "/svc/web/first")
			gone := sigma.KindOf(err) == sigma.KindNotFound
			if last := i == 2; last && !gone || !last && text != endpoint(3).String() {
				t.Errorf("after leave %d the name is %q, %v", i, text, err)
			}
		}
	})
}

// strange knows no lease.
type strange struct{ sigma.Leaser }

func (strange) Renew(context.Context, sigma.LeaseID) error {
	return sigma.Errorf("test", sigma.KindNotFound, "no such lease")
}

func (strange) Revoke(context.Context, sigma.LeaseID) error {
	return sigma.Errorf("test", sigma.KindNotFound, "no such lease")
}
