package forge

import (
	"bytes"
	"context"
	"errors"
	"time"

	"sigmaos.dev/sigma"
)

// ListenAtFormer is the name of the one of Former's that no other proc of that realm could do
// either.
const ListenAtFormer = "listen at its endpoint"

// formerMax bounds each of Former's: who is waited for may not be there.
const formerMax = 5 * time.Second

// Former goes for what a former realm of the same name had (Env.Other), and gives for each whether
// it was had: nil. In that realm itself all but the last are.
func Former(ctx context.Context, e *Env) map[string]error {
	reads := func(path string) func(context.Context) error {
		return func(ctx context.Context) error {
			b, _, err := e.C.Get(ctx, path)
			if err == nil && !bytes.Contains(b, []byte(e.Other.Secret)) {
				err = errors.New("it is another's")
			}
			return err
		}
	}
	out := map[string]error{}
	for name, try := range map[string]func(context.Context) error{
		"read its name":              reads(Names),
		"read its object":            reads(Object),
		"read its scratch":           reads(UX + "/secret"),
		"read what its proc printed": reads("/proc/" + string(e.Other.Proc) + "/stdout"),
		"read its database": func(ctx context.Context) error {
			return selects(ctx, e, Database, "select text from "+table)
		},
		"wait for its proc": func(ctx context.Context) error { return e.C.WaitStart(ctx, e.Other.Proc) },
		"dial its endpoint": func(ctx context.Context) error {
			return dial(ctx, e.C, e.Other.Endpoint, func(*sigma.Endpoint) {})
		},
		"dial by a name of it": func(ctx context.Context) error { return dialNamed(ctx, e) },
		ListenAtFormer:         func(ctx context.Context) error { return listenAgain(ctx, e.C, e.Other.Endpoint) },
	} {
		within, cancel := context.WithTimeout(ctx, formerMax)
		out[name] = try(within)
		cancel()
	}
	return out
}

// dialNamed publishes the endpoint's text in this realm and dials by path.
func dialNamed(ctx context.Context, e *Env) error {
	const path = "/former"
	if _, err := e.C.Put(ctx, path, []byte(e.Other.Endpoint), sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		return err
	}
	conn, err := e.C.DialPath(ctx, path)
	if err == nil {
		conn.Close()
	}
	return err
}
