package kernel

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigmaos.dev/kernel/guests"
	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// keptCredentials stand for named's part.
type keptCredentials struct {
	mu   sync.Mutex
	all  map[sigma.RealmID]map[string]sigmap.NewCredential // mu
	away bool                                              // mu; nothing is answered
	// mu; done once, when verdicts have been made and not yet sent
	then func()
}

func (c *keptCredentials) call(method string, payload []byte) (reply []byte, err error) {
	then := func() {}
	defer func() { then() }()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.away {
		return nil, sigma.Errorf("test", sigma.KindUnavailable, "no quorum")
	}
	var realm sigma.RealmID
	var name string
	var n sigmap.NewCredential
	var ps []sigmap.Presented
	switch method {
	case sigmap.CallCredentialCheck.Name:
		err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.Presented(&ps) })
		vs := make([]sigmap.Verdict, len(ps))
		for i, p := range ps {
			if k, ok := c.all[p.Realm][p.Name]; ok && k.Hash == p.Hash {
				vs[i].Role = k.Role
			}
		}
		if c.then != nil {
			then, c.then = c.then, nil
		}
		if err == nil {
			return sigmap.Payload(func(c *sigmap.Coder) { c.Verdicts(&vs) })
		}
	case sigmap.CallCredentialAdd.Name:
		if err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm); c.NewCredential(&n) }); err != nil {
			return nil, err
		}
		if c.all == nil {
			c.all = map[sigma.RealmID]map[string]sigmap.NewCredential{}
		}
		if c.all[realm] == nil {
			c.all[realm] = map[string]sigmap.NewCredential{}
		}
		c.all[realm][n.Name] = n
		created := sigma.Credential{Name: n.Name, Role: n.Role, Created: time.Unix(1, 0)}
		return sigmap.Payload(func(c *sigmap.Coder) { c.Credential(&created) })
	case sigmap.CallCredentialRevoke.Name:
		if err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm); c.Str(&name) }); err == nil {
			delete(c.all[realm], name)
			gone := []string{name}
			return sigmap.Payload(func(c *sigmap.Coder) { c.Strs(&gone) })
		}
	case sigmap.CallCredentials.Name:
		if err = sigmap.Parse(payload, func(c *sigmap.Coder) { c.RealmID(&realm) }); err == nil {
			var all []sigma.Credential
			for name, n := range c.all[realm] {
				all = append(all, sigma.Credential{Name: name, Role: n.Role, Created: time.Unix(1, 0)})
			}
			return sigmap.Payload(func(c *sigmap.Coder) { c.Credentials(&all) })
		}
	}
	return nil, err
}

// withCredentials adds the calls about credentials to the provider's file of a tree.
type withCredentials struct {
	sigma.Tree
	kept *keptCredentials
}

func (w withCredentials) Attach(ctx context.Context, p sigma.Principal, name string) (sigma.File, error) {
	f, err := w.Tree.Attach(ctx, p, name)
	c, ok := f.(*treeserver.Callable)
	if err != nil || !ok {
		return f, err
	}
	own := *c
	own.Handle = func(ctx context.Context, method string, payload []byte) ([]byte, []*os.File, error) {
		switch method {
		case sigmap.CallCredentials.Name, sigmap.CallCredentialAdd.Name, sigmap.CallCredentialRevoke.Name,
			sigmap.CallCredentialCheck.Name:
			reply, err := w.kept.call(method, payload)
			return reply, nil, err
		}
		return c.Handle(ctx, method, payload)
	}
	return &own, nil
}

// openHouse boots a machine with a realm socket, at the path that it returns.
func openHouse(t *testing.T) (*machine, string) {
	t.Helper()
	return openHouseAs(t, func(*machine) {})
}

// openHouseAs is openHouse of a machine that is prepared before it runs.
func openHouseAs(t *testing.T, prepare func(*machine)) (*machine, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "realm") // t.TempDir's are too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "realm.sock")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	return bootAs(t, Config{Machine: "m1", RealmSocket: l}, prepare, services.Named, services.Besched, services.S3),
		path
}

// credentialsOf is /sys/credentials of a session, to be called.
func credentialsOf(c *sdk.Client) sigma.Caller {
	return sigmap.At(c, sigma.JoinPath(sigma.NameSys, sigmap.FileCredentials))
}

// credential has a session make one, and gives its text.
func credential(ctx context.Context, c *sdk.Client, name string, role sigma.Role) (text string, err error) {
	n := sigmap.NewCredential{Name: name, Role: role}
	created, err := sigmap.CallCreateCredential.Ask(ctx, credentialsOf(c), n)
	return created.Text, err
}

