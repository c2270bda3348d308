package remote

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"github.com/minio/minio-go/v7"

	"sigmaos.dev/sigma"
)

// fault is what went wrong with one request to the store.
type fault struct {
	status  int  // of HTTP; 0 if there was no answer
	again   bool // the same request may go well later
	unknown bool // it may have taken effect
	err     *sigma.Error
}

// errGarbage is an answer that is not S3's, or is not what was asked for.
type errGarbage struct{ what string }

func (e errGarbage) Error() string { return "the object store answered " + e.what }

// errDial is why there is no connection. It does not unwrap: what is wrong with the way is not what
// is wrong with a request.
type errDial struct{ cause error }

func (e errDial) Error() string { return "no connection: " + e.cause.Error() }

// judge says what an error of the client means. The store's own words are quoted, bounded; they
// never hold our secret.
func judge(op, path string, err error) fault {
	make := func(kind sigma.Kind, msg, hint string) *sigma.Error {
		return &sigma.Error{Op: op, Path: path, Kind: kind, Msg: msg, Hint: hint}
	}
	var dial errDial
	var own *sigma.Error
	var garbage errGarbage
	var reply minio.ErrorResponse
	switch {
	case errors.As(err, &dial):
		why := brief(dial.cause.Error())
		if errors.As(dial.cause, &own) && own.Msg != "" {
			why = own.Msg
		}
		e := make(sigma.KindUnavailable, "the object store cannot be reached: "+why, "see sigma doctor")
		return fault{again: sigma.KindOf(dial.cause) != sigma.KindPermission, err: e}
	case errors.As(err, &own):
		return fault{err: own}
	case errors.As(err, &garbage):
		return fault{again: true, unknown: true, err: make(sigma.KindUnavailable, garbage.Error(),
			"is it an object store of S3's kind?")}
	case errors.As(err, &reply) && reply.StatusCode != 0:
		return judgeReply(make, reply)
	case errors.Is(err, context.Canceled):
		return fault{unknown: true, err: make(sigma.KindCanceled, "canceled while the object store was asked", "")}
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return fault{again: true, unknown: true, err: make(sigma.KindTimeout, "the object store did not answer in time",
			"see sigma doctor")}
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault{again: true, unknown: true, err: make(sigma.KindUnavailable,
			"the object store cut its answer short", "")}
	}
	var syntax *xml.SyntaxError
	var shape xml.UnmarshalError
	if errors.As(err, &syntax) || errors.As(err, &shape) || reply.Code != "" {
		return fault{again: true, unknown: true, err: make(sigma.KindUnavailable,
			"the object store answered what is not S3", "is it an object store of S3's kind?")}
	}
	var toNet *net.OpError
	if errors.As(err, &toNet) && toNet.Op == "dial" {
		return fault{again: true, err: make(sigma.KindUnavailable, "the object store cannot be reached",
			"see sigma doctor")}
	}
	return fault{again: true, unknown: true, err: &sigma.Error{Op: op, Path: path, Kind: sigma.KindUnavailable,
		Msg: "the object store cannot be asked", Err: errors.New(brief(err.Error()))}}
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// judgeReply is judge of an answer of the store.
func judgeReply(make func(sigma.Kind, string, string) *sigma.Error, r minio.ErrorResponse) fault {
	said := fmt.Sprintf("the object store says %s (%d)", brief(r.Code), r.StatusCode)
	if r.Code == "" {
		said = fmt.Sprintf("the object store says %d", r.StatusCode)
	}
	f := fault{status: r.StatusCode}
	switch {
	case r.Code == "NoSuchBucket":
		f.err = make(sigma.KindUnavailable, "the bucket of the object store in which objects are kept does not exist",
			"make it, or name another: sigma s3 store set")
	case r.StatusCode == http.StatusNotFound:
		f.err = make(sigma.KindNotFound, "", "")
	case r.StatusCode == http.StatusPreconditionFailed || r.StatusCode == http.StatusConflict &&
		r.Code == "ConditionalRequestConflict":
		f.err = make(sigma.KindVersion, "the object was changed by another", "")
	case r.Code == "SlowDown" || r.StatusCode == http.StatusTooManyRequests || r.Code == "Throttling" ||
		r.Code == "RequestLimitExceeded":
		f.again, f.err = true, make(sigma.KindBusy, said, "the store limits the rate of requests: ask less often")
	case r.Code == "QuotaExceeded" || r.Code == "XMinioStorageFull" || r.StatusCode == http.StatusInsufficientStorage:
		f.err = make(sigma.KindNoSpace, said, "make room in the object store")
	case r.StatusCode == http.StatusNotImplemented || r.StatusCode == http.StatusMethodNotAllowed:
		f.err = make(sigma.KindUnsupported, said, "")
	case r.StatusCode >= 500:
		f.again, f.unknown, f.err = true, true, make(sigma.KindUnavailable, said, "see sigma doctor")
	case r.StatusCode == http.StatusForbidden || r.StatusCode == http.StatusUnauthorized:
		f.err = make(sigma.KindPermission, said,
			"the store refuses what its credentials ask for: are they right, and may they write? sigma s3 store set "+
				"names others")
	case r.Code == "EntityTooLarge":
		f.err = make(sigma.KindTooBig, said, "")
	default:
		f.err = make(sigma.KindInvalid, said+": "+brief(r.Message), "")
	}
	return f
}

// brief bounds a text of the store's, and takes the tricks out of it.
func brief(s string) string {
	const most = 200
	q := strconv.Quote(s[:min(len(s), most)])
	return q[1 : len(q)-1]
}
