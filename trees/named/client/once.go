package client

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/session"
	"sigmaos.dev/wire/sigmap"
)

// forgetPause is for how long clients that are gone are gathered.
const forgetPause = time.Second

// Forget tells named, some time later, that these clients are gone, so that it need not remember
// them: no mutation of theirs comes through this Realm any more. If it cannot be told, it forgets
// them when they were idle for long.
func (r *Realm) Forget(clients []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.gone)+len(clients) > sigmap.ForgetMax {
		return
	}
	if r.gone = append(r.gone, clients...); len(r.gone) == len(clients) {
		time.AfterFunc(forgetPause, r.tellGone)
	}
}

func (r *Realm) tellGone() {
	r.mu.Lock()
	gone, now := r.gone, r.now
	r.gone = nil
	r.mu.Unlock()
	if now == nil || !now.live() {
		return
	}
	if root, ok := now.Root.(sigma.Caller); ok {
		ctx, cancel := context.WithTimeout(context.Background(), resendMax)
		defer cancel()
		sigmap.CallForget.Tell(ctx, root, gone)
	}
}

// number gives ctx a number of this machine's for one mutation, unless who asks has numbered it.
// done is called when its outcome is not waited for any more.
func (r *Realm) number(ctx context.Context) (once sigma.Once, done func()) {
	if once = sigma.OnceOf(ctx); once.Client != 0 {
		return once, func() {}
	}
	l := r.lanes.Take()
	return l.Next(), func() { r.lanes.Return(l) }
}

// attempts is one request, which is made again when its session was lost on the way.
type attempts struct {
	f     *File
	most  time.Duration // for which one attempt waits for named; 0 = for ever, because what it waits for need not come
	until time.Time
	told  int        // how often named itself said that the outcome is not known
	once  sigma.Once // of a mutation; Client 0 = it may be made again without
	busy  struct {   // of answers with KindBusy, one after another
		until time.Time
		pause time.Duration
	}
}

// read makes a request that changes nothing.
func (f *File) read(ctx context.Context, do func(ctx context.Context, b *binding) error) error {
	a := attempts{f: f, most: readMax}
	return a.run(ctx, do)
}

// await is read that waits for something to happen.
func (f *File) await(ctx context.Context, do func(ctx context.Context, b *binding) error) error {
	a := attempts{f: f}
	return a.run(ctx, do)
}

// mutate makes a request that changes something, once.
func (f *File) mutate(ctx context.Context, c *change, do func(ctx context.Context, b *binding) error) error {
	once, done := f.realm.number(ctx)
	defer done()
	a := attempts{f: f, once: once, most: resendMax}
	if c.waits {
		a.most = 0
	}
	err := a.run(ctx, do)
	c.err = err
	f.realm.front.changed(*c)
	return err
}

func (a *attempts) run(ctx context.Context, do func(ctx context.Context, b *binding) error) error {
	for {
		began := time.Now()
		b, err := a.attempt(ctx, do)
		kind := sigma.KindOf(err)
		switch {
		case err == nil:
			return nil
		case b == nil, session.Abandoned(err), ctx.Err() != nil && (kind == sigma.KindCanceled ||
			kind == sigma.KindTimeout):
			return a.givenUp(ctx, err)
		case kind == sigma.KindLost, kind == sigma.KindCanceled &&
			ctx.Err() == nil: // not by who asks: the server ends just now
			a.once.Again = a.once.Client != 0
		case kind == sigma.KindBusy:
			if !a.rest(ctx) {
				return a.givenUp(ctx, err)
			}
			continue
		case kind != sigma.KindUnavailable:
			return err
		}
		a.busy.until = time.Time{} // it was not busy, but away
		if a.until.IsZero() ||
			time.Since(began) > resendMax {
			// one that waits, for a change or a name, waits for longer than named is away
			a.until, a.told = time.Now().Add(resendMax), 0
		}
		over := b.at.over(ctx)
		if !over {
			a.told++
		}
		if ctx.Err() != nil || time.Now().After(a.until) || !over && !a.once.Again || a.told > toldMax {
			return a.givenUp(ctx, err)
		}
	}
}

// rest waits before a request is made again that was refused because too many wait, longer each
// time, and says whether it is to be.
func (a *attempts) rest(ctx context.Context) bool {
	if a.busy.until.IsZero() {
		a.busy.until, a.busy.pause = time.Now().Add(busyMax), busyPause
	}
	if time.Now().After(a.busy.until) {
		return false
	}
	pause := time.NewTimer(a.busy.pause/2 +
		rand.N(a.busy.pause)) // who was refused together does not come back together
	defer pause.Stop()
	a.busy.pause = min(2*a.busy.pause, busyPauseMost)
	select {
	case <-pause.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// attempt makes the request once. b is nil if nothing more is to be asked.
func (a *attempts) attempt(ctx context.Context, do func(ctx context.Context, b *binding) error) (b *binding,
	err error) {
	asked := ctx
	if a.most > 0 {
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, a.most)
		defer cancel()
	}
	if a.once.Client != 0 {
		asked = sigma.WithOnce(asked, a.once)
	}
	b, err = a.f.bind(asked)
	if err != nil {
		return nil, err
	}
	err = do(asked, b)
	if err != nil && sigma.KindOf(err) == sigma.KindTimeout &&
		ctx.Err() == nil { // named is stopped, or has lost its way
		a.once.Again = a.once.Client != 0
		return nil, &sigma.Error{Op: "names.request", Kind: sigma.KindUnavailable,
			Msg: fmt.Sprintf("the name service has not answered for %v", a.most), Hint: hintAway, Err: err}
	}
	return b, err
}

// over waits for a moment whether the session ends, after something was answered that may mean
// that.
func (at *attachment) over(ctx context.Context) bool {
	pause := time.NewTimer(lostPause)
	defer pause.Stop()
	select {
	case <-at.Done:
		return true
	case <-pause.C:
	case <-ctx.Done():
	}
	return !at.live()
}

// givenUp is the error of a request that is not tried again. Its last attempt was not carried out;
// an earlier one may have been.
func (a *attempts) givenUp(ctx context.Context, err error) error {
	const op = "names.request"
	switch {
	case ctx.Err() != nil && a.most == 0 && session.Abandoned(err):
		return err
	case ctx.Err() != nil && a.most == 0:
		return sigma.Wrap(op, "", ctx.Err())
	case ctx.Err() != nil:
		e := &sigma.Error{Op: op, Kind: sigma.KindOf(ctx.Err()), Msg: "the name service has not answered",
			Hint: hintAway, Err: err}
		if kind := sigma.KindOf(err); kind == sigma.KindUnavailable ||
			kind == sigma.KindBusy { // it, or who looked for it, says why
			e.Msg, e.Hint, e.Err = err.Error(), cmp.Or(sigma.HintOf(err), hintAway), ctx.Err()
		}
		return e
	case a.once.Client != 0 && a.once.Again && sigma.KindOf(err) != sigma.KindLost:
		return &sigma.Error{Op: op, Kind: sigma.KindLost,
			Msg:  "it is unknown whether the change was made: the name service did not answer, and cannot be asked",
			Hint: cmp.Or(sigma.HintOf(err), hintAway), Err: err}
	}
	return err
}

// hintAway is for who gets no answer of named.
const hintAway = "sigma status shows whether named runs, sigma machine ls which control machines are there; what was read lately may be read from memory: sigma cat --stale"
