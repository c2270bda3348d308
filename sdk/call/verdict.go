package call

import (
	"context"
	"errors"

	"sigmaos.dev/sigma"
)

// A call of a service whose members divide keys among themselves may reach a member that does not
// own its key. That member refuses it by Redirect, and names the owner, or has the owner answer it
// by Router.Forward. Both verdicts tell the caller who the owner is. A Router follows them.

// memberMax bounds the bytes of a member's name in a verdict.
const memberMax = 255

// verdict is the cause of an error that names the owner.
type verdict struct {
	owner    string
	received bool // from a server; else it is a handler's own, which callers are to be told
}

func (v *verdict) Error() string { return "the owner is " + v.owner }

// Redirect makes the error of a handler that refuses a call because another member owns what it is
// for. The call must have had no effect: the caller makes it there. owner has 1 to 255 bytes.
func Redirect(owner string) error { return redirect(&verdict{owner: owner}) }

func redirect(v *verdict) error {
	if n := len(v.owner); n == 0 || n > memberMax {
		return sigma.Errorf("call.Redirect", sigma.KindInvalid, "a member's name has %d bytes", n)
	}
	return &sigma.Error{Op: "call.Redirect", Kind: sigma.KindStale, Msg: "another member owns what the call is for",
		Hint: "call by a call.Router, which follows", Err: v}
}

// Owner gives the member that an error of Redirect names, as a handler made it or a Client got it.
func Owner(err error) (member string, ok bool) {
	var v *verdict
	if !errors.As(err, &v) {
		return "", false
	}
	return v.owner, true
}

// redirection gives the owner that a handler's error tells the caller of. An error that the handler
// got from another service is none.
func redirection(err error) (owner string, ok bool) {
	var v *verdict
	if !errors.As(err, &v) || v.received {
		return "", false
	}
	return v.owner, true
}

type callKey struct{}

// handled gives the call that a context belongs to; nil if it is no handler's.
func handled(ctx context.Context) *serverCall {
	c, _ := ctx.Value(callKey{}).(*serverCall)
	return c
}

// Forwarded tells a handler that a member makes the call for a caller of its own.
func Forwarded(ctx context.Context) bool {
	c := handled(ctx)
	return c != nil && c.forwarded
}

// appendOwner appends what stands in front of an answer that the owner gave.
func appendOwner(b []byte, owner string) []byte { return append(append(b, byte(len(owner))), owner...) }

// parseOwner reads what appendOwner wrote and gives what follows.
func parseOwner(flags uint8, b []byte) (owner string, rest []byte, err error) {
	if flags&flagOwner == 0 {
		return "", b, nil
	}
	if len(b) == 0 || b[0] == 0 || len(b) <= int(b[0]) {
		return "", nil, invalid("an answer is cut off within the name of the member that owns it")
	}
	n := 1 + int(b[0])
	return string(b[1:n]), b[n:], nil
}

// failure makes the frame that ends a call with an error. owner, unless nil, is the member that it
// comes from.
func failure(id uint32, err error, owner *string) frame {
	f := frame{kind: frameFail, call: id}
	if to, ok := redirection(err); ok {
		f.flags, f.body = flagFirst, []byte(to)
		return f
	}
	if owner != nil {
		f.flags, f.body = flagOwner, appendOwner(nil, *owner)
	}
	f.body = appendError(f.body, err)
	return f
}

// parseFailure reads a frame that ends a call with an error. owner is the member that the error
// comes from, or that a redirection leads to; "" = it is not told.
func parseFailure(f frame) (failed error, owner string, err error) {
	if f.flags&flagFirst != 0 {
		if len(f.body) > memberMax || len(f.body) == 0 {
			return nil, "", invalid("a redirection to a name of %d bytes", len(f.body))
		}
		owner = string(f.body)
		return redirect(&verdict{owner, true}), owner, nil
	}
	owner, rest, err := parseOwner(f.flags, f.body)
	if err != nil {
		return nil, "", err
	}
	e, err := parseError(rest)
	return e, owner, err
}
