package sigma

import (
	"context"
	"encoding/base64"
	"net"
	"strings"
)

// EndpointID is a number of 128 bits, in text: 80 nobody can guess, the others say whose it is, so
// that a proc can listen there again when sigmad was started again.
type EndpointID string

// Endpoint is a capability to connect to one listener of one proc (001 §3.2). It is made by the
// machine, published as a file of KindEndpoint, and useless in another realm.
type Endpoint struct {
	Realm   RealmID
	Machine MachineID
	Proc    ProcID
	ID      EndpointID
	Form    ConnForm
}

// ConnForm is the shape of an endpoint's connections.
type ConnForm string

// The forms.
const (
	FormStream ConnForm = "stream" // bytes
	FormTree   ConnForm = "tree"   // sigmaP messages, one a record; walks go through
)

const endpointPrefix = "sigma-endpoint/1"

// String prints the endpoint as the content of its file: one line of space-separated words.
func (e Endpoint) String() string {
	return strings.Join([]string{endpointPrefix, string(e.Realm), string(e.Machine), string(e.Proc), string(e.ID),
		string(e.Form)}, " ")
}

// ParseEndpoint reads what String prints.
func ParseEndpoint(s string) (Endpoint, error) {
	w := strings.Split(s, " ")
	e := Endpoint{}
	ok := len(s) < 512 && len(w) == 6 && w[0] == endpointPrefix
	if ok {
		e = Endpoint{RealmID(w[1]), MachineID(w[2]), ProcID(w[3]), EndpointID(w[4]), ConnForm(w[5])}
		id, err := base64.RawURLEncoding.Strict().DecodeString(w[4])
		ok = err == nil && len(id) == 16 && len(w[4]) == 22 && // the decoder skips line ends, so the length counts too
			len(w[3]) <= 64 && strings.IndexFunc(w[3], notProcLetter) < 0 && e.Realm.Check() == nil &&
			e.Machine.Check() == nil && (e.Form == FormStream || e.Form == FormTree)
	}
	if !ok {
		return Endpoint{}, Errorf("sigma.ParseEndpoint", KindInvalid, "%.80q is not an endpoint", s)
	}
	return e, nil
}

func notProcLetter(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' }

// Endpoints is how a proc listens and connects (001 Table 1: NewSigmaEP, Accept, Dial, CloseEP).
// Safe for concurrent use.
type Endpoints interface {
	// Listen makes an endpoint of the calling proc. Closing the listener, or the proc's end, ends
	// the endpoint. While the proc accepts, the listener outlives sigmad.
	Listen(ctx context.Context, form ConnForm) (Listener, error)
	// Dial connects to e. KindPermission if e belongs to another realm, KindUnavailable if its
	// listener is gone or its queue is full.
	Dial(ctx context.Context, e Endpoint) (net.Conn, error)
}

// Listener is a net.Listener whose connections know who called.
type Listener interface {
	net.Listener
	Endpoint() Endpoint
	// AcceptFrom is Accept that also tells who dialled, as its machine says.
	AcceptFrom(ctx context.Context) (net.Conn, Principal, error)
}
