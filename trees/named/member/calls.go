package member

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// callable is what the provider gets who attaches without a name: realms, members, snapshots.
func (l *leadership) callable() *treeserver.Callable {
	f := treeserver.RealmsFile("realms", 1, l.server, true)
	realms := f.Handle
	f.Handle = func(ctx context.Context, method string, payload []byte) ([]byte, []*os.File, error) {
		if l.ctx.Err() != nil {
			return nil, nil, &sigma.Error{Op: "named.Call", Kind: sigma.KindUnavailable,
				Msg: "another machine's named leads now"}
		}
		if err := l.authority.Hold(ctx); err != nil {
			return nil, nil, err
		}
		if method == sigmap.CallChanges.Name && l.m.cfg.Board != nil {
			board, err := l.m.cfg.Board.File()
			if err != nil {
				return nil, nil, err
			}
			return nil, []*os.File{board}, nil
		}
		if m, ok := methods[method]; ok {
			return m.Call(l, ctx, payload)
		}
		return realms(ctx, method, payload)
	}
	return f
}

// methods are those of sigmap.FileNames, and about credentials.
var methods = sigmap.Table(
	sigmap.On(sigmap.CallMembers, func(l *leadership, ctx context.Context, _ sigmap.None) ([]sigmap.NamesMember,
		error) {
		return l.members(ctx)
	}),
	sigmap.On(sigmap.CallMemberAdd, func(l *leadership, ctx context.Context, m sigma.MachineID) (text string,
		err error) {
		if err := m.Check(); err != nil {
			return "", err
		}
		err = l.change(ctx, func() (err error) {
			text, err = l.addMember(ctx, m)
			return err
		})
		return text, err
	}),
	aboutMachine(sigmap.CallMemberRemove, func(l *leadership, ctx context.Context, m sigma.MachineID) error {
		return l.change(ctx, func() error { return l.removeMember(ctx, m) })
	}),
	aboutMachine(sigmap.CallExpel, (*leadership).expel), aboutMachine(sigmap.CallAdmit, (*leadership).admit),
	sigmap.On(sigmap.CallSnapshotOpen, (*leadership).openSnapshot),
	sigmap.On(sigmap.CallSnapshotRead, (*leadership).readSnapshot),
	sigmap.Do(sigmap.CallSnapshotClose, func(l *leadership, _ context.Context, number uint64) error {
		l.closeSnapshot(number)
		return nil
	}),
	sigmap.On(sigmap.CallCredentials, func(l *leadership, ctx context.Context, r sigma.RealmID) ([]sigma.Credential,
		error) {
		return l.server.Credentials(ctx, r)
	}),
	sigmap.On(sigmap.CallCredentialAdd, func(l *leadership, ctx context.Context,
		a sigmap.AddCredential) (sigma.Credential, error) {
		return l.server.AddCredential(ctx, a.Realm, a.New)
	}),
	sigmap.On(sigmap.CallCredentialRevoke, func(l *leadership, ctx context.Context, o sigmap.OfCredential) ([]string,
		error) {
		return l.server.RevokeCredential(ctx, o.Realm, o.Name)
	}),
	sigmap.On(sigmap.CallCredentialCheck, func(l *leadership, ctx context.Context,
		ps []sigmap.Presented) ([]sigmap.Verdict, error) {
		return l.server.CheckCredentials(ctx, ps)
	}),
)

// aboutMachine answers a method that takes the id of a machine.
func aboutMachine(m sigmap.Method[sigma.MachineID, sigmap.None],
	do func(*leadership, context.Context, sigma.MachineID) error) sigmap.Handler[*leadership] {
	return sigmap.Do(m, func(l *leadership, ctx context.Context, id sigma.MachineID) error {
		if err := id.Check(); err != nil {
			return err
		}
		return do(l, ctx, id)
	})
}

func (l *leadership) members(ctx context.Context) (out []sigmap.NamesMember, err error) {
	if l.store.etcd == nil {
		return l.externalMembers(ctx)
	}
	for _, x := range l.store.etcd.Server.Cluster().Members() {
		machine := l.m.machineOf(l.store.etcdStore, x)
		out = append(out, sigmap.NamesMember{Machine: machine, Learner: x.IsLearner, Started: x.Name != "",
			Leads: machine == l.m.cfg.Machine})
	}
	slices.SortFunc(out, func(a, b sigmap.NamesMember) int {
		switch {
		case a.Machine < b.Machine:
			return -1
		case a.Machine > b.Machine:
			return 1
		}
		return 0
	})
	return out, nil
}

// change runs f while nobody else changes the members. Meanwhile this store counts as one of
// several: the leader has to hold its lease before another member can exist.
func (l *leadership) change(ctx context.Context, f func() error) error {
	select {
	case <-l.changing:
	case <-ctx.Done():
		return sigma.Wrap("named.change", "", ctx.Err())
	}
	defer func() { l.changing <- struct{}{} }()
	l.mu.Lock()
	if l.store.several.CompareAndSwap(false, true) {
		l.renew(time.Now())
	}
	l.mu.Unlock()
	return f()
}

func (l *leadership) find(machine sigma.MachineID) (found *membership.Member, voters int) {
	for _, x := range l.store.etcd.Server.Cluster().Members() {
		if l.m.machineOf(l.store.etcdStore, x) == machine {
			found = x
		}
		if !x.IsLearner {
			voters++
		}
	}
	return found, voters
}

