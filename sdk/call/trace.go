package call

import (
	"context"
	"encoding/hex"

	"sigmaos.dev/sigma"
)

// Trace is a W3C trace context: what a span that a call belongs to is known by. Calls carry it;
// this package makes none and reports none.
type Trace struct {
	ID    [16]byte
	Span  [8]byte
	Flags byte // 1: sampled
}

// traceparent is the length of the only version of the text there is: 00-ID-SPAN-FLAGS.
const traceparent = 55

// ParseTrace reads the value of a traceparent header.
func ParseTrace(text string) (t Trace, err error) {
	ok := len(text) == traceparent && text[:3] == "00-" && text[35] == '-' && text[52] == '-'
	for _, part := range []struct {
		into     []byte
		from, to int
	}{{t.ID[:], 3, 35}, {t.Span[:], 36, 52}} {
		if ok {
			_, err := hex.Decode(part.into, []byte(text[part.from:part.to]))
			ok = err == nil
		}
	}
	var flags [1]byte
	if ok {
		_, err := hex.Decode(flags[:], []byte(text[53:]))
		ok = err == nil && t.ID != [16]byte{} && t.Span != [8]byte{}
	}
	if t.Flags = flags[0]; !ok || t.String() != text { // upper case is not allowed
		return Trace{}, &sigma.Error{Op: "call.ParseTrace", Kind: sigma.KindInvalid, Msg: "that is no traceparent",
			Hint: "it is 00-TRACE-SPAN-FLAGS in lower-case hexadecimal digits"}
	}
	return t, nil
}

// String gives the value of a traceparent header.
func (t Trace) String() string {
	b := append(make([]byte, 0, traceparent), "00-"...)
	b = append(hex.AppendEncode(b, t.ID[:]), '-')
	b = append(hex.AppendEncode(b, t.Span[:]), '-')
	return string(hex.AppendEncode(b, []byte{t.Flags}))
}

type traceKey struct{}

// WithTrace gives calls that are made with the context it returns a trace context.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, &t)
}

// TraceOf gives the trace context of a handler's call, or that of WithTrace. A handler's own calls
// carry it on if they are made with its context.
func TraceOf(ctx context.Context) (Trace, bool) {
	t, ok := ctx.Value(traceKey{}).(*Trace)
	if !ok || t == nil {
		return Trace{}, false
	}
	return *t, true
}

func traceOf(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}
