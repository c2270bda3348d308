package once

import (
	"context"
	"fmt"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

// ResultMax is the size of a result in bytes. What is larger is put into a file, whose path is the
// result.
const ResultMax = 48 << 10

// leaseOfOwner is how long an owner that is cut off keeps others from doing the task.
const leaseOfOwner = 5 * time.Second

const retryPause = 50 * time.Millisecond

// Do gives the result of the task of a directory, which is made. If there is none yet, Do waits for
// its turn and does it: do is called with a context that ends when the task is another's, and with
// the fence of this attempt. If do fails, so does Do, and the next who waits tries.
func Do(ctx context.Context, n sigma.Namespace, dir string,
	do func(ctx context.Context, f sigma.Fence) ([]byte, error)) ([]byte, error) {
	const op = "once.Do"
	result, err := read(ctx, n, dir)
	if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return result, sigma.Wrap(op, dir, err)
	}
	if err := n.MkdirAll(ctx, dir, 0o755); err != nil {
		return nil, sigma.Wrap(op, dir, err)
	}
	for {
		result, again, err := attempt(ctx, n, dir, do)
		if !again || ctx.Err() != nil {
			return result, sigma.Wrap(op, dir, err)
		}
		if !retry.Pause(ctx, retryPause) {
			return nil, sigma.Wrap(op, dir, ctx.Err())
		}
	}
}

// Result gives the result of a task that was done, else KindNotFound.
func Result(ctx context.Context, n sigma.Namespace, dir string) ([]byte, error) {
	result, err := read(ctx, n, dir)
	return result, sigma.Wrap("once.Result", dir, err)
}

func read(ctx context.Context, n sigma.Namespace, dir string) ([]byte, error) {
	result, _, err := n.Get(sigma.WithSync(ctx), dir+"/result")
	return result, err
}

// attempt waits until the task is the caller's, and does it unless it is done by then. again: the
// task was lost, or it is not known what became of it.
func attempt(ctx context.Context, n sigma.Namespace, dir string,
	do func(ctx context.Context, f sigma.Fence) ([]byte, error)) (result []byte, again bool, err error) {
	lease, revoke, err := n.Lease(ctx, leaseOfOwner)
	if err != nil {
		return nil, unsure(err), err
	}
	defer func() { revoke(context.WithoutCancel(ctx)) }()
	id, err := n.Put(ctx, dir+"/owner", nil, sigma.PutOptions{MustMake: true, Wait: true, Lease: lease})
	if err != nil { // with KindNotFound the lease had ended
		return nil, unsure(err) || sigma.KindOf(err) == sigma.KindNotFound, err
	}
	result, err = read(ctx, n, dir)
	if err == nil || sigma.KindOf(err) != sigma.KindNotFound {
		return result, unsure(err), err
	}
	fence, err := n.AdvanceEpoch(ctx, dir+"/epoch")
	if err != nil {
		return nil, unsure(err), err
	}
	fenced := sigma.WithFence(ctx, fence)
	if _, err := n.Stat(fenced, dir); err != nil { // from now on former owners are refused
		return nil, unsure(err), err
	}
	owning, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if watchOwner(owning, n, dir+"/owner", id) {
			cancel(sigma.Errorf("once.Do", sigma.KindStale, "the task is another's"))
		}
	}()
	result, err = do(owning, fence)
	lost := owning.Err() != nil && ctx.Err() == nil
	if err != nil {
		return nil, lost, err
	}
	if len(result) > ResultMax {
		return nil, false, &sigma.Error{Op: "once.Do", Path: dir, Kind: sigma.KindTooBig,
			Msg:  fmt.Sprintf("the result has %d bytes; the most are %d", len(result), ResultMax),
			Hint: "put it into a file whose name has the fence's epoch, and return its path"}
	}
	_, err = n.Put(fenced, dir+"/result", result, sigma.PutOptions{MustMake: true})
	return result, unsure(err), err
}

// unsure tells whether an attempt that failed so is to be made again, which finds out what became
// of it.
func unsure(err error) bool {
	if err == nil {
		return false
	}
	kind := sigma.KindOf(err)
	return kind == sigma.KindLost || kind == sigma.KindStale || kind == sigma.KindExists || kind.Retryable()
}

// watchOwner is true when the owner's file is gone, or another one, before ctx ends.
func watchOwner(ctx context.Context, n sigma.Namespace, path string, id sigma.FileID) bool {
	for v := id.Version; ctx.Err() == nil; {
		now, err := n.Watch(ctx, path, v)
		switch {
		case err == nil:
			if st, serr := n.Stat(sigma.WithSync(ctx), path); serr == nil && st.ID.Path != id.Path {
				return true
			}
			v = now
		case sigma.KindOf(err) == sigma.KindNotFound:
			return ctx.Err() == nil
		default:
			retry.Pause(ctx, retryPause)
		}
	}
	return false
}
