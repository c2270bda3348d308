package resolve

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// fencedDir is a directory under which requests carry a fence.
type fencedDir struct {
	names []string
	fence sigma.Fence
}

// AdvanceEpoch adds one to the epoch in the file at path, which is made if there is none, and
// returns the fence of the new epoch (000 §3.6). Nobody else gets the same epoch. The fence's name
// is the path that the file has after all links.
//
// The file is an ordinary one: the epoch in decimal digits, a space, and a word of whoever advanced
// it last, by which one whose reply was lost finds out that it was done.
func (t *Tree) AdvanceEpoch(ctx context.Context, path string) (sigma.Fence, error) {
	const op = "resolve.AdvanceEpoch"
	ctx =
		sigma.WithSync(
			WithoutFence(
				// it has to be possible for a leader that was deposed before, and what is
				// remembered on the way may be old
				ctx))
	word := rand.Text()[:12]
	for {
		var r sigma.GetResult
		c, err := t.at(ctx, path, true, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
			r, stop, err = treeserver.Get(ctx, f, names, 0, epochFileMax+1)
			return stop, err
		})
		epoch := sigma.Epoch(0)
		switch {
		case err == nil:
			var by string
			if epoch, by, err = parseEpoch(r.Data); err != nil {
				return sigma.Fence{}, withPath(err, path)
			}
			if by == word {
				return sigma.Fence{Name: sigma.JoinPath(c.path...), Epoch: epoch}, nil
			}
		case sigma.KindOf(err) != sigma.KindNotFound:
			return sigma.Fence{}, err
		}
		o := sigma.PutOptions{Perm: 0o644, MustMake: err != nil}
		if !o.MustMake {
			o.IfVersion = r.ID.Version
		}
		if epoch+1 == 0 {
			return sigma.Fence{}, &sigma.Error{Op: op, Path: path, Kind: sigma.KindInvalid,
				Msg: "there is no epoch after the one in the file"}
		}
		var stopped *cursor
		stopped, err = t.at(ctx, path, false, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
			_, stop, err = treeserver.Put(ctx, f, names, fmt.Appendf(nil, "%d %s\n", uint64(epoch+1), word), o)
			return stop, err
		})
		switch sigma.KindOf(err) {
		case sigma.KindVersion, sigma.KindExists: // somebody else was faster
		case sigma.KindLost: // the word will tell
		default:
			if err != nil {
				return sigma.Fence{}, err
			}
		}
		if err == nil {
			return sigma.Fence{Name: sigma.JoinPath(stopped.path...), Epoch: epoch + 1}, nil
		}
		if ctx.Err() != nil {
			return sigma.Fence{}, sigma.Wrap(op, path, ctx.Err())
		}
	}
}

// epochFileMax bounds an epoch file: 20 digits, a space, and a word.
const epochFileMax = 100

// parseEpoch reads an epoch file; an empty one is that of a service that had no leader yet.
func parseEpoch(data []byte) (epoch sigma.Epoch, by string, err error) {
	if len(data) == 0 {
		return 0, "", nil
	}
	words := strings.Fields(string(data[:min(len(data), epochFileMax+1)]))
	if len(words) == 0 || len(words) > 2 || len(data) > epochFileMax {
		return 0, "", badEpoch()
	}
	n, perr := strconv.ParseUint(words[0], 10, 64)
	if perr != nil {
		return 0, "", badEpoch()
	}
	if len(words) == 2 {
		by = words[1]
	}
	return sigma.Epoch(n), by, nil
}

func badEpoch() error {
	return &sigma.Error{Op: "resolve.AdvanceEpoch", Kind: sigma.KindInvalid, Msg: "the file does not hold an epoch",
		Hint: "write the epoch to go on from in decimal digits, one that no leader had yet, or remove the file if " +
			"there was none"}
}

// FenceAtEpoch makes all requests for dir and what is under it, from now on, carry f, whatever
// links the path goes through and whichever server it ends at: each of them refuses the request
// (KindStale) once it has seen one of a newer epoch. Files that were opened before carry what they
// were opened with. Fencing dir again replaces its fence, but not by an older epoch of the same
// (KindStale); an f without a name ends it. Of directories in each other the innermost counts. A
// directory may be missing, or a file. Calls on endpoints, and file descriptors that were passed,
// carry no fence.
func (t *Tree) FenceAtEpoch(_ context.Context, f sigma.Fence, dir string) error {
	const op = "resolve.FenceAtEpoch"
	names, err := sigma.ParsePath(dir)
	if err != nil {
		return err
	}
	if f.Name != "" && f.Epoch == 0 || len(f.Name) > sigma.PathMax || f.Name == "" && f.Epoch != 0 {
		return &sigma.Error{Op: op, Path: dir, Kind: sigma.KindInvalid, Msg: "a fence has a name and an epoch from 1",
			Hint: "AdvanceEpoch makes one"}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var now []fencedDir
	if p := t.fences.Load(); p != nil {
		now = slices.Clone(*p)
	}
	i := slices.IndexFunc(now, func(d fencedDir) bool { return slices.Equal(d.names, names) })
	switch {
	case i >= 0 && now[i].fence.Name == f.Name && f.Epoch < now[i].fence.Epoch:
		return &sigma.Error{Op: op, Path: dir, Kind: sigma.KindStale,
			Msg: fmt.Sprintf("the directory is fenced at epoch %d already", now[i].fence.Epoch)}
	case i >= 0:
		now = slices.Delete(now, i, i+1)
	case len(now) >= fencedDirsMax:
		return sigma.Errorf(op, sigma.KindBusy, "%d directories are fenced", len(now))
	}
	if f.Name != "" {
		now = append(now, fencedDir{names, f})
	}
	t.fences.Store(&now)
	return nil
}

// fencedDirsMax bounds the directories that one program fences; each request is compared with all
// of them.
const fencedDirsMax = 64

type noFenceKey struct{}

// WithoutFence makes requests carry no fence of FenceAtEpoch, as those have to by which a program
// stands for election again.
func WithoutFence(ctx context.Context) context.Context {
	return context.WithValue(ctx, noFenceKey{}, true)
}
