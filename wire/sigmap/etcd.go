package sigmap

import (
	"fmt"
	"net/netip"

	"sigmaos.dev/sigma"
)

// Etcd says in which etcd the names are kept, if not in named's own. It is told to named alone,
// since it may hold a key. In files, and in what member-add answers, it is JSON.
type Etcd struct {
	Members []EtcdMember `json:"members"`
	CA      string       `json:"ca,omitempty"`   // PEM; "" = no TLS
	Cert    string       `json:"cert,omitempty"` // PEM
	Key     string       `json:"key,omitempty"`  // PEM
	// whose names are there, as a machine that joined was told; "" = this machine founds or founded
	// it
	System string `json:"system,omitempty"`
}

// EtcdMember is one server of it.
type EtcdMember struct {
	Name    string `json:"name"`    // HOST:PORT, for whose host its certificate is
	Address string `json:"address"` // IP:PORT
}

// EtcdPrefix begins what member-add answers where the names are in an Etcd, which follows as JSON.
const EtcdPrefix = "etcd:"

// Bounds of an Etcd.
const (
	EtcdMembersMax = 9
	EtcdPEMMax     = 16 << 10 // bytes of each of CA, Cert and Key
)

// Check says whether e can be meant.
func (e *Etcd) Check() error {
	bad := func(format string, args ...any) error {
		return &sigma.Error{Op: "sigmap.Etcd", Kind: sigma.KindInvalid,
			Msg: "not a description of an etcd: " + fmt.Sprintf(format, args...)}
	}
	if len(e.Members) == 0 || len(e.Members) > EtcdMembersMax {
		return bad("it has %d members; 1 to %d are possible", len(e.Members), EtcdMembersMax)
	}
	names := map[string]bool{}
	for _, m := range e.Members {
		if at, err := netip.ParseAddrPort(m.Address); err != nil || at.Port() == 0 || m.Name == "" ||
			len(m.Name) > 300 || names[m.Name] {
			return bad("member %.80q at %.80q", m.Name, m.Address)
		}
		names[m.Name] = true
	}
	if len(e.CA) > EtcdPEMMax || len(e.Cert) > EtcdPEMMax || len(e.Key) > EtcdPEMMax || len(e.System) > 64 {
		return bad("a certificate or key has more than %d bytes", EtcdPEMMax)
	}
	if (e.Cert == "") != (e.Key == "") || e.Cert != "" && e.CA == "" {
		return bad("a certificate, its key and the authority of the other side belong together")
	}
	return nil
}

// Etcd is all of e, after whether there is one.
func (c *Coder) Etcd(e **Etcd) {
	there := *e != nil
	if c.Bool(&there); !there {
		return
	}
	if *e == nil {
		*e = &Etcd{}
	}
	x := *e
	List(c, &x.Members, 4, func(m *EtcdMember) {
		c.Str(&m.Name)
		c.Str(&m.Address)
	})
	for _, s := range []*string{&x.CA, &x.Cert, &x.Key, &x.System} {
		c.Str(s)
	}
}