func (m *machine) guest(t *testing.T, path, text string) *sdk.Client {
	t.Helper()
	c, err := sdk.ConnectAs(t.Context(), path, text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// deed is something that a session asks for, and the least role for it.
type deed struct {
	what string
	need sigma.Role
	do   func(c *sdk.Client) error
}

func about(ctx context.Context, c *sdk.Client, file, method string, encode func(*sigmap.Coder)) error {
	_, _, err := call(ctx, c.Root(), file, method, encode)
	return err
}

func reads(ctx context.Context, path string) func(*sdk.Client) error {
	return func(c *sdk.Client) error {
		_, _, err := c.Get(ctx, path)
		return err
	}
}

// tenantActs are what a realm's people do; id is a proc of the realm, in which there is /file.
func tenantActs(ctx context.Context, provider *sdk.Client, id sigma.ProcID) []deed {
	n := 0
	fresh := func() string { n++; return "/made" + string(rune('a'+n)) }
	return []deed{
		{"read a file", sigma.RoleViewer, reads(ctx, "/file")},
		{"look at a file", sigma.RoleViewer, func(c *sdk.Client) error { _, err := c.Stat(ctx, "/file"); return err }},
		{"read a proc's output", sigma.RoleViewer, reads(ctx, "/proc/"+string(id)+"/stdout")},
		{"list objects", sigma.RoleViewer, func(c *sdk.Client) error { _, err := c.ReadDir(ctx, "/s3"); return err }},
		{"list procs", sigma.RoleViewer, func(c *sdk.Client) error {
			ps, err := c.List(ctx, false)
			if err == nil && (len(ps) == 0 || !slices.ContainsFunc(ps, func(p sigma.ProcInfo) bool {
				return p.ID == id
			})) {
				err = sigma.Errorf("test", sigma.KindOther, "%d procs", len(ps))
			}
			return err
		}},
		{"read events", sigma.RoleViewer, reads(ctx, "/sys/events")},
		{"read usage", sigma.RoleViewer, reads(ctx, "/sys/usage")},
		{"read limits", sigma.RoleViewer, reads(ctx, "/sys/limits")},
		{"read who listens", sigma.RoleViewer, func(c *sdk.Client) error {
			text, _, err := c.Get(ctx, "/sys/endpoints")
			if err == nil && (strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), string(id))) {
				err = sigma.Errorf("test", sigma.KindOther, "endpoints: %s", text)
			}
			return err
		}},
		{"read realms", sigma.RoleViewer, func(c *sdk.Client) error {
			text, _, err := c.Get(ctx, "/sys/realms")
			if err == nil && strings.Count(string(text), "\n") != 1 {
				err = sigma.Errorf("test", sigma.KindOther, "realms: %s", text)
			}
			return err
		}},
		{"put a file", sigma.RoleDeveloper, func(c *sdk.Client) error {
			_, err := c.Put(ctx, fresh(), nil, sigma.PutOptions{})
			return err
		}},
		{"change a file", sigma.RoleDeveloper, func(c *sdk.Client) error {
			_, err := c.Put(ctx, "/file", []byte("text"), sigma.PutOptions{})
			return err
		}},
		{"make a directory", sigma.RoleDeveloper, func(c *sdk.Client) error { return c.Mkdir(ctx, fresh(), 0o755) }},
		{"make a link", sigma.RoleDeveloper, func(c *sdk.Client) error { return c.Symlink(ctx, "/file", fresh()) }},
		{"rename", sigma.RoleDeveloper, func(c *sdk.Client) error {
			from := fresh()
			if _, err := provider.Put(ctx, from, nil, sigma.PutOptions{}); err != nil {
				return err
			}
			return c.Rename(ctx, from, fresh())
		}},
		{"remove", sigma.RoleDeveloper, func(c *sdk.Client) error {
			at := fresh()
			if _, err := provider.Put(ctx, at, nil, sigma.PutOptions{}); err != nil {
				return err
			}
			return c.Remove(ctx, at)
		}},
		{"put an object", sigma.RoleDeveloper, func(c *sdk.Client) error {
			_, err := c.Put(ctx, "/s3/bin"+fresh(), nil, sigma.PutOptions{})
			return err
		}},
		{"spawn", sigma.RoleDeveloper, func(c *sdk.Client) error {
			_, err := c.Spawn(ctx, sigma.Descriptor{Program: "/bin/x"})
			return err
		}},
		{"evict", sigma.RoleDeveloper, func(c *sdk.Client) error { return c.Evict(ctx, id, time.Hour) }},
		{"usage of procs now", sigma.RoleViewer, func(c *sdk.Client) error { _, err := c.Usage(ctx, id); return err }},
	}
}

