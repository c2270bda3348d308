package sigmap

import (
	"bytes"
	"testing"
	"time"

	"sigmaos.dev/sigma"
)

// request and reply give what a method sends, and what decodes that.
func request[Q, R any](m Method[Q, R], q Q) ([]byte, func([]byte) ([]byte, error)) {
	b, err := m.Payload(q)
	return fine(b, err), func(b []byte) ([]byte, error) {
		q, err := m.Parse(b)
		if err != nil {
			return nil, err
		}
		return m.Payload(q)
	}
}

func reply[Q, R any](m Method[Q, R], r R) ([]byte, func([]byte) ([]byte, error)) {
	b, err := m.Answer(r)
	return fine(b, err), func(b []byte) ([]byte, error) {
		var r R
		if err := decode(&Coder{}, m.Reply, &r, b); err != nil {
			return nil, err
		}
		return m.Answer(r)
	}
}

func fine(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// layout is a payload as a method codes it, what decodes and encodes it again, and its fields.
type layout struct {
	name   string
	coded  []byte
	again  func([]byte) ([]byte, error)
	fields func(*Coder)
}

// layouts are payloads of the methods that have several fields, or fields that may be left out.
func layouts() (all []layout) {
	realm, machine, name := sigma.RealmID("tenant"), sigma.MachineID("m1"), "n"
	id := sigma.EndpointID("AAECAwQFBgcICQoLDA0ODw")
	endpoint := sigma.Endpoint{Realm: realm, Machine: machine, Proc: "abcdefghijklmnop", ID: id, Form: sigma.FormStream}
	principal := sigma.Principal{Realm: realm, Proc: "p1", Machine: machine}
	yes, no, form, text, data := true, false, string(sigma.FormTree), "text", []byte{1, 2}
	n32, n64 := uint32(7), uint64(9)
	limits := sigma.RealmLimits{Names: 5, MaxCPU: 300}
	created := NewCredential{Name: name, Role: sigma.RoleOwner, TTL: time.Hour, By: "by"}
	credential := sigma.Credential{Name: name, Role: sigma.RoleViewer, Created: time.Unix(3, 0).UTC()}
	registration := sigma.Registration{Name: name, Restart: sigma.RestartAlways, Most: 3}
	procs := []sigma.ProcInfo{{ID: "p1", Realm: realm}}
	file := sigma.FileID{Kind: sigma.KindFile, Path: 4, Version: 1 << 40}
	add := func(name string, fields func(*Coder)) func([]byte, func([]byte) ([]byte, error)) {
		return func(coded []byte, again func([]byte) ([]byte, error)) {
			all = append(all, layout{name, coded, again, fields})
		}
	}
	add("listen", func(c *Coder) { c.Str(&form); c.Bool(&yes); c.Str((*string)(&id)) })(request(CallListen,
		ListenAsk{Form: sigma.FormTree, Pushed: true, Again: id}))
	add("accept", func(c *Coder) { c.Str((*string)(&id)); c.Bool(&yes) })(request(CallAccept, AcceptAsk{id, true}))
	add("accept without memory", func(c *Coder) { c.Str((*string)(&id)) })(request(CallAccept, AcceptAsk{ID: id}))
	add("accepted", func(c *Coder) { c.Principal(&principal); c.Str(&text) })(reply(CallAccept,
		Accepted{principal, Shared{true, text}}))
	add("accepted without memory", func(c *Coder) { c.Principal(&principal) })(reply(CallAccept,
		Accepted{From: principal}))
	add("dial", func(c *Coder) { c.Endpoint(&endpoint); c.Bool(&yes) })(request(CallDial, DialAsk{endpoint, true}))
	add("dial without memory", func(c *Coder) { c.Endpoint(&endpoint) })(request(CallDial, DialAsk{To: endpoint}))
	add("dialled", func(c *Coder) { s := ""; c.Str(&s) })(reply(CallDial, Shared{Rings: true}))
	add("dialled without memory", func(*Coder) {})(reply(CallDial, Shared{}))
	add("dial-stream", func(c *Coder) { c.MachineID(&machine); c.Str(&name) })(request(CallDialStream,
		StreamAsk{machine, name}))
	add("dial-server", func(c *Coder) { c.RealmID(&realm); c.Str(&name) })(request(CallDialServer,
		ServerName{realm, name}))
	add("server", func(c *Coder) { c.RealmID(&realm); c.Str(&name); c.Str(&text) })(request(CallServer,
		ServerAt{ServerName{realm, name}, text}))
	add("set-store of sigmad", func(c *Coder) { c.RealmID(&realm); c.Str(&text); c.Strs(&[]string{name}) })(
		request(CallSetStore, StoreAt{UseStore{realm, text}, []string{name}}))
	add("set-store of s3d", func(c *Coder) { c.RealmID(&realm); c.Str(&text) })(request(CallUseStore,
		UseStore{realm, text}))
	add("stores", func(c *Coder) { c.RealmID(&realm); c.Bool(&yes) })(request(CallStores, StoresAsk{realm, true}))
	add("list of realms", func(c *Coder) { c.RealmID(&realm) })(request(CallListRealms, realm))
	add("set-shares", func(c *Coder) { c.RealmID(&realm); c.U32(&n32) })(request(CallSetShares, RealmShares{realm, 7}))
	add("set-limits", func(c *Coder) { c.RealmID(&realm); c.RealmLimits(&limits) })(request(CallSetLimits,
		LimitsOfRealm{realm, limits}))
	add("leave", func(c *Coder) { c.Bool(&no) })(request(CallLeave, false))
	add("leaving", func(c *Coder) { c.U32(&n32); c.ProcInfos(&procs) })(reply(CallLeave, Leaving{7, procs}))
	add("add", func(c *Coder) { c.Registration(&registration); c.Bool(&yes) })(request(CallInitAdd,
		InitAdd{registration, true}))
	add("events", func(c *Coder) { Rest(c, &data) })(reply(CallEvents, data))
	add("hash", func(c *Coder) { c.U64(&n64); c.U32(&n32) })(request(CallHash, HashAsk{9, 7}))
	add("hashed", func(c *Coder) { c.FileID(&file); c.U64(&n64); c.Data(&data) })(reply(CallHash,
		Hashed{file, 9, data}))
	add("snapshot-open", func(c *Coder) { c.RealmID(&realm) })(request(CallSnapshotOpen, realm))
	add("snapshot-open of all", func(*Coder) {})(request(CallSnapshotOpen, ""))
	add("snapshot", func(c *Coder) { c.U64(&n64); c.U64(&n64) })(reply(CallSnapshotOpen, Snapshot{9, 9}))
	add("snapshot-read", func(c *Coder) { c.U64(&n64); c.U64(&n64) })(request(CallSnapshotRead, SnapshotAt{9, 9}))
	add("create of a credential", func(c *Coder) { c.NewCredential(&created) })(request(CallCreateCredential, created))
	add("created", func(c *Coder) { c.Credential(&credential); c.Str(&text) })(reply(CallCreateCredential,
		MadeCredential{credential, text}))
	add("credential-add", func(c *Coder) { c.RealmID(&realm); c.NewCredential(&created) })(request(CallCredentialAdd,
		AddCredential{realm, created}))
	add("credential-revoke", func(c *Coder) { c.RealmID(&realm); c.Str(&name) })(request(CallCredentialRevoke,
		OfCredential{realm, name}))
	return all
}

// Goal: the payloads of calls have the fields that other implementations know, in their order, and
// both sides agree.
func TestLayouts(t *testing.T) {
	for _, l := range layouts() {
		if want := fine(Payload(l.fields)); !bytes.Equal(l.coded, want) {
			t.Errorf("%s is %x, want %x", l.name, l.coded, want)
		}
		if again, err := l.again(l.coded); err != nil || !bytes.Equal(again, l.coded) {
			t.Errorf("%s %x became %x, %v", l.name, l.coded, again, err)
		}
	}
}

// FuzzLayouts: no bytes make a call's payload panic, and what was decoded encodes and decodes
// again. The first byte chooses the payload.
func FuzzLayouts(f *testing.F) {
	all := layouts()
	for i, l := range all {
		f.Add(append([]byte{byte(i)}, l.coded...))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 || len(data) > DataMax {
			return
		}
		l := all[int(data[0])%len(all)]
		again, err := l.again(data[1:])
		if err != nil {
			return
		}
		if last, err := l.again(again); err != nil || !bytes.Equal(last, again) {
			t.Fatalf("%s: %x became %x, and %x, %v", l.name, data[1:], again, last, err)
		}
	})
}
