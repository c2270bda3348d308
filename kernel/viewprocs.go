package kernel

import (
	"context"
	"slices"

	"sigmaos.dev/kernel/procs"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/schedd"
	"sigmaos.dev/sigma"
)

// kin are the ancestors with views of what the session's proc spawns: itself, if it has a view, and
// its own.
func (t *tree) kin() []sigma.ProcID {
	if t.view == nil || t.granted != nil {
		return nil
	}
	kin := append([]sigma.ProcID{t.principal.Proc}, t.view.Kin()...)
	return kin[:min(len(kin), schedd.KinMax)]
}

// ownKin is the proc if it sees only itself and its descendants, else "".
func (r *root) ownKin() sigma.ProcID {
	if v := r.tree.view; v != nil && v.AllProcs()&sigma.RightRead == 0 {
		return r.tree.principal.Proc
	}
	return ""
}

// mayProc says whether the session may see a proc (RightRead), or act on it (RightWrite). With a
// view it may do both to itself and its descendants; to others as far as the view shows /proc. That
// there are others is not told.
func (r *root) mayProc(ctx context.Context, id sigma.ProcID, need sigma.Rights) error {
	v := r.tree.view
	if v == nil || r.tree.principal.Proc == id {
		return nil
	}
	granted := v.AllProcs()
	if granted&need == need {
		return nil
	}
	at, ok := r.tree.k.remote.Find(ctx, r.realm, id)
	switch {
	case ok && slices.Contains(at.Kin, r.tree.principal.Proc):
		return nil
	case ok && granted&sigma.RightRead != 0:
		return &sigma.Error{Op: "kernel.procs", Kind: sigma.KindPermission,
			Msg: "the proc's view shows other procs for reading only"}
	}
	return procs.Unknown(id)
}

// kinAt gives those of one machine's procs that are of's kin, for a listing of /proc.
func (r *root) kinAt(ctx context.Context, m sigma.MachineID, after uint64, of sigma.ProcID) (es []sigma.DirEntry,
	more bool) {
	infos, seqs, more, _, err := r.tree.k.remote.ListOf(ctx, m, r.realm, true, after, of)
	if err != nil {
		return nil, false
	}
	for i := range infos {
		name := string(infos[i].ID)
		es = append(es, sigma.DirEntry{Name: name, ID: sigma.FileID{Kind: sigma.KindDir,
			Path: viewfs.PathID(sigma.JoinPath(sigma.NameProc, name))}, Next: seqs[i]})
	}
	return es, more
}