// governingActs are those of owners and of the provider.
func governingActs(ctx context.Context) []deed {
	n := 0
	none := func(*sigmap.Coder) {}
	return []deed{
		{"list credentials", sigma.RoleOwner, reads(ctx, "/sys/credentials")},
		{"make a credential", sigma.RoleOwner, func(c *sdk.Client) error {
			_, err := credential(ctx, c, "more", sigma.RoleViewer)
			return err
		}},
		{"revoke a credential", sigma.RoleOwner, func(c *sdk.Client) error {
			return sigmap.CallRevokeCredential.Tell(ctx, credentialsOf(c), "more")
		}},
		{"make a realm", roles.Nobody, func(c *sdk.Client) error {
			return c.Realms().Create(ctx, func() sigma.RealmID { n++; return sigma.RealmID(fmt.Sprintf("r%d", n)) }())
		}},
		{"list realms by the provider's call", roles.Nobody, func(c *sdk.Client) error {
			_, err := c.Realms().List(ctx)
			return err
		}},
		{"set shares", roles.Nobody, func(c *sdk.Client) error {
			return c.Realms().SetShares(ctx, sigma.DefaultRealm,
				1)
		}},
		{"set limits", roles.Nobody, func(c *sdk.Client) error {
			return c.Realms().SetLimits(ctx, sigma.DefaultRealm, sigma.RealmLimits{Names: 9000})
		}},
		{"status of the machine", roles.Nobody, func(c *sdk.Client) error {
			return about(ctx, c, sigmap.FileMachine, sigmap.CallStatus.Name, none)
		}},
		{"metrics", roles.Nobody, reads(ctx, "/sys/metrics")},
	}
}

