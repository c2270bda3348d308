package named

import (
	"context"
	"io"
	"strings"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/named/archive"
)

// A snapshot of one realm is taken of its tree in memory, whose nodes never change: they are
// gathered at one moment, and written while work goes on. It has names, kinds, modes, times and
// contents. What has no meaning in another realm stays behind: ids and versions, which are given
// anew, ephemeral files and leases, which live by their holders, fences' epochs, remembered
// replies, limits and shares.

// gathered is a node and its path.
type gathered struct {
	path string
	n    *node
}

// gather lists all lasting names as they are now, each directory before what is in it.
func (t *tree) gather() []gathered {
	out := make([]gathered, 0, len(t.cells))
	dirs := []gathered{{"", t.node(t.rec.rootID())}}
	for len(dirs) > 0 {
		d := dirs[len(dirs)-1]
		dirs = dirs[:len(dirs)-1]
		for _, p := range t.cells[d.n.id].dir.order {
			if p.id == 0 {
				continue
			}
			n := t.cells[p.id].n
			if n.lease != 0 {
				continue
			}
			g := gathered{strings.TrimPrefix(d.path+"/"+n.name, "/"), n}
			out = append(out, g)
			if n.kind == sigma.KindDir {
				dirs = append(dirs, g)
			}
		}
	}
	return out
}

// OpenRealmSnapshot begins a snapshot of one realm. write is to be called once.
func (s *Server) OpenRealmSnapshot(ctx context.Context, id sigma.RealmID) (keys uint64, write func(w io.Writer) error,
	err error) {
	const op = "named.snapshot"
	at, err := s.slotOf(op, id)
	if err != nil {
		return 0, nil, err
	}
	l, err := at.leader(ctx)
	if err != nil {
		return 0, nil, sigma.Wrap(op, "", err)
	}
	var all []gathered
	l.read(func(t *tree) error { all = t.gather(); return nil })
	for _, g := range all {
		if len(g.path) > sigma.PathMax {
			return 0, nil, &sigma.Error{Op: op, Realm: id, Kind: sigma.KindTooBig,
				Msg: "a name lies deeper than any path reaches: " + g.path[:80] + "...", Hint: "move it up"}
		}
	}
	return uint64(len(all)), func(w io.Writer) error {
		a := archive.NewWriter(w, uint64(len(all)))
		for _, g := range all {
			if err := a.Add(archive.Entry{Path: g.path, Kind: g.n.kind, Perm: g.n.perm,
				Modified: time.Unix(0, g.n.mtime), Data: g.n.data}); err != nil {
				return err
			}
		}
		return a.Close()
	}, nil
}
