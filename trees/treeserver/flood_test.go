package treeserver_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/sigmap"
)

// held is a tree in which getting a file waits until the test says so, for realms that flood.
type held struct {
	treeserver.Base
	realm sigma.RealmID
	on    *holding
}

type holding struct {
	over chan struct{} // closed when all may go

	mu      sync.Mutex
	started map[sigma.RealmID]int // mu
	many    chan struct{}         // closed when most have started of "flood"
	most    int
}

func (h held) Attach(_ context.Context, p sigma.Principal, name string) (sigma.File, error) {
	h.realm = p.Realm
	if p.System {
		h.realm = sigma.RealmID(name)
	}
	return h, nil
}
func (held) Stat(context.Context) (sigma.Stat, error) { return sigma.Stat{}, nil }
func (h held) Walk(context.Context, []string) (sigma.File, []sigma.FileID, error) {
	return h, nil, nil
}
func (h held) Get(ctx context.Context, names []string, _ uint64, _ int) (sigma.GetResult, *sigma.Stopped, error) {
	h.on.mu.Lock()
	if h.on.started[h.realm]++; h.realm == "flood" && h.on.started[h.realm] == h.on.most {
		close(h.on.many)
	}
	h.on.mu.Unlock()
	if h.realm == "flood" {
		select {
		case <-h.on.over:
		case <-ctx.Done():
		}
	}
	return sigma.GetResult{Data: []byte(names[0]), Size: uint64(len(names[0]))}, nil, nil
}

// Goal (issue 8: 100,000 requests of one realm while another wants one): a realm's requests that
// come later than 100,000 of another are answered while those wait, on sessions of their own and on
// one that sigmad has for all; then all are answered.
func TestFloodOfOneRealm(t *testing.T) {
	const sessions, each = 50, 2000
	on := &holding{over: make(chan struct{}), started: map[sigma.RealmID]int{}, many: make(chan struct{}), most: 96}
	turns := treeserver.NewTurns()
	cfg := func(realm sigma.RealmID) treeserver.Config {
		return treeserver.Config{Tree: held{on: on}, Principal: sigma.Principal{Realm: realm}, Turns: turns}
	}
	var flood sync.WaitGroup
	for range sessions {
		r := serve(t, pairs["packet"], cfg("flood")).start(sigmap.VersionSigma)
		flood.Go(func() {
			for tag := range uint16(each) {
				buf, err := sigmap.Encode(nil, tag+2, &sigmap.Tget{Fid: 1, Names: []string{"x"}, Count: 10})
				if err == nil {
					err = r.conn.Send(buf, nil) // waits: its session is not read
				}
				if err != nil {
					t.Errorf("request %d: %v", tag, err)
					return
				}
			}
		})
		flood.Go(func() {
			for range each {
				if _, _, err := r.conn.Recv(); err != nil { // KindBusy is one
					t.Errorf("an answer: %v", err)
					return
				}
			}
		})
	}
	<-on.many
	for _, realm := range []sigma.RealmID{"one", "two", sigma.SystemRealm} {
		_, root := dial(t, pairs["packet"], cfg(realm))
		for n := range 100 {
			name := fmt.Sprint(realm, n)
			if g, _, err := root.(sigma.Getter).Get(t.Context(), []string{name}, 0, 100); err != nil ||
				string(g.Data) != name {
				t.Fatalf("got %q, %v", g.Data, err)
			}
		}
	}
	shared := cfg(sigma.SystemRealm)
	shared.Principal.System, shared.ForRealms = true, true
	r := serve(t, pairs["packet"], shared)
	ask[*sigmap.Rversion](r, sigmap.NoTag, &sigmap.Tversion{Msize: sigmap.MessageMax, Version: sigmap.VersionSigma})
	ask[*sigmap.Rattach](r, 1, &sigmap.Tattach{Fid: 1, Afid: sigmap.NoFid, Aname: "flood"})
	ask[*sigmap.Rattach](r, 1, &sigmap.Tattach{Fid: 2, Afid: sigmap.NoFid, Aname: "three" + sigmap.AsOwner})
	for tag := range uint16(300) {
		r.send(tag+100, &sigmap.Tget{Fid: 1, Names: []string{"x"}, Count: 10})
	}
	ask[*sigmap.Rget](r, 1, &sigmap.Tget{Fid: 2, Names: []string{"y"}, Count: 10})
	close(on.over)
	for range 300 {
		if _, m := r.recv(); m.Type() != (&sigmap.Rget{}).Type() {
			t.Errorf("got %+v", m)
		}
	}
	flood.Wait()
	told := map[sigma.RealmID]sigma.Work{}
	for _, w := range turns.Work() {
		told[w.Realm] = w
	}
	if n := told["flood"].Requests; n < sessions*each || told["three"].Requests == 0 || told["one"].In == 0 ||
		told["two"].Out == 0 || told["flood"].CPU == 0 {
		t.Errorf("the work is %+v", told)
	}
}
