package member

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named"
	"sigmaos.dev/wire/sigmap"
)

// operators is an etcd as an operator runs it: with a port, on loopback.
type operators struct {
	t      testing.TB
	dir    string
	change func(*embed.Config)

	mu      sync.Mutex
	server  *embed.Etcd
	address string // "" = it is down
}

func operatorsEtcd(t testing.TB, change func(*embed.Config)) *operators {
	o := &operators{t: t, dir: t.TempDir(), change: change}
	o.start()
	t.Cleanup(o.close)
	return o
}

func (o *operators) start() {
	o.t.Helper()
	c := etcdConfig(o.dir, Config{StoreMax: sigma.GiB,
		Config: named.Config{Log: slog.New(slog.DiscardHandler)}})
	scheme := "http"
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	if o.change != nil {
		o.change(c)
	}
	if !c.ClientTLSInfo.Empty() {
		scheme = "https"
	}
	c.ListenClientUrls = []url.URL{{Scheme: scheme, Host: "127.0.0.1:0"}}
	e, err := embed.StartEtcd(c)
	if err != nil {
		o.t.Fatal(err)
	}
	<-e.Server.ReadyNotify()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.server, o.address = e, e.Clients[0].Addr().String()
}

// stop is as if it was killed.
func (o *operators) stop() {
	o.mu.Lock()
	if o.address != "" {
		o.server.Server.HardStop() // nobody is told
	}
	o.mu.Unlock()
	o.close()
}

// close waits for requests under way: a compaction that its client has left would find the store
// closed, and etcd does not expect that.
func (o *operators) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.address != "" {
		o.server.Close()
		o.address = ""
	}
}

// external has one name for it whatever its port is.
func (o *operators) external() *External {
	return &External{Etcd: sigmap.Etcd{Members: []sigmap.EtcdMember{{Name: "localhost:2379",
		Address: "192.0.2.1:2379"}}}, Dial: func(ctx context.Context, name string) (net.Conn, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if name != "localhost:2379" || o.address == "" {
			return nil, errors.New("nothing listens at " + name)
		}
		return new(net.Dialer).DialContext(ctx, "tcp", o.address)
	}}
}

// externalMember runs a member whose names are in x.
func externalMember(t testing.TB, dir string, machine sigma.MachineID, x *External) (m *Member, stop func()) {
	t.Helper()
	timing := DefaultTiming()
	timing.Quorum = time.Second
	m, err := Open(Config{Dir: dir, Config: named.Config{Log: slog.New(slog.NewTextHandler(logWriter{t}, nil))},
		Machine: machine, Timing: timing, External: x})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
		m.Close()
	})
	t.Cleanup(stop)
	return m, stop
}

