package outside

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"time"

	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// named reaches no network by itself. Where the names are in an etcd of the operator's, sigmad
// connects it to that, and to nothing else. It relays the bytes instead of passing the TCP socket,
// which could be connected again to somebody else where Landlock does not know networks; what named
// and etcd say is between them (TLS), sigmad does not look at it.

// etcdDialMax bounds one attempt to connect.
const etcdDialMax = 3 * time.Second

// ToldEtcd takes what the leading named told a machine that joined. What the operator says of it on
// this machine, as of new certificates, goes before.
func (x *Outside) ToldEtcd(text string) error {
	told := &sigmap.Etcd{}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(text, sigmap.EtcdPrefix)), told); err != nil {
		return &sigma.Error{Op: "kernel.joinNames", Kind: sigma.KindInvalid,
			Msg: "named does not say in which etcd the names are", Err: err}
	}
	if err := told.Check(); err != nil {
		return err
	}
	if x.cfg.Etcd != nil {
		e := *x.cfg.Etcd
		e.System = told.System
		told = &e
	}
	x.etcd = told
	return nil
}

// namedOnly is an error for anybody but named, on whose behalf alone sigmad holds the keys of an
// etcd.
func namedOnly(op string, s *services.Service) error {
	if s == nil || s.Name != services.Named {
		return sigma.Errorf(op, sigma.KindPermission, "only named may ask this")
	}
	return nil
}

// EtcdFor tells named in which etcd the names are; nil = in its own.
func (x *Outside) EtcdFor(s *services.Service) (*sigmap.Etcd, error) {
	if err := namedOnly("kernel.Etcd", s); err != nil {
		return nil, err
	}
	return x.etcd, nil
}

// DialEtcd connects named to a member of the etcd.
func (x *Outside) DialEtcd(ctx context.Context, s *services.Service, name string) (*os.File, error) {
	const op = "kernel.DialEtcd"
	if err := namedOnly(op, s); err != nil {
		return nil, err
	}
	address := ""
	if x.etcd != nil {
		for _, m := range x.etcd.Members {
			if m.Name == name {
				address = m.Address
			}
		}
	}
	if address == "" || x.cfg.Connect == nil {
		return nil, sigma.Errorf(op, sigma.KindPermission, "%.80q is no member of the etcd that keeps the names", name)
	}
	f, err := x.relayTo(ctx, op, []string{address}, etcdDialMax, func() {})
	if e, ok := err.(*sigma.Error); ok && e.Kind == sigma.KindUnavailable {
		e.Msg = "no etcd answers at " + name
	}
	return f, err
}

// HasEtcd says whether the names are in an etcd of the operator's.
func (x *Outside) HasEtcd() bool { return x.etcd != nil }