// Goal: what each role may do of what a session can be asked, in names, objects, procs and /sys; a
// control by the role that may shows that the refusal is the role's.
func TestRoles(t *testing.T) {
	m, path := openHouse(t)
	provider := m.connect(sigma.DefaultRealm)
	ctx := t.Context()
	of := map[sigma.Role]*sdk.Client{}
	for _, role := range []sigma.Role{sigma.RoleViewer, sigma.RoleDeveloper, sigma.RoleOwner} {
		text, err := credential(ctx, provider, role.String(), role)
		if err != nil {
			t.Fatal(err)
		}
		of[role] = m.guest(t, path, text)
		if p := of[role].Info().Principal; p.Realm != sigma.DefaultRealm || p.Proc != "" || p.System {
			t.Errorf("a %v is %+v", role, p)
		}
	}
	if _, err := provider.Put(ctx, "/file", []byte("text"), sigma.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	id := m.spawn(provider, sigma.Descriptor{})
	proc := m.started(id)
	passes := callables{func(string, int) ([]byte, []*os.File, error) {
		f, err := os.Open(os.DevNull)
		return []byte("answer"), []*os.File{f}, err
	}}
	if err := publish(ctx, provider, "/tree", proc.serveTree(t, passes)); err != nil {
		t.Fatal(err)
	}
	if err := provider.Realms().Create(ctx, "neighbour"); err != nil {
		t.Fatal(err)
	}
	neighbour := m.connect("neighbour")
	m.started(m.spawn(neighbour, sigma.Descriptor{})).serveTree(t, passes) // whose endpoint nobody here is shown
	answered := func(c *sdk.Client) (reply []byte, files []*os.File, err error) {
		f, _, err := c.Root().Walk(ctx, []string{"tree"})
		if err != nil {
			return nil, nil, err
		}
		defer f.Close()
		return f.(sigma.Caller).Call(ctx, "pass", nil, nil)
	}
	var e sigma.Endpoint
	for _, c := range append(tenantActs(ctx, provider, id), governingActs(ctx)...) {
		for role, client := range of {
			if err := c.do(client); (err == nil) != (role >= c.need) {
				t.Errorf("%s as %v: %v", c.what, role, err)
			} else if kind := sigma.KindOf(err); err != nil && kind != sigma.KindPermission &&
				kind != sigma.KindNotFound {
				t.Errorf("%s as %v is refused as %v: %v", c.what, role, kind, err)
			}
		}
		if c.need == roles.Nobody {
			if err := c.do(provider); err != nil {
				t.Errorf("%s as the provider: %v", c.what, err)
			}
		}
	}
	for role, client := range of {
		if err := sigmap.CallListen.Tell(ctx, endpointsOf{client.Root()}, sigmap.ListenAsk{
			Form: sigma.FormTree}); sigma.KindOf(err) != sigma.KindPermission {
			t.Errorf("%v listens: %v", role, err)
		}
		if err := sigmap.CallDial.Tell(ctx, endpointsOf{client.Root()}, sigmap.DialAsk{To: e}); err == nil {
			t.Errorf("%v dials", role)
		}
		reply, files, err := answered(client)
		if len(files) > 0 || (err == nil) != (role >= sigma.RoleDeveloper) || err == nil && string(reply) != "answer" {
			t.Errorf("%v calls a proc that passes a file: %q, %d files, %v", role, reply, len(files), err)
		}
		session.CloseFiles(files)
	}
	if list, err := of[sigma.RoleOwner].ReadDir(ctx, "/sys"); err != nil ||
		slices.ContainsFunc(list, func(e sigma.DirEntry) bool {
			return slices.Contains([]string{sigmap.FileMachine, sigmap.FileNames, roles.Metrics, roles.Roster}, e.Name)
		}) {
		t.Errorf("/sys of an owner: %v, %v", list, err)
	}
}

// Goal: a session with a credential waits for a bounded number of things, so that those of guests
// together leave the realm's procs theirs.
func TestGuestsRequests(t *testing.T) {
	m, path := openHouse(t)
	provider := m.connect(sigma.DefaultRealm)
	text, err := credential(t.Context(), provider, "v", sigma.RoleViewer)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	root := m.guest(t, path, text).Root()
	full := make(chan error, 2*guests.RequestsMax)
	for range cap(full) {
		go func() {
			_, err := root.(sigma.Watcher).Watch(ctx, 1<<62)
			full <- err
		}()
	}
	for range cap(full) - guests.RequestsMax { // the others wait
		select {
		case err := <-full:
			if sigma.KindOf(err) != sigma.KindBusy {
				t.Fatalf("a watch too many: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("a guest waits for as much as it likes")
		}
	}
	cancel()
	for range guests.RequestsMax {
		<-full
	}
	if _, err := provider.Stat(t.Context(), "/"); err != nil {
		t.Error(err)
	}
}

// guestSessions counts those with a credential.
func guestSessions(m *machine) int {
	n, _ := m.k.guests.Count()
	return n
}

// Goal: a revoked credential's sessions end, at once where it was revoked, and no other's; what is
// no credential, or another realm's, gets a clear refusal.
func TestRevokedGuests(t *testing.T) {
	m, path := openHouse(t)
	provider := m.connect(sigma.DefaultRealm)
	ctx := t.Context()
	one, err := credential(ctx, provider, "one", sigma.RoleViewer)
	if err != nil {
		t.Fatal(err)
	}
	two, err := credential(ctx, provider, "two", sigma.RoleOwner)
	if err != nil {
		t.Fatal(err)
	}
	first, second, owner := m.guest(t, path, one), m.guest(t, path, one), m.guest(t, path, two)
	if err := sigmap.CallRevokeCredential.Tell(ctx, credentialsOf(owner), "one"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*sdk.Client{first, second} {
		select {
		case <-c.Done():
		case <-time.After(30 * time.Second):
			t.Fatal("a session goes on though its credential was revoked")
		}
	}
	if _, err := owner.Stat(ctx, "/"); err != nil {
		t.Errorf("so does another's: %v", err)
	}
	if _, err := sdk.ConnectAs(ctx, path, one); sigma.KindOf(err) != sigma.KindPermission || sigma.HintOf(err) == "" {
		t.Errorf("a revoked one connects: %v", err)
	}
	if _, err := sdk.Connect(ctx, path, sigma.DefaultRealm); sigma.KindOf(err) != sigma.KindPermission ||
		!strings.Contains(sigma.HintOf(err), "--credential") {
		t.Errorf("without a credential: %v", err)
	}
	forged := strings.Replace(two, ".default.", ".other.", 1)
	for what, bad := range map[string]string{"of another realm": forged, "of the system": strings.Replace(two,
		".default.", ".system.", 1), "of a name that is not": identity.NewSecret(sigma.DefaultRealm, "nobody").Text(),
		"cut short": two[:40], "empty": ""} {
		if _, err := sdk.ConnectAs(ctx, path, bad); err == nil || sigma.KindOf(err) != sigma.KindPermission &&
			sigma.KindOf(err) != sigma.KindInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	var last error
	for range 20 {
		if _, last = sdk.ConnectAs(ctx, path, one); last == nil {
			t.Fatal("a guess is good")
		}
	}
	if sigma.KindOf(last) != sigma.KindBusy || !strings.Contains(last.Error(), "too many") {
		t.Errorf("guesses without an end: %v", last)
	}
	if _, err := owner.Stat(ctx, "/"); err != nil {
		t.Errorf("guesses end a session: %v", err)
	}
	if err := provider.Realms().Create(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no session is left but the owner's", func() bool { return guestSessions(m) == 1 })
	owner.Close()
	eventually(t, "all are gone", func() bool {
		begun, greeting := m.k.guests.Count()
		return begun+greeting == 0
	})
}

// Goal: a machine that is cut off from named ends sessions with credentials, after verdictStale and
// not before.
func TestGuestsCutOff(t *testing.T) {
	const stale = 2 * time.Second
	m, path := openHouseAs(t, func(m *machine) { m.k.guests.Stale = stale })
	ctx := t.Context()
	text, err := credential(ctx, m.connect(sigma.DefaultRealm), "one", sigma.RoleOwner)
	if err != nil {
		t.Fatal(err)
	}
	c := m.guest(t, path, text)
	away := func(is bool) {
		m.credentials.mu.Lock()
		defer m.credentials.mu.Unlock()
		m.credentials.away = is
	}
	cut := time.Now()
	away(true)
	select {
	case <-c.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("a session goes on without an answer about its credential")
	}
	if after := time.Since(cut); after < stale-2*guests.VerdictEvery {
		t.Errorf("it ended after %v", after)
	}
	if _, err := sdk.ConnectAs(ctx, path, text); sigma.KindOf(err) != sigma.KindUnavailable || sigma.HintOf(err) == "" {
		t.Errorf("one begins: %v", err)
	}
	away(false)
	if _, err := m.guest(t, path, text).Stat(ctx, "/"); err != nil {
		t.Errorf("when named answers again: %v", err)
	}
}

// Goal: a credential that is revoked after named judged it, and before its session began, opens
// none.
func TestRevokedMeanwhile(t *testing.T) {
	m, path := openHouse(t)
	ctx := t.Context()
	text, err := credential(ctx, m.connect(sigma.DefaultRealm), "one", sigma.RoleViewer)
	if err != nil {
		t.Fatal(err)
	}
	kept := &m.credentials
	kept.mu.Lock()
	kept.then = func() {
		kept.mu.Lock()
		delete(kept.all[sigma.DefaultRealm], "one")
		kept.mu.Unlock()
		m.k.guests.Tell()
		eventually(t, "sessions are looked at, among which it is not yet", func() bool { return !m.k.guests.Told() })
	}
	kept.mu.Unlock()
	if _, err := sdk.ConnectAs(ctx, path, text); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("it connects: %v", err)
	}
	eventually(t, "none is counted", func() bool { return guestSessions(m) == 0 })
}

// Goal: sigmad says which credential makes another, whatever the session says: so that none
// outlives who made it.
func TestCredentialsMaker(t *testing.T) {
	m, path := openHouse(t)
	text, err := credential(t.Context(), m.connect(sigma.DefaultRealm), "owner", sigma.RoleOwner)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := identity.ParseSecret(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		by   *sdk.Client
		name string
		want string
		hash sigma.CredentialHash
	}{{m.connect(sigma.DefaultRealm), "one", "", sigma.CredentialHash{}}, {m.guest(t, path, text), "two", "owner",
		secret.Hash()}} {
		n := sigmap.NewCredential{Name: c.name, Role: sigma.RoleViewer, By: "somebody", ByHash: sigma.CredentialHash{1}}
		if err := sigmap.CallCreateCredential.Tell(t.Context(), credentialsOf(c.by), n); err != nil {
			t.Fatal(err)
		}
		m.credentials.mu.Lock()
		got := m.credentials.all[sigma.DefaultRealm][c.name]
		m.credentials.mu.Unlock()
		if got.By != c.want || got.ByHash != c.hash {
			t.Errorf("%s was made by %q with the hash %x, not %q with %x", c.name, got.By, got.ByHash, c.want, c.hash)
		}
	}
}
