package treeserver

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Callable is a file that answers calls by one function, as the files of /sys are.
type Callable struct {
	Base
	Name   string
	ID     uint64
	Handle func(ctx context.Context, method string, payload []byte) (reply []byte, files []*os.File, err error)
	// Prompt says that Handle answers a call without waiting, so that it is made where it is
	// received; nil = of none.
	Prompt func(method string, payload []byte) bool
}

// Answers makes a Callable, with the ID 1, that passes no files: the root of a service.
func Answers(name string, answer func(ctx context.Context, method string, payload []byte) ([]byte, error)) *Callable {
	return &Callable{Name: name, ID: 1, Handle: func(ctx context.Context, method string, payload []byte) ([]byte,
		[]*os.File, error) {
		reply, err := answer(ctx, method, payload)
		return reply, nil, err
	}}
}

// Methods makes a Callable of methods, which are asked by who.
func Methods[Who any](name string, id uint64, who Who, methods sigmap.Handlers[Who]) *Callable {
	return &Callable{Name: name, ID: id, Handle: func(ctx context.Context, method string, payload []byte) ([]byte,
		[]*os.File, error) {
		m, ok := methods[method]
		if !ok {
			return nil, nil, NoMethod(name, method)
		}
		return m.Call(who, ctx, payload)
	}}
}

// prompter is a Caller that says which calls it answers without waiting.
type prompter interface {
	IsPrompt(method string, payload []byte) bool
}

// IsPrompt says that Call will not wait.
func (c *Callable) IsPrompt(method string, payload []byte) bool {
	return c.Prompt != nil && c.Prompt(method, payload)
}

var _ sigma.Caller = (*Callable)(nil)

// Walk clones only.
func (c *Callable) Walk(_ context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) > 0 {
		return nil, nil, sigma.PathError("treeserver.Callable.Walk", sigma.KindNotDir, c.Name)
	}
	return c, nil, nil
}

// Stat describes the file.
func (c *Callable) Stat(context.Context) (sigma.Stat, error) {
	return sigma.Stat{ID: sigma.FileID{Kind: sigma.KindCallable, Path: c.ID}, Name: c.Name, Perm: 0o600,
		Modified: time.Unix(0, 0)}, nil
}

// Call implements sigma.Caller. File descriptors that come with a call are not wanted.
func (c *Callable) Call(ctx context.Context, method string, payload []byte, files []*os.File) ([]byte, []*os.File,
	error) {
	for _, f := range files {
		f.Close()
	}
	return c.Handle(ctx, method, payload)
}

// NoMethod is the error for a method that a file does not have.
func NoMethod(file, method string) error {
	return sigma.Errorf("treeserver.Callable", sigma.KindUnsupported, "%s has no method %.50q", file, method)
}

// RealmsFile makes the callable face of r. allowed says whether the caller may use it.
func RealmsFile(name string, id uint64, r sigma.Realms, allowed bool) *Callable {
	f := Methods(name, id, r, realmMethods)
	if !allowed {
		f.Handle = func(context.Context, string, []byte) ([]byte, []*os.File, error) {
			return nil, nil, sigma.Errorf("treeserver.RealmsFile", sigma.KindPermission,
				"realms are made by the provider")
		}
	}
	return f
}

var realmMethods = sigmap.Table(
	sigmap.On(sigmap.CallListRealms, func(r sigma.Realms, ctx context.Context, after sigma.RealmID) ([]sigma.RealmInfo,
		error) {
		rs, err := r.List(ctx)
		return realmsPage(rs, after), err
	}),
	aboutRealm(sigmap.CallCreateRealm, sigma.Realms.Create),
	aboutRealm(sigmap.CallRemoveRealm, sigma.Realms.Remove),
	sigmap.Do(sigmap.CallSetShares, func(r sigma.Realms, ctx context.Context, s sigmap.RealmShares) error {
		if err := s.Realm.Check(); err != nil {
			return err
		}
		if s.Shares == 0 || s.Shares > sigma.SharesMax {
			return sigma.Errorf("treeserver.RealmsFile", sigma.KindInvalid, "a realm has 1 to %d shares, not %d",
				sigma.SharesMax, s.Shares)
		}
		return r.SetShares(ctx, s.Realm, s.Shares)
	}),
	sigmap.Do(sigmap.CallSetLimits, func(r sigma.Realms, ctx context.Context, l sigmap.LimitsOfRealm) error {
		if err := cmp.Or(l.Realm.Check(), l.Limits.Check()); err != nil {
			return err
		}
		return r.SetLimits(ctx, l.Realm, l.Limits)
	}),
)

// aboutRealm answers a method that takes the id of a realm.
func aboutRealm(m sigmap.Method[sigma.RealmID, sigmap.None],
	do func(sigma.Realms, context.Context, sigma.RealmID) error) sigmap.Handler[sigma.Realms] {
	return sigmap.Do(m, func(r sigma.Realms, ctx context.Context, id sigma.RealmID) error {
		if err := id.Check(); err != nil {
			return err
		}
		return do(r, ctx, id)
	})
}

// realmsPage is what is listed after a realm at once; lists are in order of names.
func realmsPage(rs []sigma.RealmInfo, after sigma.RealmID) []sigma.RealmInfo {
	i, _ := slices.BinarySearchFunc(rs, after, func(r sigma.RealmInfo, after sigma.RealmID) int {
		return strings.Compare(string(r.ID), string(after))
	})
	for i < len(rs) && after != "" && rs[i].ID == after {
		i++
	}
	return rs[i:min(len(rs), i+sigmap.RealmsPage)]
}

// Admin is a tree whose provider-only root, attached without a name, is a callable file; with a
// name, or for others, it is Tree. It is how named and s3 are asked to make and remove realms.
type Admin struct {
	sigma.Tree
	Realms  sigma.Realms
	Changes func() (*os.File, error) // the server's board of changes, see changeboard; nil = none
	// Calls are what else the provider may ask.
	Calls sigmap.Handlers[sigma.Realms]
}

// Attach implements sigma.Tree.
func (a Admin) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	if p.System && name == "" {
		f := RealmsFile("realms", 1, a.Realms, true)
		realms := f.Handle
		f.Handle = func(ctx context.Context, method string, payload []byte) ([]byte, []*os.File, error) {
			if call, ok := a.Calls[method]; ok {
				return call.Call(a.Realms, ctx, payload)
			}
			if method != sigmap.CallChanges.Name || a.Changes == nil {
				return realms(ctx, method, payload)
			}
			board, err := a.Changes()
			if err != nil {
				return nil, nil, err
			}
			return nil, []*os.File{board}, nil
		}
		return f, nil
	}
	return a.Tree.Attach(ctx, p, name)
}
