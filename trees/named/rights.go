package named

import (
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// Whoever has a handle has it as somebody (9P: a fid has the rights of its attach). The provider
// passes always. The realm's programs act as the owner of all its files, and what the mode of a
// file or directory withholds from its owner they are refused: when a handle is opened, and at each
// request that names files. A handle that is open goes on, whatever becomes of the mode; so does
// the one with which a file was created. What changes something is checked in the step that does
// it, so that nothing comes between a change of the mode and what is asked after it.
//
// Provider's are the sessions of machines (sigma.Principal.System); one that attaches to a realm
// with sigmap.AsOwner after its name acts as the owner.

// asker is on whose behalf something is asked.
type asker bool

const (
	asProvider asker = false
	asOwner    asker = true
)

// may refuses what the mode of n withholds from who asks.
func (a asker) may(op string, n *node, r treeserver.Right) error {
	if a == asProvider || n.isLink() {
		return nil
	}
	return r.Check(op, n.name, n.perm)
}

// walk is walkFrom for who asks. A directory that may not be passed ends it with an error, whatever
// was reached.
func (a asker) walk(v view, id uint64, names []string) (reached []*node, err error) {
	const op = "named.Walk"
	reached, err = walkFrom(v, id, names)
	if a == asProvider {
		return reached, err
	}
	at := v.node(id)
	for i := range names {
		if at == nil || at.kind != sigma.KindDir {
			break
		}
		if err := a.may(op, at, treeserver.MayPass); err != nil {
			return nil, err
		}
		if i == len(reached) {
			break
		}
		at = reached[i]
	}
	return reached, err
}

// entering refuses who may not look for names in a directory, which checkDir knows to be one.
func (a asker) entering(op string, v view, dir uint64) error {
	return a.may(op, v.node(dir), treeserver.MayPass)
}

// changing refuses who may not change a directory's entries.
func (a asker) changing(op string, v view, dir uint64) error {
	return a.may(op, v.node(dir), treeserver.MayWrite)
}
