// Package inprocess connects Clients of the SDK to a tree in the same process, as if it were a
// realm, for tests of what stands on names and elections. There are no procs and no endpoints.
package inprocess

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// Realm is a tree at a socket.
type Realm struct {
	tree sigma.Tree
	addr string
}

// Serve serves a tree until the test's end.
func Serve(tb testing.TB, tree sigma.Tree) *Realm {
	tb.Helper()
	r := &Realm{tree: tree, addr: filepath.Join(tb.TempDir(), "s")}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: r.addr, Net: "unixpacket"})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			all.Go(func() { treeserver.Serve(ctx, session.NewPacketConn(c, false), treeserver.Config{Tree: r}) })
		}
	})
	tb.Cleanup(func() {
		l.Close()
		cancel()
		all.Wait()
	})
	return r
}

// Connect gives a Client, which is closed at the test's end at the latest.
func (r *Realm) Connect(tb testing.TB) *sdk.Client {
	tb.Helper()
	c, err := sdk.Connect(context.Background(), r.addr, "r")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Attach implements sigma.Tree.
func (r *Realm) Attach(ctx context.Context, p sigma.Principal, _ string) (sigma.File, error) {
	root, err := r.tree.Attach(ctx, p, "")
	if err != nil {
		return nil, err
	}
	return &file{root.(whole)}, nil
}

// file is the root, which has what the SDK asks of sigmad besides.
type file struct{ whole }

// whole is all that a root in memory can do.
type whole interface {
	sigma.File
	sigma.Getter
	sigma.Putter
	sigma.Watcher
	sigma.Leaser
}

// Walk implements sigma.File.
func (f *file) Walk(ctx context.Context, names []string) (sigma.File, []sigma.FileID, error) {
	if len(names) == 2 && names[0] == "sys" {
		return &treeserver.Callable{Name: names[1], ID: 1 << 40, Handle: info}, make([]sigma.FileID, 2), nil
	}
	return f.whole.Walk(ctx, names)
}

// info answers who the program is.
func info(_ context.Context, method string, _ []byte) ([]byte, []*os.File, error) {
	if method != sigmap.CallInfo.Name {
		return nil, nil, sigma.Errorf("inprocess.info", sigma.KindUnsupported, "there is no sigmad")
	}
	reply, err := sigmap.CallInfo.Answer(sigmap.Info{Principal: sigma.Principal{Realm: "r", Machine: "m"}})
	return reply, nil, err
}