// changeMax bounds how long a change of the members is tried: etcd refuses one for 5 s after the
// members have found each other.
const (
	changeMax   = 20 * time.Second
	changePause = 200 * time.Millisecond
)

// retry repeats what etcd does not dare just now.
func (l *leadership) retry(ctx context.Context, op string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeMax)
	defer cancel()
	for {
		err := f(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, rpctypes.ErrUnhealthy):
			l.m.net.renew()
		case errors.Is(err, rpctypes.ErrMemberNotEnoughStarted),
			errors.Is(err, rpctypes.ErrNoLeader),
			errors.Is(err, rpctypes.ErrTooManyLearners):
		default:
			return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
				Msg: "the members of the store of names could not be changed", Err: err}
		}
		select {
		case <-time.After(changePause):
		case <-l.ctx.Done():
			return &sigma.Error{Op: op, Kind: sigma.KindUnavailable, Msg: "another machine's named leads now"}
		case <-ctx.Done():
			return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
				Msg:  "the members of the store of names cannot be changed now without risk to it",
				Hint: "see that all control machines are alive: sigma machine ls", Err: err}
		}
	}
}

// addMember makes a machine a learner. It becomes a full member when its named has caught up.
func (l *leadership) addMember(ctx context.Context, machine sigma.MachineID) (text string, err error) {
	const op = "named.addMember"
	if l.store.etcd == nil {
		return l.addExternal(ctx, machine)
	}
	if l.m.cfg.Peers == nil {
		return "", sigma.Errorf(op, sigma.KindUnsupported, "this named has no way to others")
	}
	srv := l.store.etcd.Server
	if err := l.ownURL(ctx); err != nil {
		return "", err
	}
	if err := l.m.net.serve(l.ctx, srv); err != nil {
		return "", err
	}
	found, _ := l.find(machine)
	if found == nil {
		if len(srv.Cluster().Members()) >= membersMax {
			return "", sigma.Errorf(op, sigma.KindBusy, "the store of names has %d members already", membersMax)
		}
		u := peerURL(machine)
		if err := l.retry(ctx, op, func(ctx context.Context) error {
			_, err := l.store.client.MemberAddAsLearner(ctx, []string{u.String()})
			if errors.Is(err, rpctypes.ErrMemberExist) ||
				errors.Is(err, rpctypes.ErrPeerURLExist) { // an attempt before, whose answer was lost
				err = nil
			}
			return err
		}); err != nil {
			return "", err
		}
		if found, _ = l.find(machine); found == nil {
			return "", sigma.Errorf(op, sigma.KindUnavailable, "the new member is not seen yet")
		}
	}
	ms := srv.Cluster().Members()
	i := initial{id: uint64(found.ID), machines: l.m.machinesOf(l.store.etcdStore, ms)}
	if err := l.m.net.reach(i.machines); err != nil {
		return "", err
	}
	slices.Sort(i.machines)
	return i.String(), nil
}

// ownURL gives this member the URL by which others will look for it, if it was founded alone under
// another one.
func (l *leadership) ownURL(ctx context.Context) error {
	srv := l.store.etcd.Server
	self := srv.Cluster().Member(srv.MemberID())
	u := peerURL(l.m.cfg.Machine)
	if self == nil || slices.Equal(self.PeerURLs, []string{u.String()}) {
		return nil
	}
	return l.retry(ctx, "named.addMember", func(ctx context.Context) error {
		_, err := l.store.client.MemberUpdate(ctx, uint64(srv.MemberID()), []string{u.String()})
		return err
	})
}

// removeMember takes a machine out. A leader that shall go hands over first.
func (l *leadership) removeMember(ctx context.Context, machine sigma.MachineID) error {
	const op = "named.removeMember"
	if l.store.etcd == nil {
		return l.removeExternal(ctx, machine)
	}
	found, voters := l.find(machine)
	switch {
	case found == nil:
		return nil
	case voters == 1 && !found.IsLearner:
		return lastMember(op, machine)
	case machine == l.m.cfg.Machine:
		l.resign()
		return handsOver(op, machine)
	}
	return l.retry(ctx, op, func(ctx context.Context) error {
		_, err := l.store.client.MemberRemove(ctx, uint64(found.ID))
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			err = nil
		}
		return err
	})
}

func lastMember(op string, machine sigma.MachineID) error {
	return &sigma.Error{Op: op, Kind: sigma.KindInvalid,
		Msg:  "machine " + string(machine) + " alone keeps the names; it cannot be removed",
		Hint: "make another machine a control machine first"}
}

func handsOver(op string, machine sigma.MachineID) error {
	return &sigma.Error{Op: op, Kind: sigma.KindUnavailable,
		Msg: "named of machine " + string(machine) + " leads, and hands over first", Hint: "try again in a moment"}
}

// abstainMax is how long a leader that resigned lets others take over.
const abstainMax = 10 * time.Second

// resign makes this member hand over.
func (l *leadership) resign() {
	l.m.mu.Lock()
	l.m.abstain = time.Now().Add(abstainMax)
	l.m.mu.Unlock()
	l.once.Do(func() { close(l.resigned) })
}