// name has a member write a name, or read it if value is "", until it answers.
func name(t testing.TB, m *Member, path, value string) string {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		root, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
		if f, ok := root.(file); err == nil && ok {
			if value != "" {
				if _, _, err = f.Put(t.Context(), []string{path}, []byte(value), sigma.PutOptions{}); err == nil {
					return value
				}
			} else {
				var r sigma.GetResult
				if r, _, err = f.Get(t.Context(), []string{path}, 0, named.FileMax); err == nil {
					return string(r.Data)
				}
			}
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// The names are in an operator's etcd, and nothing of them is here; when it is away it is as when
// quorum is lost.
func TestExternal(t *testing.T) {
	o := operatorsEtcd(t, nil)
	dir := t.TempDir()
	if err := ProbeExternal(t.Context(), dir, o.external()); err != nil {
		t.Fatal(err)
	}
	m, stop := externalMember(t, dir, "m1", o.external())
	realm := testRealm
	if err := ask(t, m, sigmap.CallCreateRealm.Name, realmArg(realm), nil); err != nil {
		t.Fatal(err)
	}
	name(t, m, "kept", "1")
	if _, err := os.Stat(filepath.Join(dir, etcdDir)); err == nil {
		t.Error("there is an etcd of its own too")
	}
	f, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
	if err != nil {
		t.Fatal(err)
	}
	o.stop()
	for { // it may answer until its lease is over
		_, _, err := f.Walk(t.Context(), []string{"kept"})
		if err == nil {
			continue
		}
		if sigma.KindOf(err) != sigma.KindUnavailable || !strings.Contains(err.Error(), "quorum is lost") {
			t.Fatalf("while etcd is away: %v", err)
		}
		break
	}
	o.start()
	if got := name(t, m, "kept", ""); got != "1" {
		t.Errorf("kept is %q", got)
	}
	name(t, m, "more", "2")
	stop()
	if err := ProbeExternal(t.Context(), dir, o.external()); err != nil {
		t.Error(err)
	}
	m, _ = externalMember(t, dir, "m1", o.external())
	if got := name(t, m, "kept", "") + name(t, m, "more", ""); got != "12" {
		t.Errorf("after a restart there is %q", got)
	}
}

// Several control machines share it, and one leads.
func TestExternalShared(t *testing.T) {
	o := operatorsEtcd(t, nil)
	m1, stop1 := externalMember(t, t.TempDir(), "m1", o.external())
	realm := testRealm
	if err := ask(t, m1, sigmap.CallCreateRealm.Name, realmArg(realm), nil); err != nil {
		t.Fatal(err)
	}
	name(t, m1, "kept", "1")
	var text string
	if err := ask(t, m1, sigmap.CallMemberAdd.Name, machineArg("m2"), textOf(&text)); err != nil {
		t.Fatal(err)
	}
	x2 := o.external()
	if err := json.Unmarshal([]byte(strings.TrimPrefix(text, sigmap.EtcdPrefix)), &x2.Etcd); err != nil ||
		x2.System == "" {
		t.Fatalf("%q: %v", text, err)
	}
	m2, stop2 := externalMember(t, t.TempDir(), "m2", x2)
	if _, err := m2.Attach(t.Context(), sigma.Principal{Realm: testRealm}, ""); err == nil ||
		!strings.Contains(err.Error(), "m1 leads") {
		t.Fatalf("the second: %v", err)
	}
	var ms []sigmap.NamesMember
	if err := ask(t, m1, sigmap.CallMembers.Name, nil, func(c *sigmap.Coder) {
		c.NamesMembers(&ms)
	}); err != nil || len(ms) != 2 || !ms[0].Leads || ms[1].Leads {
		t.Fatalf("members are %+v: %v", ms, err)
	}
	stop1()
	if got := name(t, m2, "kept", ""); got != "1" {
		t.Errorf("the second has %q", got)
	}
	if err := ask(t, m2, sigmap.CallMemberRemove.Name, machineArg("m1"), nil); err != nil {
		t.Fatal(err)
	}
	if err := ask(t, m2, sigmap.CallMemberRemove.Name, machineArg("m2"), nil); sigma.KindOf(err) != sigma.KindInvalid {
		t.Errorf("removing the last: %v", err)
	}
	m1, _ = externalMember(t, m1.cfg.Dir, "m1", o.external())
	for end := time.Now().Add(30 * time.Second); ; {
		_, err := m1.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
		if err != nil && strings.Contains(err.Error(), "keeps the names no more") {
			break
		}
		if err == nil || time.Now().After(end) {
			t.Fatalf("one that was removed: %v", err)
		}
	}
	stop2()
}

// admin is a client of an operator's own.
func (o *operators) admin() *clientv3.Client {
	c := v3client.New(o.server.Server)
	o.t.Cleanup(func() { c.Close() })
	return c
}

// An etcd that others filled, until it raised its alarm: reads go on, of realms too that nobody has
// used lately, and nobody takes over; changes are refused and say why. Who leads may be lost
// meanwhile: another leads when there is room.
func TestExternalFull(t *testing.T) {
	o := operatorsEtcd(t, func(c *embed.Config) { c.QuotaBackendBytes = 64 << 20 })
	dir := t.TempDir()
	m, stop := externalMember(t, dir, "m1", o.external())
	root := memberRoot(t, m)
	put(t, root, "kept", "1")
	var text string
	if err := ask(t, m, sigmap.CallMemberAdd.Name, machineArg("m2"), textOf(&text)); err != nil {
		t.Fatal(err)
	}
	x2 := o.external()
	if err := json.Unmarshal([]byte(strings.TrimPrefix(text, sigmap.EtcdPrefix)), &x2.Etcd); err != nil {
		t.Fatal(err)
	}
	m2, _ := externalMember(t, t.TempDir(), "m2", x2)

	admin, junk := o.admin(), strings.Repeat("x", 1<<20)
	for i, err := 0, error(nil); !errors.Is(err, rpctypes.ErrNoSpace); i++ {
		if _, err = admin.Put(t.Context(), fmt.Sprint("junk", i), junk); err != nil &&
			!errors.Is(err, rpctypes.ErrNoSpace) || i > 100 {
			t.Fatal(i, err)
		}
	}
	l := m.leadership
	beats := func() { // it learns again and again that it leads
		t.Helper()
		was := l.authority.until.Load()
		eventually(t, "the leader's lease is renewed in a full store", func() bool {
			return l.authority.until.Load() > was+int64(2*m.cfg.Timing.Patience)
		})
	}
	beats()
	if s := m.opened(); l.ctx.Err() != nil {
		t.Fatal("it leads no more")
	} else if _, _, found, err := s.Get(t.Context(), beatKey); found || err != nil {
		t.Errorf("there is a beat in a full store: %v", err)
	}
	if got := get(t, root, "kept"); got != "1" {
		t.Errorf("kept is %q", got)
	}
	if n := l.server.UnloadIdle() + l.server.UnloadIdle(); n != 1 {
		t.Error("the realm was not unloaded")
	}
	if got := get(t, root, "kept"); got != "1" {
		t.Errorf("kept is %q when it is loaded anew", got)
	}
	_, _, err := root.Put(t.Context(), []string{"more"}, []byte("2"), sigma.PutOptions{})
	for what, err := range map[string]error{"a change": err, "a removal": root.Remove(t.Context(), "kept")} {
		if sigma.KindOf(err) != sigma.KindNoSpace || !strings.Contains(sigma.HintOf(err), "etcdctl") {
			t.Errorf("%s in a full store: %v (%s)", what, err, sigma.HintOf(err))
		}
	}
	if err := ProbeExternal(t.Context(), dir, o.external()); sigma.KindOf(err) != sigma.KindNoSpace ||
		!strings.Contains(sigma.HintOf(err), "alarm disarm") {
		t.Errorf("up with a full etcd: %v", err)
	}
	beats()
	if _, err := m2.Attach(t.Context(), sigma.Principal{Realm: testRealm}, ""); err == nil ||
		!strings.Contains(err.Error(), "m1 leads") {
		t.Errorf("the second: %v", err)
	}
	stop() // without being able to hand over

	// There is room again.
	got, err := admin.Delete(t.Context(), "junk", clientv3.WithPrefix())
	if err == nil {
		_, err = admin.Compact(t.Context(), got.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		err = o.server.Server.Backend().Defrag()
	}
	if err == nil {
		_, err = admin.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := name(t, m2, "kept", "") + name(t, m2, "later", "2"); got != "12" {
		t.Errorf("afterwards there is %q", got)
	}
}

// What a realm's programs write does not fill an etcd that tells its quota: they are refused
// before, removals are taken, and what they free is used. There is no alarm.
func TestExternalReserve(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100 MB")
	}
	o := operatorsEtcd(t, func(c *embed.Config) { c.QuotaBackendBytes = 64 << 20 })
	m, _ := externalMember(t, t.TempDir(), "m1", o.external())
	root := memberRoot(t, m)
	eventually(t, "the quota is known", func() bool { return m.opened().max.Load() == 64<<20 })
	big := make([]byte, named.FileMax)
	full, n := error(nil), 0
	for ; full == nil && n < 64; n++ {
		_, _, full = root.Put(t.Context(), []string{fmt.Sprint("big", n)}, big, sigma.PutOptions{})
	}
	wantKind(t, full, sigma.KindNoSpace)
	if n < 10 || !strings.Contains(sigma.HintOf(full), "remove names") {
		t.Errorf("full after %d files: %v (%s)", n, full, sigma.HintOf(full))
	}
	if got := get(t, root, "big0"); len(got) != len(big) {
		t.Errorf("a read from a full store has %d bytes", len(got))
	}
	for i := range n - 1 {
		if err := root.Remove(t.Context(), fmt.Sprint("big", i)); err != nil {
			t.Fatalf("removal %d: %v", i, err)
		}
	}
	if file :=
		o.server.Server.Backend().Size(); file > 56<<20 {
		// it grew on a slow host, for want of free pages that suit: the operator's part
		if err := o.server.Server.Backend().Defrag(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "there is room after all was removed", func() bool {
		_, _, err := root.Put(t.Context(), []string{"again"}, big, sigma.PutOptions{})
		if err != nil &&
			sigma.KindOf(err) != sigma.KindUnavailable {
			// etcd stands still while it is defragmented, on a slow host for longer than a leader
			// waits
			wantKind(t, err, sigma.KindNoSpace)
		}
		return err == nil
	})
	if a := o.server.Server.Alarms(); len(a) > 0 {
		t.Errorf("etcd has the alarms %v", a)
	}
}

// Another's names that come into a running system's etcd, as when its data were lost and a machine
// of the same name began there anew, are neither read nor changed. When its own are back so is the
// system.
func TestExternalReplaced(t *testing.T) {
	o, other := operatorsEtcd(t, nil), operatorsEtcd(t, nil)
	realm := testRealm
	begin := func(o *operators) (*Member, func()) {
		m, stop := externalMember(t, t.TempDir(), "m1", o.external())
		if err := ask(t, m, sigmap.CallCreateRealm.Name, realmArg(realm), nil); err != nil {
			t.Fatal(err)
		}
		return m, stop
	}
	m, _ := begin(o)
	name(t, m, "kept", "1")
	o.stop()
	own := o.dir
	o.dir = t.TempDir()
	o.start()
	awaitRefusal(t, m, "is empty")
	o.stop()
	_, stop := begin(other)
	stop()
	other.stop()
	o.dir = other.dir
	o.start()
	awaitRefusal(t, m, "another sigmaOS")
	o.stop()
	o.dir = own
	o.start()
	if got := name(t, m, "kept", ""); got != "1" {
		t.Errorf("kept is %q", got)
	}
}

// awaitRefusal asks until the answer says why there is none.
func awaitRefusal(t *testing.T, m *Member, says string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		_, err := m.Attach(t.Context(), sigma.Principal{Realm: testRealm}, "")
		if err != nil && sigma.KindOf(err) == sigma.KindUnavailable &&
			strings.Contains(err.Error(), "quorum is lost") && strings.Contains(err.Error(), says) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("nobody says that it %q: %v", says, err)
		}
	}
}

// What does not fit is refused before anything is written.
func TestExternalRefused(t *testing.T) {
	o := operatorsEtcd(t, nil)
	dir := t.TempDir()
	m, stop := externalMember(t, dir, "m1", o.external())
	if err := ask(t, m, sigmap.CallMembers.Name, nil, nil); err != nil {
		t.Fatal(err)
	}
	stop()
	refused := func(what string, dir string, x *External, kind sigma.Kind, says string) {
		t.Helper()
		if err := ProbeExternal(t.Context(), dir, x); err == nil || sigma.KindOf(err) != kind ||
			!strings.Contains(err.Error()+sigma.HintOf(err), says) {
			t.Errorf("%s: %v (%s)", what, err, sigma.HintOf(err))
		}
	}
	refused("another system's names", t.TempDir(), o.external(), sigma.KindExists, "another sigmaOS")
	other, err := Open(Config{Dir: t.TempDir(), Machine: "m1", External: o.external()})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Run(t.Context()); sigma.KindOf(err) != sigma.KindExists || err == nil {
		t.Errorf("named with another system's names: %v", err)
	}
	other.Close()
	refused("an emptied one", dir, operatorsEtcd(t, nil).external(), sigma.KindStale, "is empty")
	refused("narrow limits", t.TempDir(), operatorsEtcd(t, func(c *embed.Config) {
		c.MaxTxnOps, c.MaxRequestBytes = embed.DefaultMaxTxnOps, embed.DefaultMaxRequestBytes
	}).external(), sigma.KindUnsupported, "--max-txn-ops")
	refused("small requests", t.TempDir(), operatorsEtcd(t, func(c *embed.Config) {
		c.MaxRequestBytes = embed.DefaultMaxRequestBytes
	}).external(), sigma.KindUnsupported, "--max-request-bytes")
	own := t.TempDir()
	if err := os.Mkdir(filepath.Join(own, etcdDir), 0o700); err != nil {
		t.Fatal(err)
	}
	refused("names of its own", own, o.external(), sigma.KindExists, "names of its own")
	locked := operatorsEtcd(t, nil)
	admin := v3client.New(locked.server.Server)
	defer admin.Close()
	_, err = admin.RoleAdd(t.Context(), "root")
	if err == nil {
		_, err = admin.UserAdd(t.Context(), "root", "secret")
	}
	if err == nil {
		_, err = admin.UserGrantRole(t.Context(), "root", "root")
	}
	if err == nil {
		_, err = admin.AuthEnable(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	refused("one that asks for a user", t.TempDir(), locked.external(), sigma.KindPermission, "a role with all keys")
	o.stop()
	refused("nothing", dir, o.external(), sigma.KindUnavailable, "no etcd answers")
}

// TLS goes both ways.
func TestExternalCertificates(t *testing.T) {
	right, wrong := newAuthorityFiles(t), newAuthorityFiles(t)
	o := operatorsEtcd(t, func(c *embed.Config) {
		c.ClientTLSInfo = transport.TLSInfo{CertFile: right.cert, KeyFile: right.key, TrustedCAFile: right.ca,
			ClientCertAuth: true}
	})
	with := func(ca, pair *authorityFiles) *External {
		x := o.external()
		x.CA = ca.text(ca.ca)
		if pair != nil {
			x.Cert, x.Key = pair.text(pair.cert), pair.text(pair.key)
		}
		return x
	}
	if err := ProbeExternal(t.Context(), t.TempDir(), with(right, right)); err != nil {
		t.Error(err)
	}
	for what, x := range map[string]*External{"another authority": with(wrong, right),
		"another's certificate": with(right, wrong), "none": with(right, nil)} {
		if err := ProbeExternal(t.Context(), t.TempDir(), x); sigma.KindOf(err) != sigma.KindPermission || err == nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := ProbeExternal(t.Context(), t.TempDir(), o.external()); sigma.KindOf(err) != sigma.KindUnavailable ||
		err == nil {
		t.Errorf("no TLS: %v", err)
	}
}

// authorityFiles are an authority and a certificate by it for localhost.
type authorityFiles struct {
	t             testing.TB
	ca, cert, key string
}

func (a *authorityFiles) text(path string) string {
	a.t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

func newAuthorityFiles(t testing.TB) *authorityFiles {
	t.Helper()
	dir := t.TempDir()
	a := &authorityFiles{t, filepath.Join(dir, "ca"), filepath.Join(dir, "cert"), filepath.Join(dir, "key")}
	write := func(path, kind string, b []byte, err error) {
		t.Helper()
		if err == nil {
			err = os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	write(a.ca, "CERTIFICATE", der, err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: []string{"localhost"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), key)
	write(a.cert, "CERTIFICATE", der, err)
	der, err = x509.MarshalECPrivateKey(key)
	write(a.key, "EC PRIVATE KEY", der, err)
	return a
}
